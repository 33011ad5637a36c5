//! Slow reads, on threads that may block: the traffic counters, the tables, and the machine.

use std::sync::Arc;

use ringway_api::documents::status::{FlowTable, Problem, Tracked};
use ringway_api::problem_kind::ProblemKind;
use ringway_config::Config;
use ringway_doctor::{Outcome, Severity};
use ringway_host::netlink::counters as device_counters;
use ringway_kernel::View;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::backends::{self, Replies};
use crate::monitor::counter_watch::{Counts, Sample};
use crate::monitor::no_reply_watch;
use crate::preflight::{self, Cause, Finding, Report, names};
use crate::snapshot::StatusStore;

#[derive(Debug)]
pub enum Seen {
    /// Every TCP service's counters, and what has come from each backend.
    Traffic(no_reply_watch::Sample, Replies),
    Counters(Sample),
    /// How full the tables are.
    Tables(FlowTable, Tracked),
    /// The machine, as `ringway check --host` sees it.
    Machine(Report),
}

/// Starts the reads, and receives what they found.
pub struct BackgroundReads {
    status_store: Arc<StatusStore>,
    view: View,
    config: Arc<Config>,
    send: mpsc::UnboundedSender<Seen>,
    receive: mpsc::UnboundedReceiver<Seen>,
    traffic: OneAtATime,
    counters: OneAtATime,
    tables: OneAtATime,
    machine: OneAtATime,
}

/// Runs what may hang on a thread that may wait; while that lasts, nothing more of its sort.
#[derive(Debug, Default)]
struct OneAtATime {
    running: Option<JoinHandle<()>>,
}

impl OneAtATime {
    fn run(&mut self, work: impl FnOnce() + Send + 'static) {
        if self.running.as_ref().is_none_or(JoinHandle::is_finished) {
            self.running = Some(tokio::task::spawn_blocking(work));
        }
    }
}

impl BackgroundReads {
    pub fn new(status_store: Arc<StatusStore>, view: View, config: Arc<Config>) -> BackgroundReads {
        let (send, receive) = mpsc::unbounded_channel();
        let (traffic, counters) = (OneAtATime::default(), OneAtATime::default());
        let (tables, machine) = (OneAtATime::default(), OneAtATime::default());
        BackgroundReads {
            status_store,
            view,
            config,
            send,
            receive,
            traffic,
            counters,
            tables,
            machine,
        }
    }

    /// From now on at the machine as this configuration needs it.
    pub fn reconfigure(&mut self, config: Arc<Config>) {
        self.config = config;
    }

    pub fn read_traffic(&mut self) {
        let (status_store, view, send) =
            (self.status_store.clone(), self.view.clone(), self.send.clone());
        self.traffic.run(move || {
            let read = view.services().and_then(|services| {
                status_store.meter(&services)?;
                // Closed only when the daemon has ended.
                let sample = no_reply_watch::sample(&services);
                let _ = send.send(Seen::Traffic(sample, backends::replies(&services)));
                Ok(())
            });
            if let Err(error) = read {
                tracing::debug!(%error, "traffic not read");
            }
        });
    }

    /// Reads these interfaces' ledgers and their devices' drop counters.
    pub fn read_counters(&mut self, interfaces: Vec<(String, u32, u32)>) {
        let (view, send) = (self.view.clone(), self.send.clone());
        self.counters.run(move || {
            let mut sample = Sample::new();
            for (name, slot, ifindex) in interfaces {
                // One that has just vanished is told elsewhere.
                let drops = device_counters::drops(ifindex).ok();
                match view.ledger(slot) {
                    Ok(ledger) => drop(sample.insert(name, Counts { ledger, drops })),
                    Err(error) => tracing::debug!(%error, "counters not read"),
                }
            }
            let _ = send.send(Seen::Counters(sample));
        });
    }

    /// Counts flows, unless somebody has just asked how many there are.
    pub fn read_tables(&mut self) {
        let (status_store, send) = (self.status_store.clone(), self.send.clone());
        self.tables.run(move || match status_store.flow_tables() {
            Ok(Some((flows, tracked))) => drop(send.send(Seen::Tables(flows, tracked))),
            Ok(None) => {}
            Err(error) => tracing::debug!(%error, "flows not counted"),
        });
    }

    /// Looks at the machine.
    pub fn read_machine(&mut self) {
        let (config, send) = (self.config.clone(), self.send.clone());
        self.machine.run(move || {
            let _ = send.send(Seen::Machine(preflight::run(&config)));
        });
    }

