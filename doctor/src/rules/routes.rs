//! Routes, next hops and neighbours, and packets that they lose.

use std::net::IpAddr;

use ringway_host::netlink::neighbours::{Neighbour, NeighbourState};
use ringway_host::netlink::routes::{Route, RouteKind};
use ringway_host::{Interface, Network};

use crate::outcome::MACHINE;
use crate::{Facts, Fix, Looked, Outcome, Rule, Severity, Unknown, each};

/// Strict reverse path filtering wants the route to a sender to lead out where its packet came in.
pub const REVERSE_PATH: Rule = Rule {
    number: 55,
    name: "reverse-path",
    rule: "IPReversePathFilter does not grow",
    source: "kernel documentation, networking/ip-sysctl, rp_filter (RFC 3704)",
    why: "Packets vanish without a trace where routes are not symmetric.",
    profiles: &[],
    check: reverse_path,
};

fn reverse_path(facts: &Facts) -> Looked {
    let dropped = facts.counter("TcpExt", "IPReversePathFilter")?;
    if dropped.delta == 0 {
        return Outcome::ok(MACHINE, "no packet was dropped").into();
    }
    let said = format!(
        "{} packets came in where the way back to their sender does not lead",
        dropped.delta
    );
    let mut outcome = Outcome::warn(MACHINE, said)
        .counted("/proc/net/netstat TcpExt IPReversePathFilter", dropped.delta);
    let names = facts.interfaces()?.into_iter().map(|one| one.link.name.clone());
    let (mut ways, mut strict) = (Vec::new(), false);
    let all = facts.sysctl(RP_FILTER_OF_ALL).ok();
    if all == Some(1) {
        outcome = outcome.saw(format!("/proc/sys/{RP_FILTER_OF_ALL}"), 1);
    }
    for name in names {
        let key = format!("net/ipv4/conf/{name}/rp_filter");
        let Ok(own) = facts.sysctl(&key) else { continue };
        // The greater of an interface's own and that of "all" counts: 2 of its own is loose,
        // whatever "all" says.
        if all.map_or(own, |all| all.max(own)) != 1 {
            continue;
        }
        strict = true;
        outcome = outcome.saw(format!("/proc/sys/{key}"), own);
        // Filtered loosely, what has a route at all passes, by whichever interface it leads.
        let others = elsewhere(facts, &name)?;
        if !others.is_empty() {
            outcome = outcome.change(facts.set(&key, 2)?);
            ways.extend(others);
        }
    }
    ways.sort();
    ways.dedup();
    ways.truncate(NAMED);
    let advice = match (strict, ways.as_slice()) {
        (true, []) => "no route leads by another interface, so senders are those without any route, and filtering \
                       loosely (2) would drop their packets as well"
            .into(),
        (true, ways) => format!(
            "filtering loosely (2) helps senders to whom a route leads by another interface (such as {}), and none \
             without a route",
            ways.join(", ")
        )
        .into(),
        (false, _) => "no interface filters strictly: these senders have no route at all".into(),
    };
    outcome
        .advice(Fix::Sequence(vec![
            advice,
            Fix::sysctl("net/ipv4/conf/all/log_martians", 1)
                .before("has the kernel name them (`dmesg`)"),
            Fix::command(["ip", "route", "get", "SENDER"]).before("shows the way back"),
            "right as it is if they are forged; else mend the route".into(),
        ]))
        .into()
}

const RP_FILTER_OF_ALL: &str = "net/ipv4/conf/all/rp_filter";
const NAMED: usize = 3;

/// Where routes lead by other interfaces than this.
fn elsewhere(facts: &Facts, name: &str) -> Result<Vec<String>, Unknown> {
    let network = facts.network()?;
    let own = network.interface(name).map(|one| one.link.ifindex);
    let leads_back = |route: &&Route| {
        route.destination.is_ipv4() && route.kind == RouteKind::Unicast && route.ifindex.is_some()
    };
    let other = |route: &&Route| route.ifindex != own;
    let routes = network.routes.iter().filter(leads_back).filter(other);
    Ok(routes.map(|route| format!("{}/{}", route.destination, route.prefix)).collect())
}

