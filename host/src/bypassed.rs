//! What the kernel does to packets that it forwards, and what of that no longer happens to those
//! that XDP forwards instead.

use std::fmt::{self, Display, Formatter};

use crate::netlink::bridge::{Bridge, BridgePort};
use crate::netlink::links::{self, Link};
use crate::netlink::netfilter::{
    HookFamily, HookOwner, HookPoint, NetfilterHook, hooks, xfrm_policies,
};
use crate::netlink::qdiscs::{self, Qdisc};
use crate::netlink::rules::{self, RoutingRule};
use crate::{Fix, Host, Result};

/// Something that packets would no longer meet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bypassed {
    /// As in `2 rules of the nft chain bridge filter forward`.
    pub what: String,
    /// Ends it.
    pub fix: Fix,
}

impl Display for Bypassed {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.what, self.fix)
    }
}

/// Whether packets that bridges forward traverse the hooks of other families (br_netfilter).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BridgeCalls {
    pub ip: bool,
    pub ip6: bool,
    pub arp: bool,
}

/// An interface whose packets tc classifies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Classified {
    pub ifindex: u32,
    /// Those that it receives, else those that it sends.
    pub ingress: bool,
}

/// What packets meet in the kernel on their way from one interface to another.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct KernelPath {
    pub hooks: Vec<NetfilterHook>,
    pub links: Vec<Link>,
    pub qdiscs: Vec<Qdisc>,
    pub classified: Vec<Classified>,
    pub rules: Vec<RoutingRule>,
    pub xfrm_policies: usize,
    /// The namespace's settings, beside which every bridge has its own.
    pub bridge_calls: BridgeCalls,
}

impl KernelPath {
    /// Reads the calling thread's network namespace, of tc's filters those of these interfaces.
    pub fn read(interfaces: &[u32]) -> Result<Self> {
        let host = Host::live();
        let call = |name: &str| -> Result<bool> {
            let value = host.sysctl(&format!("net/bridge/bridge-nf-call-{name}"))?;
            Ok(value.is_some_and(|value| value != "0"))
        };
        let mut classified = Vec::new();
        for ifindex in interfaces.iter().copied() {
            for ingress in [true, false] {
                if qdiscs::classifies(ifindex, ingress)? {
                    classified.push(Classified { ifindex, ingress });
                }
            }
        }
        Ok(Self {
            hooks: hooks()?,
            links: links::all()?,
            qdiscs: qdiscs::all()?,
            classified,
            rules: rules::all()?,
            xfrm_policies: xfrm_policies()?,
            bridge_calls: BridgeCalls {
                ip: call("iptables")?,
                ip6: call("ip6tables")?,
                arp: call("arptables")?,
            },
        })
    }

    fn name(&self, ifindex: u32) -> String {
        let link = self.links.iter().find(|link| link.ifindex == ifindex);
        link.map_or_else(|| format!("interface {ifindex}"), |link| link.name.clone())
    }
}

/// What frames meet between these ports of a bridge.
pub fn for_bridge(path: &KernelPath, bridge: &Bridge, ports: &[BridgePort]) -> Vec<Bypassed> {
    let own = path.bridge_calls;
    let calls = BridgeCalls {
        ip: own.ip || bridge.nf_call_iptables,
        ip6: own.ip6 || bridge.nf_call_ip6tables,
        arp: own.arp || bridge.nf_call_arptables,
    };
    let names: Vec<String> = ports.iter().map(|port| port.name.clone()).collect();
    let met = path.hooks.iter().filter(|hook| match hook.family {
        HookFamily::Bridge | HookFamily::Other(_) => true,
        HookFamily::Netdev => false,
        HookFamily::Ip => calls.ip,
        HookFamily::Ip6 => calls.ip6,
        HookFamily::Inet => calls.ip || calls.ip6,
        HookFamily::Arp => calls.arp,
    });
    let mut bypassed: Vec<Bypassed> =
        met.filter(|hook| forwards(hook)).map(|hook| through_bridge(hook, bridge)).collect();
    bypassed.extend(at_interfaces(&path.hooks, &names));
    bypassed.extend(traffic_control(path, ports.iter().map(|port| port.ifindex)));
    bypassed
}

