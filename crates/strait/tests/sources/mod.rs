//! Reads the source files of a crate, and finds the modules used by each file.

use std::fs;
use std::path::Path;

/// Returns the code of a file without comments and without items that are only built for tests.
fn code(text: &str) -> String {
    let (mut lines, mut code) = (text.lines(), String::new());
    while let Some(line) = lines.next() {
        let attribute = line.trim_start();
        if attribute.starts_with("#[cfg(test)]") || attribute.starts_with("#[cfg(all(test,") {
            let item = lines.by_ref().find(|line| !line.trim_start().starts_with("#[")).unwrap_or_default();
            let end = format!("{}}}", &item[..item.len() - item.trim_start().len()]);
            if item.ends_with('{') {
                lines.by_ref().find(|line| *line == end);
            }
        } else {
            code += line.split("//").next().unwrap_or_default();
            code.push('\n');
        }
    }
    code
}

/// Returns the top modules that the code of `file` uses by `crate::`, or by as many `super::` as lead to the crate.
pub(crate) fn uses(file: &str, code: &str) -> Vec<String> {
    let depth = file.split('/').count() - usize::from(file.ends_with("/mod.rs") || file == "lib.rs");
    let word =
        |rest: &str| rest.split(|letter: char| !letter.is_alphanumeric() && letter != '_').next().map(str::to_owned);
    let supers = "super::".repeat(depth);
    let by_super = code.split(supers.as_str()).skip(1).filter(|_| depth > 0);
    code.split("crate::")
        .skip(1)
        .chain(by_super)
        .filter_map(word)
        .filter(|name| name.starts_with(char::is_lowercase))
        .collect()
}

/// Returns the source files of the crate in the folder `manifest`, each with its code.
pub(crate) fn files(manifest: &str) -> Vec<(String, String)> {
    let root = Path::new(manifest).join("src");
    let mut found = Vec::new();
    add(&root, &root, &mut found);
    found
}

fn add(directory: &Path, root: &Path, found: &mut Vec<(String, String)>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && !path.ends_with("tests") {
            add(&path, root, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let name = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
            found.push((name, code(&fs::read_to_string(&path).unwrap())));
        }
    }
}
