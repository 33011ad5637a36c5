//! Rules about the host whatever the configuration says of it: those of the doctor that a start can ask without waiting.

use ringway_config::Config;
use ringway_doctor::{Outcome, Program, Rule, rules};
use ringway_host::ethtool::Driver;
use ringway_host::netlink::links::Link;
use ringway_host::{Interface, Network};

use super::facts::Facts;
use super::interfaces::generic;
use super::{Report, Severity};

/// Told in the first network namespace alone: elsewhere nobody could do anything about not knowing it.
const FIRST_ALONE: &str = "net.core.bpf_jit_harden";

/// The far end of a veth pair in another network namespace never shows how it leaves checksums.
const FAR_END: &str = "veth-checksum";

/// Asks them.
pub fn check(config: &Config, facts: &Facts, report: &mut Report) {
    let machine = machine(config, facts);
    for check in rules::AT_START {
        match (check.check)(&machine) {
            Ok(outcomes) => {
                let news = outcomes.into_iter().filter(|one| !is_always_so(facts, check, one));
                news.for_each(|one| line(check, one, report));
            }
            Err(why) => report.push(check.name, "this machine", Severity::Unknown, why.0, ""),
        }
    }
}

/// What cannot be found out at any start is no finding. Checksums that do come unfinished show in the traffic.
fn is_always_so(facts: &Facts, check: &Rule, outcome: &Outcome) -> bool {
    let subject = outcome.subject.as_str();
    let far_end =
        || check.name == FAR_END && facts.link(subject).is_some_and(|link| link.lower_elsewhere);
    outcome.severity == Severity::Unknown && (subject == FIRST_ALONE || far_end())
}

fn line(check: &Rule, outcome: Outcome, report: &mut Report) {
    let fix = outcome.remedy();
    match outcome.severity {
        // Worth knowing is no reason to warn at every start.
        Severity::Ok | Severity::Info => report.ok(check.name, &outcome.subject, outcome.found),
        severity => report.push(check.name, &outcome.subject, severity, outcome.found, fix),
    }
}

/// Where this configuration wants programs.
pub fn program(config: &Config, facts: &Facts) -> Program {
    let names = config.node.interfaces.iter();
    let links: Vec<&Link> = names.filter_map(|name| facts.link(name)).collect();
    let native = |link: &&&Link| !generic(config, facts, link);
    let name = |link: &&Link| link.name.clone();
    Program {
        native: links.iter().filter(native).map(name).collect(),
        interfaces: links.iter().map(name).collect(),
    }
}

/// The machine as the doctor's rules read it.
fn machine(config: &Config, facts: &Facts) -> ringway_doctor::Facts {
    let index = |link: &Link| Some((link.ifindex, *facts.features.get(&link.name)?));
    let features = facts.links.iter().filter_map(index).collect();
    ringway_doctor::Facts::known(facts.files.clone(), network(facts), features)
        .with_program(program(config, facts))
}

fn network(facts: &Facts) -> Network {
    // Of one whose offloads are not known nothing can be said; that is a line of its own.
    let interface = |link: &Link| {
        Some(Interface {
            driver: facts
                .drivers
                .get(&link.name)
                .map(|name| Driver { name: name.clone(), bus: String::new() }),
            channels: facts.channels.get(&link.name).copied(),
            offloads: facts.offloads.get(&link.name).copied()?,
            carries_default_route: facts.default_route_links.contains(&link.ifindex),
            link: link.clone(),
        })
    };
    let interfaces = facts.links.iter().filter_map(interface).collect();
    Network {
        interfaces,
        addresses: facts.addresses.clone(),
        routes: Vec::new(),
        neighbours: facts.neighbours.clone(),
    }
}