pub const NO_ROUTE: Rule = Rule {
    number: 56,
    name: "no-route",
    rule: "InAddrErrors, InNoRoutes and OutNoRoutes do not grow",
    source: "RFC 4293, ipSystemStatsInAddrErrors, InNoRoutes and OutNoRoutes",
    why: "Packets come in for addresses that are not this host's, or programs send where no route leads: they are dropped.",
    profiles: &[],
    check: no_route,
};

pub const CLOSED_PORTS: Rule = Rule {
    number: 88,
    name: "closed-ports",
    rule: "fewer than 10 datagrams a second come for UDP ports that nobody listens on",
    source: "heuristic of Ringway; RFC 4113, udpNoPorts",
    why: "A program that should listen is gone, or listens on another address; or somebody scans ports.",
    profiles: &[],
    check: closed_ports,
};

const FORWARD: &str = "net/ipv4/ip_forward";

fn no_route(facts: &Facts) -> Looked {
    Ok(vec![incoming(facts)?, outgoing(facts)?])
}

fn incoming(facts: &Facts) -> Result<Outcome, Unknown> {
    let address = facts.counter("Ip", "InAddrErrors")?;
    let route = facts.counter("IpExt", "InNoRoutes")?;
    let lost = address.delta + route.delta;
    if lost == 0 {
        return Ok(Outcome::ok(MACHINE, "no packet was without a way"));
    }
    let forwards = facts.sysctl(FORWARD)?;
    let outcome = Outcome::warn(
        MACHINE,
        format!("{lost} packets were dropped: no way leads where they want"),
    )
    .counted("/proc/net/snmp Ip InAddrErrors", address.delta)
    .counted("/proc/net/netstat IpExt InNoRoutes", route.delta)
    .saw(format!("/proc/sys/{FORWARD}"), forwards);
    if forwards == 0 {
        let outcome =
            outcome.advice("if this host shall not pass packets on, find out who sends them here");
        return Ok(outcome.change(facts.set(FORWARD, 1)?));
    }
    Ok(outcome.advice(Fix::Sequence(vec![
        Fix::command(["ip", "route", "get", "ADDRESS"]).before("says which is missing"),
        Fix::command(["ip", "route", "add", "..."]).after("then:"),
    ])))
}

fn outgoing(facts: &Facts) -> Result<Outcome, Unknown> {
    let lost = facts.counter("Ip", "OutNoRoutes")?.delta;
    if lost == 0 {
        return Ok(Outcome::ok(SENDING, "each packet of this host had a route"));
    }
    let said = format!("{lost} packets of this host's own programs had no route");
    Ok(Outcome::warn(SENDING, said).counted("/proc/net/snmp Ip OutNoRoutes", lost).advice(
        Fix::Sequence(vec![
            "the program gets ENETUNREACH, which its log should name with the address".into(),
            Fix::command(["ip", "route", "get", "ADDRESS"]),
            Fix::command(["ip", "route", "add", "..."]).after("then:"),
        ]),
    ))
}

const SENDING: &str = "sending";

fn closed_ports(facts: &Facts) -> Looked {
    let lost = facts.counter("Udp", "NoPorts")?.delta;
    if lost as f64 <= facts.seconds * 10.0 {
        return Outcome::ok(MACHINE, format!("{lost} datagrams for closed ports")).into();
    }
    let said =
        format!("{lost} datagrams in {:.0} s for ports that nobody listens on", facts.seconds);
    Outcome::info(MACHINE, said)
        .counted("/proc/net/snmp Udp NoPorts", lost)
        .advice("`tcpdump -ni any 'icmp[0:2] = 0x0303'` shows the answers with ports and senders")
        .into()
}

