//! Measures what a function call costs from C and from C++, compared with Rust: `cargo bench -p strait-ffi --bench
//! calls`.
//!
//! Messages of 64 bytes are sent and received in one thread, so that only the function calls are measured. The ways
//! take turns, in another order each time; the program prints medians and quartiles.

use std::ffi::{CString, c_char, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use strait::{Channel, Deadline, Message};

const ROUNDS: i64 = 20_000;
const TURNS: usize = 201;

/// Sends and receives messages of a length known to the compiler.
fn rust(rounds: i64) -> i64 {
    let (a, b) = Channel::pair().expect("a channel");
    let mut message = Message::new();
    let bytes = [0; 64];
    let begin = Instant::now();
    for _ in 0..rounds {
        a.try_send(std::hint::black_box(&bytes)).expect("room");
        b.recv_message(&mut message, Deadline::NOW).expect("a message");
    }
    i64::try_from(begin.elapsed().as_nanos()).expect("a short time")
}

/// Sends and receives messages of a length unknown to the compiler, as in a library function with a length argument.
fn rust_unknown(rounds: i64) -> i64 {
    let (a, b) = Channel::pair().expect("a channel");
    let mut message = Message::new();
    let bytes = [0; 64];
    let begin = Instant::now();
    for _ in 0..rounds {
        a.try_send(std::hint::black_box(&bytes[..])).expect("room");
        b.recv_message(&mut message, Deadline::NOW).expect("a message");
    }
    i64::try_from(begin.elapsed().as_nanos()).expect("a short time")
}

/// Runs the given number of rounds, and returns their time in nanoseconds.
type Way = Box<dyn Fn(i64) -> i64>;

type Measure = unsafe extern "C" fn(i64) -> i64;

/// Returns a function of the library at `path`, which stays loaded.
fn load(path: &Path, name: &str) -> Measure {
    let path = CString::new(path.as_os_str().as_bytes()).expect("a path");
    let name = CString::new(name).expect("a name");
    // SAFETY: both arguments are texts. The library was just built from calls.cpp, whose functions have this type.
    unsafe {
        let library = libc::dlopen(path.as_ptr().cast::<c_char>(), libc::RTLD_NOW);
        assert!(!library.is_null(), "{path:?} cannot be loaded");
        let found = libc::dlsym(library, name.as_ptr());
        assert!(!found.is_null(), "{name:?} is missing");
        std::mem::transmute::<*mut c_void, Measure>(found)
    }
}

fn main() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let here = std::env::current_exe().expect("this program");
    let prefix = here.ancestors().nth(2).expect("target/release").join("strait-ffi-bench");
    let done = Command::new(root.join("install")).arg("--prefix").arg(&prefix).status().expect("the library");
    assert!(done.success(), "the library could not be installed");
    let calls = prefix.join("calls.so");
    let compile = |program: &str| {
        let mut command = Command::new(program);
        command.args(["-std=c++20", "-O2", "-shared", "-fPIC", "-o"]).arg(&calls).arg(root.join("benches/calls.cpp"));
        command.arg("-I").arg(prefix.join("include")).arg("-L").arg(prefix.join("lib")).arg("-lstrait");
        command.arg(format!("-Wl,-rpath,{}", prefix.join("lib").display()));
        command.status().is_ok_and(|status| status.success())
    };
    assert!(compile("c++"), "calls.cpp could not be compiled: .ci/install brings a compiler");

    let foreign = |name| {
        let measure = load(&calls, name);
        // SAFETY: the function was loaded by `load`, and has this type.
        move |rounds| unsafe { measure(rounds) }
    };
    let ways: [(&str, Way); 5] = [
        ("Rust", Box::new(rust)),
        ("Rust, of a length not known before", Box::new(rust_unknown)),
        ("C", Box::new(foreign("measure_c"))),
        ("C++", Box::new(foreign("measure_cxx"))),
        ("C, with references in other threads", Box::new(foreign("measure_c_shared"))),
    ];
    let mut figures = vec![Vec::with_capacity(TURNS); ways.len()];
    for turn in 0..TURNS {
        for place in 0..ways.len() {
            let way = (place + turn) % ways.len();
            figures[way].push(ways[way].1(ROUNDS) as f64 / ROUNDS as f64);
        }
    }
    println!("try_send and try_recv of 64 B in one process, ns: median (quartiles), and what is over Rust");
    let mut floor = None;
    for ((name, _), times) in ways.iter().zip(&mut figures) {
        times.sort_by(f64::total_cmp);
        let at = |part: usize| times[times.len() * part / 4];
        let floor = *floor.get_or_insert(at(2));
        println!("{name:<36} {:6.1} ({:.1} to {:.1}) {:+6.1}", at(2), at(1), at(3), at(2) - floor);
    }
}
