//! Checks `catalogue.tsv`, which maps each test case of Fuchsia to a test here. Each test that the catalogue names must
//! exist, be a test, and name the case in its comment.

use std::path::Path;

#[test]
fn every_case_is_a_test_or_has_a_reason() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let catalogue = std::fs::read_to_string(directory.join("catalogue.tsv")).unwrap();
    let (mut tests, mut reasons) = (0, 0);
    for line in catalogue.lines().filter(|line| !line.starts_with('#')) {
        let (case, ours) = line.split_once('\t').expect("a case and what comes of it");
        if let Some(reason) = ours.strip_prefix("- ") {
            assert!(!reason.is_empty(), "{case}");
            reasons += 1;
            continue;
        }
        for test in ours.split(", ") {
            let (file, name) = test.split_once("::").expect("a file and a function");
            let source = std::fs::read_to_string(directory.join(file)).unwrap();
            let at = source.find(&format!("fn {name}(")).unwrap_or_else(|| panic!("the test {test} does not exist"));
            // The comment above the test begins after the end of the function before.
            let begin = source[..at].rfind("}\n").unwrap_or(0);
            assert!(source[begin..at].contains(case), "{test} does not name {case}");
        }
        tests += 1;
    }
    assert!(tests > 150 && reasons < 20, "{tests} tests, {reasons} reasons");
}
