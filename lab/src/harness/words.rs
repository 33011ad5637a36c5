//! Words around numbers.

use std::fmt::Display;

/// A number of things whose plural takes an s, or es after one: "1 round", "2 rounds", "2 processes".
pub(crate) fn counted(count: impl Display, thing: &str) -> String {
    let count = count.to_string();
    let ending = match (count.as_str(), thing.ends_with('s')) {
        ("1", _) => "",
        (_, true) => "es",
        (_, false) => "s",
    };
    format!("{count} {thing}{ending}")
}

#[cfg(test)]
mod tests {
    use super::counted;

    #[test]
    fn one_is_no_plural() {
        assert_eq!(counted(2, "process"), "2 processes");
        assert_eq!([0, 1, 2].map(|n| counted(n, "round")), ["0 rounds", "1 round", "2 rounds"]);
    }
}
