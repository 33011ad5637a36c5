//! The tests of RFC 2544, section 26, on one device and size.

use std::time::Duration;

use serde::Serialize;

use super::latency::{Histogram, Percentiles};
use super::losses::OVERLOADED;
use super::plan::Plan;
use super::site::{Observed, Site};
use crate::generate::live_frames::Phase;
use crate::harness::median::middle;
use crate::search::{GoalError, Outcome, Search, Trial, TrialPlan};
use crate::{Error, Result};

/// Frames a second that a search begins at, and frames of the shortest burst.
const LEAST: f64 = 500.0;
const SHORTEST_BURST: f64 = 16.0;
/// Loss is measured at the ceiling and at each tenth of it below.
const STEPS: u32 = 10;
/// What the sender is known to send, of what it can send into nothing.
const PROVED: f64 = 0.9;
/// A search in which the sender was kept from its processor is made so often.
const SEARCHES: usize = 3;
/// Of the throughput, for a soak.
pub(super) const SOAK: f64 = 0.8;
/// Percent of the throughput at which latency is measured.
pub(super) const LOADS: [u32; 4] = [10, 50, 90, 100];

/// Takes every trial, as it was made.
pub(super) type Record<'r> = &'r mut dyn FnMut(&Observed) -> Result<()>;

#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Throughput {
    /// Frames a second, all ways together: the relevant bounds, and the rate that is proved.
    pub lower: Option<f64>,
    pub upper: Option<f64>,
    pub upper_loss_ratio: Option<f64>,
    pub fps: Option<f64>,
    /// The device lost nothing at the upper bound: the sender could not send so much.
    pub generator_fell_short: bool,
    /// The same at a load that the sender is known to send: it was kept from its processor.
    pub sender_was_kept: bool,
    /// Above nine tenths of what the sender can send into nothing.
    pub near_ceiling: bool,
    pub trials: usize,
    /// Trials in which the sender was kept from its processor.
    pub interrupted: usize,
}

#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct LossAt {
    pub load: f64,
    /// Lost of those that were sent.
    pub loss_ratio: f64,
    /// Frames a second that came through, where more than 1 % were lost.
    pub through_fps: Option<f64>,
    /// Not sent of those that were to be.
    pub unsent_ratio: f64,
    pub reordered: u64,
    pub duplicates: u64,
}

/// Frames a second of several searches.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Rate {
    /// Of the middle one.
    pub fps: f64,
    /// Of all; none: nothing comes through without loss.
    pub lower: Option<f64>,
    /// Of all; none: a search found no upper bound.
    pub upper: Option<f64>,
    /// At that one.
    pub upper_loss_ratio: Option<f64>,
}

impl Rate {
    /// None of none.
    pub(super) fn of<'t>(found: impl IntoIterator<Item = &'t Throughput>) -> Option<Self> {
        let found: Vec<&Throughput> = found.into_iter().collect();
        let uppers: Option<Vec<_>> =
            found.iter().map(|one| Some((one.upper?, one.upper_loss_ratio))).collect();
        let upper = uppers.and_then(|all| all.into_iter().max_by(|a, b| a.0.total_cmp(&b.0)));
        let lower = found.iter().map(|one| one.lower.unwrap_or(0.0)).reduce(f64::min)?;
        Some(Self {
            fps: middle(found.iter().map(|one| one.fps.unwrap_or(0.0)))?,
            lower: Some(lower).filter(|lower| *lower > 0.0),
            upper: upper.map(|(upper, _)| upper),
            upper_loss_ratio: upper.and_then(|(_, lost)| lost),
        })
    }
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct LatencyAt {
    /// Of the throughput.
    pub percent: u32,
    pub load: f64,
    /// Lost of those that were sent.
    pub loss_ratio: f64,
    pub device: Percentiles,
    /// The same load without the device.
    pub own: Percentiles,
    /// The device's, of each trial.
    pub trials: Vec<Percentiles>,
}

