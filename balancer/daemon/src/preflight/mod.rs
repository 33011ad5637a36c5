//! Checks of the machine before the gateway starts: requirements, and recommendations.
//!
//! `MachineState` is read once; the rules are pure functions of it and the configuration.

mod causes;
mod dsr;
mod firewall;
mod forward;
mod gro;
mod host;
mod interfaces;
mod machine_state;
mod mtu;
mod nat;
mod passing;
mod services;
#[cfg(test)]
pub(crate) mod tests;
#[cfg(test)]
mod tests_all;

use std::collections::BTreeSet;

use ringway_config::{Config, Located};
use ringway_doctor::{MACHINE, Outcome, Program, Report};
use ringway_host::Fix;

use crate::monitor::mitigation_program;

pub use causes::{Cause, causes, refusal};
pub(crate) use machine_state::own_links;
pub use machine_state::{MachineState, compiler};
pub(crate) use services::covers;

/// Names of those checks that the daemon knows apart.
pub(crate) mod names {
    pub const ANSWERS: &str = "answers";
    pub const FOREIGN_XDP: &str = "foreign-xdp";
    /// Between interfaces, past the kernel.
    pub const FORWARD: &str = "forward";
    pub const FORWARDING: &str = "forwarding";
    pub const INTERFACE: &str = "interface";
    pub const NAT_ADDRESS: &str = "nat-address";
    pub const NAT_PORTS: &str = "nat-ports";
    pub const NEIGHBOUR: &str = "neighbour";
    pub const ROUTE: &str = "route";
}

/// Looks at this machine, in the calling thread's network namespace. Changes nothing.
pub fn run(config: &Config) -> Report {
    with_needs(config, judge(config, &MachineState::gather(config)), Outcome::warn)
}

/// The same; `None` where links, addresses or routes could not be read, so that what is said to be
/// missing may be there.
pub fn run_sighted(config: &Config) -> Option<Report> {
    let state = MachineState::gather(config);
    (!state.blind).then(|| with_needs(config, judge(config, &state), Outcome::warn))
}

/// `untold`: how severe it is that the program of mitigation cannot be run. It forbids no start.
fn with_needs(
    config: &Config,
    mut report: Report,
    untold: fn(&'static str, String) -> Outcome,
) -> Report {
    if let Some(why) = mitigation_program::unfit(config) {
        report.push("mitigation-program", untold("[shield.mitigation]", why));
    }
    for error in crate::health::unfit(config) {
        let outcome = Outcome::crit("health checks", &error.message);
        report.push("check-needs", Outcome { place: place(&error), ..outcome });
    }
    report
}

/// Looks at what takes time or asks others on the link, too: for an administrator. Of the host
/// itself the doctor tells, under its profile balancer: asked about the interfaces that are
/// returned beside the findings. Changes nothing.
pub fn run_all(config: &Config) -> (Report, Program) {
    let state = MachineState::gather_all(config);
    let report = with_needs(config, about(config, &state, Report::default()), Outcome::crit);
    (report, host::program(config, &state))
}

/// Interfaces on which the program stays only when an administrator confirms it: see
/// [`crate::commit_confirm`].
pub fn needs_confirm(config: &Config) -> BTreeSet<String> {
    match config.node.allow_default_route {
        true => guarded_by(config, &MachineState::of_links()),
        // Without, no start comes this far.
        false => BTreeSet::new(),
    }
}

fn guarded_by(config: &Config, state: &MachineState) -> BTreeSet<String> {
    if state.first_namespace == Some(false) {
        return BTreeSet::new();
    }
    let needs_confirm = |name: &&str| {
        // An interface that cannot be seen may be the only way in.
        !state.errors.is_empty()
            || state
                .link(name)
                .is_some_and(|link| interfaces::carries_default(state, link).is_some())
    };
    let names = config.node.interfaces.iter().map(|name| name.as_str());
    names.filter(needs_confirm).map(str::to_owned).collect()
}

/// Judges this state for this configuration.
pub fn judge(config: &Config, state: &MachineState) -> Report {
    let mut report = Report::default();
    host::check(config, state, &mut report);
    about(config, state, report)
}

/// The same without the host's own properties.
fn about(config: &Config, state: &MachineState, mut report: Report) -> Report {
    for error in &state.errors {
        report.push("facts", Outcome::unknown(MACHINE, error.as_str()));
    }
    host::privileges(state, &mut report);
    nat::check(config, state, &mut report);
    interfaces::check(config, state, &mut report);
    gro::check(config, state, &mut report);
    services::check(config, state, &mut report);
    dsr::checks(config, state, &mut report);
    passing::check(config, state, &mut report);
    mtu::check(config, state, &mut report);
    dsr::check(config, state, &mut report);
    firewall::check(config, state, &mut report);
    forward::check(config, state, &mut report);
    report
}

/// A failure for which a value of the configuration is to blame.
fn misconfigured<T: std::fmt::Display>(
    config: &Config,
    value: &Located<T>,
    found: impl Into<String>,
    fix: impl Into<Fix>,
) -> Outcome {
    at(config, value, Outcome::crit(value.to_string(), found).advice(fix))
}

/// Says which value of the configuration it is about.
fn at<T>(config: &Config, value: &Located<T>, outcome: Outcome) -> Outcome {
    let place = match config.file() {
        Some(_) => place(&config.error_at(value, "")),
        // An option is to blame, also where the value is its default.
        None => Some(config.filename().to_owned()),
    };
    Outcome { place, ..outcome }
}

fn place(error: &ringway_config::Error) -> Option<String> {
    (error.line > 0).then(|| format!("{}:{}:{}", error.file, error.line, error.column))
}
