// Reads the tables of numbers in docs/how-it-works/wire.md. Tests of the crates `strait` and `strait-hostile` include
// this file, and compare the tables with the constants of the code.

/// Returns the rows of the table `name` in docs/how-it-works/wire.md: the first cell of each row, and the numbers in
/// the cells that follow, up to the first cell that is no number.
///
/// # Panics
/// If the page has no such table.
fn rows_of_page(name: &str) -> Vec<(String, Vec<u64>)> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/how-it-works/wire.md");
    let page = std::fs::read_to_string(path).unwrap();
    let (_, table) = page.split_once(&format!("<!-- numbers: {name} -->\n\n")).expect("a table of this name");
    let cells = |line: &str| -> Vec<String> { line.split('|').map(|cell| cell.trim().to_owned()).collect() };
    // The head of the table has two lines.
    let lines = table.lines().take_while(|line| line.starts_with('|')).skip(2).map(cells);
    lines.map(|cells| (cells[1].clone(), cells[2..].iter().map_while(|cell| cell.parse().ok()).collect())).collect()
}

/// Checks that the table `name` in docs/how-it-works/wire.md has the given rows, in any order, and no others. Only the
/// table of constants may have other rows: several tests check it, each in part.
fn assert_page_has<const N: usize>(name: &str, rows: &[(&str, [u64; N])]) {
    let mut found = rows_of_page(name);
    let mut expected: Vec<_> = rows.iter().map(|(row, numbers)| ((*row).to_owned(), numbers.to_vec())).collect();
    if name == "constants" {
        found.retain(|(row, _)| expected.iter().any(|(name, _)| name == row));
    }
    found.sort();
    expected.sort();
    assert_eq!(found, expected, "docs/how-it-works/wire.md, table of {name}");
}
