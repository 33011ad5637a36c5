//! Rules about the backends of dsr services: they must take packets for the service address, be
//! quiet about having it, and answer the checks that go there.

use std::net::IpAddr;

use ringway_config::{Backend, Config, Forward, Service};
use ringway_doctor::{Outcome, Report, Severity};
use ringway_host::Fix;
use ringway_host::Mac;
use ringway_host::netlink::routes::RouteKind;

use super::machine_state::{Answerer, MachineState};
use super::misconfigured;
use crate::health::{Health, dsr_probe};

pub fn check(config: &Config, state: &MachineState, report: &mut Report) {
    for service in config.services.iter().filter(|service| service.forward.is_dsr()) {
        quiet(config, state, service, report);
        if state.thorough {
            service.backends.iter().for_each(|backend| takes(state, service, backend, report));
        }
    }
}

/// Nobody on a backend's link may answer for the address but a gateway.
fn quiet(config: &Config, state: &MachineState, service: &Service, report: &mut Report) {
    let address = *service.address;
    let subject = format!("{} {address}", *service.name);
    let answerers = match state.answering.get(&address) {
        None => return,
        Some(Err(error)) => {
            let reason = format!("whether a backend answers for {address} is not known: {error}");
            let fix = "run as root (sudo): asking takes CAP_NET_RAW";
            return report.push("arp-quiet", Outcome::unknown(&subject, reason).advice(fix));
        }
        Some(Ok(answerers)) => answerers,
    };
    if answerers.is_empty() {
        let reason = "nobody but this node answers for it on the backends' links";
        return report.ok("arp-quiet", &subject, reason);
    }
    for Answerer { interface, mac } in answerers {
        let (severity, who) = match backend_at(config, state, *mac) {
            Some(backend) => (Severity::Crit, format!("backend {backend} ({mac})")),
            None => (Severity::Warn, format!("somebody ({mac})")),
        };
        let reason = format!(
            "{who} answers for {address} on {interface}: neighbours there send to it, past every gateway"
        );
        let fix = match (severity, address) {
            (Severity::Warn, _) => {
                "if that is no other gateway, find it by its MAC address (ip neighbour) and take the \
                 address away from it"
                    .into()
            }
            (_, IpAddr::V4(_)) => {
                on_backend([
                    Fix::sysctl("net/ipv4/conf/all/arp_ignore", 1),
                    Fix::sysctl("net/ipv4/conf/all/arp_announce", 2),
                    Fix::ip_address("add", address, "lo").after("with the address on lo:"),
                ])
            }
            (_, IpAddr::V6(_)) => on_backend([
                Fix::ip_address("del", address, "IFACE"),
                Fix::ip_address("add", address, "lo"),
            ]),
        };
        report.push("arp-quiet", Outcome::new(severity, &subject, reason).advice(fix));
    }
}

fn on_backend(fixes: impl IntoIterator<Item = Fix>) -> Fix {
    Fix::Sequence(fixes.into_iter().collect()).after("on the backend:")
}

/// The backend whose MAC address this is.
fn backend_at(config: &Config, state: &MachineState, mac: Mac) -> Option<IpAddr> {
    let backends = config.services.iter().flat_map(|service| &service.backends);
    let is_at = |address: &IpAddr| {
        state.neighbours.iter().any(|known| known.address == *address && known.mac == Some(mac))
    };
    backends.map(|backend| *backend.address).find(is_at)
}

/// The running gateway's health checks go to the service address by the path of the packets.
fn takes(state: &MachineState, service: &Service, backend: &Backend, report: &mut Report) {
    let subject = format!("{} {}", *service.name, backend.shown());
    let address = *service.address;
    let what = match service.forward {
        Forward::DsrL2 => "takes packets for the service address",
        _ => "opens the tunnel and takes packets for the service address",
    };
    if service.check.is_none() {
        let reason = format!("whether it {what} is not known: the service has no check to tell");
        let fix = "write check = { type = \"tcp\" } (or http): it takes the packets' own path";
        return report.push("dsr-backend", Outcome::unknown(&subject, reason).advice(fix));
    }
    if !dsr_probe::is_taken(service, backend) {
        let reason =
            format!("whether it {what} is not known: its check goes straight to another address");
        let fix = "remove address from the check: then it takes the packets' own path";
        return report.push("dsr-backend", Outcome::unknown(&subject, reason).advice(fix));
    }
    let shown = state.health.iter().flatten().filter(|shown| shown.name == *service.name.as_str());
    let found = shown
        .flat_map(|shown| &shown.backends)
        .find(|found| found.endpoint() == backend.endpoint());
    let opens = service.forward != Forward::DsrL2;
    let open = opens.then(|| Fix::command(["ringway", "decap", "-i", "IFACE"]));
    let fix = on_backend([Fix::ip_address("add", address, "lo")].into_iter().chain(open));
    match found {
        Some(found) if found.health == Health::Up => {
            report.ok("dsr-backend", &subject, format!("{what}: its check does"))
        }
        Some(found) if found.health == Health::Down => {
            let why = found.reason.as_deref().unwrap_or("its check fails");
            let reason = format!("its check, by the packets' own path, fails: {why}");
            report.push("dsr-backend", Outcome::warn(&subject, reason).advice(fix));
        }
        _ => {
            let reason = format!("whether it {what} only a running gateway's check can tell");
            let run = Fix::command(["ringway", "run"]).after("check again after:");
            report.push("dsr-backend", Outcome::unknown(&subject, reason).advice(run));
        }
    }
}

/// The checks of every dsr service go to its address (see [`crate::health::dsr_probe`]), and
/// replies come straight from it.
pub fn checks(config: &Config, state: &MachineState, report: &mut Report) {
    for service in config.services.iter().filter(|service| service.forward.is_dsr()) {
        if own_address(config, state, service, report) {
            continue;
        }
        for backend in
            service.backends.iter().filter(|backend| dsr_probe::is_taken(service, backend))
        {
            replies(state, service, backend, report);
        }
    }
}

/// The node itself would answer the checks, and whatever the balancer passes on.
fn own_address(
    config: &Config,
    state: &MachineState,
    service: &Service,
    report: &mut Report,
) -> bool {
    let address = &service.address;
    let path = state.paths.get(address);
    let local = matches!(path, Some(Ok(path)) if path.kind == RouteKind::Local);
    if local {
        let reason = format!(
            "{} is an address of this node, and {} backends have it themselves, where checks go to it: \
             the node would answer them itself",
            **address, service.forward
        );
        let then =
            "and write announce = \"arp\" (Ringway answers) or \"routed\" (a router sends it here)";
        let fix = Fix::Sequence(vec![Fix::ip_address("del", **address, "IFACE"), then.into()]);
        report.push("check-road", misconfigured(config, address, reason, fix));
    }
    local
}

/// Replies come from the service address by the backend's interface: strict reverse path filtering
/// wants the route to that address there.
fn replies(state: &MachineState, service: &Service, backend: &Backend, report: &mut Report) {
    let out = |address| state.paths.get(address).and_then(|path| path.as_ref().ok());
    let Some(path) = out(&backend.address) else { return };
    let name = state.link_name(path.ifindex);
    let filter = state.receiving.get(&name).map_or(0, |receiving| receiving.rp_filter);
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
    let fix = set.before("(and of \"all\")");
    report.push("check-road", Outcome::warn(&subject, reason).advice(fix));
}
