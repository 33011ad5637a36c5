//! Rules about the interfaces of `[node] interfaces`.

use ringway_api::node::{leftovers, netns_hint};
use ringway_config::{Config, Located, Setting};
use ringway_doctor::{Outcome, Report, Severity};
use ringway_host::Fix;
use ringway_host::Mac;
use ringway_host::netlink::links::Link;
use ringway_kernel::{DEFAULT_BPFFS, XdpMode, XdpOwner};

use super::machine_state::MachineState;
use super::{at, misconfigured, names};
use crate::network::next_hop::{is_stacked, is_vrrp};

/// Every rule, interface by interface.
pub fn check(config: &Config, state: &MachineState, report: &mut Report) {
    on_pass(config, state, report);
    for name in &config.node.interfaces {
        let Some(link) = present(config, state, name, report) else { continue };
        default_route(config, state, name, link, report);
        foreign(config, state, link, report);
        virtual_routers(state, link, report);
        mode(config, state, link, report);
        driver(config, state, link, report);
    }
}

const FIRST: &str =
    "make it before the start (under systemd, one that comes later is waited for 30 s)";

fn present<'a>(
    config: &Config,
    state: &'a MachineState,
    name: &Located<String>,
    report: &mut Report,
) -> Option<&'a Link> {
    let known = || {
        let fit = |link: &&Link| link.up && is_usable(link) && !leftovers::is_device(&link.name);
        state.links.iter().filter(fit).map(|link| link.name.as_str()).collect::<Vec<_>>().join(", ")
    };
    let Some(link) = state.link(name) else {
        let reason = format!(
            "there is no interface {name:?} in this network namespace",
            name = name.as_str()
        );
        let fix = match state.has_ours(config) {
            true => format!("{FIRST}; or name one of: {}", known()),
            false => format!(
                "none of these interfaces is here: another network namespace? Then run it there: \
                 nsenter --net=/run/netns/NAME ringway ...; otherwise {FIRST}; or name some of: {}",
                known()
            ),
        };
        report.push(names::INTERFACE, misconfigured(config, name, reason, fix));
        return None;
    };
    if !is_usable(link) {
        let reason = format!(
            "{} is neither Ethernet nor a device of bare IP packets (WireGuard)",
            link.name
        );
        report.push(
            names::INTERFACE,
            misconfigured(config, name, reason, format!("name one of: {}", known())),
        );
        return None;
    }
    if let Some(bond) = part_of(state, link) {
        let reason =
            format!("{} is a part of {bond}, which is where its packets belong", link.name);
        let fix =
            format!("write \"{bond}\" instead: native XDP runs on it if all of its parts have it");
        report.push(names::INTERFACE, misconfigured(config, name, reason, fix));
        return None;
    }
    if !link.up {
        let fix = Fix::link(&link.name, "up");
        // Where our program is on it already, the others' traffic wants a daemon.
        let severity =
            if attached(state, link).is_some() { Severity::Warn } else { Severity::Crit };
        report.push(names::INTERFACE, Outcome::new(severity, &link.name, "it is down").advice(fix));
    } else if !link.carrier {
        let reason = "it has no carrier: no packet will come or go";
        let far = Fix::link("IFACE", "up");
        let fix = format!("check its cable and switch port; of a veth pair, at the far end: {far}");
        report.push(names::INTERFACE, Outcome::warn(&link.name, reason).advice(fix));
    } else {
        report.ok(names::INTERFACE, &link.name, format!("up, mtu {} bytes", link.mtu));
    }
    Some(link)
}

/// Packets on it have an Ethernet header, or none at all.
fn is_usable(link: &Link) -> bool {
    !link.loopback && (link.mac.is_some() || link.is_layer3())
}

/// The bond or team that the interface belongs to, which spreads packets over its parts as it
/// likes.
fn part_of<'a>(state: &'a MachineState, link: &Link) -> Option<&'a str> {
    let master = state.links.iter().find(|one| Some(one.ifindex) == link.master)?;
    matches!(master.kind.as_deref(), Some("bond" | "team")).then_some(&master.name)
}

