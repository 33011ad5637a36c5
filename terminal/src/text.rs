//! Words around numbers.

use std::fmt::Display;

/// A number of things whose plural takes an s, or es after one: "1 flow", "2 flows", "2 processes".
pub fn counted(count: impl Display, thing: &str) -> String {
    let count = count.to_string();
    let ending = match (count.as_str(), thing.ends_with(['s', 'x'])) {
        ("1", _) => "",
        (_, true) => "es",
        (_, false) => "s",
    };
    format!("{count} {thing}{ending}")
}

/// The first of these names and how many more there are: "a, b, c and 33 more".
pub fn listed(names: &[impl AsRef<str>], first: usize) -> String {
    let shown: Vec<&str> = names.iter().take(first).map(AsRef::as_ref).collect();
    match names.len().saturating_sub(first) {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_no_plural() {
        let said = [0_u64, 1, 2].map(|count| counted(count, "flow"));
        assert_eq!(said, ["0 flows", "1 flow", "2 flows"]);
        assert_eq!(counted(1_usize, "service"), "1 service");
        assert_eq!(counted(2, "process"), "2 processes");
    }

    #[test]
    fn long_lists_are_counted() {
        assert_eq!(listed(&["a", "b"], 2), "a, b");
        assert_eq!(listed(&["a", "b", "c", "d"], 2), "a, b and 2 more");
    }
}
