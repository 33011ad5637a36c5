//! veth pairs on which XDP meets unfinished checksums, or drops what it sends.

use ringway_host::Interface;
use ringway_host::links::XdpMode;

use crate::{Check, Facts, Looked, Outcome, each};

/// A veth pair passes frames on as the stack made them: with checksums that a card would finish.
pub const CHECK: Check = Check {
    number: 74,
    name: "veth-checksum",
    rule: "where one end of a veth pair has native XDP, the other finishes checksums itself, and polls (XDP or GRO)",
    source: "Linux, drivers/net/veth.c: veth_xdp_xmit, veth_convert_skb_to_xdp_buff",
    why: "Frames with unfinished checksums are dropped by their receiver, and what XDP sends to an end that does not poll \
          is lost in silence.",
    profiles: &[],
    look,
};

fn look(facts: &Facts) -> Looked {
    let network = facts.network()?;
    let native = |one: &Interface| one.link.xdp.iter().any(|xdp| xdp.mode == XdpMode::Native);
    let with: Vec<&Interface> =
        facts.of_kind("veth")?.into_iter().filter(|one| native(one)).collect();
    let found = each(
        with,
        |one| one.link.name.clone(),
        |one| {
            let name = &one.link.name;
            let Some(peer) = network.peer(one) else {
                let why =
                    format!("{name}: its peer is in another network namespace; run it there, too");
                return Err(crate::Unknown(why));
            };
            let mut outcome =
                Outcome::warn(&peer.link.name, format!("its peer {name} has native XDP"));
            let set = |what: &str, to: &str| format!("ethtool -K {} {what} {to}", peer.link.name);
            if peer.offloads.tx_checksum {
                let seen = format!("ethtool -k {}, tx-checksumming", peer.link.name);
                outcome = outcome.saw(seen, "on").fix(set("tx", "off"), set("tx", "on"));
            }
            if !peer.offloads.gro && !native(peer) {
                let seen = format!("ethtool -k {}, generic-receive-offload", peer.link.name);
                outcome = outcome.saw(seen, "off").fix(set("gro", "on"), set("gro", "off"));
            }
            if outcome.changes.is_empty() {
                return Ok(Outcome::ok(&peer.link.name, "it finishes checksums, and polls"));
            }
            Ok(outcome)
        },
    );
    Ok(found)
}

#[cfg(test)]
mod tests {
    use ringway_host::links::Xdp;

    use super::*;
    use crate::State;
    use crate::testing::{Machine, table};

    #[test]
    fn the_far_end_of_native_xdp() {
        let pair = |tx_checksum, gro| {
            Machine::healthy().network(|network| {
                let mut peer = network.interfaces[2].clone();
                (peer.link.ifindex, peer.link.name) = (4, "veth1".into());
                (peer.link.lower, peer.link.lower_elsewhere) = (Some(3), false);
                (peer.offloads.tx_checksum, peer.offloads.gro) = (tx_checksum, gro);
                let own = &mut network.interfaces[2].link;
                (own.lower, own.lower_elsewhere) = (Some(4), false);
                own.xdp = vec![Xdp { program: 1, mode: XdpMode::Native }];
                network.interfaces.push(peer);
            })
        };
        let fixes = ["ethtool -K veth1 tx off", "ethtool -K veth1 gro on"];
        assert_eq!(pair(true, false).fixes(&CHECK), fixes);
        let elsewhere = Machine::healthy().network(|network| {
            network.interfaces[2].link.xdp = vec![Xdp { program: 1, mode: XdpMode::Native }];
        });
        table(
            &CHECK,
            [
                (pair(true, true), State::Warn),
                (pair(false, false), State::Warn),
                (pair(false, true), State::Ok),
                (elsewhere, State::Unknown),
            ],
        );
    }
}
