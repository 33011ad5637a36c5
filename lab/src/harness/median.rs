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

/// The least value up to which so many of 100 are; none of none. Values come in ascending order,
/// each with how often it was there.
pub(crate) fn percentile<T: Copy>(counted: &[(T, u64)], percent: u64) -> Option<T> {
    let all: u64 = counted.iter().map(|(_, times)| times).sum();
    let (mut seen, wanted) = (0, (all * percent).div_ceil(100).max(1));
    let up_to = counted.iter().find(|(_, times)| {
        seen += times;
        seen >= wanted
    });
    up_to.map(|(value, _)| *value)
}

/// A figure with so many decimal places, for a report.
pub(crate) fn rounded(figure: f64, places: i32) -> f64 {
    let scale = 10_f64.powi(places);
    (figure * scale).round() / scale
}

#[cfg(test)]
mod tests {
    use super::{median, middle, percentile, rounded};

    #[test]
    fn percentiles() {
        let of =
            |times: &[u64]| percentile(&(0..).zip(times.iter().copied()).collect::<Vec<_>>(), 99);
        assert_eq!(of(&[0, 99, 0, 1]), Some(1));
        assert_eq!(of(&[0, 98, 0, 2]), Some(3));
        assert_eq!(of(&[0, 0, 1]), Some(2));
        assert_eq!(of(&[0, 0]), None);
        assert_eq!(percentile(&[(10, 1), (20, 1), (30, 1)], 50), Some(20));
        assert_eq!(percentile(&[(10, 1), (20, 1), (30, 1)], 100), Some(30));
    }

    #[test]
    fn decimal_places() {
        assert_eq!((rounded(1.25, 1), rounded(0.0004, 3), rounded(99.96, 1)), (1.3, 0.0, 100.0));
    }

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
