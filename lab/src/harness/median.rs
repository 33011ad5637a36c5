//! The figure that counts, of several measured in turn.

/// The middle one; of an even number, halfway between the two in the middle. 0 of none.
pub(crate) fn median(values: &[u64]) -> u64 {
    let mut values = values.to_vec();
    values.sort_unstable();
    let half = values.len() / 2;
    match (values.get(half), values.len() % 2) {
        (Some(middle), 1) => *middle,
        (Some(upper), _) => values[half - 1].midpoint(*upper),
        (None, _) => 0,
    }
}

/// The same of figures with parts; none of none.
pub(crate) fn middle(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    let upper = *values.get(values.len() / 2)?;
    let lower = values[(values.len() - 1) / 2];
    Some(lower.midpoint(upper))
}

#[cfg(test)]
mod tests {
    use super::{median, middle};

    #[test]
    fn medians() {
        assert_eq!(median(&[3, 1, 2]), 2);
        assert_eq!(median(&[40, 10, 20, 30]), 25);
        assert_eq!(median(&[7]), 7);
        assert_eq!(median(&[]), 0);
        assert_eq!(middle([0.3, 0.1, 0.2]), Some(0.2));
        assert_eq!(middle([4.0, 1.0]), Some(2.5));
        assert_eq!(middle([]), None);
    }
}
