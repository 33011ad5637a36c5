use proptest::prelude::*;

use super::simulated::{Device, Flaw};
use super::*;

const MIN: f64 = 1e3;
const MAX: f64 = 1e7;
/// Twenty-one trials of a second, of which half may lose frames.
const MEDIAN: Goal = Goal {
    loss_ratio: 0.0,
    exceed_ratio: 0.5,
    initial_trial_s: 1.0,
    final_trial_s: 1.0,
    duration_sum_s: 21.0,
    width: 0.005,
};

fn searched(device: &mut Device, goals: &[Goal]) -> (Search, Vec<Outcome>) {
    let mut search = Search::new(MIN, MAX, goals).unwrap();
    device.search(&mut search);
    let outcomes = search.outcomes();
    assert!(outcomes.iter().all(|outcome| outcome.reached), "{outcomes:?}");
    (search, outcomes)
}

fn one(device: &mut Device, goal: Goal) -> Outcome {
    searched(device, &[goal]).1[0]
}

fn trial(duration_s: f64, received: u64) -> Trial {
    Trial { load: 100.0, duration_s, intended: 100, sent: 100, received, elapsed_s: duration_s }
}

fn judged(trials: &[Trial]) -> Vec<Judged> {
    trials.iter().map(|trial| Judged::new(*trial, 0.0, &[])).collect()
}

#[test]
fn a_hard_ceiling_is_found_with_few_trials() {
    for (goal, trials) in [(Goal::RFC2544, 9), (Goal::TST009, 9), (MEDIAN, 26)] {
        let mut device = Device::new(1_234_567.0, Flaw::None, 1);
        let found = one(&mut device, goal);
        let (lower, upper) = (found.lower.unwrap(), found.upper.unwrap());
        assert!(lower <= device.ceiling && device.ceiling < upper, "{found:?}");
        assert!(upper * (1.0 - goal.width) <= lower * 1.000_001, "{found:?}");
        assert_eq!(found.conditional_throughput, Some(lower));
        assert!(found.upper_loss_ratio > Some(0.0) && !found.generator_fell_short, "{found:?}");
        assert!(device.trials <= trials, "{} for {goal:?}", device.trials);
    }
}

#[test]
fn the_ends_of_the_range() {
    let all = one(&mut Device::new(2.0 * MAX, Flaw::None, 1), MEDIAN);
    let max = all.lower.unwrap();
    assert!((max / MAX - 1.0).abs() < 1e-9 && all.upper.is_none() && all.reached, "{all:?}");
    let none = one(&mut Device::new(MIN / 2.0, Flaw::None, 1), MEDIAN);
    assert_eq!((none.lower, none.conditional_throughput), (None, None));
    assert_eq!((none.upper, none.reached), (Some(MIN), true));
}

/// What was lost at lower loads is not looked for; where it is met, the bound is below it.
#[test]
fn nothing_above_an_upper_bound_is_a_lower_one() {
    let (from, to) = (990_000.0, 999_000.0);
    let found = one(&mut Device::new(1e6, Flaw::Inversion(from, to), 1), MEDIAN);
    assert!(found.lower.unwrap() < from && found.upper.unwrap() < to, "{found:?}");
}

#[test]
fn trials_that_took_longer_prove_no_rate() {
    let found = one(&mut Device::new(MAX, Flaw::Stretched(500_000.0), 1), MEDIAN);
    assert!((found.lower.unwrap() / 500_000.0 - 1.0).abs() < 0.005, "{found:?}");
    let on_time = Trial { elapsed_s: 1.005, ..trial(1.0, 100) };
    let late = Trial { elapsed_s: 1.25, ..on_time };
    assert_eq!((on_time.loss_ratio(), late.device_loss_ratio()), (0.0, 0.0));
    assert!((late.loss_ratio() - 0.2).abs() < 1e-12);
}

#[test]
fn what_the_generator_did_not_send_is_no_success() {
    let found = one(&mut Device::new(MAX, Flaw::Slow(500_000.0), 1), MEDIAN);
    assert!((found.lower.unwrap() / 500_000.0 - 1.0).abs() < 0.005, "{found:?}");
    assert!(found.generator_fell_short, "{found:?}");
    let twice = Trial { received: 120, ..trial(1.0, 0) };
    assert_eq!(twice.loss_ratio(), 0.0);
}

