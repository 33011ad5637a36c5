//! The rules on made-up machines.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;

use ringway_config::{Config, ForwardMode, ForwardOptions};
use ringway_doctor::{Outcome, Sample, Severity};
use ringway_host::Mac;
use ringway_host::ethtool::Offloads;
use ringway_host::netlink::addresses::Address;
use ringway_host::netlink::links::{Link, Operstate, Xdp, XdpMode};
use ringway_host::netlink::routes::{Path, RouteKind};
use ringway_kernel::{Probe, XdpOwner};

use super::judge;
use super::machine_state::{Answerer, MachineState, Receiving};

pub(super) fn ip(text: &str) -> IpAddr {
    text.parse().expect("address")
}

pub(super) fn config(node: &str, service: &str) -> Config {
    let text = format!(
        "[node]\nname = \"gw\"\n{node}\n[[service]]\nname = \"web\"\naddress = \"203.0.113.9\"\n\
         port = 80\n{service}\nbackends = [{{ address = \"10.0.0.2\" }}]\n"
    );
    ringway_config::parse(&text, "ringway.toml").expect("valid")
}

pub(crate) fn link(ifindex: u32, name: &str) -> Link {
    Link {
        ifindex,
        name: name.into(),
        kind: None,
        mac: Some(Mac([2, 0, 0, 0, 0, ifindex as u8])),
        hardware: 1,
        address: Vec::new(),
        mtu: 1500,
        loopback: false,
        up: true,
        carrier: true,
        operstate: Operstate::Up,
        rx_queues: 1,
        tx_queues: 1,
        master: None,
        lower: None,
        vlan: None,
        vnet_header: None,
        lower_elsewhere: false,
        xdp: Vec::new(),
    }
}

pub(super) fn path(to: &str, kind: RouteKind, ifindex: u32) -> (IpAddr, Result<Path, String>) {
    let destination = ip(to);
    (destination, Ok(Path { destination, kind, ifindex, gateway: None, source: None, mtu: None }))
}

/// Of eth0.
fn address(address: &str, prefix: u8) -> Address {
    let (local_scope, unusable, deprecated) = (false, false, false);
    Address { ifindex: 2, address: ip(address), prefix, local_scope, unusable, deprecated }
}

pub(super) fn files() -> Sample {
    let mut files = Sample::default();
    for (path, text) in [
        ("/proc/self/mountinfo", "42 27 0:39 / /sys/fs/bpf rw,relatime - bpf bpf rw"),
        ("/proc/sys/kernel/arch", "x86_64"),
        ("/proc/sys/kernel/osrelease", "6.12.0"),
        ("/proc/sys/net/core/bpf_jit_enable", "1"),
        ("/proc/sys/net/core/bpf_jit_harden", "0"),
        ("/proc/sys/net/ipv4/ip_forward", "0"),
        ("/sys/devices/system/cpu/online", "0-3"),
        ("/sys/kernel/btf/vmlinux", ""),
    ] {
        files.put(path, text);
    }
    files
}

/// A machine on which all is well: eth0 (2) leads to the backend, the service address is its own.
pub(super) fn machine() -> MachineState {
    MachineState {
        probe: Ok(Probe {
            kernel: "6.12.0".into(),
            kernel_ok: true,
            missing_capabilities: Vec::new(),
        }),
        links: vec![link(2, "eth0"), link(3, "eth1")],
        offloads: ["eth0", "eth1"].map(|name| (name.into(), Offloads::default())).into(),
        drivers: HashMap::new(),
        addresses: Vec::new(),
        default_route_links: BTreeSet::new(),
        paths: HashMap::from([
            path("10.0.0.2", RouteKind::Unicast, 2),
            path("203.0.113.9", RouteKind::Local, 1),
        ]),
        neighbours: Vec::new(),
        first_namespace: Some(true),
        local_ports: Some((32768, 60999)),
        receiving: HashMap::new(),
        own_links: Some(BTreeMap::new()),
        files: files(),
        ..MachineState::default()
    }
}

pub(super) fn find(config: &Config, state: &MachineState, check: &str) -> Outcome {
    let report = judge(config, state);
    let found = report.findings.into_iter().find(|finding| finding.check == check);
    found.unwrap_or_else(|| panic!("no finding {check}")).outcome
}

/// On a node with eth0 and a service web.
pub(super) fn found(state: &MachineState, check: &str) -> Outcome {
    find(&config(ETH0, ""), state, check)
}

