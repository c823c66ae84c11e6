//! The layout of every table: a line under the header, numbers aligned to the right, and no other lines.

use comfy_table::{CellAlignment, ContentArrangement, ContentLineStyle, LineStyle, Table, TableStyle};

const LOOK: TableStyle = TableStyle::new()
    .header_lines(ContentLineStyle::none().junction(' '))
    .header_separator(LineStyle::none().fill('─').junction('─'))
    .content_lines(ContentLineStyle::none().junction(' '));

/// Returns an empty table with the column heads `heads`. The columns whose index is in `figures` are aligned to the
/// right.
pub fn new<const N: usize>(heads: [&str; N], figures: std::ops::Range<usize>) -> Table {
    of(&heads, figures)
}

/// Returns an empty table with any number of columns. Those from the index `first` on are aligned to the right.
pub fn empty(heads: &[&str], first: usize) -> Table {
    of(heads, first..heads.len())
}

fn of(heads: &[&str], figures: std::ops::Range<usize>) -> Table {
    let mut table = Table::new();
    table.load_style(LOOK).set_content_arrangement(ContentArrangement::Disabled).set_header(heads.to_vec());
    for index in figures {
        if let Some(column) = table.column_mut(index) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, 1));
    }
    table
}
