//! The daemon's decisions: a step takes an event, and returns effects. Pure: no system call, no
//! clock, no log. The loop (`daemon/mod.rs`) carries effects out and makes events of what comes of
//! them.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod attachment;
mod background;
mod effect;
mod mitigation;
mod monitor;
mod problems;
mod reload;
mod shield;
mod tables;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::time::{Duration, Instant, SystemTime};

use ringway_api::error::Error;
use ringway_api::shield::ShieldChange;
use ringway_kernel::Interface;

use crate::backends::BackendSet;
use crate::commit_confirm::Confirm;
use crate::daemon::background::{BackgroundEvent, BackgroundWork};
use crate::daemon::config_loader::LoadResult;
use crate::daemon::datapath_thread::DatapathEvent;
use crate::daemon::document_writer::Written;
use crate::daemon::netlink_watch::Found;
use crate::health;
use crate::health::cookies::CookieEvent;
use crate::server::control::{Asker, Command, RequestId};
use crate::snapshot::Snapshot;

use attachment::Stage;
use effect::Effects;
use mitigation::Mitigation;
use monitor::Monitor;
use reload::PendingChange;
use tables::Tables;

pub(super) use attachment::Attachment;
pub(super) use effect::{Effect, Judge, LogLine, ProgramRun};
pub(super) use monitor::{Survey, TICK};
pub(super) use reload::Reload;
pub(super) use shield::Shield;

/// First results of checks are waited for so long: at a first start, and of backends that are new.
const FIRST_RESULTS: Duration = Duration::from_secs(3);

/// When an event came.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moment {
    pub(super) now: Instant,
    pub(super) wall: SystemTime,
}

#[derive(Debug)]
pub(super) enum Event {
    /// Time has passed: [`State::until`].
    Time,
    /// Twice a second.
    Tick,
    Surveyed(Survey),
    /// The state was posted, with this survey beside it.
    Posted(Survey),
    /// A check has a result.
    Checked(health::CheckEvent),
    /// Whether a backend takes cookies is known anew.
    Cookies(CookieEvent),
    /// The kernel's network has changed: the ways are to be looked up.
    NetworkChanged,
    /// The ways were looked up, or why not.
    Network(Result<Box<Found>, Error>),
    /// The checks' tunnel leads there, or why not.
    ProbeWays(Option<Error>),
    Datapath(DatapathEvent),
    Background(BackgroundEvent),
    /// Somebody asks for a change; only while [`State::takes_commands`].
    Command(Command, RequestId),
    /// Somebody asks for a change of the shield; only while [`State::takes_shield_changes`].
    Shield(ShieldChange, Asker, RequestId),
    /// SIGHUP.
    HungUp,
    Judged(Box<LoadResult>),
    Written(Written),
    Led(Result<(), Error>),
    /// Somebody confirms that the machine can be reached.
    Confirm,
}

#[derive(Debug)]
pub(super) struct State {
    reload: Reload,
    attachment: Attachment,
    tables: Tables,
    monitor: Monitor,
    shield: Shield,
    mitigation: Mitigation,
    confirm: Confirm,
    patience: Duration,
    /// The service manager was told that traffic is served.
    serving: bool,
    /// The time of this step.
    at: Moment,
    /// Work on other threads that could not be done.
    failed: BTreeMap<BackgroundWork, background::Failed>,
    effects: Effects,
}

impl State {
    /// `patience`: how long a confirmation is waited for.
    pub(super) fn new(
        reload: Reload,
        shield: Shield,
        interfaces: Vec<Interface>,
        backend_set: BackendSet,
        patience: Duration,
        at: Moment,
    ) -> State {
        let asked = *reload.config.node.xdp_mode;
        let mut state = State {
            reload,
            attachment: Attachment::new(interfaces, asked, at.now),
            tables: Tables::new(backend_set),
            monitor: Monitor::default(),
            shield,
            mitigation: Mitigation::default(),
            confirm: Confirm::Open,
            patience,
            serving: false,
            at,
            failed: BTreeMap::new(),
            effects: Effects::default(),
        };
        state.apply_soon();
        state
    }

    /// Takes an event; returns what to do.
    pub(super) fn step(&mut self, at: Moment, event: Event) -> Vec<Effect> {
        self.at = at;
        match event {
            Event::Time => {}
            Event::Tick => self.tick(),
            Event::Surveyed(survey) => self.surveyed(survey),
            Event::Posted(survey) => self.posted(survey),
            Event::Checked(event) => self.checked(&event),
            Event::Cookies(event) => self.cookies(&event),
            Event::NetworkChanged => self.look_up_ways(),
            Event::Network(Ok(found)) => self.network(*found),
            Event::Network(Err(error)) => self.done(BackgroundWork::LookUpWays, Err(error)),
            Event::ProbeWays(error) => self.probe_ways(error),
            Event::Datapath(event) => self.datapath(event),
            Event::Background(event) => self.background(event),
            Event::Command(command, request) => self.begin(command, Some(request)),
            Event::Shield(change, by, request) => self.change_shield(change, by, request),
            Event::HungUp => self.reload.hung_up = true,
            Event::Judged(judged) => self.judged(*judged),
            Event::Written(written) => self.written(written),
            Event::Led(outcome) => self.led(outcome),
            Event::Confirm => self.confirm(),
        }
        self.go_on();
        std::mem::take(&mut self.effects.0)
    }

