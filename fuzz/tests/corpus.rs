//! Every input of the corpus passes: those that once found a fault, and those that together reach everything that the
//! fuzzers have reached.

use std::path::Path;

fn replay(target: &str, run: impl Fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target);
    let mut inputs: Vec<_> = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    inputs.sort();
    assert!(!inputs.is_empty(), "no inputs in {folder:?}");
    for input in &inputs {
        // Shown if the input fails.
        println!("{}", input.display());
        run(&std::fs::read(input).unwrap());
    }
}

/// Runs all inputs of all targets, one after the other, since descriptors are counted.
#[test]
fn the_corpus_is_clean() {
    replay("socket", strait_fuzz::socket);
    replay("memory", strait_fuzz::memory);
    replay("hostile", strait_fuzz::hostile);
    replay("ring", strait_fuzz::ring);
    replay("packet", strait_fuzz::packet);
    replay("table", strait_fuzz::table);
    replay("fidl", strait_fuzz::fidl);
    replay("typed", strait_fuzz::typed);
}
