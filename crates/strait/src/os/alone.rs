//! Unit tests that need a process of their own.

/// Returns `true` in a process in which no other test runs. Otherwise runs the calling test in such a process, and
/// returns `false`.
///
/// # Panics
/// If the test fails in that process.
pub(crate) fn is_alone() -> bool {
    const ALONE: &str = "STRAIT_TEST_IS_ALONE";
    if std::env::var_os(ALONE).is_some() {
        return true;
    }
    // The test harness gives the thread the name of the test, unless it runs one test after the other.
    let thread = std::thread::current();
    let Some(name) = thread.name().filter(|name| *name != "main") else { return true };
    let mut program = std::process::Command::new(std::env::current_exe().unwrap());
    let output = program.args(["--exact", name, "--test-threads=1"]).env(ALONE, "1").output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("1 passed"), "{said}{}", String::from_utf8_lossy(&output.stderr));
    false
}