pub(super) fn remedy(finding: &Outcome) -> String {
    finding.remedy().to_string()
}

/// The finding has this severity, and its remedy these words.
#[track_caller]
fn expect(finding: &Outcome, severity: Severity, words: &str) {
    assert_eq!(finding.severity, severity, "{finding}");
    assert!(remedy(finding).contains(words), "{finding}");
}

pub(super) const ETH0: &str = "interfaces = [\"eth0\"]";

#[test]
fn nothing_fails_where_all_is_well() {
    let report = judge(&config(ETH0, ""), &machine());
    let failures: Vec<_> = report.of(Severity::Crit).collect();
    assert!(failures.is_empty(), "{failures:?}");
    // The neighbour has not been asked yet, and unknown is not ok.
    assert_eq!(report.worst(), Severity::Unknown);
}

#[test]
fn an_absent_interface_is_placed_and_the_others_are_named() {
    let finding = find(&config("interfaces = [\"eth9\"]", ""), &machine(), "interface");
    let want = (Severity::Crit, Some("ringway.toml:3:15"));
    assert_eq!((finding.severity, finding.place.as_deref()), want);
    assert!(remedy(&finding).contains("eth0, eth1"), "{finding}");
}

#[test]
fn the_default_route_is_guarded_in_the_first_namespace_only() {
    let needs_confirm = MachineState { default_route_links: [2].into(), ..machine() };
    let finding = found(&needs_confirm, "default-route");
    assert_eq!(finding.severity, Severity::Crit);
    assert!(remedy(&finding).contains("allow_default_route = true") && finding.place.is_some());

    let allowed = config(&format!("{ETH0}\nallow_default_route = true"), "");
    assert_eq!(find(&allowed, &needs_confirm, "default-route").severity, Severity::Ok);
    let elsewhere = MachineState { first_namespace: Some(false), ..needs_confirm };
    assert_eq!(found(&elsewhere, "default-route").severity, Severity::Ok);
    let unknown = MachineState { first_namespace: None, ..elsewhere };
    assert_eq!(found(&unknown, "default-route").severity, Severity::Crit);
}

#[test]
fn what_options_forbid_names_the_option() {
    let forwarding = |interface: &str, allow_default_route| {
        Config::forwarding(&ForwardOptions {
            name: "forward".into(),
            interfaces: vec![interface.into()],
            mode: ForwardMode::Route,
            bypass_firewall: false,
            xdp_mode: None,
            allow_default_route,
            socket: ringway_config::DEFAULT_SOCKET.into(),
            metrics: "off".into(),
        })
        .expect("valid")
    };
    let guarded = MachineState { default_route_links: [2].into(), ..machine() };
    let finding = find(&forwarding("eth0", false), &guarded, "default-route");
    assert_eq!(finding.severity, Severity::Crit);
    assert_eq!(finding.place.as_deref(), Some("command line"));
    let remedy = remedy(&finding);
    assert!(remedy.contains("or add --allow-default-route and `ringway confirm`"), "{remedy}");
    let allowed = find(&forwarding("eth0", true), &guarded, "default-route");
    assert!(allowed.severity == Severity::Ok && allowed.found.contains("; --allow-default-route:"));
    let absent = find(&forwarding("eth9", false), &machine(), "interface");
    let said = absent.to_string();
    let wanted = "command line: there is no interface \"eth9\" in this network namespace";
    assert!(absent.severity == Severity::Crit && said.contains(wanted), "{said}");
}

#[test]
fn a_port_of_a_bridge_with_the_default_route_is_guarded_too() {
    let mut state = machine();
    state.links[0].master = Some(3);
    state.default_route_links = [3].into();
    let finding = found(&state, "default-route");
    assert_eq!(finding.severity, Severity::Crit);
    assert!(finding.found.contains("eth1"), "{finding}");
}

#[test]
fn a_part_of_a_bond_is_refused() {
    let mut state = machine();
    state.links.push(Link { kind: Some("bond".into()), ..link(4, "bond0") });
    state.links[0].master = Some(4);
    let finding = found(&state, "interface");
    expect(&finding, Severity::Crit, "\"bond0\" instead");
}

