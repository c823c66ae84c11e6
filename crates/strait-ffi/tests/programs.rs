//! Programs in C and C++ that use the library as it is installed: the examples, with each compiler, shared and static.

mod common;

use std::process::Command;

use common::{Linkage, c_compilers, cxx_compilers, root, run};

fn echoes(program: &std::path::Path) {
    let output = run(Command::new(program).args(["hello", "", "world"]));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "hello\n\nworld\n", "{program:?}");
}

#[test]
fn echo_in_c() {
    for compiler in c_compilers() {
        for linkage in [Linkage::Shared, Linkage::Static] {
            echoes(&compiler.build(&root().join("examples/echo.c"), linkage, &[]));
        }
    }
}

/// Bad arguments, with every compiler, and with the address sanitizer where it is.
#[test]
fn bad_input_is_a_status() {
    everywhere("tests/c/bad_input.c", &["-D_GNU_SOURCE"]);
}

/// Ends that are closed and sent by one thread while others use them.
#[test]
fn ends_may_be_closed_and_sent_by_other_threads() {
    everywhere("tests/c/threads.c", &["-D_GNU_SOURCE", "-pthread"]);
}

/// Builds and runs a test in C, with and without the address sanitizer.
fn everywhere(source: &str, more: &[&str]) {
    for compiler in c_compilers() {
        let source = root().join(source);
        run(&mut Command::new(compiler.build(&source, Linkage::Shared, more)));
        let sanitized = [more, &["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]].concat();
        if compiler.has_sanitizers() {
            run(&mut Command::new(compiler.build(&source, Linkage::Shared, &sanitized)));
        }
    }
}

/// Everything in C++, without exceptions and run-time types; and, for the address sanitizer, with them.
#[test]
fn results_in_cxx() {
    for compiler in cxx_compilers() {
        let source = root().join("tests/cxx/results.cpp");
        let mut ways = vec![(Linkage::Static, vec!["-pthread", "-O2", "-fno-exceptions", "-fno-rtti"])];
        if compiler.has_sanitizers() {
            ways.push((Linkage::Shared, vec!["-pthread", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]));
        }
        for (linkage, flags) in ways {
            run(&mut Command::new(compiler.build(&source, linkage, &flags)));
        }
    }
}

#[test]
fn exceptions_in_cxx() {
    for compiler in cxx_compilers() {
        let source = root().join("tests/cxx/exceptions.cpp");
        run(&mut Command::new(compiler.build(&source, Linkage::Shared, &["-pthread"])));
    }
}
