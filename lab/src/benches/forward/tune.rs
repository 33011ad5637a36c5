//! The smallest rings, bursts and pool of the engine's ports with which it is as fast as with any.
//!
//! One after another is swept, from what the engine has by default and with what was found of those
//! before.

use std::fmt;

use serde::Serialize;

use super::road::Road;
use crate::Result;
use crate::harness::named_enum::named;

named! {
    /// What is swept, in this order.
    pub(super) enum Knob {
        Ring = "ring",
        Burst = "burst",
        Frames = "frames",
        BusyPoll = "busy-poll",
    }
}

/// What the engine is started with.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Setting {
    pub ring: u32,
    pub burst: u32,
    /// Of the worker.
    pub frames: u32,
    /// Microseconds; 0: interrupts.
    pub busy_poll: u32,
}

/// The engine's own.
const DEFAULT: Setting = Setting { ring: 1024, burst: 64, frames: 16_384, busy_poll: 0 };
/// Rings' worth of frames that two ports take for reception.
const RECEPTION: u32 = 4;

impl Knob {
    /// Those of a road; none: it has no ports of the engine that can be tuned.
    pub fn of(road: Road) -> &'static [Self] {
        match road {
            Road::AfXdp => &Self::ALL,
            // It always polls.
            Road::Dpdk => &[Self::Ring, Self::Burst, Self::Frames],
            _ => &[],
        }
    }

    /// From the smallest.
    fn values(self, setting: Setting) -> Vec<u32> {
        match self {
            Self::Ring => vec![64, 128, 256, 512, 1024, 2048, 4096],
            Self::Burst => vec![32, 64, 128, 256],
            Self::Frames => [5, 6, 8, 16].map(|rings| rings * setting.ring).into(),
            Self::BusyPoll => vec![0, 20, 50, 100],
        }
    }

    fn set(self, setting: Setting, value: u32) -> Setting {
        match self {
            Self::Ring => {
                let frames = setting.frames.max(2 * RECEPTION * value);
                Setting { ring: value, frames, ..setting }
            }
            Self::Burst => Setting { burst: value, ..setting },
            Self::Frames => Setting { frames: value, ..setting },
            Self::BusyPoll => Setting { busy_poll: value, ..setting },
        }
    }

    pub fn value(self, setting: &Setting) -> u32 {
        match self {
            Self::Ring => setting.ring,
            Self::Burst => setting.burst,
            Self::Frames => setting.frames,
            Self::BusyPoll => setting.busy_poll,
        }
    }
}

impl Setting {
    /// Options of the engine.
    fn options(&self) -> impl Iterator<Item = (Knob, u32)> {
        let value = |knob: Knob| (knob, knob.value(self));
        let wanted = |(knob, value): &(Knob, u32)| *knob != Knob::BusyPoll || *value > 0;
        Knob::ALL.map(value).into_iter().filter(wanted)
    }

    pub fn arguments(&self) -> impl Iterator<Item = String> {
        self.options().map(|(knob, value)| format!("--{knob}={value}"))
    }

    /// For `ringway engine --config`.
    pub fn toml(&self) -> String {
        self.options().map(|(knob, value)| format!("{knob} = {value}\n")).collect()
    }
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.arguments().collect::<Vec<_>>().join(" "))
    }
}

/// How many settings are measured.
pub(super) fn settings(road: Road) -> usize {
    Knob::of(road).iter().map(|knob| knob.values(DEFAULT).len()).sum()
}

/// `measure` has the throughput of each setting, of which `width` is how well it is known.
pub(super) fn tune(
    road: Road,
    width: f64,
    mut measure: impl FnMut(Knob, &[Setting]) -> Result<Vec<f64>>,
) -> Result<Setting> {
    let mut found = DEFAULT;
    for knob in Knob::of(road) {
        let settings: Vec<Setting> =
            knob.values(found).into_iter().map(|value| knob.set(found, value)).collect();
        let curve = measure(*knob, &settings)?;
        let most = curve.iter().copied().fold(0.0, f64::max);
        let as_fast = settings.iter().zip(curve).find(|(_, fps)| *fps >= most * (1.0 - width));
        found = as_fast.map_or(found, |(setting, _)| *setting);
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::search::simulated::{Device, Flaw};
    use crate::search::{Goal, Search};

    /// The throughput as a search finds it of a device that has all of its speed with these.
    fn tuned(best: Setting, flaw: Flaw) -> Setting {
        let goal = Goal { duration_sum_s: 9.0, width: 0.02, ..Goal::RFC2544 };
        let goal = Goal { exceed_ratio: 0.5, final_trial_s: 1.0, initial_trial_s: 0.5, ..goal };
        let throughput = |setting: &Setting| {
            let share =
                |knob: Knob| f64::from(knob.value(setting)) / f64::from(knob.value(&best)).max(1.0);
            let poll = if setting.busy_poll < best.busy_poll { 0.9 } else { 1.0 };
            let shares = [Knob::Ring, Knob::Burst, Knob::Frames].map(|knob| share(knob).min(1.0));
            let ceiling = 1e6 * poll * shares.iter().fold(1.0, |all, share| all * share.sqrt());
            let mut search = Search::new(500.0, 2e6, &[goal]).unwrap();
            Device::new(ceiling, flaw, 7).search(&mut search);
            search.outcomes()[0].conditional_throughput.unwrap_or(0.0)
        };
        tune(Road::AfXdp, goal.width, |_, settings| Ok(settings.iter().map(throughput).collect()))
            .unwrap()
    }

    #[test]
    fn the_smallest_that_is_as_fast_as_any() {
        for best in [
            Setting { ring: 512, burst: 128, frames: 6 * 512, busy_poll: 50 },
            Setting { ring: 64, burst: 32, frames: 5 * 64, busy_poll: 0 },
            Setting { ring: 4096, burst: 256, frames: 16 * 4096, busy_poll: 100 },
        ] {
            for flaw in [Flaw::None, Flaw::Noise(0.01), Flaw::Busy(0.1)] {
                assert_eq!(tuned(best, flaw), best, "{flaw:?}");
            }
        }
    }

    #[test]
    fn a_setting_as_the_engine_takes_it() {
        let setting = Setting { busy_poll: 20, ..DEFAULT };
        assert_eq!(setting.to_string(), "--ring=1024 --burst=64 --frames=16384 --busy-poll=20");
        assert_eq!(DEFAULT.toml(), "ring = 1024\nburst = 64\nframes = 16384\n");
        assert_eq!(settings(Road::AfXdp), 19);
        assert_eq!(settings(Road::LinuxBridge), 0);
    }
}