/// The machine was busy: what the generator can send, and did not, says nothing of the device.
#[test]
fn a_generator_that_is_kept_from_sending_spoils_no_bound() {
    for (goal, trials) in [(MEDIAN, 120), (Goal::RFC2544, 60)] {
        let mut device = Device::new(1_234_567.0, Flaw::Busy(0.6), 7);
        let mut search = Search::new(MIN, MAX, &[goal]).unwrap().with_sender(MAX);
        device.search(&mut search);
        let found = search.outcomes()[0];
        assert!(found.lower.unwrap() <= device.ceiling, "{found:?}");
        assert!(found.lower.unwrap() > device.ceiling * 0.99, "{found:?}");
        assert!(search.interrupted() > 5 && device.trials < trials, "{} {found:?}", device.trials);
    }
    // It counts for what was sent, and its loss is the device's.
    let most = Trial { sent: 95, received: 76, ..trial(1.0, 0) };
    let Judged { loss_ratio, seconds, .. } = Judged::new(most, 100.0, &[]);
    assert!((loss_ratio - 0.2).abs() < 1e-12 && (seconds - 0.95).abs() < 1e-12);
    let unknown = Judged::new(most, 99.0, &[]);
    assert!((unknown.loss_ratio - 0.24).abs() < 1e-12 && unknown.seconds == 1.0);
}

/// The device may be what takes its processor.
#[test]
fn a_generator_that_never_keeps_up_is_too_slow() {
    let mut device = Device::new(MAX, Flaw::Slow(500_000.0), 1);
    let mut search = Search::new(MIN, MAX, &[MEDIAN]).unwrap().with_sender(MAX);
    device.search(&mut search);
    let found = search.outcomes()[0];
    assert!(found.lower.unwrap() < 560_000.0 && found.generator_fell_short, "{found:?}");
}

/// RFC 9971 allows a lower bound of trials that lose frames: it forwards less than it is offered.
#[test]
fn the_conditional_throughput_is_a_forwarding_rate() {
    let goal = Goal { loss_ratio: 0.1, ..MEDIAN };
    let found = one(&mut Device::new(1e6, Flaw::None, 1), goal);
    let conditional = found.conditional_throughput.unwrap();
    assert!(found.lower.unwrap() > 1.1e6 && (conditional / 1e6 - 1.0).abs() < 1e-4, "{found:?}");
}

#[test]
fn short_trials_prove_nothing_alone() {
    let target = *Goal { final_trial_s: 2.0, ..MEDIAN }.targets(1).last().unwrap();
    let of = |trials: &[Trial]| classify(&target, &judged(trials));
    assert_eq!(of(&[]), Bound::Undecided);
    assert_eq!(of(&vec![trial(1.0, 100); 50]), Bound::Undecided, "good ones");
    assert_eq!(of(&vec![trial(1.0, 99); 11]), Bound::Upper, "bad ones");
    let (good, bad) = (vec![trial(1.0, 100); 50], vec![trial(1.0, 99); 11]);
    assert_eq!(of(&[good, bad].concat()), Bound::Undecided, "made up for");
    let long = |good: usize, bad: usize| {
        of(&[vec![trial(2.0, 100); good], vec![trial(2.0, 99); bad]].concat())
    };
    assert_eq!((long(5, 0), long(6, 0)), (Bound::Undecided, Bound::Lower));
    assert_eq!((long(0, 5), long(0, 6)), (Bound::Undecided, Bound::Upper));
    assert_eq!((long(6, 5), long(5, 6)), (Bound::Lower, Bound::Upper));
    let losses = [trial(2.0, 100), trial(2.0, 90), trial(2.0, 80)].map(|one| vec![one; 4]).concat();
    assert!((quantile_loss(&target, &judged(&losses)) - 0.1).abs() < 1e-12, "the median");
    assert_eq!(quantile_loss(&target, &judged(&losses[..5])), 1.0, "half of it is missing");
}

#[test]
fn low_loads_come_first() {
    let strict = Goal { loss_ratio: 0.0, ..MEDIAN };
    let loose = Goal { loss_ratio: 0.2, ..MEDIAN };
    let (search, found) = searched(&mut Device::new(1e6, Flaw::None, 1), &[loose, strict]);
    assert!(found[0].lower > found[1].lower, "{found:?}");
    // The strict goal is done before the loose one spends its time on overload.
    let mut again = Search::new(MIN, MAX, &[loose, strict]).unwrap();
    let mut device = Device::new(1e6, Flaw::None, 1);
    let (strict_loads, mut above) = (found[1].upper.unwrap() * 1.01, 0);
    while !again.outcomes()[1].reached {
        let plan = again.next().unwrap();
        above += u32::from(plan.load > strict_loads);
        again.add(device.trial(plan));
    }
    assert!(above <= 3, "{above} of {}", search.trials().count());
}

