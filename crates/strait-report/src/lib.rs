//! Makes an HTML page of the results of `strait bench`: [`page`].
//!
//! The page is a single HTML file without network access and without scripts. It compares the measured figures with
//! the published figures of four documents, plots them, says where Strait loses, and gives the command that measures
//! each figure again. Everything in a results file is input: the page escapes it. A value that cannot be drawn is
//! left out of a plot, but not out of the tables.
//!
//! * `cases` finds the common traits of figures, `losses` where Strait is behind, and `documents` compares the
//!   figures with the published figures (in `data/`).
//! * `sections` and `plot` draw the figures with the library plotters; `looks` gives each mechanism a colour.
//! * `page` is the content for the template, `templates/report.html`.

mod cases;
mod documents;
mod listings;
mod looks;
mod losses;
mod page;
mod plot;
mod repeat;
mod sections;
mod story;

pub use cases::Source;

use askama::Template;
use strait_lab::trouble::{Result, Trouble, While};

use crate::cases::Case;
use crate::page::Page;

/// Returns the page for these results, as HTML.
///
/// # Errors
/// If there are no results.
pub fn page(sources: &[Source]) -> Result<String> {
    if sources.is_empty() {
        return Err(Trouble::new("a report needs results: strait bench quick -o quick.json makes some"));
    }
    let cases = Case::all(sources);
    let picks = sections::picks(&cases);
    let mechanisms = cases::mechanisms(&cases);
    let (documents, without): (Vec<_>, Vec<_>) =
        documents::all(&cases).into_iter().partition(page::Document::is_measured);
    let (sections, empty): (Vec<_>, Vec<_>) =
        sections::all(sources, &cases).into_iter().partition(|section| !section.families.is_empty());
    let absent = without.into_iter().map(|document| (document.title, document.command));
    let absent = absent.chain(empty.into_iter().map(|section| (section.title, section.command.to_owned()))).collect();
    Page {
        title: story::title(sources),
        looks: looks::style(&mechanisms),
        style: include_str!("../templates/style.css"),
        machine: story::machine(sources),
        warnings: story::warnings(sources),
        opening: sections::opening(&cases),
        summary: story::summary(&cases),
        glance: sections::glance(&cases),
        defeats: story::defeats(sources, &cases),
        documents,
        sections,
        absent,
        picks,
        troubles: listings::troubles(&cases),
        listings: listings::all(sources, &cases),
        origins: story::origins(sources),
    }
    .render()
    .doing("filling the template")
}
