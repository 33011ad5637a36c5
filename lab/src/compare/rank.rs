//! Whether two samples differ by more than chance: the Mann-Whitney rank test.

/// The probability that samples of one and the same thing are at least so far apart: two-sided, and
/// exact for any number of equal values.
pub(super) fn rank_test(before: &[f64], after: &[f64]) -> f64 {
    let all = [before, after].concat();
    // Twice the mean rank of equal values, so that it is whole.
    let rank = |value: &f64| {
        let less = all.iter().filter(|other| *other < value).count();
        let equal = all.iter().filter(|other| *other == value).count();
        2 * less + equal + 1
    };
    let ranks: Vec<usize> = all.iter().map(rank).collect();
    let (chosen, total) = (before.len(), ranks.iter().sum::<usize>());
    // How many choices of so many values have this sum of ranks.
    let mut ways = vec![vec![0.0; total + 1]; chosen + 1];
    ways[0][0] = 1.0;
    for rank in &ranks {
        for count in (1..=chosen).rev() {
            for sum in (*rank..=total).rev() {
                ways[count][sum] += ways[count - 1][sum - rank];
            }
        }
    }
    let from_mean = |sum: usize| (sum * all.len()).abs_diff(chosen * total);
    let seen = from_mean(ranks[..chosen].iter().sum());
    let sums = || ways[chosen].iter().enumerate();
    let as_far: f64 = sums().filter(|(sum, _)| from_mean(*sum) >= seen).map(|(_, n)| n).sum();
    as_far / sums().map(|(_, n)| n).sum::<f64>()
}

/// The least that [`rank_test`] can find with so many samples.
pub(super) fn least(before: usize, after: usize) -> f64 {
    let of = |from: usize, to: usize| -> Vec<f64> { (from..to).map(|n| n as f64).collect() };
    rank_test(&of(0, before), &of(before, before + after))
}

/// How likely so many rare events are, or more, where `expected` are (Poisson).
pub(super) fn so_many_or_more(events: usize, expected: f64) -> f64 {
    let (mut term, mut fewer) = ((-expected).exp(), 0.0);
    for number in 1..=events {
        fewer += term;
        term *= expected / number as f64;
    }
    (1.0 - fewer).clamp(0.0, 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rare_events() {
        let near = |events, expected, wanted: f64| {
            (so_many_or_more(events, expected) - wanted).abs() < 5e-4
        };
        assert!(near(0, 1.14, 1.0) && near(1, 1.14, 0.680) && near(3, 1.14, 0.1075));
        assert!(near(5, 0.5, 0.0));
    }

    #[test]
    fn as_in_tables_of_the_test() {
        let near = |is: f64, wanted: f64| assert!((is - wanted).abs() < 1e-9, "{is} {wanted}");
        near(least(3, 3), 0.1);
        near(least(5, 5), 2.0 / 252.0);
        near(rank_test(&[1.0, 2.0, 4.0], &[3.0, 5.0, 6.0]), 0.2);
        near(rank_test(&[1.0, 1.0], &[1.0, 1.0]), 1.0);
        // Of the 20 choices of three, those with a sum of 6, 7, 14 or 15.
        near(rank_test(&[1.0, 2.0, 2.0], &[2.0, 3.0, 3.0]), 6.0 / 20.0);
        near(rank_test(&[3.0, 1.0], &[2.0, 4.0]), rank_test(&[2.0, 4.0], &[3.0, 1.0]));
    }
}
