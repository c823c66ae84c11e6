//! The contents of the page, in the form for the template. The template escapes everything except the plots, which
//! escape their own text.

use askama::Template;

/// A cell of a table.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cell {
    pub(crate) words: String,
    /// Small text below the words; empty if there is none.
    pub(crate) note: String,
    pub(crate) class: &'static str,
}

impl Cell {
    /// Returns a cell with these words.
    pub(crate) fn plain(words: impl Into<String>) -> Self {
        Self { words: words.into(), ..Self::default() }
    }

    /// Returns a cell with a published figure of one of the four documents.
    pub(crate) fn published(words: impl Into<String>) -> Self {
        Self { words: words.into(), class: "pub", ..Self::default() }
    }

    /// Returns a cell for a missing figure, with the reason.
    pub(crate) fn without(words: &str, why: &str) -> Self {
        Self { words: words.to_owned(), note: why.to_owned(), class: "none" }
    }
}

/// A table. The first cell of each row names the row.
#[derive(Clone, Debug, Default)]
pub(crate) struct Table {
    pub(crate) caption: String,
    pub(crate) heads: Vec<String>,
    pub(crate) rows: Vec<Vec<Cell>>,
}

impl Table {
    pub(crate) fn new<const N: usize>(caption: String, heads: [&str; N], rows: Vec<Vec<Cell>>) -> Self {
        Self { caption, heads: heads.map(str::to_owned).to_vec(), rows }
    }
}

/// A table that the reader can open and close.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    pub(crate) title: String,
    pub(crate) open: bool,
    pub(crate) table: Table,
}

/// One of the four documents with published figures for comparison.
#[derive(Clone, Debug)]
pub(crate) struct Document {
    pub(crate) id: &'static str,
    pub(crate) title: &'static str,
    pub(crate) source: &'static str,
    pub(crate) words: &'static str,
    pub(crate) parts: Vec<Part>,
    /// The command to measure the figures of this document.
    pub(crate) command: String,
}

impl Document {
    /// Returns whether a figure of this document is measured.
    pub(crate) fn is_measured(&self) -> bool {
        // The first cell of a row is the name. Only a measured figure has a cell without class; published and missing
        // figures have classes.
        let mut rows = self.parts.iter().flat_map(|part| &part.table.rows);
        rows.any(|row| row.iter().skip(1).any(|cell| cell.class.is_empty()))
    }

    /// Returns whether a figure of this document is not measured.
    fn lacks(&self) -> bool {
        let mut cells = self.parts.iter().flat_map(|part| part.table.rows.iter().flatten());
        cells.any(|cell| cell.words == "not measured")
    }
}

/// A mechanism in the key of a plot.
#[derive(Clone, Debug)]
pub(crate) struct Key {
    pub(crate) class: String,
    pub(crate) title: String,
}

/// One plot of the page.
#[derive(Clone, Debug)]
pub(crate) struct Plot {
    pub(crate) caption: String,
    /// The SVG element of the plot. Its text is escaped already.
    pub(crate) svg: String,
}

/// Plots with a difference only in wait strategy and placement.
#[derive(Clone, Debug)]
pub(crate) struct Family {
    pub(crate) title: String,
    pub(crate) keys: Vec<Key>,
    pub(crate) plots: Vec<Plot>,
    pub(crate) open: bool,
}

/// A section of the page with plots.
#[derive(Clone, Debug)]
pub(crate) struct Section {
    pub(crate) id: &'static str,
    pub(crate) title: &'static str,
    pub(crate) words: &'static str,
    pub(crate) families: Vec<Family>,
    /// The command to measure the figures of this section, shown if the results lack the figures.
    pub(crate) command: &'static str,
}

/// The opening of the page: a sentence, and a picture of each mechanism in its default configuration.
#[derive(Clone, Debug)]
pub(crate) struct Opening {
    pub(crate) sentence: String,
    pub(crate) plot: Plot,
}

/// The section that shows where Strait loses.
#[derive(Clone, Debug)]
pub(crate) struct Defeats {
    pub(crate) words: String,
    pub(crate) table: Table,
    /// The losses without room in the first table, and the uncertain losses.
    pub(crate) more: Vec<Part>,
}

/// One results file.
#[derive(Clone, Debug)]
pub(crate) struct Origin {
    pub(crate) name: String,
    pub(crate) facts: Vec<(&'static str, String)>,
    pub(crate) command: String,
}

/// The figures of one shape and size.
#[derive(Clone, Debug)]
pub(crate) struct Listing {
    pub(crate) title: String,
    pub(crate) groups: Vec<Group>,
}

/// Figures that may be compared with one another.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    pub(crate) command: String,
    pub(crate) table: Table,
}

/// The contents of the whole page.
#[derive(Debug, Template)]
#[template(path = "report.html")]
pub(crate) struct Page {
    pub(crate) title: String,
    pub(crate) looks: String,
    pub(crate) style: &'static str,
    pub(crate) machine: String,
    pub(crate) warnings: Vec<String>,
    pub(crate) opening: Option<Opening>,
    pub(crate) summary: Option<Table>,
    pub(crate) glance: Section,
    pub(crate) defeats: Defeats,
    pub(crate) documents: Vec<Document>,
    pub(crate) sections: Vec<Section>,
    /// The documents and sections without a figure, each with the command to measure the figures.
    pub(crate) absent: Vec<(&'static str, String)>,
    pub(crate) picks: Vec<Key>,
    pub(crate) troubles: Table,
    pub(crate) listings: Vec<Listing>,
    pub(crate) origins: Vec<Origin>,
}
