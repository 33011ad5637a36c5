//! An adversary: a search, with a budget, for the mix of packets that costs good traffic most.
//!
//! A mix is fed to the root program of a gateway with lists, rules and limits; after 24 of its
//! packets comes a good one. The search begins with random mixes and goes on with children of the
//! worst. What it tries depends on the seed and on what it has found alone. The calls that packets of
//! the worst make are counted on another gateway.

mod frame;
mod mix;
mod random;
mod replay;
mod victim;

use ringway_abi::raw::rw_ledger;
use ringway_abi::{Reason, Verdict};
use serde::Serialize;
use std::cmp::Ordering;

use self::frame::Frame;
use self::mix::Mix;
use self::random::Random;
use self::replay::{FRAMES, Replay};
use self::victim::{Victim, Way};
use super::peers::{self, Peers};
use crate::Result;
use crate::benches::packet::calls::{CallsPerPacket, Counters};
use crate::harness::Harness;
use crate::harness::median::{middle, rounded};

/// One packet of so many is good.
const PER_GOOD: usize = 25;
/// Packets of an evaluation: some tenths of a second, so that no limit's burst lasts.
const PACKETS: u32 = 20 * FRAMES;
/// How often times are measured.
const TIMES: u32 = 3;
/// Of all mixes so many are random.
const RANDOM_PARTS: u32 = 4;
/// Parents.
const BEST: usize = 12;
const REPORTED: usize = 3;
/// How often those that are reported are evaluated again.
const AGAIN: u32 = 5;

/// What a mix does.
#[derive(Clone, Debug, Serialize)]
pub struct Attempt {
    pub mix: Mix,
    pub in_words: String,
    pub good_sent: u64,
    pub good_lost: u64,
    /// Of these, packets of established flows and of learnt sources.
    pub known_sent: u64,
    pub known_lost: u64,
    /// Reasons, with their packets.
    pub known_lost_as: String,
    pub cost_ns_over_bare_drop: f64,
    /// The same as a multiple of a bare drop's own time.
    pub times_bare_drop: f64,
    /// Of those that are reported; a good packet's are among them.
    pub calls_per_packet: Option<CallsPerPacket>,
}

impl Attempt {
    /// First who must never be lost, then the share of all others, to a tenth, then time.
    fn worse(&self, other: &Self) -> Ordering {
        let tenths = |one: &Self| {
            let strangers = one.good_sent - one.known_sent;
            10 * (one.good_lost - one.known_lost) / strangers.max(1)
        };
        let by_loss = (self.known_lost, tenths(self)).cmp(&(other.known_lost, tenths(other)));
        by_loss.then(self.cost_ns_over_bare_drop.total_cmp(&other.cost_ns_over_bare_drop))
    }
}

#[cfg(test)]
impl Attempt {
    /// One that breaks the promise.
    pub(super) fn example() -> Self {
        let mix = Mix::random(&mut Random::new(1));
        Self {
            in_words: mix.to_string(),
            mix,
            good_sent: 100,
            good_lost: 7,
            known_sent: 90,
            known_lost: 1,
            known_lost_as: "1 service-limit".into(),
            cost_ns_over_bare_drop: 200.0,
            times_bare_drop: 4.0,
            calls_per_packet: Some(CallsPerPacket { calls: 8.0, tail_calls: 2.0, lookups: 20.0 }),
        }
    }
}

/// All that was tried, the worst first.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) worst: Vec<Attempt>,
    pub(super) evaluated: u32,
}

/// Evaluates so many mixes.
pub(super) fn search(
    budget: u32,
    seed: u64,
    prefixes: u32,
    harness: &mut Harness<'_>,
) -> Result<Found> {
    let mut storage = peers::Storage::uninit();
    let bare = Peers::load(&mut storage, &[])?;
    let (victim, programs) = Victim::with_programs(prefixes)?;
    let mut storage = replay::Storage::uninit();
    let mut replay = Replay::load(&mut storage, &programs, bare.bare())?;
    let mut random = Random::new(seed);
    let mut tried: Vec<Attempt> = Vec::new();
    for number in 0..budget {
        let mix = match tried.len() {
            0 => Mix::random(&mut random),
            _ if number < budget / RANDOM_PARTS => Mix::random(&mut random),
            all => {
                let best = &tried[..all.min(BEST)];
                let (one, other) = (random.below(best.len()), random.below(best.len()));
                best[one].mix.child(&best[other].mix, &mut random)
            }
        };
        let attempt = evaluate(&mix, &victim, &mut replay, seed)?;
        harness.say(format_args!(
            "{}/{budget}  {} known ({}) and {} of {} others lost, {:.0} ns: {mix}",
            number + 1,
            attempt.known_lost,
            attempt.known_lost_as,
            attempt.good_lost - attempt.known_lost,
            attempt.good_sent - attempt.known_sent,
            attempt.cost_ns_over_bare_drop,
        ));
        let place = tried.partition_point(|one| one.worse(&attempt).is_ge());
        tried.insert(place, attempt);
    }
    let mut worst: Vec<Attempt> = Vec::new();
    for attempt in &tried {
        if worst.iter().all(|one| one.mix.main_kind() != attempt.mix.main_kind()) {
            worst.push(attempt.clone());
        }
    }
    worst.truncate(REPORTED);
    for one in &mut worst {
        let again = (0..AGAIN).map(|_| evaluate(&one.mix, &victim, &mut replay, seed));
        let mut again: Vec<Attempt> = again.collect::<Result<_>>()?;
        again.sort_by(Attempt::worse);
        *one = again.swap_remove(again.len() / 2);
    }
    let mixes: Vec<&Mix> = worst.iter().map(|one| &one.mix).collect();
    let calls = count_calls(&mixes, prefixes, &bare, seed)?;
    for (one, calls) in worst.iter_mut().zip(calls) {
        one.calls_per_packet = Some(calls);
    }
    Ok(Found { worst, evaluated: budget })
}

