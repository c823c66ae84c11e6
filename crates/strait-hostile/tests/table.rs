//! The table of attacks in `docs/maintainers/attacks.md` is complete: each test has a row, and each row names its
//! tests.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Returns the names of all attack tests: of the form `a12_…`, each at the start of a line.
fn tests() -> BTreeSet<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/attacks");
    let mut names = BTreeSet::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let text = std::fs::read_to_string(entry.unwrap().path()).unwrap();
        let is_name = |word: &&str| number_of(word).is_some();
        let first = |line: &str| line.trim().split([' ', '(']).next().filter(is_name).map(str::to_owned);
        let of_functions = text.lines().filter_map(|line| first(line.trim().trim_start_matches("fn ")));
        names.extend(of_functions);
    }
    names
}

/// Returns the number of the attack in the name of a test: `A12` of `a12_…`.
fn number_of(test: &str) -> Option<String> {
    let (number, rest) = test.strip_prefix('a')?.split_once('_')?;
    let is_number = number.len() == 2 && number.bytes().all(|byte| byte.is_ascii_digit());
    let attack = number.parse::<u32>().ok()?;
    (is_number && !rest.is_empty()).then(|| format!("A{attack}"))
}

/// Returns the names of all functions in the tests of all crates and of their modules.
fn functions() -> BTreeSet<String> {
    let (mut folders, mut names) = (vec![root().join("crates")], BTreeSet::new());
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap().map(Result::unwrap) {
            let path = entry.path();
            if entry.file_type().unwrap().is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = std::fs::read_to_string(path).unwrap();
                let of_line = |line: &str| Some(line.trim().strip_prefix("fn ")?.split_once('(')?.0.to_owned());
                names.extend(text.lines().filter_map(of_line));
            }
        }
    }
    names
}

/// Returns the rows of the table: the number of the attack, and the names in the column of tests; a prefix of names
/// ends with `…`.
fn rows() -> Vec<(String, Vec<String>)> {
    let text = std::fs::read_to_string(root().join("docs/maintainers/attacks.md")).unwrap();
    let row = |line: &str| {
        let cells: Vec<_> = line.split('|').map(str::trim).collect();
        let attack = cells.get(1).filter(|cell| number_of(&format!("{}_x", low(cell))).is_some())?;
        // The names of the tests are in the third column or behind it.
        let tests = cells[2..].iter().filter(|cell| cell.starts_with("`a"));
        let names = tests
            .flat_map(|cell| cell.split('`').skip(1).step_by(2).filter(|name| !name.contains('/')).map(str::to_owned));
        Some(((*attack).to_owned(), names.collect()))
    };
    text.lines().filter_map(row).collect()
}

/// Returns the prefix of the tests of an attack: `a07` for `A7`.
fn low(attack: &str) -> String {
    attack.strip_prefix('A').map_or_else(String::new, |number| format!("a{number:0>2}"))
}

/// Returns whether a name in a row of the table stands for this test.
fn is_meant(test: &str, name: &str) -> bool {
    name.strip_suffix('…').map_or(test == name, |begin| test.starts_with(begin))
}

#[test]
fn each_attack_test_has_its_row() {
    let rows = rows();
    assert!(rows.len() > 60, "the table has {} rows", rows.len());
    let has_row = |test: &&String| {
        let is_of = |(number, names): &(String, Vec<String>)| {
            number_of(test).as_ref() == Some(number) && names.iter().any(|name| is_meant(test, name))
        };
        rows.iter().any(is_of)
    };
    let all = tests();
    let without: Vec<_> = all.iter().filter(|test| !has_row(test)).collect();
    assert!(without.is_empty(), "docs/maintainers/attacks.md has no row for {without:#?}");
}

#[test]
fn each_row_has_its_tests() {
    let mut tests = tests();
    assert!(tests.len() > 60, "there are {} attack tests", tests.len());
    // Some of the named tests are in other crates, beside the tested code.
    tests.extend(functions());
    for (attack, names) in rows() {
        assert!(!names.is_empty(), "a row of {attack} in docs/maintainers/attacks.md names no test");
        for name in names {
            assert!(
                tests.iter().any(|test| is_meant(test, &name)),
                "docs/maintainers/attacks.md names {name} for {attack}, and no test is called so"
            );
        }
    }
}
