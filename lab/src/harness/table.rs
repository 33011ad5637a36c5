//! Tables of what was measured: the same columns as text and on a page.

use std::borrow::Borrow;

use ringway_terminal::table::{Cell, Table};

/// A column: its heading with the unit, and what it says of a row.
pub(crate) struct Column<R> {
    pub heading: &'static str,
    pub cell: fn(&R) -> String,
    is_number: bool,
}

impl<R> Column<R> {
    /// Aligned left.
    pub const fn text(heading: &'static str, cell: fn(&R) -> String) -> Self {
        Self { heading, cell, is_number: false }
    }

    /// Aligned right.
    pub const fn number(heading: &'static str, cell: fn(&R) -> String) -> Self {
        Self { heading, cell, is_number: true }
    }
}

/// Rows under their headings, as text.
pub(crate) fn table<R>(
    columns: &[Column<R>],
    rows: impl IntoIterator<Item = impl Borrow<R>>,
) -> String {
    let headings: Vec<&str> = columns.iter().map(|column| column.heading).collect();
    let mut table = Table::new(&headings);
    for row in rows {
        let cell = |column: &Column<R>| {
            let text = (column.cell)(row.borrow());
            if column.is_number { Cell::number(text) } else { Cell::new(text) }
        };
        table.row(columns.iter().map(cell).collect());
    }
    table.render(false)
}

/// A figure with so many digits behind the point, or a dash where there is none.
pub(crate) fn or_dash(figure: Option<impl Into<f64>>, digits: usize) -> String {
    figure.map_or_else(|| "-".into(), |figure| format!("{:.digits$}", figure.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_left_and_numbers_right() {
        let columns = [
            Column::text("what", |row: &(&str, u32)| row.0.into()),
            Column::number("ns", |row| or_dash((row.1 > 0).then_some(row.1), 1)),
        ];
        let text = table(&columns, [("short", 0), ("a", 1234)]);
        assert_eq!(text, "  what       ns\n  short       -\n  a      1234.0\n");
    }
}