#[test]
fn foreign_programs_are_refused_and_our_own_are_not() {
    let mut state = machine();
    state.links[0].xdp = vec![Xdp { program: u32::MAX, mode: XdpMode::Native }];
    let finding = found(&state, "foreign-xdp");
    expect(&finding, Severity::Crit, "ip link set dev eth0 xdp off");
    state.xdp_owners = HashMap::from([(u32::MAX, XdpOwner::Node("gw2".into()))]);
    let finding = found(&state, "foreign-xdp");
    assert!(remedy(&finding).contains("ringway detach --node gw2"), "{finding}");
    assert!(finding.found.ends_with("and belongs to Ringway node gw2"), "{finding}");
    state.xdp_owners = HashMap::from([(u32::MAX, XdpOwner::Decap)]);
    let finding = found(&state, "foreign-xdp");
    assert!(remedy(&finding).contains("ringway decap -i eth0 --detach"), "{finding}");
    state.own_links = Some([(2, XdpMode::Native)].into());
    assert_eq!(found(&state, "foreign-xdp").severity, Severity::Ok);
    state.own_links = None;
    let finding = found(&state, "foreign-xdp");
    expect(&finding, Severity::Unknown, "root");
}

#[test]
fn a_program_whose_pins_cannot_be_seen_is_not_called_foreign() {
    let mut state = MachineState { bpffs_hidden: true, ..machine() };
    assert_eq!(found(&state, "foreign-xdp").severity, Severity::Ok, "no program");
    state.links[0].xdp = vec![Xdp { program: u32::MAX, mode: XdpMode::Native }];
    for owner in [XdpOwner::Netlink, XdpOwner::Link(7)] {
        state.xdp_owners = HashMap::from([(u32::MAX, owner)]);
        let finding = found(&state, "foreign-xdp");
        assert_eq!(finding.severity, Severity::Crit);
        assert!(finding.found.contains("whether it is this node's cannot be seen"), "{finding}");
        let advised = ["detach", "xdp off"].iter().any(|word| remedy(&finding).contains(word));
        assert!(remedy(&finding).contains("ringway ...") && !advised, "{finding}");
    }
    state.xdp_owners = HashMap::from([(u32::MAX, XdpOwner::Decap)]);
    let finding = found(&state, "foreign-xdp");
    assert!(remedy(&finding).contains("ringway decap -i eth0 --detach"), "{finding}");
}

#[test]
fn one_virtual_router_on_an_interface_is_served() {
    let router = |ifindex: u32, mac: [u8; 6]| Link {
        kind: Some("macvlan".into()),
        mac: Some(Mac(mac)),
        lower: Some(2),
        ..link(ifindex, &format!("vrrp.{ifindex}"))
    };
    let mut state = machine();
    let findings = judge(&config(ETH0, ""), &state).findings;
    assert!(findings.iter().all(|one| one.check != "virtual-router"), "{findings:?}");
    state.links.push(router(7, [0, 0, 0x5e, 0, 1, 51]));
    state.links.push(router(8, [0, 0, 0x5e, 0, 1, 51]));
    assert_eq!(found(&state, "virtual-router").severity, Severity::Ok);
    state.links.push(router(9, [0, 0, 0x5e, 0, 2, 51]));
    let finding = found(&state, "virtual-router");
    assert_eq!(finding.severity, Severity::Warn);
    let both = ["to 00:00:5e:00:01:33 are served", "to 00:00:5e:00:02:33 are not"];
    assert!(both.iter().all(|words| finding.found.contains(words)), "{finding}");
}

#[test]
fn only_interfaces_that_would_do_are_suggested() {
    let mut state = machine();
    let mut lo = link(1, "lo");
    lo.loopback = true;
    state.links.insert(0, lo);
    state.links.push(Link { up: false, ..link(4, "eth7") });
    // A device of ours, for checks of dsr backends.
    state.links.push(link(5, "rwprobe0"));
    let finding = find(&config("interfaces = [\"eth9\"]", ""), &state, "interface");
    assert!(remedy(&finding).ends_with("name some of: eth0, eth1"), "{finding}");
    let finding = find(&config("interfaces = [\"eth9\", \"eth0\"]", ""), &state, "interface");
    assert!(remedy(&finding).ends_with("; or name one of: eth0, eth1"), "{finding}");
    let words = "under systemd, one that comes later is waited for";
    assert!(remedy(&finding).contains(words), "{finding}");
}

