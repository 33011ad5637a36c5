//! What to read the figures with.

use super::{Ceiling, CellFigures, ForwardFigures};
use crate::benches::forward::measure::Throughput;
use crate::benches::forward::size::GENOME;
use crate::benches::forward::{Road, Size};

/// Of the figures beside ours.
const CONTEXT: &str = "For context, a published measurement of DPDK 17.11 on a Loongson 3A2000 \
    with two ports of 1 Gbit/s, 64 bytes both \
    ways: Linux bridge 155 Mbit/s, l2fwd 551.58 (3.56 times as much), with larger buffers 692.2 \
    (4.47 times). That is other hardware: compare ratios, not rates.";

impl ForwardFigures {
    pub(super) fn all_notes(&self) -> Vec<String> {
        let mut notes: Vec<String> = self.tuned().collect();
        notes.extend(self.doubts());
        notes.extend(self.columns());
        if self.ratios.iter().any(|ratio| ratio.size == Size::Bytes(64)) {
            notes.push(CONTEXT.into());
        }
        let ceiling = |at: &Ceiling| format!("{:.0} ({})", at.fps, at.size);
        let ceilings: Vec<String> = self.ceilings.iter().map(ceiling).collect();
        let ways =
            if self.both_ways { "both ways at once, frames of both together" } else { "one way" };
        notes.push(format!("{ways}; the sender's ceiling: {} frames/s.", ceilings.join(", ")));
        if self.cells.iter().any(|cell| cell.size == Size::Imix) {
            notes.push(format!(
                "imix: frames of 64 (a), 512 (d) and 1518 bytes (g) in the order \
                {GENOME} (RFC 6985)."
            ));
        }
        if self.ipv6 {
            notes.push(
                "IPv6 (RFC 5180): frames of 64 bytes have 84, which the headers and the \
                stamp take."
                    .into(),
            );
        }
        if self.cells.iter().any(|cell| cell.road == Road::Outside) {
            notes.push(
                "The ceiling, and the tester's own times, are those of a veth pair, not of \
                these interfaces."
                    .into(),
            );
        }
        notes.push(
            "The sender has a processor, and what forwards has another. Where a program forwards, \
                the kernel's half of its reception is on \
             the sender's: such a road has more than one processor, and may be faster for it than \
                one in the kernel."
                .into(),
        );
        notes.push(format!("Deviations from the RFCs ({}):", self.plan));
        notes.extend(self.deviations.iter().map(|deviation| format!("- {deviation}.")));
        notes.push(self.command.clone());
        notes
    }

