//! Looks that take a while, on threads that may wait: at the traffic counters and at the machine.

use std::sync::Arc;

use ringway_config::Config;
use ringway_kernel::View;
use tokio::sync::mpsc;

use crate::preflight::{self, Finding, Report, State};
use crate::silence::{self, Sample};
use crate::status::Problem;

/// What a look found.
#[derive(Debug)]
pub enum Seen {
    /// Every TCP service's counters.
    Traffic(Sample),
    /// The machine, as `ringway check --host` sees it.
    Machine(Report),
}

/// Begins looks and has their results.
pub struct Looks {
    view: View,
    config: Arc<Config>,
    send: mpsc::UnboundedSender<Seen>,
    receive: mpsc::UnboundedReceiver<Seen>,
}

impl Looks {
    /// At this node.
    pub fn new(view: View, config: Arc<Config>) -> Looks {
        let (send, receive) = mpsc::unbounded_channel();
        Looks { view, config, send, receive }
    }

    /// Reads the traffic counters.
    pub fn at_traffic(&self) {
        let (view, send) = (self.view.clone(), self.send.clone());
        tokio::task::spawn_blocking(move || match view.services() {
            // Closed only when the daemon has ended.
            Ok(services) => drop(send.send(Seen::Traffic(silence::sample(&services)))),
            Err(error) => tracing::debug!(%error, "traffic not read"),
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
    let watched =
        |finding: &&Finding| matches!(finding.check, "answers" | "nat-address" | "nat-ports");
    report.failures().filter(watched).map(|finding| problem(finding, "")).collect()
}

/// What may be wrong, or cannot be found out. The ways to the backends are shown with them.
pub fn findings(report: &Report) -> Vec<Problem> {
    let shown = |finding: &&Finding| !matches!(finding.check, "neighbour" | "route");
    let findings = report.findings.iter().filter(shown);
    let said = findings.filter_map(|finding| match finding.state {
        State::Unknown => Some(problem(finding, "not known: ")),
        State::Warn => Some(problem(finding, "")),
        State::Ok | State::Fail => None,
    });
    said.collect()
}

fn problem(finding: &Finding, prefix: &str) -> Problem {
    let Finding { subject, reason, fix, .. } = finding;
    Problem { error: format!("{subject}: {prefix}{reason}"), remedy: fix.clone() }
}