pub const NEIGHBOUR_TABLE: Rule = Rule {
    number: 57,
    name: "neighbour-table",
    rule: "neighbours are fewer than 80 % of gc_thresh3, and none is refused",
    source: "kernel documentation, networking/ip-sysctl, neigh/default/gc_thresh3",
    why: "What finds the table full cannot be sent at all: no buffer space available.",
    profiles: &[],
    check: neighbour_table,
};

fn neighbour_table(facts: &Facts) -> Looked {
    let neighbours = &facts.network()?.neighbours;
    let count = |v4: bool| {
        neighbours.iter().filter(|one| matches!(one.address, IpAddr::V4(_)) == v4).count()
    };
    let tables = [("ipv4", "arp_cache", count(true)), ("ipv6", "ndisc_cache", count(false))];
    // A machine without IPv6 has but one.
    let has_v6 = facts.text("/proc/sys/net/ipv6/neigh/default/gc_thresh3").is_ok();
    let tables = tables.into_iter().filter(|(family, ..)| *family == "ipv4" || has_v6);
    Ok(each(
        tables,
        |(family, ..)| (*family).to_owned(),
        |(family, cache, here)| {
            let fulls = table_fulls(facts, cache)?;
            let key = format!("net/{family}/neigh/default/gc_thresh3");
            // Of the first network namespace alone.
            let most = facts.sysctl(&key);
            let near = most.as_ref().is_ok_and(|most| *here as f64 > *most as f64 * 0.8);
            let severity = match (fulls > 0, near) {
                (true, _) => Severity::Crit,
                (false, true) => Severity::Warn,
                (false, false) => {
                    return most.map(|most| Outcome::ok(*family, format!("{here} of {most}")));
                }
            };
            let said =
                format!("{here} neighbours in this namespace, {fulls} refused for want of room");
            let outcome = Outcome::new(severity, *family, said)
                .saw(format!("/proc/net/stat/{cache} table_fulls"), fulls)
                .saw("ip neighbour, entries", here);
            match most {
                Ok(most) => Ok(outcome.sets(facts.set(&key, most * 4)?)),
                Err(_) => Ok(outcome.advice(format!(
                    "in the machine's first network namespace: raise {}",
                    key.replace('/', ".")
                ))),
            }
        },
    ))
}

/// Names on the first line, a line for each processor in hexadecimal.
fn table_fulls(facts: &Facts, cache: &str) -> Result<u64, Unknown> {
    let path = format!("/proc/net/stat/{cache}");
    let (before, after) = facts.texts(&path)?;
    let sum = |text: &str| {
        let mut lines = text.lines();
        let at = lines.next()?.split_ascii_whitespace().position(|name| name == "table_fulls")?;
        let value =
            |line: &str| u64::from_str_radix(line.split_ascii_whitespace().nth(at)?, 16).ok();
        Some(lines.filter_map(value).fold(0, u64::saturating_add))
    };
    let strange = || crate::facts::strange(&path, after);
    Ok(sum(after).ok_or_else(strange)?.saturating_sub(sum(before).ok_or_else(strange)?))
}

pub const NEXT_HOP: Rule = Rule {
    number: 85,
    name: "next-hop",
    rule: "no route's next hop is FAILED or INCOMPLETE",
    source: "Linux, net/core/neighbour.c: three questions without an answer are a failure",
    why: "All packets by this route are dropped with `No route to host`, or wait for an answer.",
    profiles: &[],
    check: next_hops,
};

pub const FIXED_NEIGHBOUR: Rule = Rule {
    number: 86,
    name: "fixed-neighbour",
    rule: "no neighbour on Ethernet is PERMANENT, but on tunnels",
    source: "ip-neighbour(8): such an entry can only be removed administratively",
    why: "When the neighbour gets another card or moves, packets go to the old MAC address, and nothing tells of it.",
    profiles: &[],
    check: fixed_neighbours,
};