/// Why a mistake on the interface would cut this machine off: it, what it is a part of, or what
/// lies upon it carries the default route.
pub(super) fn carries_default(state: &MachineState, link: &Link) -> Option<String> {
    let on = |ifindex: u32| state.default_route_links.contains(&ifindex);
    if let Some(master) = link.master.filter(|master| on(*master)) {
        let name = state.link_name(master);
        return Some(format!("it belongs to {name}, which carries the default route"));
    }
    if on(link.ifindex) {
        return Some("it carries the default route".to_owned());
    }
    // A veth pair's other end is no device upon it.
    let upon = |upper: &&Link| {
        matches!(upper.kind.as_deref(), Some("vlan" | "macvlan" | "ipvlan"))
            && upper.lower == Some(link.ifindex)
            && !upper.lower_elsewhere
    };
    let upper = state.links.iter().filter(upon).find(|l| carries_default(state, l).is_some())?;
    Some(format!("it carries {}, by which the default route leads", upper.name))
}

/// Attaching to the interface by which an administrator came in can lock them out.
fn default_route(
    config: &Config,
    state: &MachineState,
    name: &Located<String>,
    link: &Link,
    report: &mut Report,
) {
    let Some(carries) = carries_default(state, link) else { return };
    match state.first_namespace {
        Some(false) => {
            let reason = format!("{carries}, in a namespace that is not the first");
            report.ok("default-route", &link.name, reason);
        }
        _ if config.node.allow_default_route => {
            let allowed = match config.file() {
                Some(_) => "allow_default_route = true",
                None => "--allow-default-route",
            };
            let reason = format!(
                "{carries}; {allowed}: what is attached anew is taken off again after 60 s, unless \
                 you `ringway confirm`"
            );
            report.ok("default-route", &link.name, reason);
        }
        _ => {
            let reason = format!(
                "{} is guarded: {carries}, a mistake there cuts this machine off",
                link.name
            );
            let fix = format!(
                "use another interface, or {} and `ringway confirm` within a minute of the start",
                config.to_set(Setting::AllowDefaultRoute)
            );
            report.push("default-route", misconfigured(config, name, reason, fix));
        }
    }
}

/// The user's own program behind ours.
fn on_pass(config: &Config, state: &MachineState, report: &mut Report) {
    let Some(path) = &config.node.on_pass else { return };
    let subject = path.display().to_string();
    match &state.on_pass {
        Some(Ok(name)) => {
            report.ok(
                "on-pass",
                &subject,
                format!("program {name:?} decides about what we pass on"),
            );
        }
        Some(Err(error)) => {
            let load = Fix::command(["bpftool", "prog", "load", "FILE.o", "PATH"]);
            let fix = Fix::Sequence(vec![load, "or leave on_pass out".into()]);
            let failed = Outcome::crit(&subject, error).advice(fix);
            report.push("on-pass", at(config, path, failed));
        }
        None => {}
    }
}

/// The packet path knows one MAC address of an interface beside its own.
fn virtual_routers(state: &MachineState, link: &Link, report: &mut Report) {
    let mut macs: Vec<Mac> = Vec::new();
    for mac in state.links.iter().filter(|upon| is_vrrp(upon, link)).filter_map(|upon| upon.mac) {
        if !macs.contains(&mac) {
            macs.push(mac);
        }
    }
    let [first, others @ ..] = macs.as_slice() else { return };
    if others.is_empty() {
        return report.ok("virtual-router", &link.name, format!("serves {first} as well"));
    }
    let others = others.iter().map(Mac::to_string).collect::<Vec<_>>().join(", ");
    let reason = format!(
        "several virtual routers' MAC addresses are on {}: packets to {first} are served, packets to {others} \
         are not",
        link.name
    );
    let fix = "leave out use_vmac of all but one vrrp_instance on it (IPv4 and IPv6 are two)";
    report.push("virtual-router", Outcome::warn(&link.name, reason).advice(fix));
}

const OR_ON_PASS: &str = "or pin that program and write on_pass = \"/sys/fs/bpf/NAME\" under [node]: then it gets what Ringway \
     passes on";

