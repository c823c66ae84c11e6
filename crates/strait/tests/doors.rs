//! The doors for tests (fault points, hooks of the fuzzers, internals for benchmarks, words of the model checker) are
//! no features of the crates: no dependency of a program can open them.

#[test]
fn no_feature_opens_a_door() {
    for manifest in [include_str!("../Cargo.toml"), include_str!("../../strait-ring/Cargo.toml")] {
        let features = manifest.split("[features]").nth(1).and_then(|rest| rest.split("\n[").next()).unwrap_or("");
        let names = features.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.split_once('='));
        let names: Vec<_> = names.map(|(name, _)| name.trim()).collect();
        assert!(names.is_empty() && !manifest.contains("optional = true"), "{names:?}");
    }
}