impl LatencyAt {
    /// The middle of what each round found at the same percentage; none of none.
    pub(super) fn middle<'t>(found: impl IntoIterator<Item = &'t Self>) -> Option<Self> {
        let found: Vec<&Self> = found.into_iter().collect();
        Some(Self {
            percent: found.first()?.percent,
            load: middle(found.iter().map(|at| at.load))?,
            loss_ratio: middle(found.iter().map(|at| at.loss_ratio))?,
            device: Percentiles::middle(found.iter().map(|at| &at.device))?,
            own: Percentiles::middle(found.iter().map(|at| &at.own))?,
            trials: found.iter().flat_map(|at| at.trials.iter().copied()).collect(),
        })
    }
}

#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct BackToBack {
    /// The longest burst that nothing is lost of; none: not even the shortest.
    pub frames: Option<f64>,
    /// The shortest that some is lost of.
    pub upper: Option<f64>,
    /// No burst of the longest length lost any.
    pub unlimited: bool,
    /// What lies in buffers at its end, less what is forwarded meanwhile (RFC 9004, section 5.4).
    pub corrected_buffer_us: Option<f64>,
}

/// A minute at a load below the throughput.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Minute {
    pub number: u32,
    pub seconds: f64,
    pub load: f64,
    pub sent: u64,
    /// Lost of those that were sent.
    pub lost: u64,
    pub p99_us: f64,
    /// Of the program that forwards, where there is one.
    pub program_kib: Option<u64>,
    /// Of the machine, free for programs.
    pub available_kib: u64,
}

fn searched(
    mut search: Search,
    mut trial: impl FnMut(TrialPlan) -> Result<Trial>,
) -> Result<(Outcome, Search)> {
    while let Some(plan) = search.next() {
        search.add(trial(plan)?);
    }
    let outcome = search.outcomes().first().copied().unwrap_or_default();
    Ok((outcome, search))
}

fn no_range(error: GoalError) -> Error {
    Error::Unavailable(error.to_string())
}

pub(super) fn throughput(
    site: &mut Site<'_>,
    plan: &Plan,
    ceiling: f64,
    record: Record<'_>,
) -> Result<Throughput> {
    let mut found = search_rate(site, plan, ceiling, record)?;
    for _ in 1..SEARCHES {
        if !found.sender_was_kept {
            break;
        }
        found = search_rate(site, plan, ceiling, record)?;
    }
    Ok(found)
}

fn search_rate(
    site: &mut Site<'_>,
    plan: &Plan,
    ceiling: f64,
    record: Record<'_>,
) -> Result<Throughput> {
    let search = Search::new(LEAST, ceiling, &[plan.throughput]).map_err(no_range)?;
    let search = search.with_sender(PROVED * ceiling);
    let (found, search) = searched(search, |plan| {
        let seen = site.trial(plan.load, plan.duration_s)?;
        record(&seen)?;
        Ok(seen.trial)
    })?;
    Ok(Throughput {
        lower: found.lower,
        upper: found.upper,
        upper_loss_ratio: found.upper_loss_ratio,
        fps: found.conditional_throughput,
        generator_fell_short: found.generator_fell_short,
        sender_was_kept: found.generator_fell_short && found.upper < Some(PROVED * ceiling),
        near_ceiling: found.lower > Some(PROVED * ceiling),
        trials: search.trials().count(),
        interrupted: search.interrupted(),
    })
}

/// From the ceiling down, until two in succession lose nothing.
pub(super) fn loss(
    site: &mut Site<'_>,
    plan: &Plan,
    ceiling: f64,
    record: Record<'_>,
) -> Result<Vec<LossAt>> {
    let mut found: Vec<LossAt> = Vec::new();
    for step in (1..=STEPS).rev() {
        let load = ceiling * f64::from(step) / f64::from(STEPS);
        let seen = site.trial(load, plan.loss_trial_s)?;
        record(&seen)?;
        let Trial { intended, sent, received, .. } = seen.trial;
        let loss_ratio = seen.trial.device_loss_ratio();
        found.push(LossAt {
            load,
            loss_ratio,
            through_fps: (loss_ratio > OVERLOADED).then(|| received as f64 / seen.trial.elapsed_s),
            unsent_ratio: intended.saturating_sub(sent) as f64 / intended.max(1) as f64,
            reordered: seen.reordered,
            duplicates: seen.duplicates,
        });
        if found.iter().rev().take(2).filter(|at| at.loss_ratio == 0.0).count() == 2 {
            break;
        }
    }
    Ok(found)
}