#[test]
fn in_another_namespace_only_that_is_told() {
    let report = judge(&config("interfaces = [\"wan\", \"lan\"]", ""), &machine());
    let failures: Vec<_> = report.of(Severity::Crit).collect();
    assert_eq!(failures.len(), 2, "{failures:?}");
    for finding in failures {
        assert!(finding.check == "interface", "{finding:?}");
        assert!(remedy(&finding.outcome).contains("network namespace?"), "{finding:?}");
    }
}

#[test]
fn who_does_not_answer_is_told_from_who_was_not_asked() {
    let mut state = machine();
    let neighbour = |state: &MachineState| found(state, "neighbour");
    assert_eq!(neighbour(&state).severity, Severity::Unknown);
    state.answering = HashMap::from([(ip("10.0.0.2"), Ok(Vec::new()))]);
    let silent = neighbour(&state);
    assert!(silent.found.contains("10.0.0.2 does not answer ARP on eth0"), "{silent}");
    expect(&silent, Severity::Warn, "ping -c 3 10.0.0.2");
    let answer = Answerer { interface: "eth0".into(), mac: Mac([2, 0, 0, 0, 0, 9]) };
    state.answering = HashMap::from([(ip("10.0.0.2"), Ok(vec![answer]))]);
    assert_eq!(neighbour(&state).severity, Severity::Ok);
}

#[test]
fn replies_must_come_back_to_the_nat_addresses() {
    let with = |address: &str, announce: &str| {
        let nat = format!("{ETH0}\n[nat]\naddresses = [{address:?}]");
        config(&nat, &format!("announce = {announce:?}"))
    };
    let mut state = machine();
    let finding = find(&with("10.0.0.77", "arp"), &state, "nat-address");
    let want = (Severity::Crit, Some("ringway.toml:5:14"));
    assert_eq!((finding.severity, finding.place.as_deref()), want);
    assert!(remedy(&finding).starts_with("ip address add 10.0.0.77/32 dev eth0"), "{finding}");
    state.paths.extend([path("203.0.113.9", RouteKind::Unicast, 2)]);
    // A service's address: Ringway answers for it, or nobody does.
    assert_eq!(find(&with("203.0.113.9", "arp"), &state, "nat-address").severity, Severity::Ok);
    let routed = find(&with("203.0.113.9", "routed"), &state, "nat-address");
    assert_eq!(routed.severity, Severity::Crit);
    state.paths.extend([path("10.0.0.77", RouteKind::Local, 1)]);
    assert_eq!(find(&with("10.0.0.77", "arp"), &state, "nat-address").severity, Severity::Ok);
}

#[test]
fn a_tcp_check_of_a_udp_service_is_warned_of() {
    let check = |check: &str| {
        let more = format!("protocol = \"udp\"\ncheck = {{ type = \"tcp\"{check} }}");
        judge(&config(ETH0, &more), &machine()).findings.iter().any(|f| f.check == "check")
    };
    assert!(check("") && !check(", port = 8080"));
}

#[test]
fn auto_keeps_the_mode_it_finds() {
    let state = MachineState { own_links: Some([(2, XdpMode::Generic)].into()), ..machine() };
    let finding = found(&state, "xdp-mode");
    assert!(finding.found.starts_with("generic now"), "{finding}");
}

#[test]
fn somebody_must_answer_for_the_address() {
    let mut state = machine();
    state.paths.extend([path("203.0.113.9", RouteKind::Unicast, 2)]);
    let finding = found(&state, "answers");
    expect(&finding, Severity::Crit, "ip address add 203.0.113.9/32 dev eth0");
    assert!(remedy(&finding).contains("announce = \"arp\""), "{finding}");
    for announce in ["announce = \"arp\"", "announce = \"routed\""] {
        assert_eq!(find(&config(ETH0, announce), &state, "answers").severity, Severity::Ok);
    }
    // Assigned, but not in use yet.
    for (unusable, severity) in [(true, Severity::Warn), (false, Severity::Ok)] {
        state.addresses = vec![Address { unusable, ..address("203.0.113.9", 32) }];
        assert_eq!(found(&state, "answers").severity, severity);
    }
}

