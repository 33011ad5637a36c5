//! How the node is: what the daemon posts for those who ask.

use std::os::fd::AsFd as _;
use std::path::Path;

use ringway_api::documents::status::{self, Problem, Status};
use ringway_api::node::tables;
use ringway_api::problem_kind::ProblemKind;
use ringway_api::text::counted;
use ringway_kernel::{AttachState, DEFAULT_BPFFS, Interface, XdpMode};

use super::{Daemon, SILENCE};
use crate::backends::{BackendSet, Line};
use crate::daemon::background_reads;
use crate::daemon::log_transitions::may_be_many;

impl Daemon {
    /// Puts up what is known now.
    pub(super) fn post(&mut self) {
        let (problems, findings) = (self.problems(), self.findings());
        if self.attached {
            self.log(problems.iter().chain(&findings));
        }
        let unready = self.unready();
        let ready = self.attached && self.apply_error.is_none();
        let (up, all) = self.shown_backend_set().serving();
        let services = counted(self.config.services.len(), "service");
        let line = format!("{services}, {up} of {all} backends get traffic");
        if ready && !self.told_ready {
            self.told_ready = true;
            self.notifier.ready(&line);
            if let Some(nodes) = ringway_kernel::hold_nodes(Path::new(DEFAULT_BPFFS)) {
                self.notifier.keep(nodes.as_fd());
            }
            tracing::info!("serving: {line}");
        } else if self.told_ready {
            self.notifier.status(&line);
        }
        self.status_store.post(Status {
            node: self.config.node.name.to_string(),
            problems,
            unready,
            findings,
            interfaces: self.interfaces.iter().map(|interface| self.shown(interface)).collect(),
            services: self.shown_backend_set().shown(),
            overrides: self.overrides.shown(&self.file),
            last_reload: self.last_reload.clone(),
            reloads: self.reloads,
            checks_not_made: self.not_made.clone(),
            ..Status::default()
        });
    }

    /// Before the first attachment nothing is in force.
    fn shown_backend_set(&self) -> &BackendSet {
        if self.attached { &self.in_tables } else { &self.backend_set }
    }

    fn log<'p>(&mut self, now: impl Iterator<Item = &'p Problem>) {
        let (begun, over) = self.told.note(now);
        for problem in begun {
            if !may_be_many(problem.kind) || self.log_limiter.admits(false) {
                tracing::warn!(remedy = problem.remedy, "{}", problem.error);
            }
        }
        for problem in over {
            let text = format!("over: {}", problem.error);
            let line = Line { good: true, text, lost_by: None };
            match may_be_many(problem.kind) {
                true => self.log_limiter.tell(&line),
                false => tracing::info!("{}", line.text),
            }
        }
    }

    fn shown(&self, interface: &Interface) -> status::Interface {
        let mode = self.modes.get(&interface.slot);
        let (link_id, program_id) = match self.standing(interface) {
            Some(AttachState::Attached { link, program, .. }) => (*link, *program),
            _ => (0, 0),
        };
        status::Interface {
            name: interface.name.clone(),
            ifindex: interface.ifindex,
            slot: interface.slot,
            faces: interface.faces.name().into(),
            link_id,
            program_id,
            attached: mode.is_some() && self.is_attached(interface),
            attached_again: self.again.get(&interface.slot).map_or(0, |(times, _)| *times),
            mode: mode.map(|(mode, _)| mode.name().to_owned()).unwrap_or_default(),
            mode_reason: mode.map(|(_, why)| why.clone()).unwrap_or_default(),
            ..status::Interface::default()
        }
    }

    fn problems(&self) -> Vec<Problem> {
        let mut problems = self.own_problems();
        problems.extend(self.service_problems());
        problems.extend(self.checks.problems());
        problems.extend(self.state.problems());
        problems.extend(background_reads::problems(&self.machine));
        problems
    }

    /// Why the node should get no traffic. One service's trouble is no reason while another is
    /// served; nor is it that an address is not here, which keepalived would bring.
    fn unready(&self) -> Vec<Problem> {
        let mut unready = self.own_problems();
        let services = self.service_problems();
        if services.len() >= self.shown_backend_set().services().len() {
            unready.extend(services);
        }
        unready.extend(background_reads::unready(&self.machine));
        unready
    }

    fn service_problems(&self) -> Vec<Problem> {
        let mut problems = self.shown_backend_set().problems();
        problems.extend(self.silence.problems());
        problems
    }

    /// Those of the node as a whole.
    fn own_problems(&self) -> Vec<Problem> {
        let mut problems = Vec::new();
        if self.attaching {
            problems.push(ProblemKind::Starting.problem(
                "starting: attaching to the interfaces",
                "wait for the kernel: some drivers take seconds",
            ));
        } else if !self.attached {
            problems.push(ProblemKind::Starting.problem(
                "starting: not attached yet",
                "wait for the first results of the health checks",
            ));
        }
        problems.extend(self.status_store.commit_confirm.problem());
        problems.extend(self.interface_problems());
        if self.beaten.elapsed() > SILENCE {
            problems.push(ProblemKind::PathSilent.problem(
                "the thread that writes the packet path's tables does not answer",
                "restart the daemon (no packet is lost), and report its log",
            ));
        }
        let tables = self.beat_error.iter().chain(&self.apply_error).cloned();
        problems.extend(tables.map(|error| ProblemKind::TablesNotWritten.because(error)));
        problems.extend(
            self.probe_tunnel_error.clone().map(|error| ProblemKind::CheckRoad.because(error)),
        );
        problems
    }

    /// What is worth knowing, and does not make the node unhealthy.
    fn findings(&self) -> Vec<Problem> {
        let mut findings = self.change_findings();
        findings.extend(self.lost_authorities.iter().map(|why| authorities_lost(why)));
        findings.extend(self.watch.finding());
        findings.extend(self.shown_backend_set().panicking());
        findings.extend(self.renamed());
        findings.extend(self.attached_again());
        findings.extend(self.alarm.findings(|name| {
            let interface = self.interfaces.iter().find(|interface| interface.name == name);
            interface.is_none_or(|i| !self.is_attached(i) || self.existing.is_cut_off(&i.name))
        }));
        let uncounted = self.datapath.opened.losses_uncounted.as_ref();
        let names: Vec<&str> = self.interfaces.iter().map(|i| i.name.as_str()).collect();
        findings
            .extend(uncounted.map(|why| tables::losses_uncounted(Some(&why.to_string()), &names)));
        findings.extend(tables::bpffs_covered());
        // In the generic path they are kept right (bpf/gateway/partial.bpf.h).
        if self.modes.values().any(|(mode, _)| *mode == XdpMode::Native) {
            findings.extend(self.silence.findings());
        }
        // What could not be found out comes last: it is as it always was here, and nothing has happened.
        findings.extend(background_reads::findings(&self.machine));
        findings
    }
}

/// A check's authorities, as they were read before, hold as long as this daemon runs.
fn authorities_lost(why: &str) -> Problem {
    ProblemKind::AuthoritiesLost.problem(
        format!("{why}; checks go by what it said before, and the next start would be refused"),
        "put the file back: it is read again by itself; or write another ca_file, then `ringway reload`",
    )
}
