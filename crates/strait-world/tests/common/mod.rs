//! Compares the public operations of the library with the calls in some sources.
//!
//! A function counts as called if the sources have its name behind a path, as in `meet::names`. A method counts as
//! called if the sources have a call of that name, and name the type or have it in a list of types that no source
//! names. Comments do not count. Two types can have methods of one name, so the check can take a call of one for a call
//! of the other.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// The operations that some sources must call.
pub(crate) struct Operations<'a> {
    /// Types of values returned by other calls; no source names the type.
    pub(crate) reached: &'a [&'a str],
    /// A type, or an operation of a type, that the sources do not call, and the reason.
    pub(crate) exceptions: &'a [(&'a str, &'a str)],
}

/// Returns the text of all sources in `folder`, or of one source, without comments.
pub(crate) fn sources(place: &Path) -> String {
    if !place.is_dir() {
        let text = fs::read_to_string(place).expect("a source");
        return text.lines().map(|line| line.split("//").next().unwrap_or_default().to_owned() + "\n").collect();
    }
    let entries = fs::read_dir(place).expect("a folder of sources");
    entries.map(|entry| sources(&entry.expect("an entry").path())).collect()
}

/// Returns whether `text` has a call of the method `name`.
fn calls_method(text: &str, name: &str) -> bool {
    text.contains(&format!(".{name}(")) || text.contains(&format!(".{name}::<"))
}

/// Returns whether `text` names the operation `name` behind the path `of`, also with a type in between.
fn names(text: &str, of: &str, name: &str) -> bool {
    let is_part = |letter: char| letter.is_alphanumeric() || letter == '_';
    text.match_indices(&format!("::{name}")).any(|(at, found)| {
        let ends = !text[at + found.len()..].starts_with(is_part);
        let path = text[..at].trim_end_matches(['>', '<', ':']);
        ends && (of.is_empty() || path.ends_with(of))
    })
}

impl Operations<'_> {
    /// Asserts that `text` calls every public operation of the library without an exception, and that the library has
    /// each exception.
    pub(crate) fn check(&self, text: &str) {
        let words: BTreeSet<&str> = text.split(|letter: char| !letter.is_alphanumeric() && letter != '_').collect();
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        let api = fs::read_to_string(here.join("../../docs/public-api.txt")).expect("the list of the public interface");
        let (mut missing, mut excused) = (BTreeSet::new(), BTreeSet::new());
        for line in api.lines().filter(|line| line.starts_with("strait::")) {
            let Some((path, item)) = line.split_once(": pub ") else { continue };
            if !item
                .split(' ')
                .take_while(|word| *word != "fn")
                .all(|word| ["const", "unsafe", "async"].contains(&word))
            {
                continue;
            }
            let parts: Vec<&str> = path.split("::").collect();
            let [.., of, name] = parts[..] else { continue };
            let is_type = of.starts_with(char::is_uppercase);
            let is_known = words.contains(of) || self.reached.contains(&of);
            let is_called = match is_type {
                true => names(text, of, name) || is_known && calls_method(text, name),
                false => names(text, "", name),
            };
            let operation = format!("{of}::{name}");
            let exception = self.exceptions.iter().find(|(what, _)| *what == of || *what == operation);
            match exception {
                Some((what, _)) => drop(excused.insert(*what)),
                None if is_called => {}
                None => drop(missing.insert(operation)),
            }
        }
        assert!(missing.is_empty(), "call these, or give the reason in EXCEPTIONS: {missing:#?}");
        let gone: Vec<_> =
            self.exceptions.iter().map(|(what, _)| *what).filter(|what| !excused.contains(what)).collect();
        assert!(gone.is_empty(), "the library has none of these exceptions: {gone:#?}");
    }
}
