//! Words around numbers.

use std::fmt::Display;

/// A number of things whose plural takes an s: "1 flow", "2 flows".
pub fn counted<N: Display + PartialEq + From<u8>>(count: N, thing: &str) -> String {
    let ending = if count == N::from(1) { "" } else { "s" };
    format!("{count} {thing}{ending}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_no_plural() {
        let said = [0_u64, 1, 2].map(|count| counted(count, "flow"));
        assert_eq!(said, ["0 flows", "1 flow", "2 flows"]);
        assert_eq!(counted(1_usize, "service"), "1 service");
    }
}
