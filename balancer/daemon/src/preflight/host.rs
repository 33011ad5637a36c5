//! Rules about the host whatever the configuration says of it: those of the doctor that a start can ask without waiting.

use std::collections::BTreeMap;

use ringway_config::Config;
use ringway_doctor::{Collection, Outcome, Profile, Program, Rule, Sample, rules};
use ringway_host::ethtool::Driver;
use ringway_host::netlink::links::Link;
use ringway_host::{Interface, NETWORK, Network};

use super::facts::Facts;
use super::interfaces::generic;
use super::{Report, State};

/// By name, in the order of their lines.
const ASKED: [&str; 8] =
    ["kernel", "btf", "bpffs", "bpf-jit", "lro", "bond-xdp", "driver-queues", "veth-checksum"];

/// Told in the first network namespace alone: elsewhere nobody could do anything about not knowing it.
const FIRST_ALONE: &str = "net.core.bpf_jit_harden";

/// The far end of a veth pair in another network namespace never shows how it leaves checksums.
const FAR_END: &str = "veth-checksum";

/// Those that a start asks.
pub fn asked() -> impl Iterator<Item = &'static Rule> {
    ASKED.iter().filter_map(|name| rules::find(name))
}

/// Asks them.
pub fn check(config: &Config, facts: &Facts, report: &mut Report) {
    let machine = machine(facts, program(config, facts));
    for check in asked() {
        match (check.check)(&machine) {
            Ok(outcomes) => {
                let news = outcomes.into_iter().filter(|one| !is_always_so(facts, check, one));
                news.for_each(|one| line(check, one, report));
            }
            Err(why) => report.push(check.name, "this machine", State::Unknown, why.0, ""),
        }
    }
}

/// What cannot be found out at any start is no finding. Checksums that do come unfinished show in the traffic.
fn is_always_so(facts: &Facts, check: &Rule, outcome: &Outcome) -> bool {
    let subject = outcome.subject.as_str();
    let far_end =
        || check.name == FAR_END && facts.link(subject).is_some_and(|link| link.lower_elsewhere);
    outcome.state == ringway_doctor::State::Unknown && (subject == FIRST_ALONE || far_end())
}

fn line(check: &Rule, outcome: Outcome, report: &mut Report) {
    let state = match outcome.state {
        // Worth knowing is no reason to warn at every start.
        ringway_doctor::State::Ok | ringway_doctor::State::Info => {
            return report.ok(check.name, &outcome.subject, outcome.found);
        }
        ringway_doctor::State::Unknown => State::Unknown,
        ringway_doctor::State::Warn => State::Warn,
        ringway_doctor::State::Crit => State::Fail,
    };
    let commands = outcome.changes.into_iter().map(|change| change.fix.to_string());
    let fix: Vec<String> = commands.chain(outcome.advice).collect();
    report.push(check.name, &outcome.subject, state, outcome.found, fix.join("; "));
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
pub fn machine(facts: &Facts, program: Program) -> ringway_doctor::Facts {
    let mut after = facts.files.clone();
    let features = facts
        .links
        .iter()
        .filter_map(|link| Some((link.ifindex, facts.features.get(&link.name)?.0)));
    after.put_json::<_, String>(
        "/netlink/xdp_features.json",
        Ok(features.collect::<BTreeMap<_, _>>()),
    );
    after.put_json::<_, String>(NETWORK, Ok(network(facts)));
    let collection = Collection { before: Sample::default(), after, seconds: 0.0 };
    ringway_doctor::Facts::new(&collection, Some(Profile::Balancer)).with_program(program)
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
