//! How the node is: what the daemon posts for those who ask.

use std::os::fd::AsFd as _;
use std::path::Path;

use ringway_api::documents::status::Problem;
use ringway_api::node::tables;
use ringway_api::overrides;
use ringway_api::problem_kind::ProblemKind;
use ringway_api::shield;
use ringway_api::text::counted;
use ringway_kernel::DEFAULT_BPFFS;

use super::Daemon;
use super::step::Survey;

impl Daemon {
    /// Posts what is known now. Returns the survey that it was posted with, made anew: who asks for
    /// it has just been answered, perhaps because of what this finds.
    pub(super) fn post(&mut self) -> Survey {
        let survey = self.survey();
        let snapshot = self.state.snapshot(survey.clone());
        if self.state.is_serving() {
            self.notifier.status(&self.line());
        }
        self.status_store.commit_confirm.post(self.state.confirm_state());
        self.status_store.post(snapshot);
        survey
    }

    /// The survey that is made once a second.
    pub(super) fn survey(&self) -> Survey {
        let lost = self.checks.lost_authorities();
        let uncounted = self.datapath.opened.losses_uncounted.as_ref().map(ToString::to_string);
        let interfaces = &self.state.attachment().interfaces;
        let names: Vec<&str> = interfaces.iter().map(|i| i.name.as_str()).collect();
        let uncounted = uncounted.map(|why| tables::losses_uncounted(Some(&why), &names));
        let forward = self.datapath.forward.read();
        Survey {
            problems: [self.checks.problems(), self.state_dir.problems(), forward.problems]
                .concat(),
            findings: lost
                .iter()
                .map(|why| authorities_lost(why))
                .chain(self.watch.finding())
                .chain(forward.findings)
                .collect(),
            forward: forward.status,
            of_tables: uncounted.into_iter().chain(tables::bpffs_covered()).collect(),
            not_made: self.checks.not_made(),
            macs_unknown: self.watch.is_asking(),
            overrides_unknown: (self.state_dir.trouble(overrides::DOCUMENT)
                || !self.state.reload().recalled)
                && self.loader.running() == 0
                && !self.writer.is_busy(),
            shield_unkept: self.state_dir.trouble(shield::DOCUMENT)
                && !self.shield_writer.is_busy(),
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
        let config = &self.state.reload().config;
        if let Some(forward) = config.forward.as_ref().filter(|_| config.services.is_empty()) {
            let names: Vec<&str> = forward.interfaces.iter().map(|it| it.as_str()).collect();
            return format!("no service; forwarding ({}): {}", forward.mode, names.join(", "));
        }
        let (up, all) = self.state.shown_backend_set().serving();
        let services = counted(config.services.len(), "service");
        format!("{services}, {up} of {all} backends get traffic")
    }
}

/// A check's authorities, as they were read before, hold as long as this daemon runs.
fn authorities_lost(why: &str) -> Problem {
    ProblemKind::AuthoritiesLost.problem(
        format!("{why}; checks use the previous contents, and the daemon cannot start again without the file"),
        "put the file back: it is read again by itself; or write another ca_file, then `ringway reload`",
    )
}
