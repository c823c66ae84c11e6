//! Checks that the C header in the repository is up to date with the sources.
//!
//! `STRAIT_WRITE_HEADER=1 cargo test -p strait-ffi --test header` writes the header.

use std::path::Path;

/// The modules in the order of the header.
const MODULES: [&str; 18] = [
    "status", "deadline", "signals", "options", "channel", "pipe", "handle", "region", "send", "receive", "in_place",
    "calls", "wait_set", "halves", "spawn", "meeting", "peer", "sandbox",
];

fn generated() -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(root.join("cbindgen.toml")).expect("cbindgen.toml");
    let mut builder = cbindgen::Builder::new().with_config(config);
    for module in MODULES {
        builder = builder.with_src(root.join("src").join(module).with_extension("rs"));
    }
    let mut header = Vec::new();
    builder.generate().expect("a header").write(&mut header);
    String::from_utf8(header).expect("text")
}

#[test]
fn the_header_is_up_to_date() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("include/strait/strait.h");
    let generated = generated();
    if std::env::var_os("STRAIT_WRITE_HEADER").is_some() {
        std::fs::write(&path, &generated).expect("the header is written");
    }
    let checked_in = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        generated == checked_in,
        "include/strait/strait.h is out of date: STRAIT_WRITE_HEADER=1 cargo test -p strait-ffi --test header"
    );
}

/// Shows that the header and the version script list the same functions. A function that is missing in the script is
/// not in the shared library. A function that is only in the script keeps the library from being linked, or is
/// promised although it does not exist.
#[test]
fn the_shared_library_has_what_the_header_says() {
    let map = include_str!("../strait.map");
    let mut exported: Vec<&str> = map
        .lines()
        .filter_map(|line| line.trim().strip_suffix(';'))
        .filter(|name| name.starts_with("strait_"))
        .collect();
    exported.sort_unstable();
    let header = generated();
    let mut declared: Vec<&str> = header
        .lines()
        .filter(|line| !line.starts_with([' ', '/', '#', '}']) && !line.starts_with("typedef"))
        .filter_map(|line| line.split_once('('))
        .map(|(before, _)| before.rsplit([' ', '*']).next().expect("a name"))
        .collect();
    declared.sort_unstable();
    declared.dedup();
    assert_eq!(exported, declared, "strait.map and the header differ");
}

#[test]
fn the_header_says_which_version_it_is() {
    let header = generated();
    let number = |name: &str| {
        let (_, after) = header.split_once(&format!("#define STRAIT_VERSION_{name} ")).expect("a number");
        after.lines().next().expect("a number").to_owned()
    };
    assert_eq!([number("MAJOR"), number("MINOR"), number("PATCH")].join("."), env!("CARGO_PKG_VERSION"));
}
