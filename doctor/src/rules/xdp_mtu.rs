//! Packets that are larger than a page, or that a tunnel makes too large.

use crate::{Check, Facts, Looked, Outcome, Profile, each};

/// Before frags, XDP wants a packet in one page, with room before and behind it.
pub const CHECK: Check = Check {
    number: 77,
    name: "xdp-mtu",
    rule: "an interface for XDP has an MTU of 3498 bytes at most, or programs with frags",
    source: "kernel documentation, networking/xdp: a page less headroom (256), skb_shared_info (320) and Ethernet header",
    why: "Drivers refuse a program without frags, or drop what is larger. Tunnels of dsr add 20 to 48 bytes to each packet.",
    profiles: &[Profile::Balancer, Profile::Bypass],
    look,
};

const MOST: u32 = 3498;

fn look(facts: &Facts) -> Looked {
    let interfaces = facts.interfaces()?;
    let found = each(
        interfaces,
        |one| one.link.name.clone(),
        |one| {
            let (name, mtu) = (&one.link.name, one.link.mtu);
            if mtu <= MOST {
                return Ok(Outcome::ok(name, format!("{mtu} bytes")));
            }
            let set = |mtu: u32| format!("ip link set dev {name} mtu {mtu}");
            Ok(Outcome::info(name, format!("{mtu} bytes are more than XDP without frags takes"))
                .saw(format!("ip link show {name}, mtu"), mtu)
                .fix(set(MOST), set(mtu))
                .advice("only for programs without frags: those of Ringway have them"))
        },
    );
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::State;
    use crate::testing::{Machine, table};

    #[test]
    fn jumbo_frames() {
        let mtu = |mtu| Machine::healthy().network(|network| network.interfaces[1].link.mtu = mtu);
        assert_eq!(mtu(9000).undos(&CHECK), ["ip link set dev eth0 mtu 9000"]);
        table(&CHECK, [(mtu(3498), State::Ok), (mtu(3499), State::Info)]);
    }
}