#[test]
fn backends_must_be_reached_by_our_interfaces() {
    let mut state = machine();
    state.links.push(wireguard(5));
    state.links.push(Link {
        kind: Some("gre".into()),
        mac: None,
        hardware: 778,
        ..link(6, "gre1")
    });
    for (ifindex, fix) in [(5, "add \"wg0\" to [node] interfaces"), (6, "type gretap or vxlan")] {
        state.paths.extend([path("10.0.0.2", RouteKind::Unicast, ifindex)]);
        let finding = found(&state, "route");
        expect(&finding, Severity::Crit, fix);
    }
    state.paths.extend([path("10.0.0.2", RouteKind::Unicast, 3)]);
    let finding = found(&state, "route");
    expect(&finding, Severity::Crit, "\"eth1\"");
    // eth1 as the bridge that eth0 is a port of: packets leave by the port.
    state.links[0].master = Some(3);
    assert_eq!(found(&state, "route").severity, Severity::Ok);

    state.paths.extend([path("10.0.0.2", RouteKind::Local, 1)]);
    assert_eq!(found(&state, "route").severity, Severity::Crit);
    state.paths.insert(ip("10.0.0.2"), Err("no route to 10.0.0.2".into()));
    let finding = found(&state, "route");
    assert_eq!(finding.severity, Severity::Warn);
    assert!(remedy(&finding).starts_with("ip route add 10.0.0.2/32 via ROUTER ("), "{finding}");
    // Where others are reached by one router, it is that.
    let by = |address: &str, router: &str| {
        let (address, path) = path(address, RouteKind::Unicast, 2);
        (address, path.map(|path| Path { gateway: Some(ip(router)), ..path }))
    };
    state.paths.extend([by("10.9.0.1", "10.0.0.254"), by("fd09::1", "fe80::1")]);
    let finding = found(&state, "route");
    assert_eq!(remedy(&finding), "ip route add 10.0.0.2/32 via 10.0.0.254");
    state.paths.extend([by("10.9.0.2", "10.0.0.253")]);
    assert!(found(&state, "route").remedy().to_string().contains("ROUTER"));
    // Its route has gone with the link.
    state.links[0].up = false;
    let finding = found(&state, "route");
    assert_eq!(remedy(&finding), "ip link set dev eth0 up", "{finding}");
    assert_eq!(finding.found, "no route to 10.0.0.2 while eth0 is down");
}

#[test]
fn source_client_is_refused_where_backends_answer_past_the_node() {
    let client = config(ETH0, "source = \"client\"");
    let mut state = machine();
    assert_eq!(find(&client, &state, "replies").severity, Severity::Unknown);
    state.default_route_links = [2].into();
    state.first_namespace = Some(false);
    assert_eq!(find(&client, &state, "replies").severity, Severity::Warn);
    state.addresses = vec![address("203.0.113.1", 24)];
    let finding = find(&client, &state, "replies");
    assert_eq!(finding.severity, Severity::Crit);
    assert!(finding.place.is_some() && remedy(&finding).contains("source = \"node\""), "{finding}");
}

#[test]
fn the_pool_must_be_clear_of_the_nodes_own_ports() {
    let state = MachineState { local_ports: Some((20000, 60999)), ..machine() };
    let finding = found(&state, "nat-ports");
    expect(&finding, Severity::Crit, "ip_local_port_range");
    let state = MachineState { local_ports: None, ..state };
    assert_eq!(found(&state, "nat-ports").severity, Severity::Unknown);
}

#[test]
fn veth_peers() {
    let mut state = machine();
    state.links[0].kind = Some("veth".into());
    state.links[0].lower = Some(3);
    let pair = |state: &MachineState| found(state, "veth-checksum");
    state.links[0].lower_elsewhere = true;
    let findings = judge(&config(ETH0, ""), &state).findings;
    assert!(
        findings.iter().all(|one| one.check != "veth-checksum"),
        "it is always so: {findings:?}"
    );

    state.links[0].lower_elsewhere = false;
    // The packet path finishes checksums itself.
    let offloads = Offloads { tx_checksum: true, gro: true, ..Offloads::default() };
    state.offloads.insert("eth1".into(), offloads);
    assert_eq!(pair(&state).severity, Severity::Ok);
    let offloads = Offloads { tx_checksum: true, ..Offloads::default() };
    state.offloads.insert("eth1".into(), offloads);
    let finding = pair(&state);
    assert_eq!((finding.severity, finding.subject.as_str()), (Severity::Warn, "eth1"));
    assert!(remedy(&finding).starts_with("ethtool -K eth1 gro on; or "), "{finding}");
    let generic = config(&format!("{ETH0}\nxdp_mode = \"generic\""), "");
    assert!(judge(&generic, &state).findings.iter().all(|one| one.check != "veth-checksum"));
    state.links[1].xdp = vec![Xdp { program: 7, mode: XdpMode::Native }];
    assert_eq!(pair(&state).severity, Severity::Ok);
    // Not known is not well.
    state.offloads.remove("eth1");
    assert_eq!(pair(&state).severity, Severity::Unknown);
}