#[test]
fn goals_that_cannot_be_are_refused() {
    let said = |goal: Goal| Search::new(MIN, MAX, &[goal]).unwrap_err().to_string();
    assert!(said(Goal { exceed_ratio: 1.0, ..MEDIAN }).contains("exceed ratio of 1 cannot be"));
    assert!(said(Goal { width: 0.0, ..MEDIAN }).contains("width"));
    assert!(said(Goal { duration_sum_s: 0.5, ..MEDIAN }).contains("sum of 0.5"));
    assert!(said(Goal { loss_ratio: f64::NAN, ..MEDIAN }).contains("loss ratio"));
    assert!(
        Search::new(2.0, 1.0, &[MEDIAN]).unwrap_err().to_string().contains("smaller one first")
    );
}

pub(super) fn flaw() -> impl Strategy<Value = Flaw> {
    prop_oneof![
        Just(Flaw::None),
        (0.0..0.2).prop_map(Flaw::Noise),
        (0.1..0.9, 0.0..0.1)
            .prop_map(|(from, more)| Flaw::Inversion(from * 1e6, (from + more) * 1e6)),
        (2e3..1e7).prop_map(Flaw::Stretched),
        (2e3..1e7).prop_map(Flaw::Slow),
    ]
}

fn goal() -> impl Strategy<Value = Goal> {
    let ratio = prop_oneof![Just(0.0), 0.0..0.3];
    let exceed = prop_oneof![Just(0.0), Just(0.5), 0.0..0.9];
    (ratio, exceed, 0.1..5.0, 1.0..10.0, 1.0..10.0, 0.002..0.2).prop_map(
        |(loss_ratio, exceed_ratio, initial_trial_s, longer, more, width)| Goal {
            loss_ratio,
            exceed_ratio,
            initial_trial_s,
            final_trial_s: initial_trial_s * longer,
            duration_sum_s: initial_trial_s * longer * more,
            width,
        },
    )
}

proptest! {
    #[test]
    fn every_search_ends_with_bounds_that_its_trials_bear_out(
        ceiling in 5e2..2e7, flaw in flaw(), seed: u64,
        goals in proptest::collection::vec(goal(), 1..4),
    ) {
        let mut device = Device::new(ceiling, flaw, seed);
        let (search, found) = searched(&mut device, &goals);
        for (goal, found) in goals.iter().zip(found) {
            let of = |load: Option<f64>| {
                let at = search.at(search.grid.floor(load?)).to_vec();
                Some(classify(goal.targets(1).last().unwrap(), &at))
            };
            prop_assert!(of(found.lower).is_none_or(|bound| bound == Bound::Lower), "{:?}", found);
            prop_assert!(of(found.upper).is_none_or(|bound| bound == Bound::Upper), "{:?}", found);
            match (found.lower, found.upper) {
                (Some(lower), Some(upper)) => {
                    prop_assert!(lower < upper && upper * (1.0 - goal.width) <= lower * 1.000_001);
                }
                (Some(lower), None) => prop_assert!(lower > MAX * 0.999_999),
                (None, Some(upper)) => prop_assert_eq!(upper, MIN),
                (None, None) => prop_assert!(false, "no bounds"),
            }
        }
    }

    #[test]
    fn a_ceiling_is_found_whatever_is_wrong(
        ceiling in 2e3..9e6, flaw in flaw(), seed: u64,
    ) {
        let mut device = Device::new(ceiling, flaw, seed);
        let found = one(&mut device, MEDIAN);
        let noise = match flaw { Flaw::Noise(share) => share, _ => 0.0 };
        let throughput = device.throughput().min(MAX);
        let conditional = found.conditional_throughput.unwrap();
        // Frames are whole: at 1 000 a second, one is a part of a thousand.
        prop_assert!(conditional <= throughput * 1.001, "{:?} {}", found, throughput);
        if !matches!(flaw, Flaw::Inversion(..)) {
            prop_assert!(conditional >= throughput * (1.0 - noise) * 0.994, "{:?} {}", found, throughput);
        }
    }
}
