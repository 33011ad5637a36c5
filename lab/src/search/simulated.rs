//! Devices to be searched, whose throughput is known.

use super::{Search, Trial, TrialPlan};

/// What is wrong with a device, or with what measures it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Flaw {
    None,
    /// A trial's ceiling is up to this share lower.
    Noise(f64),
    /// One frame of a thousand is lost between these loads, not above them.
    Inversion(f64, f64),
    /// Above this load a trial takes 1.7 times as long, and nothing is lost.
    Stretched(f64),
    /// The generator sends no more than this.
    Slow(f64),
    /// Of this share of trials the generator sends up to all, because it is kept from its processor.
    Busy(f64),
}

#[derive(Clone, Debug)]
pub(crate) struct Device {
    /// Frames a second.
    pub ceiling: f64,
    pub flaw: Flaw,
    /// Of its chance; one seed makes one device.
    pub seed: u64,
    pub trials: u32,
}

impl Device {
    pub fn new(ceiling: f64, flaw: Flaw, seed: u64) -> Self {
        Self { ceiling, flaw, seed, trials: 0 }
    }

    /// Between 0 and 1: SplitMix64.
    pub fn chance(&mut self) -> f64 {
        self.seed = self.seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.seed ^ (self.seed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }

    /// What a search should find: the fastest load at which nothing is lost, up to noise.
    pub fn throughput(&self) -> f64 {
        match self.flaw {
            Flaw::Stretched(most) | Flaw::Slow(most) => most.min(self.ceiling),
            _ => self.ceiling,
        }
    }

    pub fn trial(&mut self, plan: TrialPlan) -> Trial {
        self.trials += 1;
        let TrialPlan { load, duration_s } = plan;
        let frames = |rate: f64| (rate * duration_s).round() as u64;
        let (mut ceiling, mut sent, mut elapsed_s) = (self.ceiling, frames(load), duration_s);
        let mut lost = 0;
        match self.flaw {
            Flaw::None => (),
            Flaw::Noise(share) => ceiling *= 1.0 - share * self.chance(),
            Flaw::Inversion(from, to) if load >= from && load < to => lost = sent / 1000,
            Flaw::Inversion(..) => (),
            Flaw::Stretched(most) if load > most => elapsed_s *= 1.7,
            Flaw::Stretched(_) => (),
            Flaw::Slow(most) => sent = sent.min(frames(most)),
            Flaw::Busy(share) => {
                if self.chance() < share {
                    sent = (sent as f64 * self.chance()) as u64;
                    ceiling *= sent as f64 / frames(load).max(1) as f64;
                }
            }
        }
        let received = sent.min(frames(ceiling)) - lost;
        Trial { load, duration_s, intended: frames(load), sent, received, elapsed_s }
    }

    /// Until all goals are reached.
    pub fn search(&mut self, search: &mut Search) {
        while let Some(plan) = search.next() {
            assert!(self.trials < 5000, "no end: {self:?} {:?}", search.outcomes());
            let trial = self.trial(plan);
            search.add(trial);
        }
    }
}
