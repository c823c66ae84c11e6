//! The installed library, and compilers for programs.

// Each test program uses a part of the module.
#![allow(dead_code)]

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

/// Returns the directory of the crate.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Prints what is left out, even if the test harness captures output.
pub(crate) fn skip(what: &str, missing: &str) {
    let _ = writeln!(std::io::stderr(), "SKIPPED: {what}: {missing} is missing; .ci/install brings it");
}

/// Runs a command, which must succeed, and returns the output.
pub(crate) fn run(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    output
}

/// Returns whether a program with the given name can be started.
pub(crate) fn has(program: &str) -> bool {
    Command::new(program).arg("--version").output().is_ok_and(|output| output.status.success())
}

/// Returns the directory of the installed library. Each test program builds and installs the library once, as users do.
pub(crate) fn installed() -> &'static Path {
    static INSTALLED: OnceLock<PathBuf> = OnceLock::new();
    INSTALLED.get_or_init(|| {
        // The directory of the build profile, such as target/debug.
        let here = std::env::current_exe().expect("this program");
        let target = here.ancestors().nth(2).expect("target/debug/deps/this");
        let mut build = Command::new(env!("CARGO"));
        build.args(["build", "--package", "strait-ffi", "--target-dir"]).arg(target.parent().expect("target"));
        if !target.ends_with("debug") {
            build.arg("--release");
        }
        run(build.current_dir(root()));
        // Each test program has its own directory, since several may run at the same time.
        let name = here.file_name().and_then(|name| name.to_str()).expect("a name");
        let prefix = target.join("strait-ffi-tests").join(name);
        let _ = std::fs::remove_dir_all(&prefix);
        run(Command::new(root().join("install"))
            .arg("--prefix")
            .arg(&prefix)
            .arg("--library")
            .arg(target.join("libstrait_ffi.a")));
        prefix
    })
}

/// The way of linking a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Linkage {
    Shared,
    Static,
}

/// A compiler, for C or C++.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Compiler {
    pub(crate) program: &'static str,
    pub(crate) standard: &'static str,
}

/// Options of all compilers: many warnings, treated as errors.
pub(crate) const STRICT: [&str; 8] =
    ["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-Wshadow", "-Wconversion", "-Wcast-qual", "-g"];

/// More options for C++.
const STRICT_CXX: [&str; 3] = ["-Wold-style-cast", "-Wnon-virtual-dtor", "-Wextra-semi"];

/// Returns the C compilers of the machine.
pub(crate) fn c_compilers() -> Vec<Compiler> {
    let all = [("gcc", "-std=c99"), ("gcc", "-std=c17"), ("clang", "-std=c11")];
    present(&all)
}

/// Returns the C++ compilers of the machine.
pub(crate) fn cxx_compilers() -> Vec<Compiler> {
    present(&[("g++", "-std=c++20"), ("clang++", "-std=c++20")])
}

fn present(all: &[(&'static str, &'static str)]) -> Vec<Compiler> {
    let mut found = Vec::new();
    for (program, standard) in all {
        if has(program) {
            found.push(Compiler { program, standard });
        } else {
            skip(standard, program);
        }
    }
    found
}

impl Compiler {
    /// Returns whether programs with the address sanitizer can be linked.
    pub(crate) fn has_sanitizers(self) -> bool {
        let source = installed().join("empty.c");
        std::fs::write(&source, "int main(void) { return 0; }\n").expect("an empty program");
        let mut command = Command::new(self.program);
        command.args(["-x", "c", "-fsanitize=address,undefined", "-o"]).arg(installed().join("empty")).arg(&source);
        let linked = command.output().is_ok_and(|output| output.status.success());
        if !linked {
            skip("the address sanitizer", &format!("{}'s run-time library", self.program));
        }
        linked
    }

    /// Compiles and links a program with the installed library, with the options that pkg-config prints.
    pub(crate) fn build(self, source: &Path, linkage: Linkage, more: &[&str]) -> PathBuf {
        let prefix = installed();
        let stem = source.file_stem().and_then(|stem| stem.to_str()).expect("a name");
        let tag: String = more.iter().flat_map(|flag| flag.chars()).filter(char::is_ascii_alphanumeric).collect();
        let program = prefix.join(format!("{stem}-{}{}-{linkage:?}-{tag}", self.program, self.standard));
        let mut command = Command::new(self.program);
        command.arg(self.standard).args(STRICT).arg("-o").arg(&program).arg(source).args(more);
        if self.standard.contains("++") {
            command.args(STRICT_CXX);
        }
        command.args(flags(linkage));
        run(&mut command);
        program
    }
}

/// Returns the compiler options to find the library.
pub(crate) fn flags(linkage: Linkage) -> Vec<String> {
    let prefix = installed();
    let mut ask = Command::new("pkg-config");
    ask.args(["--cflags", "--libs"]);
    if linkage == Linkage::Static {
        ask.arg("--static");
    }
    let answer = run(ask.arg("strait").env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig"))).stdout;
    let answer = String::from_utf8(answer).expect("text");
    let flags = answer.split_whitespace();
    match linkage {
        Linkage::Shared => {
            let at = format!("-Wl,-rpath,{}", prefix.join("lib").display());
            flags.map(str::to_owned).chain([at]).collect()
        }
        // The other libraries of the system stay shared.
        Linkage::Static => flags
            .flat_map(|flag| match flag {
                "-lstrait" => vec!["-Wl,-Bstatic".to_owned(), flag.to_owned(), "-Wl,-Bdynamic".to_owned()],
                _ => vec![flag.to_owned()],
            })
            .collect(),
    }
}
