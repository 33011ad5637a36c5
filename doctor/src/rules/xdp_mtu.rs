//! Packets that are larger than a page, or that a tunnel makes too large.

use ringway_host::Interface;

use crate::{Facts, Fix, Looked, Outcome, Profile, Rule, Unknown, each};

/// Before frags, XDP wants a packet in one page, with room before and behind it.
pub const RULE: Rule = Rule {
    number: 77,
    name: "xdp-mtu",
    rule: "an interface for XDP has an MTU of 3498 bytes at most, or programs with frags; a tunnel's packets fit what is below it",
    source: "kernel documentation, networking/xdp: a page less headroom (256), skb_shared_info (320) and Ethernet header",
    why: "Drivers refuse a program without frags, or drop what is larger. Tunnels of dsr add 20 to 48 bytes to each packet.",
    profiles: &[Profile::Balancer, Profile::Bypass],
    check,
};

const MOST: u32 = 3498;

fn check(facts: &Facts) -> Looked {
    let interfaces = facts.interfaces()?;
    let name = |one: &&Interface| one.link.name.clone();
    let mut found = each(interfaces.clone(), name, |one| Ok(page(one)));
    let tunnels = interfaces.into_iter().filter_map(|one| Some((one, overhead(one)?)));
    found.extend(each(
        tunnels,
        |(one, _)| one.link.name.clone(),
        |(one, bytes)| tunnel(facts, one, *bytes),
    ));
    Ok(found)
}

fn page(one: &Interface) -> Outcome {
    let (name, mtu) = (&one.link.name, one.link.mtu);
    if mtu <= MOST {
        return Outcome::ok(name, format!("{mtu} bytes"));
    }
    // No fix: nobody should lose jumbo frames to a program that takes them.
    Outcome::info(name, format!("{mtu} bytes are more than XDP without frags takes"))
        .saw(format!("ip link show {name}, mtu"), mtu)
        .advice(format!(
            "Ringway's programs take them; for one without frags: ip link set dev {name} mtu {MOST}"
        ))
}

/// What a tunnel adds to each packet, in bytes: the least of what its kind may.
fn overhead(one: &Interface) -> Option<u32> {
    Some(match one.link.kind.as_deref()? {
        "ipip" | "sit" => 20,
        "gre" => 24,
        "ip6tnl" => 40,
        "gretap" => 38,
        "ip6gre" => 44,
        "vxlan" | "geneve" => 50,
        "wireguard" => 60,
        _ => return None,
    })
}

fn tunnel(facts: &Facts, one: &Interface, bytes: u32) -> Result<Outcome, Unknown> {
    let (name, mtu) = (&one.link.name, one.link.mtu);
    let lower = one.link.lower.filter(|_| !one.link.lower_elsewhere);
    let lower = lower.map(|lower| facts.network().map(|network| network.interface_by_index(lower)));
    let Some(lower) = lower.transpose()?.flatten() else {
        let why = "the device that its packets leave by is not told: whether they fit is not known";
        return Err(Unknown(format!("{name}: {why}")));
    };
    let (below, room) = (&lower.link.name, lower.link.mtu.saturating_sub(bytes));
    if mtu <= room {
        return Ok(Outcome::ok(
            name,
            format!("{mtu} bytes and {bytes} of its headers fit {below}"),
        ));
    }
    let set = |mtu: u32| Fix::link(name, format!("mtu {mtu}"));
    let said = format!("{mtu} bytes and {bytes} of its headers are more than {below} takes");
    Ok(Outcome::warn(name, said)
        .saw(format!("ip link show {name}, mtu"), mtu)
        .saw(format!("ip link show {below}, mtu"), lower.link.mtu)
        .fix(set(room), set(mtu)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Severity;
    use crate::testing::{Machine, table};

    #[test]
    fn jumbo_frames() {
        let mtu = |mtu| Machine::healthy().network(|network| network.interfaces[1].link.mtu = mtu);
        assert_eq!(mtu(9000).fixes(&RULE), [""; 0]);
        table(&RULE, [(mtu(3498), Severity::Ok), (mtu(3499), Severity::Info)]);
    }

    #[test]
    fn what_a_tunnel_adds() {
        let tunnel = |mtu, lower: Option<u32>| {
            Machine::healthy().network(|network| {
                let mut tunnel = network.interfaces[2].clone();
                (tunnel.link.ifindex, tunnel.link.name) = (9, "vx".into());
                (tunnel.link.kind, tunnel.link.mtu) = (Some("vxlan".into()), mtu);
                (tunnel.link.lower, tunnel.link.lower_elsewhere) = (lower, false);
                network.interfaces.push(tunnel);
            })
        };
        let large = tunnel(1451, Some(2));
        assert_eq!(large.fixes(&RULE), ["ip link set dev vx mtu 1450"]);
        let rows = [
            (large, Severity::Warn),
            (tunnel(1450, Some(2)), Severity::Ok),
            (tunnel(1450, None), Severity::Unknown),
        ];
        table(&RULE, rows);
    }
}
