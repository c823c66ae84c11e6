//! One page to look at, made of the results of `strait bench`: [`page`].
//!
//! The page is a single HTML file that needs no network and runs no script. It sets today's figures beside those that four
//! documents published, draws what is measured, says where Strait loses, and how each figure is taken again. Everything in
//! a file of results is input: it is escaped, and what cannot be drawn is left out of a plot, and not of the tables.
//!
//! * `cases` finds what figures have in common, `losses` what they say against Strait, `documents` sets them beside the
//!   published ones (in `data/`), `sections` and `plot` draw them with plotters, `looks` gives each mechanism a colour.
//! * `page` is what the template, `templates/report.html`, shows.

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

/// The page, as HTML.
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
    Page {
        title: story::title(sources),
        looks: looks::style(&mechanisms),
        style: include_str!("../templates/style.css"),
        machine: story::machine(sources),
        warnings: story::warnings(sources),
        summary: story::summary(&cases),
        glance: sections::glance(&cases),
        defeats: story::defeats(sources, &cases),
        documents: documents::all(&cases),
        sections: sections::all(sources, &cases),
        picks,
        troubles: listings::troubles(&cases),
        listings: listings::all(sources, &cases),
        origins: story::origins(sources),
    }
    .render()
    .doing("filling the template")
}
