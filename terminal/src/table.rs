//! Tables for people: aligned columns, colours only on a terminal.

use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write};

/// The meaning of a cell's colour.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tone {
    #[default]
    Plain,
    /// As it should be.
    Good,
    Warn,
    Bad,
    Dim,
}

impl Tone {
    fn code(self) -> Option<&'static str> {
        match self {
            Tone::Plain => None,
            Tone::Good => Some("32"),
            Tone::Warn => Some("33"),
            Tone::Bad => Some("31"),
            Tone::Dim => Some("2"),
        }
    }
}

/// Text with a tone, to be aligned left or right.
#[derive(Clone, Debug, Default)]
pub struct Cell {
    text: String,
    tone: Tone,
    right: bool,
}

impl Cell {
    /// Text, aligned left.
    pub fn new(text: impl Into<String>) -> Cell {
        Cell { text: text.into(), ..Cell::default() }
    }

    /// A number, aligned right.
    pub fn number(value: impl ToString) -> Cell {
        Cell { text: value.to_string(), right: true, ..Cell::default() }
    }

    /// The same with a tone.
    pub fn tone(self, tone: Tone) -> Cell {
        Cell { tone, ..self }
    }
}

/// Rows under a heading. The heading's alignment follows the first row's.
#[derive(Clone, Debug)]
pub struct Table {
    heading: Vec<&'static str>,
    rows: Vec<Vec<Cell>>,
    /// Column widths of the rows that were removed.
    widths: Vec<usize>,
}

impl Table {
    pub fn new(heading: &[&'static str]) -> Table {
        Table { heading: heading.to_vec(), rows: Vec::new(), widths: Vec::new() }
    }

    pub fn row(&mut self, cells: Vec<Cell>) {
        self.rows.push(cells);
    }

    /// How many rows there are.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Leaves the first so many rows.
    pub fn keep(&mut self, rows: usize) {
        self.rows.truncate(rows);
    }

    /// Whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The table as text, indented by two spaces.
    pub fn render(&self, colour: bool) -> String {
        self.clone().take(colour)
    }

    /// The same, and takes the rows out: those to come are aligned with them and have no heading,
    /// so that a table may be of any length.
    pub fn take(&mut self, colour: bool) -> String {
        let rows = std::mem::take(&mut self.rows);
        let heading = self.widths.is_empty().then(|| self.heading(rows.first()));
        let all: Vec<&Vec<Cell>> = heading.iter().chain(&rows).collect();
        self.widths.resize(self.heading.len(), 0);
        for (column, width) in self.widths.iter_mut().enumerate() {
            let cells = all.iter().filter_map(|row| row.get(column));
            let widest = cells.map(|cell| cell.text.chars().count()).max();
            *width = widest.unwrap_or(0).max(*width);
        }
        all.iter().map(|row| line(row, &self.widths, colour)).collect()
    }

    fn heading(&self, first: Option<&Vec<Cell>>) -> Vec<Cell> {
        let right = |column: usize| first.and_then(|row| row.get(column)).is_some_and(|c| c.right);
        let cell = |(column, text): (usize, &&str)| Cell {
            text: (*text).to_owned(),
            tone: Tone::Dim,
            right: right(column),
        };
        self.heading.iter().enumerate().map(cell).collect()
    }
}

fn line(row: &[Cell], widths: &[usize], colour: bool) -> String {
    let mut line = String::from(" ");
    for (cell, width) in row.iter().zip(widths) {
        let fill = " ".repeat(width - cell.text.chars().count());
        let text = paint(&cell.text, cell.tone, colour);
        // Writing to a String cannot fail.
        let _ = if cell.right {
            write!(line, " {fill}{text} ")
        } else {
            write!(line, " {text}{fill} ")
        };
    }
    line.truncate(line.trim_end().len());
    line.push('\n');
    line
}

/// Text in its tone's colour.
pub fn paint(text: &str, tone: Tone, colour: bool) -> String {
    match tone.code() {
        Some(code) if colour && !text.is_empty() => format!("\x1b[{code}m{text}\x1b[0m"),
        _ => text.to_owned(),
    }
}

/// Whether stdout takes colours: a terminal, and NO_COLOR (no-color.org) not set.
pub fn colour() -> bool {
    io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// Prints a document as JSON.
pub fn json(value: &impl serde::Serialize) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    serde_json::to_writer_pretty(&mut out, value).map_err(io::Error::from)?;
    writeln!(out)?;
    Ok(())
}

/// Prints text as it is.
pub fn print(text: &str) -> io::Result<()> {
    io::stdout().lock().write_all(text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_align() {
        let mut table = Table::new(&["name", "packets"]);
        table.row(vec![Cell::new("é").tone(Tone::Bad), Cell::number(5)]);
        table.row(vec![Cell::new("long"), Cell::number(1_234_567_890_u64)]);
        let want = "  name     packets\n  é              5\n  long  1234567890\n";
        assert_eq!(table.render(false), want);
        assert!(table.render(true).contains("\x1b[31mé\x1b[0m "));
        assert_eq!(table.take(false), want);
        table.row(vec![Cell::new("x"), Cell::number(7)]);
        assert_eq!(table.take(false), "  x              7\n");
    }
}