/// What routed packets meet between these interfaces.
pub fn for_route(path: &KernelPath, interfaces: &[u32]) -> Vec<Bypassed> {
    let names: Vec<String> = interfaces.iter().map(|ifindex| path.name(*ifindex)).collect();
    let met = path.hooks.iter().filter(|hook| {
        let routed = matches!(hook.family, HookFamily::Ip | HookFamily::Ip6 | HookFamily::Inet);
        routed || matches!(hook.family, HookFamily::Other(_))
    });
    let mut bypassed: Vec<Bypassed> =
        met.filter(|hook| forwards(hook)).map(|hook| of_hook(hook, "")).collect();
    bypassed.extend(at_interfaces(&path.hooks, &names));
    bypassed.extend(traffic_control(path, interfaces.iter().copied()));
    let chosen = path.rules.iter().filter(|rule| !rule.built_in && !rule.ours);
    bypassed.extend(chosen.map(policy_rule));
    bypassed.extend(interfaces.iter().filter_map(|ifindex| in_vrf(path, *ifindex)));
    if path.xfrm_policies > 0 {
        bypassed.push(Bypassed {
            what: counted(path.xfrm_policies, "IPsec policy", "IPsec policies"),
            fix: Fix::command(["ip", "xfrm", "policy"]).after("remove them, which this lists:"),
        });
    }
    bypassed
}

/// Whether a forwarded packet may meet it, at no interface in particular, and it does something.
fn forwards(hook: &NetfilterHook) -> bool {
    use HookPoint::{Forward, Other, Postrouting, Prerouting};
    matches!(hook.hook, Prerouting | Forward | Postrouting | Other(_)) && hook.acts()
}

fn at_interfaces<'a>(
    hooks: &'a [NetfilterHook],
    names: &'a [String],
) -> impl Iterator<Item = Bypassed> + 'a {
    let met = hooks.iter().filter(|hook| {
        let at_interface = matches!(hook.hook, HookPoint::Ingress | HookPoint::Egress)
            || hook.family == HookFamily::Netdev;
        at_interface && hook.acts()
    });
    met.filter_map(|hook| {
        let at: Vec<&str> =
            names.iter().map(String::as_str).filter(|name| hook.is_at(name)).collect();
        (!at.is_empty()).then(|| of_hook(hook, &format!(" at {}", at.join(", "))))
    })
}

fn of_hook(hook: &NetfilterHook, place: &str) -> Bypassed {
    let NetfilterHook { family, table, chain, rules, drops, .. } = hook;
    let what = match hook.owner {
        HookOwner::LegacyIptables => {
            format!("the {table} table of {} ({chain})", iptables(*family))
        }
        HookOwner::LegacyEbtables => format!("the {table} table of ebtables-legacy ({chain})"),
        HookOwner::Nftables => {
            let mut parts = Vec::new();
            match rules {
                Some(0) => {}
                Some(number) => parts.push(counted(*number as usize, "rule", "rules")),
                None => parts.push("the rules".to_owned()),
            }
            parts.extend(drops.then(|| "the policy drop".to_owned()));
            format!("{} of the nft chain {family} {table} {chain}", parts.join(" and "))
        }
    };
    Bypassed { what: what + place, fix: removal(hook) }
}

fn counted(number: usize, one: &str, more: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { more })
}

fn iptables(family: HookFamily) -> &'static str {
    match family {
        HookFamily::Ip6 => "ip6tables-legacy",
        HookFamily::Arp => "arptables-legacy",
        _ => "iptables-legacy",
    }
}

fn removal(hook: &NetfilterHook) -> Fix {
    let (family, table, chain) = (hook.family.to_string(), &hook.table, &hook.chain);
    let fix = match hook.owner {
        HookOwner::Nftables => {
            let flush = Fix::command(["nft", "flush", "chain", &family, table, chain]);
            let policy = "{ policy accept; }";
            let accept = Fix::command(["nft", "chain", &family, table, chain, policy]);
            match (hook.rules, hook.drops) {
                (Some(0), true) => accept,
                (_, true) => Fix::Sequence(vec![flush, accept]),
                (_, false) => flush,
            }
        }
        // The table counts as long as it is there.
        HookOwner::LegacyIptables => {
            let tool = iptables(hook.family);
            let module = format!("{}_{table}", tool.trim_end_matches("s-legacy"));
            unload(tool, table, &module)
        }
        HookOwner::LegacyEbtables => unload("ebtables-legacy", table, &format!("ebtable_{table}")),
    };
    fix.after("if nothing needs it, remove it:")
}

fn unload(tool: &str, table: &str, module: &str) -> Fix {
    let flush = Fix::command([tool, "-t", table, "-F"]);
    Fix::Sequence(vec![flush, Fix::command(["modprobe", "-r", module])])
}

fn through_bridge(hook: &NetfilterHook, bridge: &Bridge) -> Bypassed {
    let (setting, option) = match hook.family {
        HookFamily::Ip | HookFamily::Inet => ("iptables", "nf_call_iptables"),
        HookFamily::Ip6 => ("ip6tables", "nf_call_ip6tables"),
        HookFamily::Arp => ("arptables", "nf_call_arptables"),
        _ => return of_hook(hook, ""),
    };
    let mut off = vec![
        Fix::sysctl(format!("net/bridge/bridge-nf-call-{setting}"), 0),
        Fix::link(&bridge.name, format!("type bridge {option} 0")),
    ];
    if hook.family == HookFamily::Inet {
        off.push(Fix::sysctl("net/bridge/bridge-nf-call-ip6tables", 0));
        off.push(Fix::link(&bridge.name, "type bridge nf_call_ip6tables 0"));
    }
    let place = format!(", by br_netfilter of {}", bridge.name);
    Bypassed {
        fix: Fix::Sequence(off).after("keep it from frames of bridges:"),
        ..of_hook(hook, &place)
    }
}

