//! The doors for tests (fault points, hooks of the fuzzers) are no features of the crate: no dependency of a program
//! can open them.

#[test]
fn no_feature_turns_on_fault_points_or_hooks() {
    let manifest = include_str!("../Cargo.toml");
    let features = manifest.split("[features]").nth(1).and_then(|rest| rest.split("\n[").next()).unwrap_or("");
    let names = features.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.split_once('='));
    let names: Vec<_> = names.map(|(name, _)| name.trim()).collect();
    // The feature `benchmarks` only shows internals to the crate `strait-bench`.
    assert_eq!(names, ["benchmarks"]);
}
