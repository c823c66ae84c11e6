//! The book is whole: its summary lists every page, no link is dead, and each example in Rust is compiled.

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};
use std::process::Command;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns the paths of all files with the extension `md` in a folder and the folders in it.
fn markdown_in(folder: &Path) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    for entry in std::fs::read_dir(folder).unwrap().map(Result::unwrap) {
        let path = entry.path();
        if path.is_dir() {
            found.extend(markdown_in(&path));
        } else if path.extension().is_some_and(|extension| extension == "md") {
            found.insert(path);
        }
    }
    found
}

/// Returns the pages of the book, except the summary.
fn pages() -> BTreeSet<PathBuf> {
    let mut pages = markdown_in(&root().join("docs"));
    assert!(pages.remove(&root().join("docs/SUMMARY.md")));
    assert!(pages.len() > 30);
    pages
}

/// Returns the lines of a document outside of blocks of code.
fn text_of(document: &str) -> String {
    let blocks = document.split("\n```").step_by(2).map(|text| text.split_once('\n').map_or("", |(_, rest)| rest));
    // The first part does not begin behind a block of code.
    let first = document.split("\n```").next().unwrap_or("");
    std::iter::once(first).chain(blocks.skip(1)).collect::<Vec<_>>().join("\n")
}

/// Returns the targets of the links in a document.
fn links(document: &str) -> Vec<String> {
    let text = text_of(document).replace('\n', " ");
    let inline = text.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(target, _)| target.to_owned());
    let targets: Vec<_> = inline.filter(|target| !target.contains(' ') && !target.contains("://")).collect();
    targets
}

/// Returns the anchors of the headings of a document.
fn anchors(document: &str) -> BTreeSet<String> {
    let heading = |line: &str| {
        let text = line.strip_prefix('#')?.trim_start_matches('#').strip_prefix(' ')?;
        let kept = |c: &char| c.is_alphanumeric() || " -_".contains(*c);
        Some(text.to_lowercase().chars().filter(kept).map(|c| if c == ' ' { '-' } else { c }).collect())
    };
    text_of(document).lines().filter_map(heading).collect()
}

/// Returns a path without inner `..`.
fn plain(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for component in path.components() {
        match component {
            Component::ParentDir => assert!(plain.pop()),
            Component::CurDir => {}
            other => plain.push(other),
        }
    }
    plain
}

#[test]
fn the_summary_lists_every_page_once() {
    let docs = root().join("docs");
    let listed: Vec<_> = links(&read(&docs.join("SUMMARY.md"))).iter().map(|link| docs.join(link)).collect();
    let once: BTreeSet<_> = listed.iter().cloned().collect();
    assert_eq!(once.len(), listed.len(), "a page is listed twice");
    assert_eq!(once, pages());
}

#[test]
fn no_link_is_dead() {
    let documents = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"].map(|name| root().join(name));
    let mut dead = Vec::new();
    let mut count = 0;
    for page in pages().into_iter().chain(documents) {
        for link in links(&read(&page)) {
            let (file, anchor) = link.split_once('#').map_or((link.as_str(), None), |(file, at)| (file, Some(at)));
            let target = if file.is_empty() { page.clone() } else { plain(&page.parent().unwrap().join(file)) };
            let is_inside = !page.starts_with(root().join("docs")) || target.starts_with(root().join("docs"));
            let has_anchor = |anchor| anchors(&read(&target)).contains(anchor);
            count += 1;
            if !is_inside || !target.exists() || !anchor.is_none_or(has_anchor) {
                dead.push(format!("{}: {link}", page.display()));
            }
        }
    }
    assert!(dead.is_empty(), "these links lead nowhere, or out of the book: {dead:#?}");
    assert!(count > 100, "{count}");
}

