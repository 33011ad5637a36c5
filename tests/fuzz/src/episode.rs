//! A bounded run that a seed and a number repeat: a fresh gateway, the corpus, so many frames.
//! Frames that reach something new join the corpus until the episode ends.

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use ringway_abi::raw::rw_ledger;
use ringway_abi::{Reason, Verdict};
use ringway_bpf_tests::cast::{BACK, FAMILIES, FRONT};
use ringway_bpf_tests::frame::{
    Frame,
    flags::{ACK, SYN},
};
use ringway_bpf_tests::inspect::{self, layout};
use ringway_bpf_tests::judge::judge;
use ringway_bpf_tests::mutate::{Random, mutate};
use ringway_bpf_tests::seeds::{self, Seed};
use ringway_bpf_tests::{World, ports};

use crate::path::Path;
use crate::scene::{SCENES, Scene, disturb};
use crate::shape::reshape;

/// Frames of one episode: a few seconds of work.
pub const FRAMES: u64 = 100_000;
/// Between two things that happen to the node.
const CALM: u64 = 5_000;
/// Seconds that pass before such a thing.
const PAUSES: [u64; 6] = [0, 0, 1, 3, 31, 1_000];
/// So many frames come at once, and so long after the ones before.
const BURST: u64 = 64;
const LASTING: Duration = Duration::from_millis(3);
/// Flows where there are to be too many: several times the room.
const FLOOD: u32 = 12_000;

/// What a frame came to, as far as it matters whether another came to the same: scene, slot,
/// verdict, reason, what kind of packet came, and by how much its length changed.
pub type Outcome = (usize, u32, u8, u8, Kind, i16);

/// IP version, layer-4 protocol, tags, options or extensions, fragment.
type Kind = Option<(bool, u8, u8, bool, bool)>;

/// What came of an episode.
#[derive(Debug, Default)]
pub struct Tally {
    pub frames: u64,
    /// Of these in order, and sent on or answered.
    pub sent_in_order: u64,
    /// How often each verdict and reason was counted.
    pub counts: Vec<(Verdict, Reason, u64)>,
    /// Every outcome, with the first frame that reached it.
    pub found: Vec<(Outcome, Seed)>,
}

/// A frame that broke a rule.
#[derive(Debug)]
pub struct Failure {
    pub why: String,
    /// What came, and by which interface slot.
    pub came: Seed,
    /// What it was left as.
    pub left: Vec<u8>,
    /// How many were fed before it.
    pub after: u64,
}

pub fn scene(episode: u64) -> &'static Scene {
    &SCENES[(episode % SCENES.len() as u64) as usize]
}

pub fn play(seed: u64, episode: u64, saved: &[Seed]) -> Result<Tally, Failure> {
    play_for(seed, episode, saved, FRAMES)
}