pub const ROUTE_MTU: Rule = Rule {
    number: 87,
    name: "route-mtu",
    rule: "no route has an MTU below 576 bytes, or of IPv6 below 1280",
    source: "RFC 791, 3.2 (576: each host must take it); RFC 8200, 5 (1280)",
    why: "Each packet is cut in pieces that carry more header than data; with `mtu lock` for good.",
    profiles: &[],
    check: route_mtus,
};

fn next_hops(facts: &Facts) -> Looked {
    let network = facts.network()?;
    let mut gateways: Vec<_> =
        unicast(network).filter_map(|route| Some((route.ifindex?, route.gateway?))).collect();
    gateways.sort_unstable();
    gateways.dedup();
    let state = |(ifindex, address): (u32, std::net::IpAddr)| {
        let same = |one: &&Neighbour| one.ifindex == ifindex && one.address == address;
        let known = network.neighbours.iter().find(same).map(|one| one.state);
        match known {
            Some(NeighbourState::Failed) => (Severity::Warn, "it did not answer when it was asked"),
            Some(NeighbourState::Incomplete) => {
                (Severity::Info, "it is asked, and has not answered")
            }
            Some(_) => (Severity::Ok, "its MAC address is known"),
            None => (Severity::Ok, "nothing was sent to it yet"),
        }
    };
    let one = |gateway| {
        let ((severity, said), address) = (state(gateway), gateway.1);
        let outcome = Outcome::new(severity, address.to_string(), said);
        if severity == Severity::Ok {
            return outcome;
        }
        let by = unicast(network).find(|route| route.gateway == Some(address));
        let by = by.map_or_else(String::new, |r| format!("{}/{}", r.destination, r.prefix));
        outcome
            .saw(format!("ip route show {by}, via"), address)
            .saw(format!("ip neighbour show {address}"), said)
            .advice("see that the router is up, on this link and in this VLAN, and that the address is its own")
    };
    Ok(gateways.into_iter().map(one).collect())
}

fn unicast(network: &Network) -> impl Iterator<Item = &Route> {
    network.routes.iter().filter(|route| route.kind == RouteKind::Unicast)
}

fn fixed_neighbours(facts: &Facts) -> Looked {
    // A tunnel has nobody to ask: who made it sets its neighbours.
    let learns = |one: &&Interface| {
        matches!(one.link.kind.as_deref(), None | Some("veth" | "bridge" | "bond" | "vlan"))
    };
    let interfaces: Vec<&Interface> = facts.interfaces()?.into_iter().filter(learns).collect();
    let fixed = facts.network()?.neighbours.iter().filter_map(|neighbour| {
        let on = interfaces.iter().find(|one| one.link.ifindex == neighbour.ifindex)?;
        let set = neighbour.state == NeighbourState::Permanent && !neighbour.managed;
        set.then_some((&on.link.name, neighbour))
    });
    let one = |(name, neighbour): (&String, &Neighbour)| {
        let address = neighbour.address.to_string();
        let mac = neighbour.mac.unwrap_or_default().to_string();
        let del = ["ip", "neighbour", "del", &address, "dev", name];
        let set = ["ip", "neighbour", "replace", &address, "lladdr", &mac, "dev", name];
        let set = set.into_iter().chain(["nud", "permanent"]);
        Outcome::info(&address, format!("its MAC address {mac} was set by hand"))
            .saw(format!("ip neighbour show {address} dev {name}"), "PERMANENT")
            .fix(Fix::command(del), Fix::command(set))
            .advice(format!(
                "`arping -I {name} {address}` shows the right one; often it is meant so"
            ))
    };
    Ok(fixed.map(one).collect())
}