/// Shows that every block of code in Rust, C and C++ is compiled. Each page with Rust code is a documentation test of
/// this crate, without exceptions for single blocks. A test of `strait-ffi` compiles the blocks in C and C++.
#[test]
fn every_example_is_compiled() {
    let compiled = read(&root().join("crates/strait-book/src/lib.rs"));
    let in_c = read(&root().join("crates/strait-ffi/tests/c_programs.rs"));
    for page in pages().into_iter().chain([root().join("README.md")]) {
        let name = page.strip_prefix(root()).unwrap().to_str().unwrap().to_owned();
        let document = format!("\n{}", read(&page));
        let languages = document.split("\n```").skip(1).step_by(2).map(|block| block.lines().next().unwrap_or(""));
        let is_rust = |language: &&str| language.split(',').next() == Some("rust");
        for language in languages {
            let known = ["c", "cpp", "python", "sh", "text", "toml", "cmake"];
            assert!(is_rust(&language) || known.contains(&language), "{name}: a block of code in {language:?}");
            let is_c = ["c", "cpp"].contains(&language);
            assert!(!is_c || in_c.contains(&format!("\"{name}\"")), "{name} is not in strait-ffi/tests/c_programs.rs");
            assert!(!language.contains("ignore"), "{name}: an example that is not compiled");
            let included = compiled.contains(&format!("include_str!(\"../../../{name}\")"));
            assert!(!is_rust(&language) || included, "{name} is not in strait-book/src/lib.rs");
        }
    }
}

/// Returns the lines of a piece of code without their indentation.
fn unindented(code: &str) -> String {
    code.lines().map(str::trim).collect::<Vec<_>>().join("\n")
}

/// Shows that the pieces of code on the page about gRPC are in the crate `strait-services`. No example of the book can
/// contain them, because the crate's dependencies are in no build of the workspace.
#[test]
fn the_code_of_the_services_is_in_their_crate() {
    let sources = ["grpc", "tarpc"].map(|name| read(&root().join(format!("crates/strait-services/src/{name}.rs"))));
    let sources = unindented(&sources.join("\n"));
    let page = read(&root().join("docs/guides/grpc-service.md"));
    let pieces: Vec<_> = page.split("\n```text\n").skip(1).filter_map(|rest| rest.split("\n```").next()).collect();
    assert!(pieces.len() >= 4, "{}", pieces.len());
    for piece in pieces {
        assert!(sources.contains(&unindented(piece)), "this is not in crates/strait-services/src:\n{piece}");
    }
}

/// Returns the numbers in a text that have three or more characters, such as `221` and `3.19`.
fn numbers(text: &str) -> BTreeSet<String> {
    let parts = text.split(|c: char| !c.is_ascii_digit() && c != '.').map(|part| part.trim_matches('.'));
    parts.filter(|part| part.len() > 2).map(str::to_owned).collect()
}

/// Shows that the figures of other libraries that were typed by hand, in the README and on the page of measurements,
/// are on the pages that a command prints. After another measurement the test fails until the texts have the new
/// figures.
#[test]
fn typed_figures_are_on_the_printed_pages() {
    let page = |name: &str| read(&root().join("docs/how-it-works").join(name));
    let (peers, measured) = (page("peers.md"), page("measurements.md"));
    let section = |text: &str, begin: &str, end: &str| {
        let rest = text.split_once(begin).unwrap_or_else(|| panic!("{begin} is missing")).1;
        rest.split_once(end).unwrap_or_else(|| panic!("{end} is missing")).0.to_owned()
    };
    let readme = section(&read(&root().join("README.md")), "<!-- figures end -->", "## Try it");
    let losses = section(&measured, "## Where Strait loses, and why", "## Compared with");
    let before = measured.split_once("## Where Strait loses, and why").unwrap().0;
    let printed = numbers(&format!("{peers} {before}"));
    let typed = &numbers(&readme) | &numbers(&losses);
    let unknown: Vec<_> = typed.difference(&printed).collect();
    assert!(unknown.is_empty(), "these figures are in no printed table: {unknown:?}");
    assert!(typed.len() > 20, "{typed:?}");
}

/// Shows that mdbook accepts the book, if it is installed (`tools/book` installs it).
#[test]
fn the_book_can_be_built() {
    let own = root().join("target/tools/bin/mdbook");
    let mdbook = if own.exists() { own } else { PathBuf::from("mdbook") };
    let destination = Path::new(env!("CARGO_TARGET_TMPDIR")).join("book");
    let build = Command::new(mdbook).arg("build").arg("--dest-dir").arg(&destination).arg(root().join("docs")).output();
    match build {
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success() && !said.contains("ERROR") && !said.contains("WARN"), "{said}");
            assert!(destination.join("how-it-works/wire.html").exists());
        }
        Err(_) => eprintln!("mdbook is not installed, so the book was not built: tools/book installs it"),
    }
}
