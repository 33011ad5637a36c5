//! Problems and findings of the state.

use ringway_api::documents::status::Problem;
use ringway_api::problem_kind::ProblemKind;
use ringway_kernel::XdpMode;

use super::attachment::Stage;
use super::{State, Survey};
use crate::daemon::machine_problems;

impl State {
    /// Problems that make the node unhealthy.
    pub(super) fn problems(&self, survey: &Survey) -> Vec<Problem> {
        let mut problems = self.own_problems();
        problems.extend(self.service_problems());
        problems.extend(self.shield.list_problems());
        problems.extend(survey.problems.iter().cloned());
        problems.extend(machine_problems::problems(&self.monitor.machine));
        problems
    }

    /// Why the node should get no traffic. One service's trouble is no reason while another is
    /// served; nor is it that an address is not here, which keepalived would bring.
    pub(super) fn unready(&self) -> Vec<Problem> {
        let mut unready = self.own_problems();
        let services = self.service_problems();
        if services.len() >= self.shown_backend_set().services().len() {
            unready.extend(services);
        }
        unready.extend(machine_problems::unready(&self.monitor.machine));
        unready
    }

    /// Findings, which do not make the node unhealthy.
    pub(super) fn findings(&self, survey: &Survey) -> Vec<Problem> {
        let State { reload, attachment, monitor, .. } = self;
        let mut findings = reload.findings();
        findings.extend(survey.findings.iter().cloned());
        findings.extend(self.mode_finding());
        findings.extend(self.attack_findings());
        findings.extend(self.answer_findings());
        findings.extend(self.shield.secret_problem());
        findings.extend(self.shield.skipped_lines());
        findings.extend(self.shield.wide_lines());
        findings.extend(self.shown_backend_set().panicking());
        findings.extend(self.shown_backend_set().without_cookies());
        findings.extend(attachment.renamed());
        findings.extend(attachment.attached_again(self.at.now));
        findings.extend(monitor.counter_watch.findings(|name| {
            let interface = attachment.interfaces.iter().find(|interface| interface.name == name);
            interface
                .is_none_or(|i| !attachment.is_attached(i) || attachment.existing.is_cut_off(name))
        }));
        findings.extend(survey.of_tables.iter().cloned());
        // In the generic path they are kept right (bpf/gateway/partial.bpf.h).
        if attachment.modes.values().any(|(mode, _)| *mode == XdpMode::Native) {
            findings.extend(monitor.no_reply_watch.findings());
        }
        // What could not be found out comes last: it is as it always was here, and nothing has
        // happened.
        findings.extend(machine_problems::findings(&monitor.machine));
        findings
    }

    fn answer_findings(&self) -> Vec<Problem> {
        let Some(shield) = &self.reload.config.shield else { return Vec::new() };
        let secret = shield.syn.secret.as_ref().map(|file| file.display().to_string());
        self.monitor.answer_watch.findings(secret.as_deref())
    }

    /// Problems of the node as a whole.
    pub(super) fn own_problems(&self) -> Vec<Problem> {
        let starting = |what, remedy| ProblemKind::Starting.problem(what, remedy);
        let starting = match self.attachment.stage {
            Stage::Waiting { .. } => Some(starting(
                "starting: not attached yet",
                "wait for the first results of the health checks",
            )),
            Stage::Attaching => Some(starting(
                "starting: attaching to the interfaces",
                "wait for the kernel: some drivers take seconds",
            )),
            Stage::Attached => None,
        };
        let mut problems: Vec<Problem> = starting.into_iter().collect();
        problems.extend(self.confirm.problem());
        problems.extend(self.attachment.problems(&self.confirm));
        problems.extend(self.monitor.problems(self.at.now, self.tables.error.as_ref()));
        let unshielded = self.shield.error().cloned();
        problems.extend(unshielded.map(|error| ProblemKind::TablesNotWritten.because(error)));
        problems
    }

    fn service_problems(&self) -> Vec<Problem> {
        let mut problems = self.shown_backend_set().problems();
        problems.extend(self.monitor.no_reply_watch.problems());
        problems
    }
}
