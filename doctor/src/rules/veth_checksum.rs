//! veth pairs on which XDP meets unfinished checksums, or drops what it sends.

use ringway_host::Interface;

use crate::facts::FarEnd;
use crate::{Facts, Looked, Outcome, Rule, Unknown, each_interface};

/// A veth pair passes frames on as the stack made them: with checksums that a card would finish.
pub const RULE: Rule = Rule {
    number: 74,
    name: "veth-checksum",
    rule: "where one end of a veth pair has native XDP, the other polls (XDP or GRO), and finishes \
           checksums itself unless the program does, as Ringway's balancer",
    source: "Linux, drivers/net/veth.c: veth_xdp_xmit, veth_convert_skb_to_xdp_buff",
    why: "What XDP sends to an end that does not poll is lost in silence, and frames with \
          unfinished checksums are dropped by their receiver.",
    profiles: &[],
    check,
};

const OR: &str = "or attach it in generic mode (of Ringway: xdp_mode = \"generic\"), which needs nothing of the far end";

fn check(facts: &Facts) -> Looked {
    let native: Vec<&Interface> =
        facts.of_kind("veth")?.into_iter().filter(|one| facts.native(one)).collect();
    Ok(each_interface(native, |one| pair(facts, one)))
}

fn pair(facts: &Facts, one: &Interface) -> Result<Outcome, Unknown> {
    let (name, far) = (&one.link.name, facts.far_end(one)?);
    let FarEnd { name: Some(peer), native, unfinished, .. } = &far else {
        return elsewhere(facts, name, &far);
    };
    let mut outcome =
        Outcome::warn(peer, format!("{name}, its other end, has native XDP")).advice(OR);
    if *unfinished == Some(true) && !facts.finishes_checksums() {
        let seen = format!("ethtool -k {peer}, tx-checksumming");
        outcome = outcome.saw(seen, "on").ethtool("-K", peer, "tx off", "tx on");
    }
    if far.polls == Some(false) {
        let seen = format!("ethtool -k {peer}, generic-receive-offload");
        outcome = outcome.saw(seen, "off").ethtool("-K", peer, "gro on", "gro off");
    }
    if outcome.changes.is_empty() {
        let by = if *native == Some(true) { "native XDP" } else { "GRO" };
        return Ok(Outcome::ok(peer, format!("checksums are finished, and it polls: it has {by}")));
    }
    Ok(outcome)
}

/// Of what is in another namespace, the kernel tells in this one only whether it polls.
fn elsewhere(facts: &Facts, name: &str, far: &FarEnd) -> Result<Outcome, Unknown> {
    let far_end = format!("the far end of {name}, in another network namespace,");
    if far.polls == Some(false) {
        let lost =
            format!("{far_end} has neither GRO nor native XDP: what is sent into it is lost");
        let there = format!("there: ethtool -K IFACE gro on; {OR}");
        return Ok(Outcome::warn(name, lost)
            .saw(format!("netlink netdev, xdp-features of {name}, ndo-xmit"), "off")
            .advice(there));
    }
    if far.polls.is_some() && facts.finishes_checksums() {
        return Ok(Outcome::ok(name, format!("{far_end} polls")));
    }
    let polls = if far.polls.is_some() { "polls, but" } else { "may not poll, and" };
    Err(Unknown(format!(
        "{far_end} {polls} whether it leaves checksums unfinished cannot be seen; run it there, too (ethtool -k IFACE)"
    )))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use ringway_host::netlink::links::{Xdp, XdpMode};

    use super::*;
    use crate::testing::{Machine, table};
    use crate::{Program, Severity};

    fn pair(tx_checksum: bool, gro: bool, native: bool) -> Machine {
        Machine::healthy().network(|network| {
            let mut peer = network.interfaces[2].clone();
            (peer.link.ifindex, peer.link.name) = (4, "veth1".into());
            (peer.link.lower, peer.link.lower_elsewhere) = (Some(3), false);
            (peer.offloads.tx_checksum, peer.offloads.gro) = (tx_checksum, gro);
            let own = &mut network.interfaces[2].link;
            (own.lower, own.lower_elsewhere) = (Some(4), false);
            if native {
                own.xdp = vec![Xdp { program: 1, mode: XdpMode::Native }];
            }
            network.interfaces.push(peer);
        })
    }

    #[test]
    fn the_far_end_of_native_xdp() {
        let fixes = ["ethtool -K veth1 tx off", "ethtool -K veth1 gro on"];
        assert_eq!(pair(true, false, true).fixes(&RULE), fixes);
        let elsewhere = Machine::healthy().network(|network| {
            network.interfaces[2].link.xdp = vec![Xdp { program: 1, mode: XdpMode::Native }];
        });
        let polls = |bits: u64| {
            elsewhere.clone().json("/netlink/xdp_features.json", BTreeMap::from([(3, bits)]))
        };
        table(
            &RULE,
            [
                (pair(true, true, true), Severity::Warn),
                (pair(false, false, true), Severity::Warn),
                (pair(false, true, true), Severity::Ok),
                (elsewhere.clone(), Severity::Unknown),
                (polls(3), Severity::Warn),
                (polls(7), Severity::Unknown),
            ],
        );
    }

    /// It finishes checksums itself.
    #[test]
    fn before_ringways_program_is_attached() {
        let fixes = |gro: bool, native: &[&str]| -> Vec<String> {
            let program = Program {
                interfaces: vec!["veth0".into()],
                native: native.iter().map(|name| (*name).into()).collect(),
            };
            let found = check(&pair(true, gro, false).facts().with_program(program)).unwrap();
            found
                .into_iter()
                .flat_map(|one| one.changes)
                .map(|change| change.fix.to_string())
                .collect()
        };
        assert_eq!(fixes(false, &["veth0"]), ["ethtool -K veth1 gro on"]);
        assert!(fixes(true, &["veth0"]).is_empty() && fixes(false, &[]).is_empty());
    }
}