/// Of a packet of each mix, on a gateway of their own.
fn count_calls(
    mixes: &[&Mix],
    prefixes: u32,
    bare: &Peers<'_>,
    seed: u64,
) -> Result<Vec<CallsPerPacket>> {
    let ((victim, programs), counters) = Counters::within(|| Victim::with_programs(prefixes))?;
    let mut storage = replay::Storage::uninit();
    let mut replay = Replay::load(&mut storage, &programs, bare.bare())?;
    let count = |mix: &&Mix| {
        replay.store(&frames(mix, &victim, seed))?;
        replay.measured(PACKETS)?;
        counters.reset()?;
        replay.measured(FRAMES)?;
        Ok(counters.per_packet(FRAMES)?)
    };
    mixes.iter().map(count).collect()
}

/// A good one after 24 of the mix.
fn frames(mix: &Mix, victim: &Victim, seed: u64) -> Vec<(Way, Frame)> {
    let packets = mix.packets(FRAMES, &victim.known, &mut Random::new(seed)).into_iter();
    let of = |(n, packet)| match n % PER_GOOD {
        0 => victim.good(n / PER_GOOD),
        _ => (Way::Attack, packet),
    };
    packets.enumerate().map(of).collect()
}

fn evaluate(mix: &Mix, victim: &Victim, replay: &mut Replay<'_>, seed: u64) -> Result<Attempt> {
    replay.store(&frames(mix, victim, seed))?;
    let (known, strangers) = (victim.ledger(Way::Known)?, victim.ledger(Way::Stranger)?);
    let (mut measured, mut bare) = (vec![replay.measured(PACKETS)?], Vec::new());
    for _ in 0..TIMES {
        bare.push(replay.beside(FRAMES)?);
        measured.push(replay.measured(FRAMES)?);
    }
    let known = Fate::new(&known, &victim.ledger(Way::Known)?);
    let strangers = Fate::new(&strangers, &victim.ledger(Way::Stranger)?);
    let [measured, bare] = [measured, bare].map(|all| middle(all).unwrap_or_default());
    Ok(Attempt {
        mix: mix.clone(),
        in_words: mix.to_string(),
        good_sent: known.sent + strangers.sent,
        good_lost: known.lost + strangers.lost,
        known_sent: known.sent,
        known_lost: known.lost,
        known_lost_as: known.lost_as,
        cost_ns_over_bare_drop: measured - bare,
        times_bare_drop: rounded(measured / bare.max(1.0), 1),
        calls_per_packet: None,
    })
}

/// What became of packets that should be sent on.
struct Fate {
    sent: u64,
    lost: u64,
    /// Reasons that the gateway counts.
    lost_as: String,
}

impl Fate {
    fn new(before: &rw_ledger, after: &rw_ledger) -> Self {
        let lost = |(verdict, reason, count): (Verdict, Reason, u64)| {
            let count = count - before.count(verdict, reason);
            (verdict != Verdict::Redirect && count > 0).then_some((reason, count))
        };
        let lost: Vec<(Reason, u64)> = after.entries().filter_map(lost).collect();
        let words: Vec<String> =
            lost.iter().map(|(reason, count)| format!("{count} {reason}")).collect();
        Self {
            sent: after.seen - before.seen,
            lost: lost.iter().map(|(_, count)| count).sum(),
            lost_as: words.join(", "),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;
    use crate::benches::packet::{calls_are_known, settle};

    const PREFIXES: u32 = 10_000;
    /// Of a packet. On a slow machine limits let more of them pass, which then open flows.
    const CALLS: f64 = 30.0;
    const LOOKUPS: f64 = 60.0;

    #[test]
    fn the_worst_mixes_make_few_calls() {
        if !calls_are_known("adversary::the_worst_mixes_make_few_calls") {
            return;
        }
        let count_all = || {
            settle().unwrap();
            let mut storage = peers::Storage::uninit();
            let bare = Peers::load(&mut storage, &[]).unwrap();
            let worst = Mix::worst();
            let found = count_calls(&worst.each_ref(), PREFIXES, &bare, 1).unwrap();
            for (mix, found) in worst.iter().zip(found) {
                println!("{mix}: {found:?}");
                assert!(found.calls <= CALLS && found.lookups <= LOOKUPS, "{mix}: {found:?}");
            }
        };
        thread::scope(|scope| scope.spawn(count_all).join()).unwrap();
    }
}
