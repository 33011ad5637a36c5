//! Connection tracking, and packet filters that get in the way of each other.

use serde_json::Value;

use crate::outcome::MACHINE;
use crate::{Facts, Fix, Looked, Outcome, Profile, Rule, Severity, each};

pub const CONNTRACK_FULL: Rule = Rule {
    number: 49,
    name: "conntrack-full",
    rule: "nf_conntrack_count is below 90 % of nf_conntrack_max",
    source: "netdata, alarm netfilter_conntrack_full (90 % and 95 %)",
    why: "When the table is full, packets of new connections are dropped, whoever they are for.",
    profiles: &[],
    check: conntrack_full,
};

const MAX: &str = "net/netfilter/nf_conntrack_max";

fn conntrack_full(facts: &Facts) -> Looked {
    let count = facts.sysctl("net/netfilter/nf_conntrack_count")?;
    let most = facts.sysctl(MAX)?;
    // 0 is no limit.
    let severity = match count as f64 / most as f64 {
        share if most > 0 && share > 0.95 => Severity::Crit,
        share if most > 0 && share > 0.9 => Severity::Warn,
        _ => return Outcome::ok(MACHINE, format!("{count} of {most} connections")).into(),
    };
    Outcome::new(severity, MACHINE, format!("{count} of {most} connections are tracked"))
        .saw("/proc/sys/net/netfilter/nf_conntrack_count", count)
        .sets(facts.set(MAX, (most * 2).max(262_144))?)
        .advice("about 320 bytes each; check conntrack-buckets afterwards")
        .into()
}

pub const CONNTRACK_BUCKETS: Rule = Rule {
    number: 50,
    name: "conntrack-buckets",
    rule: "two entries for each bucket of nf_conntrack_buckets, or fewer",
    source: "kernel documentation, networking/nf_conntrack-sysctl, nf_conntrack_buckets",
    why: "Every packet walks the list of its bucket.",
    profiles: &[],
    check: conntrack_buckets,
};

const BUCKETS: &str = "net/netfilter/nf_conntrack_buckets";

fn conntrack_buckets(facts: &Facts) -> Looked {
    let count = facts.sysctl("net/netfilter/nf_conntrack_count")?;
    let buckets = facts.sysctl(BUCKETS)?;
    if 2 * count <= 2 * buckets {
        return Outcome::ok(MACHINE, format!("{count} connections in {buckets} buckets")).into();
    }
    let per = 2.0 * count as f64 / buckets as f64;
    let said = format!("{count} connections are {per:.1} entries for each of {buckets} buckets");
    Outcome::warn(MACHINE, said)
        .saw("/proc/sys/net/netfilter/nf_conntrack_count", count)
        .sets(facts.set(BUCKETS, (count as u64).next_power_of_two() as i64)?)
        .advice("set it in the machine's first network namespace, which owns it")
        .into()
}

pub const CONNTRACK_TIMEOUT: Rule = Rule {
    number: 51,
    name: "conntrack-timeout",
    rule: "a table that fills up forgets established connections within a day",
    source: "heuristic of Ringway",
    why: "Connections whose ends have gone stay in the table for five days.",
    profiles: &[],
    check: conntrack_timeout,
};

const TIMEOUT: &str = "net/netfilter/nf_conntrack_tcp_timeout_established";

fn conntrack_timeout(facts: &Facts) -> Looked {
    let count = facts.sysctl("net/netfilter/nf_conntrack_count")?;
    let most = facts.sysctl("net/netfilter/nf_conntrack_max")?;
    let timeout = facts.sysctl(TIMEOUT)?;
    if timeout <= 86_400 || most == 0 || count * 2 < most {
        return Outcome::ok(MACHINE, format!("{timeout} s, and {count} of {most} connections"))
            .into();
    }
    let said =
        format!("{count} of {most} connections are tracked, and idle ones stay for {timeout} s");
    Outcome::warn(MACHINE, said)
        .sets(facts.set(TIMEOUT, 3600)?)
        .saw("/proc/sys/net/netfilter/nf_conntrack_count", count)
        .advice("an hour is shorter than many keep-alives: connections that pause longer are then new ones to the firewall")
        .into()
}

pub const CONNTRACK_FORWARDER: Rule = Rule {
    number: 52,
    name: "conntrack-forwarder",
    rule: "a machine that only forwards tracks no connections",
    source: "heuristic of Ringway",
    why: "Each packet is looked up in a table, and each new flow makes an entry, for nobody's use.",
    profiles: &[Profile::Balancer],
    check: conntrack_forwarder,
};

fn conntrack_forwarder(facts: &Facts) -> Looked {
    let forwards = facts.sysctl("net/ipv4/ip_forward")? != 0;
    let count = facts.sysctl("net/netfilter/nf_conntrack_count")?;
    if !forwards || count < 1000 {
        return Outcome::ok(MACHINE, format!("{count} connections are tracked")).into();
    }
    Outcome::info(MACHINE, format!("it forwards, and tracks {count} connections"))
        .saw("/proc/sys/net/ipv4/ip_forward", 1)
        .saw("/proc/sys/net/netfilter/nf_conntrack_count", count)
        .advice("if no rule asks for states and there is no NAT: `notrack` in a chain of priority raw; else a flowtable")
        .into()
}

pub const TWO_FIREWALLS: Rule = Rule {
    number: 54,
    name: "two-firewalls",
    rule: "rules are in nftables or in iptables-legacy, not in both",
    source: "heuristic of Ringway; manual page xtables-nft(8)",
    why: "A packet passes through both, and who lists the rules of one does not see why the other drops it.",
    profiles: &[],
    check: two_firewalls,
};