    /// What was found, and its file in the folder.
    fn tuned(&self) -> impl Iterator<Item = String> + '_ {
        self.cells.iter().filter_map(|cell| {
            let (CellFigures { road, size, .. }, tuned) = (cell, cell.tuned?);
            Some(format!(
                "{road}, {size}: tuned: {tuned} (`ringway engine l2fwd --config \
                engine-{road}-{size}.toml`); all else is measured with it."
            ))
        })
    }

    /// What was measured of the sender in the place of the device.
    fn doubts(&self) -> Vec<String> {
        self.cells.iter().flat_map(CellFigures::doubts).collect()
    }

    /// What the columns are.
    fn columns(&self) -> Vec<String> {
        let of_rounds = match self.rounds() {
            0 | 1 => "",
            _ => {
                " Of several rounds, each figure is the middle one by itself, from and to are the \
                    outermost."
            }
        };
        let mut columns = vec![format!(
            "frames/s: of all ways together. Each round finds it between a load at which trials \
                lose no more than the deviations below \
             allow, and one at which they do; loads are {} % apart, and equal figures are the \
                same load. It is no capacity: at another moment more may come through. \
             % lost there: of the trial at `to` that lost most. Mbit/s: of the frames with their \
                checksums, without preambles and gaps. in overload: frames/s that came \
             through at loads of which more than 1 % were lost, the middle one. burst: frames of \
                the longest burst of which none is lost, \
             > where the longest that was sent loses none.{of_rounds}",
            self.grid_percent
        )];
        if self.cells.iter().any(CellFigures::has_recovered) {
            columns.push(
                "recovery: from the end of an overload until nothing is lost for a while (see the \
                    deviations), of frames at 55 % of the \
                 throughput; > where losses went on for longer than was looked. overloads: in so \
                    many of the trials more than 1 % was lost; the others were \
                 no overload, and do not count. kill -9: the longest time without any frame while \
                    the program that forwards is killed and \
                 started again, at 50 % of the throughput, and all frames that were lost in the \
                    trial, also before and after that time."
                    .into(),
            );
        }
        if self.cells.iter().any(|cell| !cell.lost().is_empty()) {
            columns.push(
                "frame loss: a road may slow the sender down, which then sends less than \
                it was to; plots have what was sent, JSON the share that was \
                 not, unsent_ratio. Loads are shares of this run's ceiling."
                    .into(),
            );
        }
        if !self.ratios.is_empty() {
            columns.push(
                "ratio: of one round's figures, which are near in time; the middle one, from the \
                    least to the greatest. \"no difference shown\": 1 \
                 is between them. That all of five rounds are on one side happens by chance in 1 \
                    of 16; `bench compare` of two runs wants \
                 less than 1 of 100."
                    .into(),
            );
        }
        if self.cells.iter().any(|cell| cell.latency().next().is_some()) {
            columns.push(
                "latency: % load is of each road's and round's own throughput. Each column is the \
                    middle one of the rounds by itself; from and to \
                 are the rounds' p99. \"not measurable\": the middle one is less than three times \
                    the middle one of what the tester alone takes at that load. Times are \
                 counted in steps of 3 %."
                    .into(),
            );
        }
        columns
    }

    /// So many were begun.
    fn rounds(&self) -> usize {
        self.cells.iter().map(|cell| cell.rounds.len()).max().unwrap_or(0)
    }
}

impl CellFigures {
    fn doubts(&self) -> Vec<String> {
        let mut doubts = Vec::new();
        let kept = |found: &Throughput| found.sender_was_kept;
        if let Some(rounds) = self.rounds_where(kept) {
            doubts.push(format!(
                "in {rounds} the machine kept the sender from its processor, \
                however often it was tried: the rate is the sender's, not the device's"
            ));
        }
        let short = |found: &Throughput| found.generator_fell_short && !found.sender_was_kept;
        if let Some(rounds) = self.rounds_where(short) {
            doubts.push(format!(
                "in {rounds} the sender fell short at the upper bound, and the \
                device lost nothing: it may be faster"
            ));
        }
        let near = |found: &Throughput| found.near_ceiling && !found.generator_fell_short;
        if let Some(rounds) = self.rounds_where(near) {
            doubts.push(format!("in {rounds} above nine tenths of the sender's ceiling"));
        }
        if let Some(rounds) = self.rounds_where(|found| found.interrupted > 0) {
            let found = || self.rounds.iter().filter_map(|round| round.throughput);
            let interrupted: usize = found().map(|found| found.interrupted).sum();
            let trials: usize = found().map(|found| found.trials).sum();
            doubts.push(format!(
                "in {rounds} the machine kept the sender from its processor in \
                {interrupted} of all rounds' {trials} trials for the throughput, which were made \
                again or count for what was sent"
            ));
        }
        let of = |why: String| format!("{}, {}: {why}.", self.road, self.size);
        doubts.into_iter().map(of).collect()
    }

    /// "round 2", or "rounds 2, 5", whose throughput is so; none: none is.
    fn rounds_where(&self, is_so: impl Fn(&Throughput) -> bool) -> Option<String> {
        let is_one = |round: &&super::Round| round.throughput.as_ref().is_some_and(&is_so);
        let found = (1..).zip(&self.rounds).filter(|(_, round)| is_one(round));
        let numbers: Vec<String> = found.map(|(number, _): (u32, _)| number.to_string()).collect();
        let word = if numbers.len() == 1 { "round" } else { "rounds" };
        (!numbers.is_empty()).then(|| format!("{word} {}", numbers.join(", ")))
    }
}
