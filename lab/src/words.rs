//! Words around numbers.

use std::fmt::Display;

/// A number of things whose plural takes an s: "1 round", "2 rounds".
pub(crate) fn counted(count: impl Display, thing: &str) -> String {
    let count = count.to_string();
    let ending = if count == "1" { "" } else { "s" };
    format!("{count} {thing}{ending}")
}

#[cfg(test)]
mod tests {
    use super::counted;

    #[test]
    fn one_is_no_plural() {
        assert_eq!([0, 1, 2].map(|n| counted(n, "round")), ["0 rounds", "1 round", "2 rounds"]);
    }
}