/// Queueing disciplines that neither hold back nor drop packets of their own accord.
const PLAIN_QDISCS: [&str; 12] = [
    "noqueue",
    "mq",
    "mqprio",
    "fq_codel",
    "fq",
    "codel",
    "pfifo_fast",
    "pfifo",
    "bfifo",
    "sfq",
    // Filters of these are what counts.
    "clsact",
    "ingress",
];

fn traffic_control(path: &KernelPath, interfaces: impl Iterator<Item = u32>) -> Vec<Bypassed> {
    let mut bypassed = Vec::new();
    for ifindex in interfaces {
        let name = path.name(ifindex);
        let ours = path.qdiscs.iter().filter(|qdisc| qdisc.ifindex == ifindex);
        let mut kinds: Vec<&str> = ours.map(|qdisc| qdisc.kind.as_str()).collect();
        kinds.retain(|kind| !PLAIN_QDISCS.contains(kind));
        kinds.sort_unstable();
        kinds.dedup();
        if !kinds.is_empty() {
            bypassed.push(Bypassed {
                what: format!("the queueing discipline {} of {name}", kinds.join(", ")),
                fix: Fix::command(["tc", "qdisc", "del", "dev", &name, "root"])
                    .after("if nothing needs it, remove it:"),
            });
        }
        for classified in path.classified.iter().filter(|one| one.ifindex == ifindex) {
            let side = if classified.ingress { "ingress" } else { "egress" };
            bypassed.push(Bypassed {
                what: format!("filters or BPF programs of tc at the {side} of {name}"),
                fix: Fix::Sequence(vec![
                    Fix::command(["tc", "filter", "show", "dev", &name, side]),
                    Fix::command(["bpftool", "net", "show", "dev", &name]),
                ])
                .after("remove them, which these list:"),
            });
        }
    }
    bypassed
}

fn policy_rule(rule: &RoutingRule) -> Bypassed {
    let (family, option) = if rule.v6 { ("IPv6", "-6") } else { ("IPv4", "-4") };
    let priority = rule.priority.to_string();
    let table = match rule.table {
        0 => String::new(),
        table => format!(", which leads to table {table}"),
    };
    Bypassed {
        what: format!("the routing rule of {family} with priority {priority}{table}"),
        fix: Fix::command(["ip", option, "rule", "del", "priority", &priority])
            .after("if nothing needs it, remove it:"),
    }
}

fn in_vrf(path: &KernelPath, ifindex: u32) -> Option<Bypassed> {
    let link = path.links.iter().find(|link| link.ifindex == ifindex)?;
    let master = path.links.iter().find(|master| Some(master.ifindex) == link.master)?;
    (master.kind.as_deref() == Some("vrf")).then(|| Bypassed {
        what: format!("the VRF {} of {}", master.name, link.name),
        fix: Fix::link(&link.name, "nomaster").after("take the interface out of it:"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hook(owner: HookOwner, family: HookFamily, table: &str) -> NetfilterHook {
        NetfilterHook {
            owner,
            family,
            table: table.into(),
            chain: "FORWARD".into(),
            hook: HookPoint::Forward,
            kind: String::new(),
            devices: Vec::new(),
            drops: false,
            rules: None,
        }
    }

    /// What is not known counts as something.
    #[test]
    fn older_tables_are_met() {
        let hooks = vec![
            hook(HookOwner::LegacyIptables, HookFamily::Ip6, "mangle"),
            hook(HookOwner::Nftables, HookFamily::Other(77), "t"),
            hook(HookOwner::LegacyEbtables, HookFamily::Bridge, "filter"),
        ];
        let path = KernelPath { hooks, ..KernelPath::default() };
        let routed: Vec<String> = for_route(&path, &[1]).iter().map(Bypassed::to_string).collect();
        let expected = [
            "the mangle table of ip6tables-legacy (FORWARD); if nothing needs it, remove it: \
             ip6tables-legacy -t mangle -F; modprobe -r ip6table_mangle",
            "the rules of the nft chain family 77 t FORWARD; if nothing needs it, remove it: \
             nft flush chain 'family 77' t FORWARD",
        ];
        assert_eq!(routed, expected);
        let ebtables = removal(&path.hooks[2]).to_string();
        assert!(ebtables.ends_with("ebtables-legacy -t filter -F; modprobe -r ebtable_filter"));
    }
}
