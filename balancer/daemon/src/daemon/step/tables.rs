//! Backends, and the tables that follow them: changes that come together are written together.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use ringway_api::error::Error;
use ringway_api::text::counted;
use ringway_plan::Observed;
use tracing::Level;

use super::State;
use super::effect::{Effect, LogLine};
use super::reload::PendingChange;
use crate::backends::{BackendSet, Line, Replies};
use crate::daemon::background::BackgroundWork;
use crate::daemon::datapath_thread::DatapathCommand;
use crate::daemon::netlink_watch::Found;
use crate::health::cookies::CookieEvent;
use crate::health::{self, Health};
use crate::monitor::no_reply_watch::NoReplyWatch;
use crate::network::next_hop::{NoWay, Ways};

/// Changes that come together are applied together.
const SETTLE: Duration = Duration::from_millis(3);
/// Backends as they were ordered that are kept for status while their tables are being written.
const ORDERS_KNOWN: usize = 4;

/// Backends as they are known, and as the tables have them.
#[derive(Debug, Default)]
pub struct Tables {
    pub backend_set: BackendSet,
    /// As it was when the tables were written; status shows this one.
    pub written: BackendSet,
    /// As it was when the tables were ordered that are not written yet, by the order's number.
    ordered: VecDeque<(u64, BackendSet)>,
    /// Orders to write the tables.
    orders: u64,
    /// Apply what has changed then.
    pub(super) due: Option<Instant>,
    pub error: Option<Error>,
    /// Some backend has not its whole weight yet.
    slow_start: bool,
    /// [`Surroundings::own_addresses`](crate::health::dsr_probe::Surroundings::own_addresses)
    pub(super) own_addresses: BTreeSet<IpAddr>,
    /// Next hops that the kernel keeps resolved: interface index and address.
    pub(super) neighbours: BTreeSet<(u32, IpAddr)>,
    /// Replies of each backend at the last reading of the counters.
    pub(super) replies: Replies,
}

impl Tables {
    pub(super) fn new(backend_set: BackendSet) -> Tables {
        Tables { backend_set, ..Tables::default() }
    }

    /// Input of the tables.
    pub(super) fn observed(&self, now: Instant) -> Box<Observed> {
        self.observed_of(&self.backend_set, now)
    }

    pub(super) fn observed_of(&self, backend_set: &BackendSet, now: Instant) -> Box<Observed> {
        let mut observed = Box::new(backend_set.observed(now));
        observed.own_addresses.clone_from(&self.own_addresses);
        observed
    }

    /// The tables have these from now on.
    pub(super) fn adopt(&mut self, backend_set: BackendSet) {
        self.written = backend_set.clone();
        self.backend_set = backend_set;
        self.error = None;
    }

    /// Orders up to this number are carried out, or could not be: who asks is told of the dead
    /// backend, too, that the tables still have.
    fn take_orders(&mut self, number: Option<u64>) {
        let done = |(ordered, _): &&(u64, BackendSet)| number >= Some(*ordered);
        let count = self.ordered.iter().take_while(done).count();
        if let Some((_, backend_set)) = self.ordered.drain(..count).next_back() {
            self.written = backend_set;
        }
    }
}

impl State {
    /// A check has a new result.
    pub(super) fn checked(&mut self, event: &health::CheckEvent) {
        self.effects.push(Effect::HealthChanged);
        if let (Health::Down, Some(backend)) =
            (event.health, self.tables.backend_set.address(event))
        {
            self.effects.push(Effect::Doubt(backend));
        }
        if let Some(service) = self.tables.backend_set.service(event) {
            self.monitor.no_reply_watch.forget(service);
        }
        let next = self.reload.change.as_mut().and_then(PendingChange::backend_set);
        let news = next.and_then(|next| next.take(event, self.at.now));
        if let Some(text) = self.tables.backend_set.take(event, self.at.now).or(news) {
            let good = event.health.is_up();
            // That backends are up is what a start expects: the line "serving" has how many.
            let line = Line { good, text, lost_by: self.tables.backend_set.lost_by(event) };
            let line = match good && !self.serving || self.follows(&line) {
                true => LogLine::new(Level::DEBUG, line.text),
                false => line.into(),
            };
            self.effects.log(line);
        }
        self.apply_soon();
    }

    /// Whether a backend takes cookies is known anew.
    pub(super) fn cookies(&mut self, event: &CookieEvent) {
        let next = self.reload.change.as_mut().and_then(PendingChange::backend_set);
        let news = next.and_then(|next| next.take_cookies(event));
        if let Some(line) = self.tables.backend_set.take_cookies(event).or(news) {
            let line = match line.good && !self.serving {
                true => LogLine::new(Level::DEBUG, line.text),
                false => line.into(),
            };
            self.effects.log(line);
        }
        self.apply_soon();
    }

    /// The ways to all backends, and what they depend on, are known anew.
    pub(super) fn network(&mut self, found: Found) {
        let Found { existing, ways: Ways { ways, kept, .. }, probe_tunnel: around } = found;
        self.done(BackgroundWork::LookUpWays, Ok(()));
        self.found(existing);
        let own = around.own_addresses();
        if std::mem::replace(&mut self.tables.own_addresses, own) != self.tables.own_addresses {
            self.apply_soon();
        }
        let before = std::mem::take(&mut self.tables.neighbours);
        let released = before.into_iter().filter(|next_hop| !kept.contains_key(next_hop));
        self.effects.push(Effect::Release(released.collect()));
        for ((ifindex, address), outcome) in kept {
            self.tables.neighbours.insert((ifindex, address));
            let outcome = outcome.map_err(|error| Error::failed(error.to_string(), ""));
            self.done(BackgroundWork::KeepNeighbour(ifindex, address), outcome);
        }
        let not_yet = Err(NoWay::NotYet);
        let way = |address| ways.get(&address).unwrap_or(&not_yet).clone();
        let (changed, news) = self.tables.backend_set.take_ways(way);
        self.log_lines(news, "lost the way to");
        self.tend();
        if changed {
            self.monitor.no_reply_watch = NoReplyWatch::default();
            self.apply_soon();
        }
        if let Some(next) = self.reload.change.as_mut().and_then(PendingChange::backend_set) {
            next.take_ways(way);
        }
        self.effects.push(Effect::ProbeWays(Box::new(around)));
    }

