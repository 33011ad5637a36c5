//! Backends of direct server return that answer for the service's address.

use std::net::IpAddr;

use crate::{Check, Facts, Looked, Outcome, each};

/// The address is on lo, for the balancer to bring packets; ARP for it is not theirs to answer.
pub const CHECK: Check = Check {
    number: 78,
    name: "dsr-quiet",
    rule: "where lo has a service's address, arp_ignore is 1 and arp_announce is 2",
    source: "kernel documentation, networking/ip-sysctl, arp_ignore and arp_announce; a practice of direct server return",
    why: "A backend that answers ARP for the address takes the traffic from the balancer.",
    profiles: &[],
    look,
};

fn look(facts: &Facts) -> Looked {
    let network = facts.network()?;
    let lo =
        network.interfaces.iter().find(|one| one.link.loopback).map_or(0, |lo| lo.link.ifindex);
    let service = |address: &IpAddr| matches!(address, IpAddr::V4(v4) if !v4.is_loopback());
    let services = network.addresses_of(lo).map(|one| one.address).filter(service);
    let found = each(services, IpAddr::to_string, |address| {
        let mut outcome =
            Outcome::warn(address.to_string(), "this host answers ARP for it, though it is on lo");
        for (key, wanted) in [("arp_ignore", 1), ("arp_announce", 2)] {
            // The greater of an interface's own and that of "all" counts.
            let key = format!("net/ipv4/conf/all/{key}");
            let now = facts.sysctl(&key)?;
            let own = |one: &&ringway_host::Interface| {
                let key = key.replace("/all/", &format!("/{}/", one.link.name));
                facts.sysctl(&key).is_ok_and(|own| own >= wanted)
            };
            let quiet = now >= wanted || facts.interfaces()?.iter().all(own);
            if !quiet {
                outcome =
                    outcome.saw(format!("/proc/sys/{key}"), now).change(facts.set(&key, wanted)?);
            }
        }
        if outcome.changes.is_empty() {
            return Ok(Outcome::ok(address.to_string(), "on lo, and quiet"));
        }
        Ok(outcome
            .advice("if the address is no service of a balancer but this host's own, all is well"))
    });
    Ok(found)
}

#[cfg(test)]
mod tests {
    use ringway_host::addresses::Address;

    use super::*;
    use crate::State;
    use crate::testing::{Machine, table};

    #[test]
    fn an_address_on_lo() {
        let service = Machine::healthy().network(|network| {
            network.addresses.push(Address {
                ifindex: 1,
                address: [203, 0, 113, 10].into(),
                prefix: 32,
                local_scope: false,
                unusable: false,
                deprecated: false,
            });
        });
        let fixes = [
            "sysctl -w net.ipv4.conf.all.arp_ignore=1",
            "sysctl -w net.ipv4.conf.all.arp_announce=2",
        ];
        assert_eq!(service.fixes(&CHECK), fixes);
        let quiet = service.clone().put("/proc/sys/net/ipv4/conf/all/arp_ignore", "1");
        let quiet = quiet.put("/proc/sys/net/ipv4/conf/all/arp_announce", "2");
        table(&CHECK, [(service, State::Warn), (quiet, State::Ok)]);
    }
}