    pub async fn next(&mut self) -> Option<Seen> {
        self.receive.recv().await
    }
}

/// What has become wrong since the start; the daemon watches the rest itself.
pub fn problems(report: &Report) -> Vec<Problem> {
    failed(report, &[names::ANSWERS, names::FORWARDING, names::NAT_ADDRESS, names::NAT_PORTS])
}

/// Those of them that are the whole node's.
pub fn unready(report: &Report) -> Vec<Problem> {
    failed(report, &[names::FORWARDING, names::NAT_ADDRESS, names::NAT_PORTS])
}

fn failed(report: &Report, checks: &[&str]) -> Vec<Problem> {
    let watched = |finding: &Finding| {
        finding.outcome.severity == Severity::Crit && checks.contains(&finding.check)
    };
    report.causes(watched).iter().map(problem).collect()
}

/// What may be wrong, then what cannot be found out; each cause once. The ways to the
/// backends are shown with them, and interfaces are watched by the daemon itself.
pub fn findings(report: &Report) -> Vec<Problem> {
    let open = |finding: &Finding| {
        matches!(finding.outcome.severity, Severity::Unknown | Severity::Warn)
            && !matches!(finding.check, names::INTERFACE | names::NEIGHBOUR | names::ROUTE)
    };
    let mut causes = report.causes(open);
    causes.sort_by_key(|cause| cause.first.outcome.severity == Severity::Unknown);
    causes.iter().map(problem).collect()
}

/// One cause, with all that it is about.
pub fn problem(cause: &Cause<'_>) -> Problem {
    let Finding { check, outcome, .. } = cause.first;
    let Outcome { severity, found, .. } = outcome;
    let prefix = if *severity == Severity::Unknown { "not known: " } else { "" };
    let trouble = match *check {
        _ if *severity == Severity::Unknown => ProblemKind::CheckHostUnknown,
        _ if *severity != Severity::Crit => ProblemKind::CheckHost,
        names::ANSWERS | names::NAT_ADDRESS => ProblemKind::AddressUnanswered,
        names::NAT_PORTS => ProblemKind::NatPorts,
        names::FORWARDING => ProblemKind::Forwarding,
        _ => ProblemKind::CheckHost,
    };
    let subjects = cause.subjects();
    let error = format!("{}: {prefix}{found}", subjects.join(", "));
    Problem { subjects, ..trouble.problem(error, outcome.remedy()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_hangs_is_not_begun_again() {
        let (begun, mut count) = mpsc::unbounded_channel();
        let (release, gate) = std::sync::mpsc::channel::<()>();
        let mut sort = OneAtATime::default();
        let first = begun.clone();
        sort.run(move || {
            let _ = first.send(1);
            let _ = gate.recv();
        });
        assert_eq!(count.recv().await, Some(1));
        sort.run(|| unreachable!("the first hangs"));
        drop(release);
        while !sort.running.as_ref().is_some_and(JoinHandle::is_finished) {
            tokio::task::yield_now().await;
        }
        sort.run(move || {
            let _ = begun.send(2);
        });
        assert_eq!(count.recv().await, Some(2));
    }

    #[test]
    fn what_is_alike_is_said_once() {
        let mut report = Report::default();
        for name in ["wan", "b1"] {
            report.push("veth-peer", Outcome::unknown(name, "its far end").advice("look there"));
        }
        report.push(names::NEIGHBOUR, Outcome::unknown("web", "no MAC address yet"));
        report.push(names::INTERFACE, Outcome::warn("b1", "it has no carrier"));
        report.push("mtu", Outcome::warn("web", "too little room"));
        report.push(names::NAT_ADDRESS, Outcome::crit("10.0.0.9", "nobody answers"));
        report.ok("btf", "kernel", "there");
        let said = |problems: Vec<Problem>| -> Vec<String> {
            problems.into_iter().map(|problem| problem.error).collect()
        };
        let found = findings(&report);
        let kinds: Vec<ProblemKind> = found.iter().map(|finding| finding.kind).collect();
        assert_eq!(kinds, [ProblemKind::CheckHost, ProblemKind::CheckHostUnknown]);
        assert_eq!(said(found), ["web: too little room", "wan, b1: not known: its far end"]);
        assert_eq!(said(problems(&report)), ["10.0.0.9: nobody answers"]);
    }
}
