//! The figure that counts, of several measured in turn.

/// The middle one; of an even number, halfway between the two in the middle. 0 of none.
pub fn median(values: &[u64]) -> u64 {
    let mut values = values.to_vec();
    values.sort_unstable();
    let half = values.len() / 2;
    match (values.get(half), values.len() % 2) {
        (Some(middle), 1) => *middle,
        (Some(upper), _) => values[half - 1].midpoint(*upper),
        (None, _) => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::median;

    #[test]
    fn medians() {
        assert_eq!(median(&[3, 1, 2]), 2);
        assert_eq!(median(&[40, 10, 20, 30]), 25);
        assert_eq!(median(&[7]), 7);
        assert_eq!(median(&[]), 0);
    }
}
