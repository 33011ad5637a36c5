//! Packets dropped because the way back to their sender leads elsewhere.

use ringway_host::netlink::routes::{Route, RouteKind};

use crate::outcome::MACHINE;
use crate::{Facts, Looked, Outcome, Rule, Unknown};

/// Strict reverse path filtering wants the route to a sender to lead out where its packet came in.
pub const RULE: Rule = Rule {
    number: 55,
    name: "reverse-path",
    rule: "IPReversePathFilter does not grow",
    source: "kernel documentation, networking/ip-sysctl, rp_filter (RFC 3704)",
    why: "Packets vanish without a trace where routes are not symmetric.",
    profiles: &[],
    check,
};

fn check(facts: &Facts) -> Looked {
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
    let all = facts.sysctl(ALL).ok();
    if all == Some(1) {
        outcome = outcome.saw(format!("/proc/sys/{ALL}"), 1);
    }
    for name in names {
        let key = format!("net/ipv4/conf/{name}/rp_filter");
        let Ok(own) = facts.sysctl(&key) else { continue };
        // The greater of an interface's own and that of "all" counts: 2 of its own is loose, whatever "all" says.
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
        ),
        (false, _) => "no interface filters strictly: these senders have no route at all".into(),
    };
    let see = "`sysctl -w net.ipv4.conf.all.log_martians=1` has the kernel name them (`dmesg`), `ip route get SENDER` \
               shows the way back. Right as it is if they are forged; else mend the route";
    outcome.advice(format!("{advice}; {see}")).into()
}

const ALL: &str = "net/ipv4/conf/all/rp_filter";
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Severity;
    use crate::testing::{Machine, table};

    #[test]
    fn strict_ones_are_loosened() {
        let strict = Machine::healthy()
            .counts("TcpExt", "IPReversePathFilter", 1)
            .put("/proc/sys/net/ipv4/conf/veth0/rp_filter", "1")
            .put("/proc/sys/net/ipv4/conf/eth0/rp_filter", "2");
        let strict = strict.network(|network| {
            let mut other = network.routes[0].clone();
            (other.destination, other.ifindex) = ([192, 0, 2, 0].into(), Some(2));
            network.routes.push(other);
        });
        assert_eq!(strict.fixes(&RULE), ["sysctl -w net.ipv4.conf.veth0.rp_filter=2"]);
        // The interface's own is enough, be it strict by itself or by all.
        for own in ["0", "1"] {
            let both = strict
                .clone()
                .put("/proc/sys/net/ipv4/conf/all/rp_filter", "1")
                .put("/proc/sys/net/ipv4/conf/veth0/rp_filter", own);
            assert_eq!(both.fixes(&RULE), ["sysctl -w net.ipv4.conf.veth0.rp_filter=2"], "{own}");
            let undo = format!("sysctl -w net.ipv4.conf.veth0.rp_filter={own}");
            assert_eq!(both.undos(&RULE), [undo]);
        }
        let loosened = strict.clone().put("/proc/sys/net/ipv4/conf/all/rp_filter", "2");
        assert!(loosened.fixes(&RULE).is_empty());
        // Nobody can be reached by another interface: loose is no better.
        let alone = strict.clone().network(|network| {
            network.routes.retain(|route| route.ifindex == Some(3));
        });
        assert!(alone.fixes(&RULE).is_empty());
        let said = alone.outcomes(&RULE)[0].advice.clone().unwrap();
        assert!(said.contains("without any route"), "{said}");
        let loose = strict.clone().put("/proc/sys/net/ipv4/conf/veth0/rp_filter", "2");
        assert!(loose.fixes(&RULE).is_empty());
        table(&RULE, [(strict, Severity::Warn), (alone, Severity::Warn), (loose, Severity::Warn)]);
    }
}
