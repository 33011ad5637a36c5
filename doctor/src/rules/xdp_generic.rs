//! XDP programs in the kernel's generic path.

use std::collections::BTreeMap;

use ringway_host::netlink::links::XdpMode;
use ringway_host::netlink::xdp_features::XdpFeatures;

use crate::{Facts, Looked, Outcome, Rule, each_interface};

/// There a packet has been copied into an skb before the program sees it.
pub const RULE: Rule = Rule {
    number: 69,
    name: "xdp-generic",
    rule: "an XDP program is native where the driver can",
    source: "kernel documentation, networking/xdp; netlink family netdev, xdp-features",
    why: "Generic XDP comes after the cost that XDP is there to save.",
    profiles: &[],
    check,
};

fn check(facts: &Facts) -> Looked {
    let interfaces = &facts.network()?.interfaces;
    let generic =
        interfaces.iter().filter(|one| one.link.xdp.iter().any(|xdp| xdp.mode == XdpMode::Generic));
    Ok(each_interface(generic, |one| {
        let name = &one.link.name;
        let features: BTreeMap<u32, XdpFeatures> = facts.json("/netlink/xdp_features.json")?;
        if !features.get(&one.link.ifindex).is_some_and(|features| features.native()) {
            return Ok(Outcome::ok(name, "generic, as its driver knows no other"));
        }
        let program = one.link.xdp.first().map_or(0, |xdp| xdp.program);
        Ok(Outcome::warn(name, format!("program {program} is generic, and the driver has native XDP"))
            .saw(format!("ip link show {name}"), "xdpgeneric")
            .advice("attach it in native mode (xdpdrv; of Ringway: xdp_mode = \"native\"), and look why that was refused: LRO, \
                     a large MTU, too few queues"))
    }))
}

#[cfg(test)]
mod tests {
    use ringway_host::netlink::links::Xdp;

    use super::*;
    use crate::Severity;
    use crate::testing::{Machine, table};

    #[test]
    fn where_native_is_there() {
        let attached = |mode| {
            Machine::healthy().network(|network| {
                network.interfaces[2].link.xdp = vec![Xdp { program: 5, mode }];
            })
        };
        let cannot =
            attached(XdpMode::Generic).json("/netlink/xdp_features.json", BTreeMap::from([(3, 0)]));
        let unknown = attached(XdpMode::Generic).remove("/netlink/xdp_features.json");
        table(
            &RULE,
            [
                (attached(XdpMode::Generic), Severity::Warn),
                (attached(XdpMode::Native), Severity::Ok),
                (cannot, Severity::Ok),
                (unknown, Severity::Unknown),
            ],
        );
    }
}