fn foreign(config: &Config, state: &MachineState, link: &Link, report: &mut Report) {
    let Some(xdp) = link.xdp.first() else {
        return report.ok(names::FOREIGN_XDP, &link.name, "no XDP program");
    };
    let Some(own) = &state.own_links else {
        let reason = format!(
            "an XDP program (id {}) is attached; only root can tell whether it is this node's",
            xdp.program
        );
        return report.push(
            names::FOREIGN_XDP,
            Outcome::unknown(&link.name, reason).advice("run as root (sudo)"),
        );
    };
    if own.contains_key(&link.ifindex) {
        return report.ok(names::FOREIGN_XDP, &link.name, "our own program from before");
    }
    let name = ringway_kernel::program_name(xdp.program).unwrap_or_else(|| "unknown".into());
    let owner = state.xdp_owners.get(&xdp.program).unwrap_or(&XdpOwner::Netlink);
    if state.bpffs_hidden && *owner != XdpOwner::Decap {
        let reason = format!(
            "XDP program {name:?} (id {}) is attached, and whether it is this node's cannot be seen here: \
             this process has no {DEFAULT_BPFFS}",
            xdp.program
        );
        let fix = netns_hint::unhide("ringway ...");
        return report.push(names::FOREIGN_XDP, Outcome::crit(&link.name, reason).advice(fix));
    }
    let fix = owner.remedy(&link.name);
    let (whose, fix) = match owner {
        XdpOwner::Node(_) | XdpOwner::Decap => (owner.owner(), fix),
        // Options of a command name no such program.
        _ if config.file().is_none() => ("is not this node's".into(), fix),
        _ => ("is not this node's".into(), Fix::Sequence(vec![fix, OR_ON_PASS.into()])),
    };
    let reason = format!("XDP program {name:?} (id {}) is attached and {whose}", xdp.program);
    report.push(names::FOREIGN_XDP, Outcome::crit(&link.name, reason).advice(fix));
}

/// Whether our program is, or will be, in the kernel's generic path for certain.
pub(super) fn generic(config: &Config, state: &MachineState, link: &Link) -> bool {
    match *config.node.xdp_mode {
        Some(mode) => mode == XdpMode::Generic,
        None => {
            attached(state, link) == Some(XdpMode::Generic) || obstacle(config, state).is_some()
        }
    }
}

/// The first interface that native XDP cannot send to and generic XDP can: `auto` is generic then.
fn obstacle<'a>(config: &Config, state: &'a MachineState) -> Option<&'a Link> {
    let links = config.node.interfaces.iter().filter_map(|name| state.link(name));
    links.into_iter().find(|link| is_stacked(link) && state.tagged_on(config, link).is_none())
}

pub(super) fn attached(state: &MachineState, link: &Link) -> Option<XdpMode> {
    state.own_links.as_ref()?.get(&link.ifindex).copied()
}

/// A VLAN device upon another interface of ours: its frames must reach XDP with their tags.
fn tagged(state: &MachineState, link: &Link, device: &Link, report: &mut Report) {
    let off = Fix::ethtool("-K", &device.name, "rxvlan off");
    let hidden = state.offloads.get(&device.name).map(|offloads| offloads.rx_vlan);
    let (severity, reason, fix) = match hidden {
        // veth's tags are taken out of the frame by the far end, when it sends.
        Some(true) if device.kind.is_none() => (
            Severity::Crit,
            format!(
                "{0} takes VLAN tags off before XDP sees them: {1}'s frames look like {0}'s own",
                device.name, link.name
            ),
            off,
        ),
        None => (
            Severity::Unknown,
            format!("whether {} leaves VLAN tags for XDP to see cannot be read", device.name),
            off,
        ),
        Some(_) => {
            return report.ok("vlan", &link.name, format!("met on {}, with its tag", device.name));
        }
    };
    report.push("vlan", Outcome::new(severity, &link.name, reason).advice(fix));
}

