//! What drivers are expected to have: `expected.txt`, read.

use std::fmt;

const TABLE: &str = include_str!("expected.txt");

/// Kernels of the table, by what [`kernel_of`] makes of their versions.
pub const KERNELS: [&str; 4] = ["6.1", "6.12", "6.18", "7"];

/// A column of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cell {
    Native,
    Frags,
    ZeroCopy,
    Tx,
    Redirect,
    Vlan,
    Queues,
    Reset,
    Hints,
}

/// Names of the columns, in the order of the table and of [`Cell`].
pub const CELLS: [&str; 9] =
    ["native", "frags", "zero-copy", "tx", "redirect", "vlan", "queues", "reset", "hints"];

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(CELLS[*self as usize])
    }
}

fn rows() -> impl Iterator<Item = Vec<&'static str>> {
    let lines = TABLE.lines().filter(|line| !line.starts_with('#'));
    lines.map(|line| line.split_whitespace().collect())
}

/// The table's word for a kernel: "6.18.15+deb13-amd64" is "6.18", and of 7 every one is "7".
pub fn kernel_of(release: &str) -> &str {
    match release.match_indices('.').nth(1) {
        _ if release.starts_with("7.") => "7",
        Some((at, _)) => &release[..at],
        None => release,
    }
}

/// The expected word; `None` where the table has no such row.
pub fn expected(driver: &str, kernel: &str, cell: Cell) -> Option<&'static str> {
    let row = rows().find(|row| row[0] == driver && row[1] == kernel)?;
    row.get(cell as usize + 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_whole() {
        let mut rows = rows();
        let head = rows.next().into_iter().flatten().skip(2);
        assert!(head.eq(CELLS));
        let mut seen = Vec::new();
        for row in rows {
            assert_eq!(row.len(), CELLS.len() + 2, "{row:?}");
            assert!(KERNELS.contains(&row[1]), "{row:?}");
            assert!(!seen.contains(&(row[0], row[1])), "{row:?} is there twice");
            seen.push((row[0], row[1]));
        }
        for (driver, _) in &seen {
            assert!(KERNELS.iter().all(|kernel| seen.contains(&(driver, kernel))), "{driver}");
        }
    }

    #[test]
    fn kernels_have_their_rows() {
        for (release, kernel) in [
            ("6.1.0-50-amd64", "6.1"),
            ("6.18.15+deb13-amd64", "6.18"),
            ("7.3.4+deb13-amd64", "7"),
            ("5.10", "5.10"),
        ] {
            assert_eq!(kernel_of(release), kernel);
        }
        assert_eq!(expected("igb", "6.18", Cell::ZeroCopy), Some("yes"));
        assert_eq!(expected("igb", "5.10", Cell::ZeroCopy), None);
    }
}
