//! Large receive offload where packets are passed on.

use crate::{Facts, Looked, Outcome, Rule, each_interface};

/// LRO glues segments together and forgets what they were.
pub const RULE: Rule = Rule {
    number: 30,
    name: "lro",
    rule: "LRO is off where packets are forwarded or an XDP program is attached",
    source: "kernel documentation, networking/segmentation-offloads; drivers refuse XDP while LRO is on",
    why: "What it glued together cannot be sent on as it came: too large, with wrong acknowledgements.",
    profiles: &[],
    check,
};

fn check(facts: &Facts) -> Looked {
    let interfaces = facts.interfaces()?;
    let forwards = facts.sysctl("net/ipv4/ip_forward")? != 0;
    Ok(each_interface(interfaces, |one| {
        let name = &one.link.name;
        let passes_on =
            forwards || facts.native(one) || !one.link.xdp.is_empty() || one.link.master.is_some();
        if !one.offloads.lro || !passes_on {
            return Ok(Outcome::ok(name, if one.offloads.lro { "on, on an end" } else { "off" }));
        }
        Ok(Outcome::warn(name, "LRO is on, and packets are passed on")
            .saw(format!("ethtool -k {name}, large-receive-offload"), "on")
            .saw("/proc/sys/net/ipv4/ip_forward", i32::from(forwards))
            .ethtool("-K", name, "lro off", "lro on"))
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Machine, table};
    use crate::{Program, Severity};

    #[test]
    fn where_packets_are_passed_on() {
        let end = Machine::healthy().network(|network| network.interfaces[1].offloads.lro = true);
        let router = end.clone().put("/proc/sys/net/ipv4/ip_forward", "1");
        assert_eq!(router.fixes(&RULE), ["ethtool -K eth0 lro off"]);
        let program = Program { interfaces: vec!["eth0".into()], native: vec!["eth0".into()] };
        let looked = (RULE.check)(&end.facts().with_program(program)).unwrap();
        assert_eq!(looked[0].severity, Severity::Warn, "{looked:?}");
        table(&RULE, [(end, Severity::Ok), (router, Severity::Warn)]);
    }
}