fn mode(config: &Config, state: &MachineState, link: &Link, report: &mut Report) {
    if let Some(device) = state.tagged_on(config, link) {
        return tagged(state, link, device, report);
    }
    if is_stacked(link) || link.is_layer3() {
        let kind = link.kind.as_deref().unwrap_or("device without Ethernet header");
        let reason =
            format!("generic: native XDP can neither run on a {kind} nor redirect into it");
        return report.ok("xdp-mode", &link.name, reason);
    }
    let driver = state.drivers.get(&link.name).map_or("unknown", String::as_str);
    let reason = match (*config.node.xdp_mode, attached(state, link)) {
        (None, _) if obstacle(config, state).is_some() => format!(
            "auto: generic, because native XDP cannot send to {}",
            obstacle(config, state).map_or("", |link| link.name.as_str())
        ),
        (None, Some(now)) => format!(
            "{now} now, and auto keeps it over a restart; {} to change it, or `ringway detach` first",
            config.to_set(Setting::XdpMode(&["native", "generic"]))
        ),
        (None, None) if has_native(state, link) == Some(false) => {
            format!("auto: generic, because driver {driver} has no native XDP")
        }
        (Some(XdpMode::Native), None) if has_native(state, link) == Some(false) => {
            let reason = format!("native, as configured, but driver {driver} has no native XDP");
            let fix = config.to_set(Setting::XdpMode(&["auto", "generic"]));
            let failed = Outcome::crit(XdpMode::Native.name(), reason).advice(fix);
            return report.push("xdp-mode", at(config, &config.node.xdp_mode, failed));
        }
        (None, None) if has_native(state, link) == Some(true) => {
            format!("auto: native, driver {driver} has it; generic where another interface cannot")
        }
        (None, None) => format!(
            "auto: native where the drivers (here {driver}) can, generic on all interfaces where one \
             cannot"
        ),
        (Some(XdpMode::Native), _) => {
            format!("native, as configured; start fails when driver {driver} cannot")
        }
        (Some(_), _) => "generic, as configured: works everywhere, slower".to_owned(),
    };
    report.ok("xdp-mode", &link.name, reason);
}

pub(super) const OR_GENERIC: &str =
    "or write xdp_mode = \"generic\" under [node], which needs nothing of it";

/// Drivers with native XDP that make their queues anew when the first program comes and when the
/// last one goes, most of them with the link down meanwhile. That a program is swapped they do not
/// notice.
const RESETTING: [&str; 17] = [
    "bnxt_en",
    "ena",
    "fm10k",
    "hinic3",
    "i40e",
    "iavf",
    "ice",
    "idpf",
    "igb",
    "igc",
    "ixgbe",
    "ixgbevf",
    "mlx4_en",
    "mlx5_core",
    "nfp",
    "qede",
    "vmxnet3",
];

/// Of these, such as have native XDP only on kernels that tell so.
const LATE: [&str; 3] = ["hinic3", "idpf", "vmxnet3"];

/// The cost of attaching a program with this driver.
fn driver(config: &Config, state: &MachineState, link: &Link, report: &mut Report) {
    if is_stacked(link) || link.is_layer3() || state.tagged_on(config, link).is_some() {
        return;
    }
    let Some(driver) = state.drivers.get(&link.name) else { return };
    if generic(config, state, link) {
        return report.ok("link-reset", &link.name, "generic mode is nothing to the driver");
    }
    reset(config, state, link, driver, report);
}

/// Whether the driver has native XDP; `None` where the kernel cannot tell without trying.
pub fn has_native(state: &MachineState, link: &Link) -> Option<bool> {
    state.features.get(&link.name).map(|features| features.native())
}

fn reset(config: &Config, state: &MachineState, link: &Link, driver: &str, report: &mut Report) {
    if attached(state, link).is_some() {
        let reason = "attached already: programs are swapped without the driver's noticing";
        return report.ok("link-reset", &link.name, reason);
    }
    let native = has_native(state, link).unwrap_or(!LATE.contains(&driver));
    if !RESETTING.contains(&driver) || !native {
        let reason = format!("driver {driver} is not known to stop for a program");
        return report.ok("link-reset", &link.name, reason);
    }
    let reason = format!(
        "driver {driver} makes its queues anew when the first program comes and when the last one goes: \
         up to some seconds without a packet, and the switch may see the link go down"
    );
    let fix = format!(
        "start (and `ringway detach`) when that does no harm; a restart of the daemon swaps the \
         program and does none; or {}",
        config.to_set(Setting::XdpMode(&["generic"]))
    );
    report.push("link-reset", Outcome::warn(&link.name, reason).advice(fix));
}
