//! Rules about `[nat]`: replies must come back to its addresses, and its ports be free.

use std::net::IpAddr;

use ringway_config::{Announce, Config, Located};
use ringway_doctor::{Outcome, Report};
use ringway_host::Fix;
use ringway_host::netlink::routes::RouteKind;

use super::machine_state::MachineState;
use super::{misconfigured, names};

pub fn check(config: &Config, state: &MachineState, report: &mut Report) {
    for address in &config.nat.addresses {
        answers(config, state, address, report);
    }
    ports(config, state, report);
}

/// Backends send their replies to this address: somebody must answer ARP and ND for it here.
fn answers(config: &Config, state: &MachineState, address: &Located<IpAddr>, report: &mut Report) {
    let subject = address.to_string();
    let routed_here = state.paths.get(&**address);
    let local = matches!(routed_here, Some(Ok(path)) if path.kind == RouteKind::Local);
    if local || state.addresses.iter().any(|own| own.address == **address) {
        return report.ok(names::NAT_ADDRESS, &subject, "kernel: the node owns the address");
    }
    let service = config.services.iter().find(|service| *service.address == **address);
    if service.is_some_and(|service| service.announce == Announce::Arp) {
        let reason = "arp: a service's address, for which Ringway answers";
        return report.ok(names::NAT_ADDRESS, &subject, reason);
    }
    let reason = format!(
        "nobody answers for {subject}: it is not an address of this node, so no backend's reply would \
         come back"
    );
    let leave =
        "or leave addresses out of [nat]: then the node's own address towards each backend is used";
    let device = towards_backends(config, state, **address);
    let fix = Fix::Sequence(vec![Fix::ip_address("add", **address, &device), leave.into()]);
    report.push(names::NAT_ADDRESS, misconfigured(config, address, reason, fix));
}

/// The interface that leads to the backends of this family.
fn towards_backends(config: &Config, state: &MachineState, address: IpAddr) -> String {
    let backends = config.services.iter().flat_map(|service| &service.backends);
    let same_family = backends.map(|b| *b.address).find(|b| b.is_ipv4() == address.is_ipv4());
    match same_family.and_then(|backend| state.paths.get(&backend)) {
        Some(Ok(path)) => state.link_name(path.ifindex),
        _ => config.node.interfaces.first().map_or("IF".into(), |name| name.to_string()),
    }
}

/// The node's own connections, health checks among them, must never use a port of the pool: their
/// replies would be taken for those of a balanced flow.
fn ports(config: &Config, state: &MachineState, report: &mut Report) {
    let pool = &config.nat.ports;
    let name = "net.ipv4.ip_local_port_range";
    let Some((first, last)) = state.local_ports else {
        let reason = format!("{name} cannot be read");
        report.push(
            names::NAT_PORTS,
            Outcome::unknown(pool.to_string(), reason).advice(Fix::command(["sysctl", name])),
        );
        return;
    };
    if last < pool.first || pool.last < first {
        let reason = format!("clear of the node's own ports, {first}-{last}");
        report.ok(names::NAT_PORTS, &pool.to_string(), reason);
        return;
    }
    let reason = format!("[nat] ports {} overlap the node's own, {name} = {first} {last}", **pool);
    let fix = apart((pool.first, pool.last), (first, last));
    report.push(names::NAT_PORTS, misconfigured(config, pool, reason, fix));
}

/// Sets what overlaps, and nothing that is right already.
fn apart((pool_first, pool_last): (u16, u16), (first, last): (u16, u16)) -> Fix {
    // The pool that the file has by default, and the range that the kernel has.
    const POOL: (u16, u16) = (10_000, 29_999);
    const LOCAL: (u16, u16) = (32_768, 60_999);
    let write = format!("write ports = \"{}-{}\" under [nat]", POOL.0, POOL.1);
    let set = Fix::sysctl("net/ipv4/ip_local_port_range", [LOCAL.0, LOCAL.1].map(i64::from));
    if last < POOL.0 || POOL.1 < first {
        write.into()
    } else if pool_last < LOCAL.0 || LOCAL.1 < pool_first {
        set
    } else {
        Fix::Sequence(vec![write.into(), set, "or another pair apart".into()])
    }
}

#[cfg(test)]
mod tests {
    use super::apart;

    #[test]
    fn what_is_right_already_is_not_set_again() {
        for (pool, local, write, set) in [
            ((10_000, 40_000), (32_768, 60_999), true, false),
            ((10_000, 29_999), (9_000, 60_999), false, true),
            ((20_000, 40_000), (9_000, 65_535), true, true),
        ] {
            let fix = apart(pool, local).to_string();
            let found = (fix.contains("write ports"), fix.contains("sysctl"));
            assert_eq!(found, (write, set), "{fix}");
        }
    }
}
