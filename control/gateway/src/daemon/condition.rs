//! How the node is: what the daemon posts for those who ask.

use ringway_kernel::{Interface, XdpMode};

use super::{Daemon, SILENCE, looks};
use crate::board;
use crate::status::{self, Problem, Status};
use crate::trouble::Trouble;
use crate::words::counted;

impl Daemon {
    /// Puts up what is known now.
    pub(super) fn post(&mut self) {
        let (problems, findings) = (self.problems(), self.findings());
        if self.attached {
            self.log(problems.iter().chain(&findings));
        }
        let unready = self.unready();
        let ready = self.attached && self.apply_error.is_none();
        let (up, all) = self.roster.serving();
        let services = counted(self.config.services.len(), "service");
        let line = format!("{services}, {up} of {all} backends get traffic");
        if ready && !self.told_ready {
            self.told_ready = true;
            self.notifier.ready(&line);
            tracing::info!("serving: {line}");
        } else if self.told_ready {
            self.notifier.status(&line);
        }
        self.board.post(Status {
            node: self.config.node.name.to_string(),
            problems,
            unready,
            findings,
            interfaces: self.interfaces.iter().map(|interface| self.shown(interface)).collect(),
            services: self.roster.shown(),
            overrides: self.overrides.shown(&self.file),
            last_reload: self.last_reload.clone(),
            reloads: self.reloads,
            ..Status::default()
        });
    }

    fn log<'p>(&mut self, now: impl Iterator<Item = &'p Problem>) {
        let (begun, over) = self.told.note(now);
        for problem in begun {
            tracing::warn!(remedy = problem.remedy, "{}", problem.error);
        }
        for line in over {
            tracing::info!("over: {line}");
        }
    }

    fn shown(&self, interface: &Interface) -> status::Interface {
        let mode = self.modes.get(&interface.slot);
        status::Interface {
            name: interface.name.clone(),
            ifindex: interface.ifindex,
            slot: interface.slot,
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
        problems.extend(self.state.problems());
        problems.extend(looks::problems(&self.machine));
        problems
    }

    /// Why the node should get no traffic. One service's trouble is no reason while another is
    /// served; nor is it that an address is not here, which keepalived would bring.
    fn unready(&self) -> Vec<Problem> {
        let mut unready = self.own_problems();
        let services = self.service_problems();
        if services.len() >= self.roster.services().len() {
            unready.extend(services);
        }
        unready.extend(looks::unready(&self.machine));
        unready
    }

    fn service_problems(&self) -> Vec<Problem> {
        let mut problems = self.roster.problems();
        problems.extend(self.silence.problems());
        problems
    }

    /// Those of the node as a whole.
    fn own_problems(&self) -> Vec<Problem> {
        let mut problems = Vec::new();
        if !self.attached {
            problems.push(Trouble::Starting.problem(
                "starting: not attached yet",
                "wait for the first results of the health checks",
            ));
        }
        problems.extend(self.board.guard.problem());
        problems.extend(self.interface_problems());
        if self.beaten.elapsed() > SILENCE {
            problems.push(Trouble::PathSilent.problem(
                "the thread that writes the packet path's tables does not answer",
                "restart the daemon (no packet is lost), and report its log",
            ));
        }
        let path = self.beat_error.iter().chain(&self.apply_error).cloned();
        problems.extend(path.map(|error| Trouble::TablesNotWritten.because(error)));
        problems.extend(self.road_error.clone().map(|error| Trouble::CheckRoad.because(error)));
        problems
    }

    /// What is worth knowing, and does not make the node unhealthy.
    fn findings(&self) -> Vec<Problem> {
        let mut findings = self.change_findings();
        findings.extend(self.lost_authorities.iter().map(|why| authorities_lost(why)));
        findings.extend(self.renamed());
        findings.extend(self.attached_again());
        findings.extend(self.alarm.findings(|name| {
            let interface = self.interfaces.iter().find(|interface| interface.name == name);
            interface.is_none_or(|i| !self.is_attached(i) || self.existing.is_cut_off(&i.name))
        }));
        let uncounted = self.path.opened.losses_uncounted.as_ref();
        let names: Vec<&str> = self.interfaces.iter().map(|i| i.name.as_str()).collect();
        findings
            .extend(uncounted.map(|why| board::losses_uncounted(Some(&why.to_string()), &names)));
        // The kernel finishes checksums itself in its generic path.
        if self.modes.values().any(|(mode, _)| *mode == XdpMode::Native) {
            findings.extend(self.silence.findings());
        }
        // What could not be found out comes last: it is as it always was here, and nothing has happened.
        findings.extend(looks::findings(&self.machine));
        findings
    }
}

/// A check's authorities, as they were read before, hold as long as this daemon runs.
fn authorities_lost(why: &str) -> Problem {
    Trouble::AuthoritiesLost.problem(
        format!("{why}; checks go by what it said before, and the next start would be refused"),
        "put the file back: it is read again by itself; or write another ca_file, then `ringway reload`",
    )
}
