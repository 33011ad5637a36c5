//! Interfaces that this machine is reached by.

use std::net::IpAddr;

use ringway_host::Interface;

use crate::gather::SESSION;
use crate::{Facts, Looked, Outcome, Profile, Rule, Unknown, each_interface};

/// Who takes such an interface from the kernel cuts the machine off.
pub const RULE: Rule = Rule {
    number: 64,
    name: "way-in",
    rule: "an interface by which a route or this session comes is not given to a program that bypasses the kernel",
    source: "heuristic of Ringway, which refuses it, too",
    why: "After that nobody reaches the machine any more, and nobody can take it back.",
    profiles: &[Profile::Bypass],
    check,
};

fn check(facts: &Facts) -> Looked {
    let session: Result<Option<IpAddr>, Unknown> = facts.json(SESSION);
    let (network, cards) = (facts.network()?, facts.cards()?);
    // With another card beside it there is one to give away.
    let spare = cards.len() > 1;
    let one = |card: &&Interface| {
        let name = &card.link.name;
        let of = |address: &IpAddr| {
            network.addresses_of(card.link.ifindex).any(|own| own.address == *address)
        };
        if session.clone()?.is_some_and(|address| of(&address)) {
            return Ok(Outcome::info(name, "this session comes by it: leave it to the kernel")
                .saw("SSH_CONNECTION, the server's address is of", name)
                .advice("give away another card, or manage the machine by its console"));
        }
        let route = network.routes.iter().find(|route| {
            route.ifindex == Some(card.link.ifindex)
                && (route.gateway.is_some() || route.prefix == 0)
        });
        let Some(route) = route.filter(|_| !spare) else {
            return Ok(Outcome::ok(
                name,
                match route {
                    Some(_) => "a route leads by it: leave it, take another",
                    None => "no route leads by it to a router, nor this session",
                },
            ));
        };
        let to = format!("{}/{}", route.destination, route.prefix);
        Ok(Outcome::info(
            name,
            format!("the only card, and the route to {to} leads by it: leave it to the kernel"),
        )
        .saw(format!("ip route show {to}"), name)
        .advice("add a card, or manage the machine by its console"))
    };
    Ok(each_interface(cards, one))
}

#[cfg(test)]
mod tests {
    use ringway_host::netlink::routes::{Route, RouteKind};

    use super::*;
    use crate::Severity;
    use crate::testing::{Machine, table};

    #[test]
    fn the_only_card_and_that_of_the_session() {
        let route = Route {
            destination: [0, 0, 0, 0].into(),
            prefix: 0,
            table: 254,
            kind: RouteKind::Unicast,
            ifindex: Some(2),
            gateway: Some([192, 0, 2, 254].into()),
            source: None,
            mtu: None,
            priority: 0,
        };
        let only = Machine::healthy().network(|network| network.routes.push(route));
        let two = only.clone().network(|network| {
            let mut other = network.interfaces[1].clone();
            (other.link.ifindex, other.link.name) = (9, "eth1".into());
            network.interfaces.push(other);
        });
        let session = two.clone().json(SESSION, "192.0.2.1");
        assert_eq!(session.outcomes(&RULE)[0].subject, "eth0");
        table(
            &RULE,
            [
                (only, Severity::Info),
                (two.clone(), Severity::Ok),
                (session, Severity::Info),
                (two.remove(SESSION), Severity::Unknown),
            ],
        );
    }
}