fn play_for(seed: u64, episode: u64, saved: &[Seed], frames: u64) -> Result<Tally, Failure> {
    let scene = scene(episode);
    let mut random = Random::new(seed ^ episode.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let mut path = scene.path();
    let mut corpus = saved.to_vec();
    corpus.extend(seeds::of_clients());
    match &mut path {
        Path::Gateway(world) if scene.is_plain_nat() => corpus.extend(seeds::of_nat(world)),
        Path::Gateway(_) => (),
        Path::Decap(..) => corpus.iter_mut().for_each(|(slot, _)| *slot = FRONT),
    }
    let mut run = Run::new(&path, (episode % SCENES.len() as u64) as usize);
    // As they are first: what a mutation breaks, one of these may do already.
    for seed in corpus.clone() {
        run.feed(&path, seed, &mut corpus)?;
    }
    if let (true, Path::Gateway(world)) = (scene.is_flooded(), &path) {
        flood(&mut run, &path, world, &mut corpus)?;
    }
    while run.tally.frames < frames {
        let (slot, mut frame) = random.pick(&corpus).clone();
        if random.below(2) == 0 {
            (0..=random.below(2)).for_each(|_| reshape(&mut random, &mut frame));
        }
        if random.below(2) == 0 {
            mutate(&mut random, &mut frame);
        }
        if random.below(4) > 0 {
            inspect::mend(&mut frame);
        }
        // The kernel does not take less than an Ethernet header.
        frame.resize(frame.len().clamp(14, 9_200), 0);
        run.feed(&path, (slot, frame), &mut corpus)?;
        let Path::Gateway(world) = &mut path else { continue };
        if run.tally.frames.is_multiple_of(BURST) {
            world.advance_by(LASTING);
        }
        if run.tally.frames.is_multiple_of(CALM) {
            world.advance(*random.pick(&PAUSES));
            disturb(world, &mut random);
        }
    }
    run.finish(&path)
}

/// Flows that stay fill the table; for those that begin then there is no room, and most come from
/// a single prefix.
fn flood(run: &mut Run, path: &Path, world: &World, corpus: &mut Vec<Seed>) -> Result<(), Failure> {
    for flags in [SYN, ACK] {
        for client in 0..FLOOD {
            run.feed(path, (FRONT, segment(client, 1024, flags)), corpus)?;
        }
        // Only those that speak a second later may stay.
        world.advance(2);
    }
    for client in FLOOD..2 * FLOOD {
        run.feed(path, (FRONT, segment(client, 1024, SYN)), corpus)?;
        run.feed(path, (FRONT, segment(0, client as u16, SYN)), corpus)?;
    }
    Ok(())
}

/// Of a flow of the nth client, each of which has a prefix to itself.
fn segment(client: u32, port: u16, flags: u8) -> Vec<u8> {
    let family = FAMILIES[client as usize % FAMILIES.len()];
    let address = match family.client() {
        IpAddr::V4(v4) => IpAddr::V4((v4.to_bits() ^ client << 8).into()),
        IpAddr::V6(v6) => IpAddr::V6((v6.to_bits() ^ u128::from(client) << 64).into()),
    };
    let ends = (SocketAddr::new(address, port), SocketAddr::new(family.vip(), ports::POOL));
    Frame::tcp(ends.0, ends.1, flags).bytes()
}

struct Run {
    scene: usize,
    ledgers: [rw_ledger; 2],
    opening: [rw_ledger; 2],
    runs: u64,
    seen: HashSet<Outcome>,
    out: Vec<u8>,
    tally: Tally,
}

fn ledgers(path: &Path) -> [rw_ledger; 2] {
    [FRONT, BACK].map(|slot| path.ledger(slot))
}

impl Run {
    fn new(path: &Path, scene: usize) -> Self {
        let opening = ledgers(path);
        Self {
            scene,
            ledgers: opening,
            opening,
            runs: path.run_count(),
            seen: HashSet::new(),
            out: Vec::new(),
            tally: Tally::default(),
        }
    }

    /// Feeds one frame and holds it against the rules.
    fn feed(&mut self, path: &Path, came: Seed, corpus: &mut Vec<Seed>) -> Result<(), Failure> {
        let (slot, frame) = &came;
        let verdict = path.run(*slot, frame, &mut self.out);
        let after = self.tally.frames;
        self.tally.frames += 1;
        let judged = self.counted(path, *slot, verdict).and_then(|reason| {
            judge(frame, &self.out, verdict, Some(reason))
                .map_err(|why| format!("{verdict}/{reason}: {why}"))?;
            Ok(reason)
        });
        let reason = match judged {
            Ok(reason) => reason,
            Err(why) => return Err(Failure { why, left: self.out.clone(), came, after }),
        };
        if matches!(verdict, Verdict::Tx | Verdict::Redirect) && inspect::check(frame).is_ok() {
            self.tally.sent_in_order += 1;
        }
        let longer = (self.out.len() as i64 - frame.len() as i64).clamp(-60, 100) as i16;
        let outcome = (self.scene, *slot, verdict as u8, reason as u8, kind(frame), longer);
        if self.seen.insert(outcome) {
            corpus.push(came.clone());
            self.tally.found.push((outcome, came));
        }
        Ok(())
    }

    /// The one reason that was counted since, with the verdict that was given.
    fn counted(&mut self, path: &Path, slot: u32, verdict: Verdict) -> Result<Reason, String> {
        let after = path.ledger(slot);
        let before = std::mem::replace(&mut self.ledgers[slot as usize], after);
        if after.seen.wrapping_sub(before.seen) != 1 || after.difference() != 0 {
            return Err(format!("{verdict}: seen {} times", after.seen.wrapping_sub(before.seen)));
        }
        let mut reasons = Reason::all()
            .filter(|reason| after.count(verdict, *reason) != before.count(verdict, *reason));
        match (reasons.next(), reasons.next()) {
            (Some(reason), None) => Ok(reason),
            found => Err(format!("{verdict} was given, counted was {found:?}")),
        }
    }

    /// Ours against the kernel's own count.
    fn finish(mut self, path: &Path) -> Result<Tally, Failure> {
        let ledgers = ledgers(path);
        let seen: u64 =
            ledgers.iter().zip(&self.opening).map(|(now, then)| now.seen - then.seen).sum();
        let kernel = path.run_count() - self.runs;
        let fed = self.tally.frames;
        if (kernel, seen) != (fed, fed) || ledgers.iter().any(|ledger| ledger.difference() != 0) {
            let why = format!("{fed} frames fed, {kernel} run by the kernel's count, {seen} seen");
            return Err(Failure { why, came: (0, Vec::new()), left: Vec::new(), after: fed });
        }
        for verdict in Verdict::all() {
            for reason in Reason::all() {
                let count = |ledgers: &[rw_ledger; 2]| -> u64 {
                    ledgers.iter().map(|ledger| ledger.count(verdict, reason)).sum()
                };
                let n = count(&ledgers) - count(&self.opening);
                if n > 0 {
                    self.tally.counts.push((verdict, reason, n));
                }
            }
        }
        Ok(self.tally)
    }
}

/// Protocols that the packet path may tell apart: ICMP, IP in IP, TCP, UDP, IPv6, ICMPv6.
const TOLD_APART: [u8; 6] = [1, 4, 6, 17, 41, 58];

fn kind(frame: &[u8]) -> Kind {
    let at = layout(frame).ok()??;
    let plain = if at.v6 { 40 } else { 20 };
    let proto = if TOLD_APART.contains(&at.proto) { at.proto } else { 0 };
    let tags = ((at.l3 - 14) / 4).min(3) as u8;
    Some((at.v6, proto, tags, at.l4 - at.l3 > plain, at.fragment))
}

#[cfg(test)]
mod tests {
    use ringway_bpf_tests::can_run;

    use super::*;

    /// One episode of each scene: what only one of them can reach is reached.
    #[test]
    fn every_program_and_way_is_reached() {
        if !can_run("every_program_and_way_is_reached") {
            return;
        }
        let _counting = ringway_bpf_tests::run::count_runs();
        let mut reached = HashSet::new();
        for episode in 0..SCENES.len() as u64 {
            let tally = play_for(1, episode, &[], 20_000).unwrap_or_else(|f| panic!("{}", f.why));
            reached.extend(tally.counts.iter().map(|(_, reason, _)| *reason));
        }
        for reason in [
            Reason::OnPass,
            Reason::PassRewritten,
            Reason::TrackFull,
            Reason::TrackQuota,
            Reason::DecapIpip,
            Reason::DecapGue,
            Reason::NoTunnel,
            Reason::TunnelOther,
            Reason::InnerElsewhere,
        ] {
            assert!(reached.contains(&reason), "{reason}");
        }
    }
}
