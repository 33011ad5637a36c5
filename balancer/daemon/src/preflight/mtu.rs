//! Rules about the room that tunnels need.

use std::collections::BTreeMap;

use ringway_config::{Backend, Config, Forward, MssClamp, Protocol, Service};
use ringway_doctor::{Outcome, Report};
use ringway_host::Fix;
use ringway_host::netlink::routes::RouteKind;

use super::machine_state::MachineState;

/// IPv4 and TCP without options: what a segment has besides its data. IPv6: 20 more.
const HEADERS: u32 = 40;
/// Bytes that every IPv6 path carries; no sender goes below (RFC 8200 section 5).
const IPV6_MIN: u32 = 1280;

/// Every backend that is reached by a tunnel.
pub fn check(config: &Config, state: &MachineState, report: &mut Report) {
    let tunnelled =
        |service: &&Service| matches!(service.forward, Forward::DsrIpip | Forward::DsrGue);
    let services = config.services.iter().filter(tunnelled);
    let all = services.flat_map(|service| service.backends.iter().map(move |one| (service, one)));
    // One mtu for all that leave by an interface, so that one command mends them all.
    let mut most: BTreeMap<String, u32> = BTreeMap::new();
    for (service, backend) in all.clone() {
        if let Some(Ok(path)) = state.paths.get(&backend.address) {
            let most = most.entry(state.link_name(path.ifindex)).or_default();
            *most = header(service, backend).max(*most);
        }
    }
    all.for_each(|(service, backend)| room(config, state, (service, backend), &most, report));
}

/// Bytes that the tunnel adds.
fn header(service: &Service, backend: &Backend) -> u32 {
    u32::from(service.forward.overhead(backend.address.is_ipv6()))
}

/// Bytes that clients may send, as far as it shows from here: the MTU of the interfaces but the one
/// to the backends. Where that is the only one, it may have been given more room than the others on
/// its link.
fn client_mtu(config: &Config, state: &MachineState, way: &str) -> u32 {
    let links = config.node.interfaces.iter().filter_map(|name| state.link(name));
    let others = links.filter(|link| link.name != way).map(|link| link.mtu).max();
    others.or_else(|| Some(state.link(way)?.mtu.min(1500))).unwrap_or(1500)
}

/// `most`: the largest header by interface.
fn room(
    config: &Config,
    state: &MachineState,
    (service, backend): (&Service, &Backend),
    most: &BTreeMap<String, u32>,
    report: &mut Report,
) {
    let Some(Ok(path)) = state.paths.get(&backend.address) else { return };
    if path.kind == RouteKind::Local {
        return;
    }
    let way = state.link_name(path.ifindex);
    let Some(mtu) = path.mtu.or_else(|| state.link(&way).map(|link| link.mtu)) else { return };
    let clients = client_mtu(config, state, &way);
    let subject = format!("{} {}", *service.name, backend.shown());
    let header = header(service, backend);
    let room = mtu.saturating_sub(header);
    if room >= clients {
        let reason = format!("{room} bytes are left in {way}'s {mtu}: clients' {clients} fit");
        return report.ok("mtu", &subject, reason);
    }
    let what = format!(
        "{} adds {header} bytes, so {room} are left in {way}'s {mtu}, and clients may send {clients}",
        service.forward
    );
    let segment = HEADERS + if service.address.is_ipv6() { 20 } else { 0 };
    let clamped = match service.mss_clamp {
        MssClamp::Auto => true,
        MssClamp::Off => false,
        MssClamp::Bytes(bytes) => u32::from(bytes) + segment <= room,
    };
    if service.address.is_ipv6() && room < IPV6_MIN {
        let reason = format!(
            "{what}: IPv6 clients send packets of up to {IPV6_MIN} bytes whatever they are told \
             (RFC 8200 section 5), and those are lost"
        );
        let set = Fix::link(&way, format!("mtu {}", IPV6_MIN + header));
        let fix = format!("{set} or more (also at the switch and the backends)");
        return report.push("mtu", Outcome::warn(&subject, reason).advice(fix));
    }
    let udp = service.protocols.contains(&Protocol::Udp);
    if clamped && !udp {
        // Backends bound the segments of clients by their own MSS (docs/forwarding.md).
        let reason = format!(
            "{what}: mss_clamp bounds what backends send; larger segments of clients are answered \
             with \"too big\" (ICMP), unless the backends announce a smaller MSS (advmss {})",
            room.saturating_sub(segment)
        );
        return report.ok("mtu", &subject, reason);
    }
    let who = if udp { "datagrams" } else { "segments" };
    let reason = format!(
        "{what}: larger {who} are answered with \"too big\" (ICMP), which not every network lets through"
    );
    let wanted = clients + most.get(&way).copied().unwrap_or(header);
    let fix = format!(
        "{} (also at the switch and the backends){}",
        Fix::link(&way, format!("mtu {wanted}")),
        if clamped { "" } else { "; or leave mss_clamp out of the service" }
    );
    report.push("mtu", Outcome::warn(&subject, reason).advice(fix));
}