/// A rule of the doctor that could not be asked is a line, too.
#[test]
fn of_a_host_of_which_nothing_is_known() {
    let state = MachineState { files: Sample::default(), ..machine() };
    for check in ["kernel", "btf", "bpffs", "bpf-jit", "lro"] {
        assert_eq!(found(&state, check).severity, Severity::Unknown, "{check}");
    }
    assert_eq!(ringway_doctor::rules::AT_START.len(), 8);
}

/// Backends behind the bridge br0 (4), which has no native XDP; eth0 has.
#[test]
fn the_kernel_must_forward_where_a_redirect_cannot_enter() {
    let mut state = machine();
    state.links.push(Link { kind: Some("bridge".into()), ..link(4, "br0") });
    state.paths.extend([path("10.0.0.2", RouteKind::Unicast, 4)]);
    let both = "interfaces = [\"eth0\", \"br0\"]";
    let interfaces = &format!("{both}\nxdp_mode = \"native\"");
    let node = config(interfaces, "");
    assert_eq!(find(&node, &state, "forwarding").severity, Severity::Unknown);

    let now = Receiving { rp_filter: 1, ..Receiving::default() };
    state.receiving = HashMap::from([("eth0".into(), now)]);
    let finding = find(&node, &state, "forwarding");
    assert_eq!((finding.severity, finding.subject.as_str()), (Severity::Crit, "eth0"));
    let sysctl = "sysctl -w net.ipv4.conf.eth0.forwarding=1; sysctl -w net.ipv4.conf.eth0.accept_local=1; \
                  sysctl -w net.ipv4.conf.eth0.rp_filter=2; or write xdp_mode";
    assert!(remedy(&finding).starts_with(sysctl), "{finding}");
    // The client's own address is none of ours.
    let finding = find(&config(interfaces, "source = \"client\""), &state, "forwarding");
    let words = "sysctl -w net.ipv4.conf.eth0.forwarding=1; or";
    assert!(remedy(&finding).starts_with(words), "{finding}");

    let well = Receiving { forwards_v4: true, accepts_local: true, rp_filter: 2, ..now };
    state.receiving.insert("eth0".into(), well);
    assert_eq!(find(&node, &state, "forwarding").severity, Severity::Ok);
    // The frame's address would be lost, and it is all that dsr-l2 rewrites.
    let dsr = "forward = \"dsr-l2\"\nannounce = \"arp\"";
    let finding = find(&config(interfaces, dsr), &state, "forwarding");
    assert!(finding.severity == Severity::Crit && finding.place.is_some(), "{finding}");
    assert!(remedy(&finding).contains("dsr-ipip"), "{finding}");
    // Generic everywhere: a redirect enters anything with an Ethernet header.
    state.receiving.clear();
    for mode in ["", "\nxdp_mode = \"auto\"", "\nxdp_mode = \"generic\""] {
        let report = judge(&config(&format!("{both}{mode}"), ""), &state);
        assert!(report.findings.iter().all(|finding| finding.check != "forwarding"));
        let mode = report.findings.iter().find(|finding| finding.check == "xdp-mode");
        assert!(mode.is_some_and(|finding| finding.outcome.found.contains("generic")), "{mode:?}");
    }
}

/// ARPHRD_NONE of linux/if_arp.h.
const NO_LINK_LAYER: u16 = 0xfffe;

fn wireguard(ifindex: u32) -> Link {
    let kind = Some("wireguard".into());
    Link { kind, mac: None, hardware: NO_LINK_LAYER, ..link(ifindex, "wg0") }
}