fn route_mtus(facts: &Facts) -> Looked {
    let routes = unicast(facts.network()?).filter(|route| route.mtu.is_some());
    let subject = |route: &&Route| format!("{}/{}", route.destination, route.prefix);
    Ok(each(routes, subject, |route| {
        let least = if route.destination.is_ipv4() { 576 } else { 1280 };
        let (mtu, name) = (route.mtu.unwrap_or_default(), subject(route));
        if mtu == 0 || mtu >= least {
            return Ok(Outcome::ok(name, format!("{mtu} bytes")));
        }
        let said = format!("packets by this route have {mtu} bytes, and {least} pass everywhere");
        Ok(Outcome::warn(&name, said).saw(format!("ip route show {name}, mtu"), mtu).advice(
            Fix::command(["ip", "route", "change", &name, "..."])
                .before("without `mtu`, with all else as it is"),
        ))
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Severity::{self, Crit, Info, Unknown, Warn};
    use crate::testing::{Machine, healthy, table};

    #[test]
    fn strict_ones_are_loosened() {
        let strict = healthy()
            .counts("TcpExt", "IPReversePathFilter", 1)
            .put("/proc/sys/net/ipv4/conf/veth0/rp_filter", "1")
            .put("/proc/sys/net/ipv4/conf/eth0/rp_filter", "2");
        let strict = strict.network(|network| {
            let mut other = network.routes[0].clone();
            (other.destination, other.ifindex) = ([192, 0, 2, 0].into(), Some(2));
            network.routes.push(other);
        });
        assert_eq!(strict.fixes(&REVERSE_PATH), ["sysctl -w net.ipv4.conf.veth0.rp_filter=2"]);
        // The interface's own is enough, be it strict by itself or by all.
        for own in ["0", "1"] {
            let both = strict
                .clone()
                .put("/proc/sys/net/ipv4/conf/all/rp_filter", "1")
                .put("/proc/sys/net/ipv4/conf/veth0/rp_filter", own);
            assert_eq!(
                both.fixes(&REVERSE_PATH),
                ["sysctl -w net.ipv4.conf.veth0.rp_filter=2"],
                "{own}"
            );
            let undo = format!("sysctl -w net.ipv4.conf.veth0.rp_filter={own}");
            assert_eq!(both.undos(&REVERSE_PATH), [undo]);
        }
        let loosened = strict.clone().put("/proc/sys/net/ipv4/conf/all/rp_filter", "2");
        assert!(loosened.fixes(&REVERSE_PATH).is_empty());
        // Nobody can be reached by another interface: loose is no better.
        let alone = strict.clone().network(|network| {
            network.routes.retain(|route| route.ifindex == Some(3));
        });
        assert!(alone.fixes(&REVERSE_PATH).is_empty());
        let said = alone.outcomes(&REVERSE_PATH)[0].remedy().to_string();
        assert!(said.contains("without any route"), "{said}");
        let loose = strict.clone().put("/proc/sys/net/ipv4/conf/veth0/rp_filter", "2");
        assert!(loose.fixes(&REVERSE_PATH).is_empty());
        table(&REVERSE_PATH, [(strict, Warn), (alone, Warn), (loose, Warn)]);
    }

    #[test]
    fn a_host_that_should_forward() {
        let forwards = |text: &str| {
            let machine = healthy().put(&format!("/proc/sys/{FORWARD}"), text);
            machine.counts("Ip", "InAddrErrors", 3)
        };
        assert_eq!(forwards("0").fixes(&NO_ROUTE), ["sysctl -w net.ipv4.ip_forward=1"]);
        assert!(forwards("1").fixes(&NO_ROUTE).is_empty());
        let route = healthy().counts("IpExt", "InNoRoutes", 1);
        let own = healthy().counts("Ip", "OutNoRoutes", 1);
        let rows = [(forwards("0"), Warn), (route, Warn), (own, Warn)];
        table(&NO_ROUTE, rows);
    }

    #[test]
    fn datagrams_for_nobody() {
        // In two seconds.
        let machine = |count| healthy().counts("Udp", "NoPorts", count);
        table(&CLOSED_PORTS, [(machine(20), Severity::Ok), (machine(21), Info)]);
    }

    #[test]
    fn nearly_full_and_refused() {
        let key = "/proc/sys/net/ipv4/neigh/default/gc_thresh3";
        // There is one neighbour.
        let full = healthy().put(key, "1");
        assert_eq!(full.fixes(&NEIGHBOUR_TABLE), ["sysctl -w net.ipv4.neigh.default.gc_thresh3=4"]);
        let stat = |n: &str| format!("entries table_fulls\n00000001 0000000{n}\n00000001 00000000");
        let path = "/proc/net/stat/arp_cache";
        let refused = healthy().put(path, &stat("0")).then(path, &stat("a"));
        let elsewhere = healthy().remove(key);
        table(&NEIGHBOUR_TABLE, [(full, Warn), (refused, Crit), (elsewhere, Unknown)]);
    }

    /// A route by 10.9.0.2, which is a neighbour on veth0.
    fn by_a_neighbour(change: impl FnOnce(&mut Route, &mut Neighbour)) -> Machine {
        healthy().network(|network| {
            let mut route = network.routes[0].clone();
            route.destination = [192, 0, 2, 0].into();
            route.gateway = Some(network.neighbours[0].address);
            change(&mut route, &mut network.neighbours[0]);
            network.routes.push(route);
        })
    }

    fn in_state(state: NeighbourState) -> Machine {
        by_a_neighbour(|_, neighbour| neighbour.state = state)
    }

    #[test]
    fn next_hops_that_do_not_answer() {
        let other = by_a_neighbour(|_, neighbour| {
            neighbour.state = NeighbourState::Failed;
            neighbour.ifindex = 2;
        });
        let rows = [
            (in_state(NeighbourState::Failed), Warn),
            (in_state(NeighbourState::Incomplete), Info),
            (in_state(NeighbourState::Stale), Severity::Ok),
            (other, Severity::Ok),
        ];
        table(&NEXT_HOP, rows);
        // A neighbour that is no router may well be gone.
        let host =
            healthy().network(|network| network.neighbours[0].state = NeighbourState::Failed);
        table(&NEXT_HOP, [(host, Severity::Ok)]);
    }

    #[test]
    fn neighbours_that_were_set_by_hand() {
        let fixed = in_state(NeighbourState::Permanent);
        assert_eq!(fixed.fixes(&FIXED_NEIGHBOUR), ["ip neighbour del 10.9.0.2 dev veth0"]);
        let undo = "ip neighbour replace 10.9.0.2 lladdr 02:00:00:00:00:09 dev veth0 nud permanent";
        assert_eq!(fixed.undos(&FIXED_NEIGHBOUR), [undo]);
        let of_kind = |kind: &str| {
            let kind = Some(kind.to_owned());
            fixed.clone().network(|network| network.interfaces[2].link.kind = kind)
        };
        let managed = fixed.clone().network(|network| network.neighbours[0].managed = true);
        let rows = [
            (fixed.clone(), Info),
            (of_kind("bridge"), Info),
            (of_kind("vxlan"), Severity::Ok),
            (managed, Severity::Ok),
        ];
        table(&FIXED_NEIGHBOUR, rows);
    }

    #[test]
    fn routes_for_small_packets() {
        let with = |mtu| by_a_neighbour(|route, _| route.mtu = Some(mtu));
        let six = |mtu| {
            by_a_neighbour(|route, _| {
                (route.mtu, route.destination) = (Some(mtu), [0xfd; 16].into());
            })
        };
        let rows = [
            (with(575), Warn),
            (with(576), Severity::Ok),
            (six(1279), Warn),
            (six(1280), Severity::Ok),
        ];
        table(&ROUTE_MTU, rows);
    }
}
