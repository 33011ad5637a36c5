//! Rules about ways that a redirect cannot enter: from native XDP a bridge or a VLAN device, from
//! anywhere a device without Ethernet header (WireGuard). Packets are rewritten and passed up, and
//! the kernel must be willing to forward them.

use std::net::IpAddr;

use ringway_config::{Announce, Config, Forward, SourceMode};
use ringway_doctor::{Outcome, Report};
use ringway_host::netlink::links::Link;
use ringway_host::{Fix, sysctl_name};

use super::interfaces::{OR_GENERIC, generic};
use super::machine_state::{MachineState, Receiving};
use super::{misconfigured, names};
use crate::network::next_hop::is_stacked;

/// Every interface, for every way that it cannot redirect into.
pub fn check(config: &Config, state: &MachineState, report: &mut Report) {
    let names = config.node.interfaces.iter();
    let links: Vec<&Link> = names.filter_map(|name| state.link(name)).collect();
    // A VLAN device upon another interface is as that is.
    let below = |link: &'_ Link| state.tagged_on(config, link).map(|device| device.ifindex);
    let native = |link: &Link| match state.tagged_on(config, link).unwrap_or(link) {
        device if is_stacked(device) || device.is_layer3() => false,
        device => !generic(config, state, device),
    };
    let ways = links.iter().filter(|link| link.is_layer3() || is_stacked(link));
    for way in ways.filter(|link| below(link).is_none()) {
        let from = |link: &Link| match way.is_layer3() {
            true => link.ifindex != way.ifindex,
            false => native(link),
        };
        let receivers: Vec<&Link> = links.iter().copied().filter(|link| from(link)).collect();
        let needs = Needs::of(config, state, way);
        if needs != Needs::default() {
            receivers.iter().for_each(|link| passes(state, link, way, needs, report));
        }
        if way.is_layer3() || !receivers.is_empty() {
            frames(config, state, way, report);
        }
    }
}

fn leads_there(state: &MachineState, address: IpAddr, way: &Link) -> bool {
    matches!(state.paths.get(&address), Some(Ok(path)) if path.ifindex == way.ifindex)
}

/// Why no redirect leads into it.
fn why(way: &Link) -> String {
    let kind = way.kind.as_deref().unwrap_or("device");
    match way.is_layer3() {
        true => {
            format!("{} is a {kind}, without Ethernet header: no redirect leads into it", way.name)
        }
        false => format!("{} is a {kind}, which native XDP cannot redirect into", way.name),
    }
}

/// The alternative, where there is one.
fn or_generic(way: &Link) -> Option<Fix> {
    (!way.is_layer3()).then(|| OR_GENERIC.into())
}

/// The kernel routes by the address, which under dsr-l2 is the service's still.
fn frames(config: &Config, state: &MachineState, way: &Link, report: &mut Report) {
    for service in config.services.iter().filter(|s| s.forward == Forward::DsrL2) {
        for backend in service.backends.iter().filter(|b| leads_there(state, *b.address, way)) {
            let (address, name) = (*backend.address, &way.name);
            let reason = format!(
                "{address} is reached by way of {name}, and {}: dsr-l2 has no other way",
                why(way)
            );
            let write = "write forward = \"nat\", \"dsr-ipip\" or \"dsr-gue\"".into();
            let fix = Fix::Sequence([write].into_iter().chain(or_generic(way)).collect());
            report.push(names::FORWARDING, misconfigured(config, &backend.address, reason, fix));
        }
    }
}

/// The traffic that has to be forwarded by one way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Needs {
    v4: bool,
    v6: bool,
    /// IPv4 from an address of this node's own.
    own_source: bool,
    /// IPv4 from an address to which another interface leads.
    strange_source: bool,
}

impl Needs {
    /// Requests to the backends there; where there are none, answers to the clients there.
    fn of(config: &Config, state: &MachineState, way: &Link) -> Needs {
        let (mut requests, mut answers) = (Needs::default(), Needs::default());
        for service in &config.services {
            if service.forward == Forward::Nat {
                answers.add(*service.address, service.announce == Announce::Kernel);
                answers.strange_source |= service.address.is_ipv4();
            }
            let clients = service.forward == Forward::Nat && service.source == SourceMode::Client;
            for backend in service.backends.iter().filter(|b| leads_there(state, *b.address, way)) {
                if service.forward != Forward::DsrL2 {
                    requests.add(*backend.address, !clients);
                }
            }
        }
        if requests == Needs::default() { answers } else { requests }
    }

    fn add(&mut self, family: IpAddr, own_source: bool) {
        self.v4 |= family.is_ipv4();
        self.v6 |= family.is_ipv6();
        self.own_source |= family.is_ipv4() && own_source;
        self.strange_source |= self.own_source;
    }
}

fn passes(state: &MachineState, link: &Link, way: &Link, needs: Needs, report: &mut Report) {
    let what = format!(
        "{}; what {} receives for it is rewritten and passed to the kernel to forward",
        why(way),
        link.name
    );
    // To the stack, packets of a bridge's port are the bridge's.
    let master = link.master.and_then(|master| state.links.iter().find(|l| l.ifindex == master));
    let receiver = &master.unwrap_or(link).name;
    let Some(now) = state.receiving.get(receiver) else {
        let own = sysctl_name(&format!("net/ipv4/conf/{receiver}/forwarding"));
        let fix = Fix::command(["sysctl", &own, "net.ipv6.conf.all.forwarding"]);
        let reason = format!("{what}; whether it does could not be read");
        return report.push(names::FORWARDING, Outcome::unknown(&link.name, reason).advice(fix));
    };
    let wrong = wrong(receiver, *now, needs);
    if wrong.is_empty() {
        let reason = format!("{what}, which it does, unless a firewall's forward chain objects");
        return report.ok(names::FORWARDING, &link.name, reason);
    }
    let found = |setting: &Setting| format!("{} = {}", sysctl_name(&setting.key), setting.found);
    let found: Vec<String> = wrong.iter().map(found).collect();
    let reason = format!("{what}, but it would drop that: {}", found.join(", "));
    let set = wrong.into_iter().map(|setting| Fix::sysctl(setting.key, setting.wanted));
    let fix = Fix::Sequence(set.chain(or_generic(way)).collect());
    report.push(names::FORWARDING, Outcome::crit(&link.name, reason).advice(fix));
}

/// A setting that is not as it must be.
struct Setting {
    key: String,
    found: i64,
    wanted: i64,
}

/// net/ipv4/route.c: ip_route_input_slow wants forwarding of the receiving interface;
/// net/ipv4/fib_frontend.c: fib_validate_source takes a source of our own for an impostor's unless
/// accept_local is set, and its strict filter wants it to have come by its own interface.
/// net/ipv6/ip6_output.c: ip6_forward asks only whether the host forwards at all.
fn wrong(receiver: &str, now: Receiving, needs: Needs) -> Vec<Setting> {
    let v4 = |name: &str| format!("net/ipv4/conf/{receiver}/{name}");
    let mut wrong = Vec::new();
    let mut must = |needed: bool, key: String, found: i64, wanted: i64| {
        if needed {
            wrong.push(Setting { key, found, wanted });
        }
    };
    must(needs.v4 && !now.forwards_v4, v4("forwarding"), 0, 1);
    must(needs.own_source && !now.accepts_local, v4("accept_local"), 0, 1);
    must(needs.strange_source && now.rp_filter == 1, v4("rp_filter"), 1, 2);
    must(needs.v6 && !now.forwards_v6, "net/ipv6/conf/all/forwarding".into(), 0, 1);
    wrong
}
