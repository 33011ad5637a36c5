//! How the node is: what the daemon posts for those who ask.

use std::os::fd::AsFd as _;
use std::path::Path;

use ringway_api::documents::status::{self, Problem};
use ringway_api::node::tables;
use ringway_api::overrides;
use ringway_api::problem_kind::ProblemKind;
use ringway_api::text::counted;
use ringway_kernel::{AttachState, DEFAULT_BPFFS, Interface};
use tracing::Level;

use super::Daemon;
use super::step::{Attachment, LogLine, State, Survey};
use crate::daemon::log_transitions::may_be_many;
use crate::snapshot::Snapshot;

impl Daemon {
    /// Puts up what is known now.
    pub(super) fn post(&mut self) {
        // Who asks for it has just been answered, perhaps because of what this finds.
        self.state.monitor.survey = self.survey();
        let (problems, findings) = (self.state.problems(), self.state.findings());
        if self.state.attachment.is_done() {
            self.log(problems.iter().chain(&findings));
        }
        if self.state.serving {
            self.notifier.status(&self.line());
        }
        self.status_store.commit_confirm.post(&self.state.confirm);
        let State { reload, attachment, monitor, .. } = &self.state;
        self.status_store.post(Snapshot {
            node: reload.config.node.name.to_string(),
            problems,
            unready: self.state.unready(),
            findings,
            interfaces: attachment.interfaces.iter().map(|it| shown(attachment, it)).collect(),
            services: self.state.shown_backend_set().shown(self.state.at.now),
            overrides: reload.overrides.shown(&reload.file),
            last_reload: reload.last.clone(),
            reloads: reload.counts,
            checks_not_made: monitor.survey.not_made.clone(),
            configuration: Some(reload.configuration()),
        });
    }

    /// What it finds out once a second.
    pub(super) fn survey(&self) -> Survey {
        let lost = self.checks.lost_authorities();
        let uncounted = self.datapath.opened.losses_uncounted.as_ref().map(ToString::to_string);
        let interfaces = &self.state.attachment.interfaces;
        let names: Vec<&str> = interfaces.iter().map(|i| i.name.as_str()).collect();
        let uncounted = uncounted.map(|why| tables::losses_uncounted(Some(&why), &names));
        Survey {
            problems: [self.checks.problems(), self.state_dir.problems()].concat(),
            findings: lost
                .iter()
                .map(|why| authorities_lost(why))
                .chain(self.watch.finding())
                .collect(),
            of_tables: uncounted.into_iter().chain(tables::bpffs_covered()).collect(),
            not_made: self.checks.not_made(),
            network_unknown: self.watch.failed() || self.watch.is_asking(),
            overrides_unknown: (self.state_dir.trouble(overrides::DOCUMENT)
                || !self.state.reload.recalled)
                && self.loader.running() == 0
                && !self.writer.is_busy(),
        }
    }

    /// Traffic is served from now on.
    pub(super) fn serving(&self) {
        let line = self.line();
        self.notifier.ready(&line);
        if let Some(nodes) = ringway_kernel::hold_nodes(Path::new(DEFAULT_BPFFS)) {
            self.notifier.keep(nodes.as_fd());
        }
        tracing::info!("serving: {line}");
    }

    /// In one line, for the service manager.
    fn line(&self) -> String {
        let (up, all) = self.state.shown_backend_set().serving();
        let services = counted(self.state.reload.config.services.len(), "service");
        format!("{services}, {up} of {all} backends get traffic")
    }

    fn log<'p>(&mut self, now: impl Iterator<Item = &'p Problem>) {
        let (begun, over) = self.told.note(now);
        for problem in begun {
            self.log_limiter.write(&LogLine::new_problem(&problem, may_be_many(problem.kind)));
        }
        for problem in over {
            let line = LogLine::new(Level::INFO, format!("over: {}", problem.error));
            let crowds = may_be_many(problem.kind);
            self.log_limiter.write(&LogLine { crowds, ..line });
        }
    }
}

fn shown(attachment: &Attachment, interface: &Interface) -> status::Interface {
    let mode = attachment.modes.get(&interface.slot);
    let (link_id, program_id) = match attachment.attach_state(interface) {
        Some(AttachState::Attached { link, program, .. }) => (*link, *program),
        _ => (0, 0),
    };
    status::Interface {
        name: interface.name.clone(),
        ifindex: interface.ifindex,
        slot: interface.slot,
        faces: Some(interface.faces),
        link_id,
        program_id,
        attached: mode.is_some() && attachment.is_attached(interface),
        attached_again: attachment.again.get(&interface.slot).map_or(0, |(times, _)| *times),
        mode: mode.map(|(mode, _)| *mode),
        mode_reason: mode.map(|(_, why)| why.clone()).unwrap_or_default(),
        ..status::Interface::default()
    }
}

/// A check's authorities, as they were read before, hold as long as this daemon runs.
fn authorities_lost(why: &str) -> Problem {
    ProblemKind::AuthoritiesLost.problem(
        format!("{why}; checks go by what it said before, and the next start would be refused"),
        "put the file back: it is read again by itself; or write another ca_file, then `ringway reload`",
    )
}