    /// Connections of backends that are down go on no longer than they may.
    pub(super) fn tend(&mut self) {
        let (now, replies) = (self.at.now, &self.tables.replies);
        if let Some(next) = self.reload.change.as_mut().and_then(PendingChange::backend_set) {
            next.tend(now, replies);
        }
        let ended = self.tables.backend_set.tend(now, replies);
        if !ended.is_empty() {
            self.log_lines(ended, "reset the connections of");
            self.apply_soon();
        }
    }

    /// Looks up the ways to backends that are, and that will be.
    pub(super) fn look_up_ways(&mut self) {
        let mut addresses = self.tables.backend_set.addresses();
        if let Some(next) = self.reload.change.as_mut().and_then(PendingChange::backend_set) {
            addresses.extend(next.addresses());
            addresses.sort();
            addresses.dedup();
        }
        self.effects.push(Effect::LookUpWays(addresses, self.attachment.on()));
    }

    /// The tables were written, or not; with the number of the newest order, if there was one.
    pub(super) fn applied(&mut self, number: Option<u64>, outcome: Result<(), Error>) {
        self.tables.take_orders(number);
        let error = outcome.err();
        // It is tried again every second; once is enough to tell.
        if let Some(error) = error.as_ref().filter(|e| Some(*e) != self.tables.error.as_ref()) {
            self.effects.error("tables not written", error);
        }
        self.tables.error = error;
    }

    pub(super) fn apply_soon(&mut self) {
        self.tables.due.get_or_insert(self.at.now + SETTLE);
    }

    /// Once a second: backends that begin slowly get more every now and then, and at last all.
    pub(super) fn apply_again(&mut self) {
        let slow_start = self.tables.backend_set.is_starting_slowly(self.at.now);
        if self.tables.error.is_some() || slow_start || self.tables.slow_start {
            self.apply_soon();
        }
        self.tables.slow_start = slow_start;
    }

    pub(super) fn apply(&mut self) {
        self.tables.due = None;
        if self.reload.change.as_ref().is_some_and(PendingChange::is_ordered) {
            // The backends in force are not those of the tables any more, or not yet.
            return;
        }
        // Before the first attachment nothing is in force, so nothing is hurried. After it, status
        // follows when the tables are written: it should not be ahead of them.
        if !self.attachment.is_done() {
            return self.effects.post();
        }
        let observed = self.tables.observed(self.at.now);
        let Tables { backend_set, ordered, orders, .. } = &mut self.tables;
        *orders += 1;
        // Only the newest waiting order is written, so an older one is not missed.
        if ordered.len() >= ORDERS_KNOWN {
            ordered.pop_front();
        }
        ordered.push_back((*orders, backend_set.clone()));
        self.effects.order(DatapathCommand::Apply(*orders, observed));
    }

    /// Whether a line follows from what was told of an interface that many backends are reached by.
    fn follows(&self, line: &Line) -> bool {
        let mut interface = line.lost_by.iter().filter(|_| !line.good);
        interface.any(|name| {
            self.attachment.is_cut_off(name) && self.tables.backend_set.lost_several(name)
        })
    }

    /// Logs lines about backends; what follows from one cause is one line. `what` became of them.
    fn log_lines(&mut self, lines: Vec<Line>, what: &str) {
        let (counts, others) = by_cause(lines, |line| self.follows(line));
        for (name, backends) in counts {
            let backends = counted(backends, "backend");
            let line = "`ringway status` lists them";
            self.effects.warn(format!("{name} is cut off: {what} {backends}; {line}"));
        }
        others.into_iter().for_each(|line| self.effects.log(line.into()));
    }
}

/// How many lines follow from what was told of an interface, by interface; and the others.
fn by_cause(
    lines: Vec<Line>,
    was_told: impl Fn(&Line) -> bool,
) -> (BTreeMap<String, usize>, Vec<Line>) {
    let (caused, others): (Vec<Line>, _) = lines.into_iter().partition(|line| was_told(line));
    let mut counts = BTreeMap::new();
    for interface in caused.into_iter().filter_map(|line| line.lost_by) {
        *counts.entry(interface).or_default() += 1;
    }
    (counts, others)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_follows_from_one_cause_is_counted_by_it() {
        let line = |lost_by: Option<&str>| {
            let lost_by = lost_by.map(str::to_owned);
            Line { good: false, text: "web: backend 10.0.0.2:80: no way to it".into(), lost_by }
        };
        let lines = [Some("eth1"), Some("eth2"), None, Some("eth1"), Some("eth3")].map(line);
        let cut_off = |line: &Line| matches!(line.lost_by.as_deref(), Some("eth1" | "eth3"));
        let (counts, others) = by_cause(lines.to_vec(), cut_off);
        assert_eq!(counts, [("eth1".into(), 2), ("eth3".into(), 1)].into());
        assert_eq!(others, [lines[1].clone(), lines[2].clone()]);
    }
}