/// Minute after minute at this load; the last may be shorter.
pub(super) fn soak(
    site: &mut Site<'_>,
    (load, time): (f64, Duration),
    mut minute: impl FnMut(Minute, &Observed) -> Result<()>,
) -> Result<()> {
    let whole = Duration::from_secs(60);
    for number in 0..time.as_secs().div_ceil(whole.as_secs()) as u32 {
        let seconds = whole.min(time - whole * number).as_secs_f64();
        let seen = site.trial(load, seconds)?;
        let Trial { sent, received, .. } = seen.trial;
        let p99_us = seen.latency.percentiles().unwrap_or_default().p99_us;
        let (program_kib, available_kib) = site.memory();
        let lost = sent.saturating_sub(received);
        let number = number + 1;
        let found =
            Minute { number, seconds, load, sent, lost, p99_us, program_kib, available_kib };
        minute(found, &seen)?;
    }
    Ok(())
}

/// Each load by turns through the device and without.
pub(super) fn latency(
    site: &mut Site<'_>,
    looped: &mut Site<'_>,
    plan: &Plan,
    throughput: f64,
    record: Record<'_>,
) -> Result<Vec<LatencyAt>> {
    let at = |percent: u32| {
        let load = throughput * f64::from(percent) / 100.0;
        let (mut device, mut own) = (Histogram::default(), Histogram::default());
        let (mut trials, mut sent, mut received) = (Vec::new(), 0, 0);
        for _ in 0..plan.latency_repeats {
            let seen = site.trial(load, plan.latency_trial_s)?;
            record(&seen)?;
            device.add(&seen.latency);
            trials.extend(seen.latency.percentiles());
            sent += seen.trial.sent;
            received += seen.trial.received;
            let seen = looped.trial(load, plan.latency_trial_s)?;
            record(&seen)?;
            own.add(&seen.latency);
        }
        let none = || Error::NoFigure {
            who: format!("latency at {percent} % of the throughput"),
            what: "no frame came back".into(),
        };
        let (device, own) =
            (device.percentiles().ok_or_else(none)?, own.percentiles().ok_or_else(none)?);
        let loss_ratio = sent.saturating_sub(received) as f64 / sent.max(1) as f64;
        Ok(LatencyAt { percent, load, loss_ratio, device, own, trials })
    };
    LOADS.into_iter().map(at).collect()
}

/// Bursts as fast as can be sent. A length is searched for like a rate.
pub(super) fn back_to_back(
    site: &mut Site<'_>,
    plan: &Plan,
    (ceiling, throughput): (f64, Option<f64>),
    record: Record<'_>,
) -> Result<BackToBack> {
    let longest = ceiling * plan.longest_burst.as_secs_f64();
    let search = Search::new(SHORTEST_BURST, longest, &[plan.back_to_back]).map_err(no_range)?;
    let (found, _) = searched(search, |TrialPlan { load, duration_s }| {
        let phase = Phase { rate: None, count: load as u64, most: 4 * plan.longest_burst };
        let seen = site.phases(&[phase])?;
        record(&seen)?;
        // However long it took to send.
        Ok(Trial { load, duration_s, elapsed_s: duration_s, ..seen.trial })
    })?;
    let unlimited = found.upper.is_none();
    let corrected = |frames: f64| {
        let share = (1.0 - throughput? / ceiling).max(0.0);
        Some(frames / ceiling * share * 1e6)
    };
    Ok(BackToBack {
        frames: found.lower,
        upper: found.upper,
        unlimited,
        corrected_buffer_us: found.lower.filter(|_| !unlimited).and_then(corrected),
    })
}
