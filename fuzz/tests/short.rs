//! A short run of the fuzz targets: inputs of the corpus, changed by the same random numbers each time.
//!
//! A fuzzer follows the branches that an input reaches. These are never quite the same twice, so a fuzzer tries other
//! inputs each time. It finds more, but it is no test: it would fail for a change that has nothing to do with the
//! fault. The inputs here are the same until the corpus changes.

use std::path::Path;

use fastrand::Rng;

/// The number of changed inputs that are tried for each target.
const INPUTS: usize = 2500;

/// The number of bytes of an instruction of a program; other inputs have words of this size.
const PIECE: usize = 8;

/// The greatest length of an input in bytes, as with the fuzzers; longer inputs are cut off.
const LONGEST: usize = 1544;

fn corpus(target: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target);
    let mut inputs: Vec<_> = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    inputs.sort();
    inputs.iter().map(|path| std::fs::read(path).unwrap()).collect()
}

/// Returns a random offset between two pieces.
fn place(input: &[u8], random: &mut Rng) -> usize {
    random.usize(..=input.len() / PIECE) * PIECE
}

/// Returns up to four successive pieces of the input.
fn pieces<'a>(input: &'a [u8], random: &mut Rng) -> &'a [u8] {
    let begin = place(input, random);
    let len = random.usize(1..=4) * PIECE;
    &input[begin..input.len().min(begin + len)]
}

fn change(input: &mut Vec<u8>, corpus: &[Vec<u8>], random: &mut Rng) {
    let at = random.usize(..=input.len());
    match (random.u8(..8), input.get_mut(at)) {
        (0 | 1, Some(byte)) => *byte ^= 1 << random.u8(..8),
        (2, Some(byte)) => *byte = byte.wrapping_add(random.u8(..)),
        (3, Some(byte)) => *byte = *random.choice(&[0, 1, 0x7F, 0x80, 0xFF]).unwrap(),
        (4, _) => {
            let away = pieces(input, random).len();
            let begin = random.usize(..=(input.len() - away) / PIECE) * PIECE;
            input.drain(begin..begin + away);
        }
        (5, _) => {
            let again = pieces(input, random).to_vec();
            let at = place(input, random);
            input.splice(at..at, again);
        }
        _ => {
            let other = pieces(random.choice(corpus).unwrap(), random);
            let at = place(input, random);
            input.splice(at..at, other.iter().copied());
        }
    }
    input.truncate(LONGEST);
}

/// The input that is being tried. It is written to a file if the test panics.
struct Tried<'a> {
    target: &'a str,
    number: usize,
    input: &'a [u8],
}

impl Drop for Tried<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("artifacts");
            let path = folder.join(format!("{}-short-{}", self.target, self.number));
            let written = std::fs::create_dir_all(folder).and_then(|()| std::fs::write(&path, self.input));
            eprintln!("input {} of {}: {} {written:?}", self.number, self.target, path.display());
            eprintln!("{}", self.input.iter().map(|byte| format!("{byte:02x}")).collect::<String>());
        }
    }
}

fn try_changed(target: &str, run: impl Fn(&[u8])) {
    let corpus = corpus(target);
    let mut random = Rng::with_seed(1);
    for number in 0..INPUTS {
        let mut input = random.choice(&corpus).unwrap().clone();
        for _ in 0..random.usize(1..=6) {
            change(&mut input, &corpus, &mut random);
        }
        let tried = Tried { target, number, input: &input };
        run(tried.input);
    }
}

/// Runs the changed inputs of each target, one after the other, since descriptors are counted.
#[test]
fn changed_inputs_are_handled_like_any_other() {
    try_changed("socket", strait_fuzz::socket);
    try_changed("memory", strait_fuzz::memory);
    try_changed("ring", strait_fuzz::ring);
    try_changed("packet", strait_fuzz::packet);
    try_changed("table", strait_fuzz::table);
    try_changed("fidl", strait_fuzz::fidl);
    try_changed("typed", strait_fuzz::typed);
}
