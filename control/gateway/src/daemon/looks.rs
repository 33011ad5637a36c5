//! Looks that take a while, on threads that may wait: at the traffic counters and at the machine.

use std::sync::Arc;

use ringway_config::Config;
use ringway_host::counters;
use ringway_kernel::View;
use tokio::sync::mpsc;

use crate::alarm::{Counts, Sample};
use crate::board::Board;
use crate::preflight::{self, Finding, Report, State};
use crate::silence;
use crate::status::{FlowTable, Problem, Tracked};
use crate::trouble::Trouble;

/// What a look found.
#[derive(Debug)]
pub enum Seen {
    /// Every TCP service's counters.
    Traffic(silence::Sample),
    /// Every interface's counters.
    Books(Sample),
    /// How full the tables are.
    Tables(FlowTable, Tracked),
    /// The machine, as `ringway check --host` sees it.
    Machine(Report),
}

/// Begins looks and has their results.
pub struct Looks {
    board: Arc<Board>,
    view: View,
    config: Arc<Config>,
    send: mpsc::UnboundedSender<Seen>,
    receive: mpsc::UnboundedReceiver<Seen>,
}

impl Looks {
    /// At this node.
    pub fn new(board: Arc<Board>, view: View, config: Arc<Config>) -> Looks {
        let (send, receive) = mpsc::unbounded_channel();
        Looks { board, view, config, send, receive }
    }

    /// From now on at the machine as this configuration needs it.
    pub fn follow(&mut self, config: Arc<Config>) {
        self.config = config;
    }

    /// Reads the traffic counters.
    pub fn at_traffic(&self) {
        let (board, view, send) = (self.board.clone(), self.view.clone(), self.send.clone());
        tokio::task::spawn_blocking(move || {
            let read = view.services().and_then(|services| {
                board.meter(&services)?;
                // Closed only when the daemon has ended.
                let _ = send.send(Seen::Traffic(silence::sample(&services)));
                Ok(())
            });
            if let Err(error) = read {
                tracing::debug!(%error, "traffic not read");
            }
        });
    }

    /// Reads these interfaces' books, and what their devices count.
    pub fn at_books(&self, interfaces: Vec<(String, u32, u32)>) {
        let (view, send) = (self.view.clone(), self.send.clone());
        tokio::task::spawn_blocking(move || {
            let mut sample = Sample::new();
            for (name, slot, ifindex) in interfaces {
                // One that has just vanished is told elsewhere.
                let drops = counters::drops(ifindex).ok();
                match view.ledger(slot) {
                    Ok(books) => drop(sample.insert(name, Counts { books, drops })),
                    Err(error) => tracing::debug!(%error, "books not read"),
                }
            }
            let _ = send.send(Seen::Books(sample));
        });
    }

    /// Counts flows, unless somebody has just asked how many there are.
    pub fn at_tables(&self) {
        let (board, send) = (self.board.clone(), self.send.clone());
        tokio::task::spawn_blocking(move || match board.flow_tables() {
            Ok(Some((flows, tracked))) => drop(send.send(Seen::Tables(flows, tracked))),
            Ok(None) => {}
            Err(error) => tracing::debug!(%error, "flows not counted"),
        });
    }

    /// Looks at the machine.
    pub fn at_machine(&self) {
        let (config, send) = (self.config.clone(), self.send.clone());
        tokio::task::spawn_blocking(move || {
            let _ = send.send(Seen::Machine(preflight::run(&config)));
        });
    }

    /// The next result.
    pub async fn next(&mut self) -> Option<Seen> {
        self.receive.recv().await
    }
}

/// What has become wrong since the start; the daemon watches the rest itself.
pub fn problems(report: &Report) -> Vec<Problem> {
    let watched = |finding: &&Finding| {
        matches!(finding.check, "answers" | "forwarding" | "nat-address" | "nat-ports")
    };
    report.failures().filter(watched).map(|finding| problem(finding, &finding.subject)).collect()
}

/// Those of them that are the whole node's.
pub fn unready(report: &Report) -> Vec<Problem> {
    let of_node =
        |finding: &&Finding| matches!(finding.check, "forwarding" | "nat-address" | "nat-ports");
    report.failures().filter(of_node).map(|finding| problem(finding, &finding.subject)).collect()
}

/// What may be wrong, then what cannot be found out; what is alike is said once. The ways to the
/// backends are shown with them, and interfaces are watched by the daemon itself.
pub fn findings(report: &Report) -> Vec<Problem> {
    let mut alike: Vec<(&Finding, Vec<&str>)> = Vec::new();
    for finding in &report.findings {
        let open = matches!(finding.state, State::Unknown | State::Warn);
        if !open || matches!(finding.check, "interface" | "neighbour" | "route") {
            continue;
        }
        let same = |one: &Finding| {
            (one.state, &one.reason, &one.fix) == (finding.state, &finding.reason, &finding.fix)
        };
        match alike.iter_mut().find(|(one, _)| same(one)) {
            Some((_, subjects)) => subjects.push(&finding.subject),
            None => alike.push((finding, vec![&finding.subject])),
        }
    }
    alike.sort_by_key(|(finding, _)| finding.state == State::Unknown);
    alike.into_iter().map(|(finding, subjects)| problem(finding, &subjects.join(", "))).collect()
}

fn problem(finding: &Finding, subject: &str) -> Problem {
    let Finding { check, state, reason, fix, .. } = finding;
    let prefix = if *state == State::Unknown { "not known: " } else { "" };
    let trouble = match *check {
        _ if *state == State::Unknown => Trouble::CheckHostUnknown,
        _ if *state != State::Fail => Trouble::CheckHost,
        "answers" | "nat-address" => Trouble::AddressUnanswered,
        "nat-ports" => Trouble::NatPorts,
        "forwarding" => Trouble::Forwarding,
        _ => Trouble::CheckHost,
    };
    trouble.problem(format!("{subject}: {prefix}{reason}"), fix.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_alike_is_said_once() {
        let mut report = Report::default();
        for name in ["wan", "b1"] {
            report.push("veth-peer", name, State::Unknown, "its far end", "look there");
        }
        report.push("neighbour", "web", State::Unknown, "no MAC address yet", "");
        report.push("interface", "b1", State::Warn, "it has no carrier", "");
        report.push("mtu", "web", State::Warn, "too little room", "");
        report.push("nat-address", "10.0.0.9", State::Fail, "nobody answers", "");
        report.ok("btf", "kernel", "there");
        let said = |problems: Vec<Problem>| -> Vec<String> {
            problems.into_iter().map(|problem| problem.error).collect()
        };
        let found = findings(&report);
        let kinds: Vec<&str> = found.iter().map(|finding| finding.kind.as_str()).collect();
        assert_eq!(kinds, ["check-host", "check-host-unknown"]);
        assert_eq!(said(found), ["web: too little room", "wan, b1: not known: its far end"]);
        assert_eq!(said(problems(&report)), ["10.0.0.9: nobody answers"]);
    }
}