fn two_firewalls(facts: &Facts) -> Looked {
    let tables =
        |path| facts.text(path).map(|text| text.split_ascii_whitespace().collect::<Vec<_>>());
    // Where the modules are not loaded, or this is not root, the files are not there.
    let legacy =
        [tables("/proc/net/ip_tables_names")?, tables("/proc/net/ip6_tables_names")?].concat();
    let document: Value = facts.json("/tools/nft.json")?;
    let objects = document["nftables"].as_array().map(Vec::as_slice).unwrap_or_default();
    let rules = objects.iter().filter(|object| object["rule"].is_object()).count();
    if legacy.is_empty() || rules == 0 {
        return Outcome::ok(MACHINE, "one of them at most").into();
    }
    Outcome::warn(
        MACHINE,
        format!("nftables has {rules} rules, and iptables-legacy has tables, too"),
    )
    .saw("/proc/net/ip_tables_names", legacy.join(" "))
    .saw("nft list ruleset, rules", rules)
    .advice(Fix::Sequence(vec![
        Fix::Pipe(vec![
            Fix::command(["iptables-legacy-save"]),
            Fix::command(["iptables-nft-restore"]),
        ]),
        "then empty the old tables".into(),
    ]))
    .into()
}

pub const BRIDGE_FILTER: Rule = Rule {
    number: 58,
    name: "bridge-filter",
    rule: "net.bridge.bridge-nf-call-iptables is 0 where a bridge forwards",
    source: "kernel documentation, networking/bridge, br_netfilter",
    why: "Frames between two ports of a bridge walk all rules and are tracked as connections. Docker and Kubernetes need it.",
    profiles: &[],
    check: bridge_filter,
};

fn bridge_filter(facts: &Facts) -> Looked {
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
            let said = format!("what {} forwards passes through iptables", names.join(", "));
            let seen = Outcome::info(*key, said).sets(facts.set(key, 0)?);
            Ok(seen.advice("not where Docker or Kubernetes run"))
        },
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Severity::{self, Crit, Info, Warn};
    use crate::testing::{Machine, healthy, table};

    #[test]
    fn ninety_and_ninety_five() {
        let count = |count: u32| {
            healthy()
                .put("/proc/sys/net/netfilter/nf_conntrack_count", &count.to_string())
                .put(&format!("/proc/sys/{MAX}"), "1000")
        };
        let wanted = ["sysctl -w net.netfilter.nf_conntrack_max=1000"];
        assert_eq!(count(951).undos(&CONNTRACK_FULL), wanted);
        let rows = [(count(900), Severity::Ok), (count(901), Warn), (count(951), Crit)];
        table(&CONNTRACK_FULL, rows);
    }

    #[test]
    fn each_entry_counts_twice() {
        let count = |count: u32| {
            healthy()
                .put("/proc/sys/net/netfilter/nf_conntrack_count", &count.to_string())
                .put(&format!("/proc/sys/{BUCKETS}"), "1024")
        };
        let wanted = ["sysctl -w net.netfilter.nf_conntrack_buckets=2048"];
        assert_eq!(count(1025).fixes(&CONNTRACK_BUCKETS), wanted);
        table(&CONNTRACK_BUCKETS, [(count(1024), Severity::Ok), (count(1025), Warn)]);
    }

    #[test]
    fn only_where_the_table_fills() {
        let machine = |count: &str, timeout: &str| {
            healthy()
                .put("/proc/sys/net/netfilter/nf_conntrack_count", count)
                .put("/proc/sys/net/netfilter/nf_conntrack_max", "1000")
                .put(&format!("/proc/sys/{TIMEOUT}"), timeout)
        };
        let rows = [
            (machine("499", "432000"), Severity::Ok),
            (machine("500", "432000"), Warn),
            (machine("500", "3600"), Severity::Ok),
        ];
        table(&CONNTRACK_TIMEOUT, rows);
    }

    #[test]
    fn a_forwarder_that_tracks() {
        let machine = |forward: &str, count: &str| {
            healthy()
                .put("/proc/sys/net/ipv4/ip_forward", forward)
                .put("/proc/sys/net/netfilter/nf_conntrack_count", count)
        };
        let rows = [
            (machine("1", "1000"), Info),
            (machine("1", "999"), Severity::Ok),
            (machine("0", "1000"), Severity::Ok),
        ];
        table(&CONNTRACK_FORWARDER, rows);
    }

    #[test]
    fn both_at_once() {
        let rule = r#"{"nftables":[{"rule":{"family":"ip"}}]}"#;
        let nft = healthy().put("/tools/nft.json", rule);
        let both = nft.clone().put("/proc/net/ip_tables_names", "filter\nnat");
        table(&TWO_FIREWALLS, [(nft, Severity::Ok), (both, Warn)]);
    }

    #[test]
    fn only_where_there_is_a_bridge() {
        let key = "/proc/sys/net/bridge/bridge-nf-call-iptables";
        let on = healthy().put(key, "1");
        let bridge = |machine: Machine| {
            machine.network(|network| network.interfaces[2].link.kind = Some("bridge".into()))
        };
        let wanted = ["sysctl -w net.bridge.bridge-nf-call-iptables=0"];
        assert_eq!(bridge(on.clone()).fixes(&BRIDGE_FILTER), wanted);
        let off =
            on.clone().put(key, "0").put("/proc/sys/net/bridge/bridge-nf-call-ip6tables", "0");
        let rows = [(on.clone(), Severity::Ok), (bridge(on), Info), (bridge(off), Severity::Ok)];
        table(&BRIDGE_FILTER, rows);
    }
}
