//! Compiles a C program with the headers and all warnings as errors, and links it with the static and with the shared
//! library.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Returns the directory of the libraries built by Cargo, which is also the directory of the test programs.
fn libraries() -> PathBuf {
    let program = std::env::current_exe().unwrap();
    program.parent().unwrap().to_path_buf()
}

fn build(source: &str, name: &str, compiler: &[&str], link: &[&str]) -> Option<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let mut command = Command::new(compiler[0]);
    command.args(&compiler[1..]).args(["-Wall", "-Wextra", "-Werror", "-pedantic"]);
    command.arg("-I").arg(root.join("include")).arg(root.join("tests/c").join(source)).arg("-o").arg(&out);
    let status = match command.args(link).status() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return None,
        status => status.unwrap(),
    };
    assert!(status.success(), "{command:?}");
    Some(out)
}

fn run(program: &Path, arguments: &[&str]) {
    let status = Command::new(program).args(arguments).env("LD_LIBRARY_PATH", libraries()).status().unwrap();
    assert!(status.success(), "{program:?}: {status}");
}

#[test]
fn a_c_program_runs_with_the_static_library() {
    let library = libraries().join("libstrait_zx.a");
    let link = [library.to_str().unwrap(), "-lpthread", "-ldl", "-lm"];
    run(&build("program.c", "program-static", &["cc", "-std=c11", "-D_GNU_SOURCE"], &link).expect("a C compiler"), &[]);
}

#[test]
fn a_c_program_runs_with_the_shared_library() {
    let directory = format!("-L{}", libraries().display());
    let link = [directory.as_str(), "-lstrait_zx"];
    run(&build("program.c", "program-shared", &["cc", "-std=c11", "-D_GNU_SOURCE"], &link).expect("a C compiler"), &[]);
}

/// Shows that uses of handles are counted if the kernel refuses `membarrier`, from the start or later.
#[test]
fn handles_are_closed_where_barriers_are_refused() {
    let library = libraries().join("libstrait_zx.a");
    let link = [library.to_str().unwrap(), "-lpthread", "-ldl", "-lm"];
    let program = build("refused.c", "refused", &["cc", "-std=c11", "-D_GNU_SOURCE"], &link).expect("a C compiler");
    run(&program, &["early"]);
    run(&program, &["late"]);
}
