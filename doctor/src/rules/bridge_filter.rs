//! Frames of a bridge that pass through iptables, too.

use crate::{Facts, Looked, Outcome, Rule, each};

/// br_netfilter hands what a bridge forwards to the rules for IP.
pub const RULE: Rule = Rule {
    number: 58,
    name: "bridge-filter",
    rule: "net.bridge.bridge-nf-call-iptables is 0 where a bridge forwards",
    source: "kernel documentation, networking/bridge, br_netfilter",
    why: "Frames between two ports of a bridge walk all rules and are tracked as connections. Docker and Kubernetes need it.",
    profiles: &[],
    check,
};

fn check(facts: &Facts) -> Looked {
    let bridges = facts.of_kind("bridge")?;
    if bridges.is_empty() {
        return Ok(Vec::new());
    }
    let keys = ["net/bridge/bridge-nf-call-iptables", "net/bridge/bridge-nf-call-ip6tables"];
    // Without the module there is nothing to turn off.
    let there = keys.into_iter().filter(|key| facts.text(&format!("/proc/sys/{key}")).is_ok());
    Ok(each(
        there,
        |key| (*key).to_owned(),
        |key| {
            if facts.sysctl(key)? == 0 {
                return Ok(Outcome::ok(*key, "bridges are left alone"));
            }
            let names: Vec<&str> = bridges.iter().map(|bridge| bridge.link.name.as_str()).collect();
            let seen = Outcome::info(
                *key,
                format!("what {} forwards passes through iptables", names.join(", ")),
            );
            let seen = seen
                .saw(format!("/proc/sys/{key}"), 1)
                .advice("not where Docker or Kubernetes run");
            Ok(seen.change(facts.set(key, 0)?))
        },
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Severity;
    use crate::testing::{Machine, table};

    #[test]
    fn only_where_there_is_a_bridge() {
        let key = "/proc/sys/net/bridge/bridge-nf-call-iptables";
        let on = Machine::healthy().put(key, "1");
        let bridge = |machine: Machine| {
            machine.network(|network| network.interfaces[2].link.kind = Some("bridge".into()))
        };
        assert_eq!(
            bridge(on.clone()).fixes(&RULE),
            ["sysctl -w net.bridge.bridge-nf-call-iptables=0"]
        );
        let off =
            on.clone().put(key, "0").put("/proc/sys/net/bridge/bridge-nf-call-ip6tables", "0");
        table(
            &RULE,
            [(on.clone(), Severity::Ok), (bridge(on), Severity::Info), (bridge(off), Severity::Ok)],
        );
    }
}
