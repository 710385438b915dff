//! Aligned columns on a terminal.

use std::io::{self, Write};

/// Rows of cells under a header; numbers to the right, words to the left.
#[derive(Debug)]
pub(super) struct Table<const N: usize> {
    columns: [(&'static str, Align); N],
    rows: Vec<[String; N]>,
}

/// Which side of its column a cell stands on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Align {
    /// Words.
    Left,
    /// Numbers.
    Right,
}

// === impl Table ===

impl<const N: usize> Table<N> {
    pub(super) const fn new(columns: [(&'static str, Align); N]) -> Self {
        Self { columns, rows: Vec::new() }
    }

    pub(super) fn row(&mut self, cells: [String; N]) {
        self.rows.push(cells);
    }

    pub(super) fn print(&self, out: &mut impl Write) -> io::Result<()> {
        let header = self.columns.map(|(name, _)| name.to_owned());
        let mut widths = [0; N];
        for row in std::iter::once(&header).chain(&self.rows) {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(cell.chars().count());
            }
        }
        for row in std::iter::once(&header).chain(&self.rows) {
            let mut line = String::new();
            for ((cell, width), (_, align)) in row.iter().zip(widths).zip(self.columns) {
                match align {
                    Align::Left => line.push_str(&format!("{cell:<width$}  ")),
                    Align::Right => line.push_str(&format!("{cell:>width$}  ")),
                }
            }
            writeln!(out, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

/// A number that may be missing.
pub(super) fn number(value: Option<u64>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

/// Milliseconds in the unit that suits them.
pub(super) fn age(ms: Option<u64>) -> String {
    match ms {
        None => "never".to_owned(),
        Some(ms @ ..1_000) => format!("{ms} ms"),
        Some(ms @ ..60_000) => format!("{}.{} s", ms / 1_000, ms % 1_000 / 100),
        Some(ms @ ..3_600_000) => format!("{} min", ms / 60_000),
        Some(ms) => format!("{} h", ms / 3_600_000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let mut table = Table::new([("WORKER", Align::Left), ("N", Align::Right)]);
        table.row(["a-long-name".to_owned(), "7".to_owned()]);
        table.row(["b".to_owned(), "120".to_owned()]);
        let mut out = Vec::new();
        table.print(&mut out).unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), "WORKER         N\na-long-name    7\nb            120\n");
    }

    #[test]
    fn an_age_is_told_in_the_unit_that_suits_it() {
        let ages = [None, Some(7), Some(2_345), Some(60_000), Some(7_200_000)].map(age);
        assert_eq!(ages, ["never", "7 ms", "2.3 s", "1 min", "2 h"]);
    }
}
