//! Backends of direct server return that answer for the service's address.

use std::net::IpAddr;

use ringway_host::{Interface, Network};

use crate::{Facts, Looked, Outcome, Rule, Unknown, each};

/// The address is on lo, for the balancer to bring packets; ARP for it is not theirs to answer.
pub const RULE: Rule = Rule {
    number: 78,
    name: "dsr-quiet",
    rule: "where lo has a service's address, arp_ignore is 1 and arp_announce is 2, and tunnels are opened by who takes clients",
    source: "kernel documentation, networking/ip-sysctl, arp_ignore and arp_announce; a practice of direct server return",
    why: "A backend that answers ARP for the address takes the traffic from the balancer.",
    profiles: &[],
    check,
};

fn check(facts: &Facts) -> Looked {
    let network = facts.network()?;
    let lo =
        network.interfaces.iter().find(|one| one.link.loopback).map_or(0, |lo| lo.link.ifindex);
    let service = |address: &IpAddr| matches!(address, IpAddr::V4(v4) if !v4.is_loopback());
    let services = network.addresses_of(lo).map(|one| one.address).filter(service);
    let services: Vec<IpAddr> = services.collect();
    let mut found =
        each(services.iter(), |address| address.to_string(), |address| quiet(facts, address));
    if !services.is_empty() {
        let opened = opens(facts, network);
        found.push(opened.unwrap_or_else(|why| Outcome::unknown("tunnels", why)));
    }
    Ok(found)
}

fn quiet(facts: &Facts, address: &IpAddr) -> Result<Outcome, Unknown> {
    let mut outcome =
        Outcome::warn(address.to_string(), "this host answers ARP for it, though it is on lo");
    for (key, wanted) in [("arp_ignore", 1), ("arp_announce", 2)] {
        // The greater of an interface's own and that of "all" counts.
        let key = format!("net/ipv4/conf/all/{key}");
        let now = facts.sysctl(&key)?;
        let own = |one: &&Interface| {
            let key = key.replace("/all/", &format!("/{}/", one.link.name));
            facts.sysctl(&key).is_ok_and(|own| own >= wanted)
        };
        let quiet = now >= wanted || facts.interfaces()?.iter().all(own);
        if !quiet {
            outcome = outcome.sets(facts.set(&key, wanted)?);
        }
    }
    let advice = "if the address is no service of a balancer but this host's own, all is well";
    Ok(outcome.advice(advice).or_ok("on lo, and quiet"))
}

/// Whether packets that come by a tunnel are opened here, and pass.
fn opens(facts: &Facts, network: &Network) -> Result<Outcome, Unknown> {
    let kinds = ["ipip", "ip6tnl", "sit", "gre"];
    let opens = |one: &&Interface| {
        one.link.up && one.link.kind.as_deref().is_some_and(|kind| kinds.contains(&kind))
    };
    let Some(device) = network.interfaces.iter().find(opens) else {
        let program = network.interfaces.iter().find(|one| !one.link.xdp.is_empty());
        return Err(Unknown(match program {
            Some(one) => format!("whether the XDP program of {} opens tunnels is not told", one.link.name),
            None => "no device and no program opens tunnels here, which dsr-l2 needs not; for the others: \
                     `ringway decap -i IFACE`"
                .into(),
        }));
    };
    let name = &device.link.name;
    // The greater of both counts (net/ipv4/fib_frontend.c). Clients' addresses lead elsewhere than
    // into the tunnel.
    let key = format!("net/ipv4/conf/{name}/rp_filter");
    let (own, all) = (facts.sysctl(&key)?, facts.sysctl("net/ipv4/conf/all/rp_filter")?);
    if own.max(all) != 1 {
        return Ok(Outcome::ok(name, "it opens tunnels, and takes clients' addresses"));
    }
    let said = "it opens tunnels, and drops what is in them: clients do not live behind it";
    Ok(Outcome::warn(name, said).sets(facts.set(&key, 2)?))
}

#[cfg(test)]
mod tests {
    use ringway_host::netlink::addresses::Address;

    use super::*;
    use crate::Severity::{self, Unknown, Warn};
    use crate::testing::{healthy, table};

    #[test]
    fn an_address_on_lo() {
        let service = healthy().network(|network| {
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
        assert_eq!(service.fixes(&RULE), fixes);
        let quiet = service.clone().put("/proc/sys/net/ipv4/conf/all/arp_ignore", "1");
        let quiet = quiet.put("/proc/sys/net/ipv4/conf/all/arp_announce", "2");
        let tunnel = |rp_filter: &str| {
            let machine = quiet.clone().put("/proc/sys/net/ipv4/conf/tunl0/rp_filter", rp_filter);
            machine.interface(2, 9, "tunl0", |tunnel| tunnel.link.kind = Some("ipip".into()))
        };
        let strict = tunnel("1");
        assert_eq!(strict.fixes(&RULE), ["sysctl -w net.ipv4.conf.tunl0.rp_filter=2"]);
        // Without a device or program for it, nothing tells who opens tunnels.
        let rows = [
            (service, Warn),
            (quiet.clone(), Unknown),
            (strict, Warn),
            (tunnel("2"), Severity::Ok),
        ];
        table(&RULE, rows);
        assert_eq!(quiet.outcomes(&RULE)[0].severity, Severity::Ok);
    }
}
