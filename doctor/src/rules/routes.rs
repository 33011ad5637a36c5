//! Routes and neighbours that lead nowhere.

use ringway_host::netlink::neighbours::{Neighbour, NeighbourState};
use ringway_host::netlink::routes::{Route, RouteKind};
use ringway_host::{Interface, Network};

use crate::{Facts, Fix, Looked, Outcome, Rule, Severity, each};

/// What cannot be resolved cannot be sent to.
pub const NEXT_HOP: Rule = Rule {
    number: 85,
    name: "next-hop",
    rule: "no route's next hop is FAILED or INCOMPLETE",
    source: "Linux, net/core/neighbour.c: three questions without an answer are a failure",
    why: "All packets by this route are dropped with `No route to host`, or wait for an answer.",
    profiles: &[],
    check: next_hops,
};

/// An entry that was set by hand is never asked for again.
pub const FIXED_NEIGHBOUR: Rule = Rule {
    number: 86,
    name: "fixed-neighbour",
    rule: "no neighbour on Ethernet is PERMANENT, but on tunnels",
    source: "ip-neighbour(8): such an entry can only be removed administratively",
    why: "When the neighbour gets another card or moves, packets go to the old MAC address, and nothing tells of it.",
    profiles: &[],
    check: fixed_neighbours,
};

/// An MTU on a route wins over the interface's, and over what path MTU discovery finds.
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
        Ok(Outcome::warn(&name, said)
            .saw(format!("ip route show {name}, mtu"), mtu)
            .advice(format!("`ip route change {name} ...` without `mtu`, with all else as it is")))
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Machine, table};

    /// A route by 10.9.0.2, which is a neighbour on veth0.
    fn by_a_neighbour(change: impl FnOnce(&mut Route, &mut Neighbour)) -> Machine {
        Machine::healthy().network(|network| {
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
            (in_state(NeighbourState::Failed), Severity::Warn),
            (in_state(NeighbourState::Incomplete), Severity::Info),
            (in_state(NeighbourState::Stale), Severity::Ok),
            (other, Severity::Ok),
        ];
        table(&NEXT_HOP, rows);
        // A neighbour that is no router may well be gone.
        let host = Machine::healthy()
            .network(|network| network.neighbours[0].state = NeighbourState::Failed);
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
            (fixed.clone(), Severity::Info),
            (of_kind("bridge"), Severity::Info),
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
            (with(575), Severity::Warn),
            (with(576), Severity::Ok),
            (six(1279), Severity::Warn),
            (six(1280), Severity::Ok),
        ];
        table(&ROUTE_MTU, rows);
    }
}
