//! Sums of ledgers, and what they count.

use crate::raw::{
    Loss, RW_REASON_SPACE, Reason, Verdict, rw_ledger, rw_shield_count, rw_shield_observed,
    rw_tracking, rw_traffic,
};

impl rw_ledger {
    /// Adds another CPU's or interface's ledger to this one.
    pub fn add(&mut self, other: &Self) {
        self.seen += other.seen;
        let own = self.counts.as_flattened_mut().iter_mut();
        own.zip(other.counts.as_flattened()).for_each(|(mine, theirs)| *mine += theirs);
        self.lost.iter_mut().zip(other.lost).for_each(|(mine, theirs)| *mine += theirs);
    }

    /// Packets that ended this way.
    pub fn count(&self, verdict: Verdict, reason: Reason) -> u64 {
        let (row, place) = (verdict as usize, reason as usize);
        match place.checked_sub(RW_REASON_SPACE as usize) {
            Some(place) if reason.verdicts() == [verdict] => {
                self.counts[Verdict::Aborted as usize][place]
            }
            None if verdict != Verdict::Aborted => self.counts[row][place],
            _ => 0,
        }
    }

    /// Packets that have been given a verdict.
    pub fn sum(&self) -> u64 {
        self.counts.as_flattened().iter().sum()
    }

    /// Packets seen but not accounted for. Zero when nothing is under way, whatever happened.
    pub fn difference(&self) -> i128 {
        i128::from(self.seen) - i128::from(self.sum())
    }

    /// The (verdict, reason) pairs that occurred, with their packets. A reason that this version
    /// does not know is left out: compare [`Self::sum`].
    pub fn entries(&self) -> impl Iterator<Item = (Verdict, Reason, u64)> + '_ {
        Verdict::all()
            .flat_map(|verdict| Reason::all().map(move |reason| (verdict, reason)))
            .map(|(verdict, reason)| (verdict, reason, self.count(verdict, reason)))
            .filter(|(.., packets)| *packets > 0)
    }

    /// Packets that got TX or REDIRECT: those the kernel was asked to send.
    pub fn sent(&self) -> u64 {
        let is_sent = |verdict: &Verdict| matches!(verdict, Verdict::Tx | Verdict::Redirect);
        self.entries().filter(|(verdict, ..)| is_sent(verdict)).map(|(.., packets)| packets).sum()
    }

    /// Of those, what the kernel dropped after all, by reason; only what occurred. A reason that
    /// this version does not know is left out.
    pub fn losses(&self) -> impl Iterator<Item = (Loss, u64)> + '_ {
        Loss::all().map(|loss| (loss, self.lost[loss as usize])).filter(|(_, packets)| *packets > 0)
    }
}

impl rw_tracking {
    /// Adds another CPU's counters to these.
    pub fn add(&mut self, other: &Self) {
        self.opened += other.opened;
        self.adopted += other.adopted;
        self.promoted += other.promoted;
        self.evicted += other.evicted;
        self.refused_full += other.refused_full;
        self.refused_quota += other.refused_quota;
    }
}

impl rw_shield_count {
    /// Adds another CPU's counters to these.
    pub fn add(&mut self, other: &Self) {
        self.packets += other.packets;
        self.bytes += other.bytes;
        self.over += other.over;
    }
}

impl rw_shield_observed {
    /// Adds another CPU's counters to these.
    pub fn add(&mut self, other: &Self) {
        self.packets.iter_mut().zip(other.packets).for_each(|(mine, theirs)| *mine += theirs);
    }
}

impl rw_traffic {
    /// Adds another CPU's counters to these.
    pub fn add(&mut self, other: &Self) {
        self.packets += other.packets;
        self.bytes += other.bytes;
        self.reply_packets += other.reply_packets;
        self.reply_bytes += other.reply_bytes;
        self.flows += other.flows;
        self.partial_checksums += other.partial_checksums;
        self.ports = self.ports.wrapping_add(other.ports);
        self.evicted += other.evicted;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adds_up() {
        let mut one = rw_ledger { seen: 3, ..Default::default() };
        one.counts[Verdict::Pass as usize][Reason::Vlan as usize] = 2;
        one.counts[Verdict::Tx as usize][Reason::NatReply as usize] = 1;
        one.lost[Loss::TooBig as usize] = 1;
        let mut sum = one;
        sum.add(&one);
        assert_eq!(sum.count(Verdict::Pass, Reason::Vlan), 4);
        assert_eq!((sum.seen, sum.sum(), sum.difference()), (6, 6, 0));
        let entries = [(Verdict::Pass, Reason::Vlan, 4), (Verdict::Tx, Reason::NatReply, 2)];
        assert_eq!(sum.entries().collect::<Vec<_>>(), entries);
        assert_eq!(sum.sent(), 2);
        // A shield's reason has its place in a row that no verdict of ours uses.
        sum.counts[Verdict::Aborted as usize][Reason::Land as usize - RW_REASON_SPACE as usize] = 5;
        sum.seen += 5;
        assert_eq!(sum.count(Verdict::Drop, Reason::Land), 5);
        assert_eq!(sum.entries().filter(|entry| entry.1 == Reason::Land).count(), 1);
        assert_eq!(sum.entries().map(|entry| entry.2).sum::<u64>(), sum.sum());
        assert_eq!(sum.difference(), 0);
        assert_eq!(sum.losses().collect::<Vec<_>>(), [(Loss::TooBig, 2)]);
    }
}
