//! Rules about the host whatever the configuration says of it: this process's privileges, and those
//! of the doctor that a start can ask without waiting.

use ringway_config::Config;
use ringway_doctor::{Outcome, Program, Report, Severity, rules};
use ringway_host::ethtool::Driver;
use ringway_host::netlink::links::Link;
use ringway_host::{Interface, Network};

use super::interfaces::generic;
use super::machine_state::MachineState;

/// Asks the doctor's rules.
pub fn check(config: &Config, state: &MachineState, report: &mut Report) {
    let machine = machine(config, state);
    for check in rules::AT_START {
        // Checksums of a far end that do come unfinished show in the traffic.
        for outcome in check.ask(&machine).into_iter().filter(|outcome| !outcome.lasting) {
            match outcome.severity {
                // Worth knowing is no reason to warn at every start.
                Severity::Ok | Severity::Info => {
                    report.ok(check.name, &outcome.subject, outcome.found);
                }
                _ => report.push(check.name, outcome),
            }
        }
    }
}

/// Privileges of this process.
pub fn privileges(state: &MachineState, report: &mut Report) {
    let missing = match &state.probe {
        Err(error) => {
            return report.push("privileges", Outcome::unknown("this process", error.as_str()));
        }
        Ok(probe) if probe.missing_capabilities.is_empty() => {
            return report.ok("privileges", "this process", "sufficient");
        }
        Ok(probe) => probe.missing_capabilities.join(", "),
    };
    let fix = "run as root, or grant these capabilities";
    report.push(
        "privileges",
        Outcome::crit("this process", format!("missing {missing}")).advice(fix),
    );
}

/// Where this configuration wants programs.
pub fn program(config: &Config, state: &MachineState) -> Program {
    let names = config.node.interfaces.iter();
    let links: Vec<&Link> = names.filter_map(|name| state.link(name)).collect();
    let native = |link: &&&Link| !generic(config, state, link);
    let name = |link: &&Link| link.name.clone();
    Program {
        native: links.iter().filter(native).map(name).collect(),
        interfaces: links.iter().map(name).collect(),
    }
}

/// The machine as the doctor's rules read it.
fn machine(config: &Config, state: &MachineState) -> ringway_doctor::Facts {
    let index = |link: &Link| Some((link.ifindex, *state.features.get(&link.name)?));
    let features = state.links.iter().filter_map(index).collect();
    ringway_doctor::Facts::known(state.files.clone(), network(state), features)
        .with_program(program(config, state))
}

fn network(state: &MachineState) -> Network {
    // An interface whose offloads are not known is skipped; another line reports it.
    let interface = |link: &Link| {
        Some(Interface {
            driver: state
                .drivers
                .get(&link.name)
                .map(|name| Driver { name: name.clone(), bus: String::new() }),
            channels: state.channels.get(&link.name).copied(),
            offloads: state.offloads.get(&link.name).copied()?,
            carries_default_route: state.default_route_links.contains(&link.ifindex),
            link: link.clone(),
        })
    };
    let interfaces = state.links.iter().filter_map(interface).collect();
    Network {
        interfaces,
        addresses: state.addresses.clone(),
        routes: Vec::new(),
        neighbours: state.neighbours.clone(),
    }
}