#[test]
fn into_a_device_without_ethernet_header_the_kernel_must_forward_always() {
    let mut state = machine();
    state.links.push(wireguard(5));
    state.paths.extend([path("10.0.0.2", RouteKind::Unicast, 5)]);
    state.receiving = HashMap::from([("eth0".into(), Receiving::default())]);
    let interfaces = "interfaces = [\"eth0\", \"wg0\"]";
    for mode in ["auto", "native", "generic"] {
        let node = &format!("{interfaces}\nxdp_mode = {mode:?}");
        let finding = find(&config(node, ""), &state, "forwarding");
        assert_eq!((finding.severity, finding.subject.as_str()), (Severity::Crit, "eth0"));
        let sysctl = "sysctl -w net.ipv4.conf.eth0.forwarding=1; sysctl -w net.ipv4.conf.eth0.accept_local=1";
        assert_eq!(remedy(&finding), sysctl);
        let dsr = config(node, "forward = \"dsr-l2\"\nannounce = \"arp\"");
        let finding = find(&dsr, &state, "forwarding");
        assert!(finding.severity == Severity::Crit && finding.place.is_some(), "{finding}");
        assert!(remedy(&finding).ends_with("\"dsr-gue\""), "{finding}");
    }
    let report = judge(&config(interfaces, ""), &state);
    let of = |check| report.findings.iter().filter(move |finding| finding.check == check);
    assert!(of("neighbour").all(|finding| finding.outcome.found == "wg0 needs none"));
    let modes: Vec<&str> = of("xdp-mode").map(|finding| finding.outcome.found.as_str()).collect();
    assert!(modes[0].starts_with("auto: native where") && modes[1].starts_with("generic: "));
}

/// Replies to clients there come from the service's address, by another interface.
#[test]
fn answers_into_a_device_without_ethernet_header() {
    let mut state = machine();
    state.links.push(wireguard(5));
    let strict = Receiving { rp_filter: 1, ..Receiving::default() };
    state.receiving = HashMap::from([("eth0".into(), strict)]);
    let fix = |announce: &str| {
        let node = config("interfaces = [\"wg0\", \"eth0\"]", announce);
        find(&node, &state, "forwarding").remedy().to_string()
    };
    let forwarding = "sysctl -w net.ipv4.conf.eth0.forwarding=1";
    let rp_filter = "sysctl -w net.ipv4.conf.eth0.rp_filter=2";
    assert_eq!(fix("announce = \"routed\""), format!("{forwarding}; {rp_filter}"));
    let local = "sysctl -w net.ipv4.conf.eth0.accept_local=1";
    assert_eq!(fix(""), format!("{forwarding}; {local}; {rp_filter}"));
}

#[test]
fn an_unfit_kernel_forbids_a_start() {
    let probe =
        Probe { kernel: "5.10.0".into(), kernel_ok: false, missing_capabilities: vec!["CAP_BPF"] };
    let mut state = MachineState { probe: Ok(probe), ..machine() };
    state.files.put("/proc/sys/kernel/osrelease", "5.10.0");
    let report = judge(&config(ETH0, ""), &state);
    let failed: Vec<&str> = report.of(Severity::Crit).map(|finding| finding.check).collect();
    assert_eq!(failed, ["kernel", "privileges"]);
}

#[test]
fn checks_of_dsr_backends_need_an_address_that_is_elsewhere() {
    let more = "forward = \"dsr-ipip\"\ncheck = { type = \"tcp\" }";
    for more in [more, "forward = \"dsr-l2\"", "forward = \"dsr-gue\"\nannounce = \"arp\""] {
        let finding = find(&config(ETH0, more), &machine(), "check-road");
        assert_eq!(finding.severity, Severity::Crit, "{more}");
        assert!(finding.place.is_some() && remedy(&finding).contains("announce"), "{finding}");
    }

    let announced = config(ETH0, &format!("{more}\nannounce = \"arp\""));
    let mut state = machine();
    state.paths.extend([path("203.0.113.9", RouteKind::Unicast, 3)]);
    for (rp_filter, elsewhere, here) in [(0, false, false), (1, true, false), (2, false, false)] {
        let now = Receiving { rp_filter, ..Receiving::default() };
        state.receiving = HashMap::from([("eth0".into(), now)]);
        let warned = |state: &MachineState| {
            let report = judge(&announced, state);
            report
                .findings
                .iter()
                .any(|f| f.check == "check-road" && f.outcome.severity == Severity::Warn)
        };
        assert_eq!(warned(&state), elsewhere, "rp_filter {rp_filter}, route elsewhere");
        let mut near = machine();
        near.receiving = state.receiving.clone();
        near.paths.extend([path("203.0.113.9", RouteKind::Unicast, 2)]);
        assert_eq!(warned(&near), here, "rp_filter {rp_filter}, route by the same interface");
    }
}