    fn datapath(&mut self, event: DatapathEvent) {
        match event {
            DatapathEvent::Applied(number, outcome) => self.applied(number, outcome),
            // They post where there is something to tell.
            DatapathEvent::Adopted(number, outcome) => return self.adopted(number, outcome),
            DatapathEvent::AttachStates(Ok(states)) => return self.verify(states),
            DatapathEvent::AttachStates(Err(error)) => self.unread(error),
            DatapathEvent::Confirmed(answer) => self.confirmed(answer),
            DatapathEvent::Reverted(Ok(())) => {}
            DatapathEvent::Reverted(Err(error)) => self.confirm.not_reverted(error),
            DatapathEvent::Described(interface, outcome) => {
                return self.attachment.described(&interface, outcome, &mut self.effects);
            }
            DatapathEvent::Beat(outcome) => self.beaten(outcome),
            DatapathEvent::Swept(outcome) => {
                return self.done(BackgroundWork::SweepCaptures, outcome);
            }
            DatapathEvent::Shielded(number, outcome) => self.shielded(number, outcome),
            DatapathEvent::Arrivals(sample) => return self.arrived(sample),
            DatapathEvent::Armed(service, outcome) => return self.armed(service, outcome),
            DatapathEvent::Listed(plan, outcome) => self.listed(plan, outcome),
            DatapathEvent::Attached(interfaces, outcome) => self.attached(&interfaces, outcome),
            DatapathEvent::Reattached(interfaces, outcome) => self.reattached(&interfaces, outcome),
        }
        self.effects.post();
    }

    /// Follows up on the state and the time.
    fn go_on(&mut self) {
        let now = self.at.now;
        let passed = |until: Option<Instant>| until.is_some_and(|until| now >= until);
        if let Stage::Waiting { until } = self.attachment.stage
            && (now >= until || !self.tables.backend_set.waiting())
        {
            self.attach();
        }
        self.revert();
        if passed(self.tables.due) {
            self.apply();
        }
        self.advance();
        self.advance_shield();
        self.advance_mitigation();
        if self.takes_commands() && std::mem::take(&mut self.reload.hung_up) {
            self.begin(Command::Reload { dry_run: false, file: None }, None);
        }
        if !self.serving && self.attachment.is_done() && self.tables.error.is_none() {
            self.serving = true;
            self.effects.push(Effect::Serving);
            self.effects.post();
        }
    }

    /// When something is to be done though nothing happens.
    pub(super) fn until(&self) -> Option<Instant> {
        let change = self.reload.change.as_ref().and_then(PendingChange::until);
        let sample = self.mitigation.until();
        let all = [self.tables.due, change, self.attachment.until(), self.confirm.until(), sample];
        all.into_iter().flatten().min()
    }

    pub(super) fn reload(&self) -> &Reload {
        &self.reload
    }

    pub(super) fn attachment(&self) -> &Attachment {
        &self.attachment
    }

    pub(super) fn backend_set(&self) -> &BackendSet {
        &self.tables.backend_set
    }

    pub(super) fn confirm_state(&self) -> &Confirm {
        &self.confirm
    }

    pub(super) fn is_serving(&self) -> bool {
        self.serving
    }

    /// The snapshot to post, with the loop's survey.
    pub(super) fn snapshot(&self, survey: Survey) -> Snapshot {
        let State { reload, attachment, .. } = self;
        Snapshot {
            node: reload.config.node.name.to_string(),
            problems: self.problems(&survey),
            unready: self.unready(),
            findings: self.findings(&survey),
            interfaces: attachment.interfaces.iter().map(|it| attachment.shown(it)).collect(),
            services: self.shown_backend_set().shown(self.at.now),
            overrides: reload.overrides.shown(&reload.file),
            last_reload: reload.last.clone(),
            reloads: reload.counts,
            checks_not_made: survey.not_made,
            configuration: reload.configuration(),
            shield: Some((reload.config.clone(), self.shield.in_force.clone())),
            lists: self.shield.lists(),
            attacks: self.mitigation.attacks(&reload.config, self.at),
            attacks_found: self.mitigation.found().clone(),
            usual: self.usual(),
            forward: survey.forward,
        }
    }

    /// Before the first attachment nothing is in force.
    pub(super) fn shown_backend_set(&self) -> &BackendSet {
        match self.attachment.is_done() {
            true => &self.tables.written,
            false => &self.tables.backend_set,
        }
    }
}
