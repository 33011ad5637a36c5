//! How long losses go on: after an overload (RFC 2544, section 26.5), and while the program that
//! forwards is killed and started again.

use std::time::Duration;

use serde::Serialize;

use super::losses::OVERLOADED;
use super::measure::Record;
use super::plan::Plan;
use super::site::{Observed, Site};
use crate::Result;
use crate::generate::live_frames::Phase;
use crate::harness::median::middle;

/// Of what comes through: the next moment it may be a third more.
const OVERLOAD: f64 = 1.5;
/// Of the throughput, after an overload.
const CALM: f64 = 0.55;

#[derive(Clone, Debug, Serialize)]
pub(super) struct Recovery {
    /// Frames a second of the overload: half as much again as comes through of as much as can be
    /// sent, or as the throughput, if that is more.
    pub overload_fps: f64,
    /// From its end until nothing is lost for so long as the plan says, of frames at 55 % of the
    /// throughput. None of a trial that lost less than 1 %: it was no overload.
    pub overload_trials_ms: Vec<f64>,
    pub overload_trials: u32,
    /// The middle one.
    pub overload_ms: Option<f64>,
    /// A trial that has this did not recover in it.
    pub limit_ms: f64,
    /// The longest time without frames while the program is killed and started again, at half of the
    /// throughput; none: there is no program.
    pub killed_ms: Option<f64>,
    /// Frames that were lost meanwhile.
    pub killed_lost: Option<u64>,
}

pub(super) fn recovery(
    site: &mut Site<'_>,
    plan: &Plan,
    (ceiling, throughput): (f64, f64),
    record: Record<'_>,
) -> Result<Recovery> {
    let most = site.most(Duration::from_secs_f64(plan.loss_trial_s))?;
    record(&most)?;
    let overload_fps = (most.trial.load.max(throughput) * OVERLOAD).min(ceiling);
    let phase = |rate: f64, time: Duration| Phase {
        rate: Some(rate),
        count: (rate * time.as_secs_f64()) as u64,
        most: time,
    };
    let Plan { overload, quiet, .. } = *plan;
    let calm = plan.calm();
    let phases = [phase(overload_fps, overload), phase(throughput * CALM, calm)];
    let ms = |time: Duration| time.as_secs_f64() * 1000.0;
    let limit = calm - quiet;
    let mut overload_trials_ms = Vec::new();
    for _ in 0..plan.overload_repeats {
        let seen = site.phases(&phases)?;
        record(&seen)?;
        if seen.trial.device_loss_ratio() > OVERLOADED {
            overload_trials_ms.push(ms(seen.losses.ended(quiet).unwrap_or(limit)));
        }
    }
    let killed = site.killed(throughput / 2.0, plan.killed)?;
    killed.iter().try_for_each(&mut *record)?;
    let lost = |seen: &Observed| seen.trial.sent.saturating_sub(seen.trial.received);
    Ok(Recovery {
        overload_fps,
        overload_trials: plan.overload_repeats,
        overload_ms: middle(overload_trials_ms.iter().copied()),
        overload_trials_ms,
        limit_ms: ms(limit),
        killed_ms: killed.as_ref().map(|seen| ms(seen.gap)),
        killed_lost: killed.as_ref().map(lost),
    })
}
