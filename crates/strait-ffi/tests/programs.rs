//! Programs in C and C++ that use the library as it is installed: the examples, with each compiler, shared and static.

mod common;

use std::process::Command;

use common::{Linkage, c_compilers, root, run};

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
