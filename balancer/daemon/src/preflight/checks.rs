//! Rules about the checks of dsr backends: they go to the service address (see [`crate::health::dsr_probe`]), and
//! replies come straight from it.

use ringway_config::{Backend, Config, Service};
use ringway_doctor::{Fix, Outcome};
use ringway_host::netlink::routes::RouteKind;

use super::Report;
use super::facts::Facts;
use crate::health::dsr_probe;

/// Every dsr service.
pub fn check(config: &Config, facts: &Facts, report: &mut Report) {
    for service in config.services.iter().filter(|service| service.forward.is_dsr()) {
        if own_address(config, facts, service, report) {
            continue;
        }
        for backend in
            service.backends.iter().filter(|backend| dsr_probe::is_taken(service, backend))
        {
            replies(facts, service, backend, report);
        }
    }
}

/// The node itself would answer the checks, and whatever the balancer passes on.
fn own_address(config: &Config, facts: &Facts, service: &Service, report: &mut Report) -> bool {
    let address = &service.address;
    let path = facts.paths.get(address);
    let local = matches!(path, Some(Ok(path)) if path.kind == RouteKind::Local);
    if local {
        let bits = if address.is_ipv4() { 32 } else { 128 };
        let reason = format!(
            "{} is an address of this node, and {} backends have it themselves, where checks go to it: \
             the node would answer them itself",
            **address, service.forward
        );
        let fix = format!(
            "ip address del {}/{bits} dev IFACE, and write announce = \"arp\" (Ringway answers) or \
             \"routed\" (a router sends it here)",
            **address
        );
        report.fail_at(config, address, "check-road", reason, fix);
    }
    local
}

/// Replies come from the service address by the backend's interface: strict reverse path filtering
/// wants the route to that address there.
fn replies(facts: &Facts, service: &Service, backend: &Backend, report: &mut Report) {
    let out = |address| facts.paths.get(address).and_then(|path| path.as_ref().ok());
    let Some(path) = out(&backend.address) else { return };
    let name = facts.link_name(path.ifindex);
    let filter = facts.receiving.get(&name).map_or(0, |receiving| receiving.rp_filter);
    let back = out(&service.address).map(|back| back.ifindex);
    let lost = match filter {
        1 => back != Some(path.ifindex),
        2 => back.is_none(),
        _ => false,
    };
    if service.address.is_ipv6() || !lost {
        return;
    }
    let subject = format!("{} {}", *service.name, backend.shown());
    let reason = format!(
        "replies to its checks come from {} by {name}, where rp_filter = {filter} drops them: \
         the backend will never be up",
        *service.address
    );
    // Loose is enough, where there is a route at all.
    let want = if back.is_some() { 2 } else { 0 };
    let set = Fix::sysctl(format!("net/ipv4/conf/{name}/rp_filter"), want);
    let fix = format!("{set} (and of \"all\")");
    report.push("check-road", Outcome::warn(&subject, reason).advice(fix));
}
