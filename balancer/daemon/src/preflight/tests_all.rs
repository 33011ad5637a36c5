//! The rules that `ringway check --host` has beside those of the start, on made-up machines.

use std::collections::HashMap;

use ringway_api::documents::status::{Backend, Service};
use ringway_config::{Forward, Protocol};
use ringway_doctor::{Outcome, Severity};
use ringway_host::Mac;
use ringway_host::ethtool::{Channels, Offloads};
use ringway_host::firewall::{Place, Rule};
use ringway_host::netlink::links::{Link, VlanTag};
use ringway_host::netlink::neighbours::{Neighbour, NeighbourState};
use ringway_host::netlink::routes::RouteKind;
use ringway_host::netlink::xdp_features::XdpFeatures;
use ringway_kernel::XdpMode;
use ringway_plan::tables::ServiceKey;

use super::judge;
use super::machine_state::{Answerer, MachineState};
use super::tests::{ETH0, config, find, found, ip, link, machine, path, remedy};
use crate::health::Health;

fn card(driver: &str) -> MachineState {
    MachineState { drivers: [("eth0".into(), driver.into())].into(), cpus: 4, ..machine() }
}

fn features(bits: u64) -> HashMap<String, XdpFeatures> {
    [("eth0".into(), XdpFeatures(bits))].into()
}

fn has(state: &MachineState, node: &str, check: &str) -> Option<Outcome> {
    let findings = judge(&config(node, ""), state).findings;
    findings.into_iter().find(|finding| finding.check == check).map(|finding| finding.outcome)
}

/// The doctor judges for a balancer: elsewhere it is information.
#[test]
fn a_hardened_jit_is_warned_of() {
    let mut state = machine();
    state.files.put("/proc/sys/net/core/bpf_jit_harden", "2");
    let mut warnings = judge(&config(ETH0, ""), &state).findings;
    warnings.retain(|one| one.check == "bpf-jit" && one.outcome.severity == Severity::Warn);
    assert_eq!(remedy(&warnings[0].outcome), "sysctl -w net.core.bpf_jit_harden=1");
}

#[test]
fn native_or_generic_and_why() {
    let native = format!("{ETH0}\nxdp_mode = \"native\"");
    let able = MachineState { features: features(7), ..card("ice") };
    assert!(found(&able, "xdp-mode").found.starts_with("auto: native, driver ice"));
    let unable = MachineState { features: features(0), ..card("e1000e") };
    let finding = found(&unable, "xdp-mode");
    assert_eq!(finding.severity, Severity::Ok, "{finding}");
    assert!(finding.found.starts_with("auto: generic, because"), "{finding}");
    let finding = find(&config(&native, ""), &unable, "xdp-mode");
    assert!(finding.severity == Severity::Crit && finding.place.is_some(), "{finding}");
    assert_eq!(find(&config(&native, ""), &card("e1000e"), "xdp-mode").severity, Severity::Ok);
}

/// A program on a device upon a NIC meets what the NIC's GRO has joined.
#[test]
fn gro_below_interfaces_of_ours() {
    let upon = |kind: &str, vlan: Option<VlanTag>| Link {
        kind: Some(kind.into()),
        lower: (kind != "bridge" && kind != "bond").then_some(2),
        vlan,
        ..link(4, "up0")
    };
    let with = |upper: Link, gro: bool| {
        let mut state = machine();
        if upper.lower.is_none() {
            state.links[0].master = Some(upper.ifindex);
        }
        state.links.push(upper);
        state.offloads.insert("eth0".into(), Offloads { gro, ..Offloads::default() });
        state
    };
    let ours = "interfaces = [\"up0\"]";
    let tag = Some(VlanTag { protocol: 0x8100, id: 5 });
    for (upper, fix) in [
        (upon("bridge", None), "; or name the ports of up0 in [node] interfaces instead"),
        (upon("vlan", tag), "; or name eth0 beside up0 in [node] interfaces"),
        (upon("macvlan", None), ""),
    ] {
        let finding = has(&with(upper.clone(), true), ours, "gro").expect("a line");
        let said = (finding.severity, finding.subject.as_str(), remedy(&finding));
        assert_eq!(said, (Severity::Warn, "eth0", format!("ethtool -K eth0 gro off{fix}")));
        let finding = has(&with(upper.clone(), false), ours, "gro").expect("a line");
        assert_eq!(finding.severity, Severity::Ok);
        // The program is on the NIC itself then, and the kernel joins nothing; or nowhere above.
        let both = "interfaces = [\"eth0\", \"up0\"]";
        assert_eq!(has(&with(upper.clone(), true), both, "gro"), None);
        assert_eq!(has(&with(upper, true), "interfaces = [\"eth1\"]", "gro"), None);
    }
    // Through a bond; and the bond itself, unless its program is in the driver.
    let mut state = with(upon("bond", None), true);
    state.links.push(Link { lower: Some(4), vlan: tag, ..upon("vlan", tag) });
    (state.links[3].ifindex, state.links[3].name) = (5, "up0.5".into());
    let vlan = "interfaces = [\"up0.5\"]";
    assert_eq!(has(&state, vlan, "gro").map(|finding| finding.severity), Some(Severity::Warn));
    let generic = format!("{ours}\nxdp_mode = \"generic\"");
    assert_eq!(has(&state, &generic, "gro").map(|finding| finding.severity), Some(Severity::Warn));
    assert_eq!(has(&state, ours, "gro"), None);
    state.offloads.remove("eth0");
    assert_eq!(has(&state, vlan, "gro").map(|finding| finding.severity), Some(Severity::Unknown));
}

#[test]
fn drivers_that_stop_for_a_program() {
    // vmxnet3 has native XDP from 6.6 on, which tells so.
    for (driver, severity) in [
        ("mlx5_core", Severity::Warn),
        ("i40e", Severity::Warn),
        ("virtio_net", Severity::Ok),
        ("vmxnet3", Severity::Ok),
    ] {
        assert_eq!(found(&card(driver), "link-reset").severity, severity, "{driver}");
    }
    let able = MachineState { features: features(7), ..card("vmxnet3") };
    assert_eq!(found(&able, "link-reset").severity, Severity::Warn);
    let there =
        MachineState { own_links: Some([(2, XdpMode::Native)].into()), ..card("mlx5_core") };
    assert_eq!(found(&there, "link-reset").severity, Severity::Ok);
    let generic = config(&format!("{ETH0}\nxdp_mode = \"generic\""), "");
    assert_eq!(find(&generic, &card("mlx5_core"), "link-reset").severity, Severity::Ok);
}

#[test]
fn queues_for_sending() {
    let with = |driver: &str, rx: u32, max: u32| {
        let channels = Channels { rx, tx: rx, max_rx: max, max_tx: max, apart: false };
        MachineState { channels: [("eth0".into(), channels)].into(), ..card(driver) }
    };
    let fix = |state: &MachineState| found(state, "driver-queues").remedy().to_string();
    assert_eq!(fix(&with("virtio_net", 8, 8)), "ethtool -L eth0 combined 4");
    assert!(fix(&with("virtio_net", 2, 2)).starts_with("give the machine more queues"));
    // In the kernel's generic path nothing is asked of the driver.
    let generic = config(&format!("{ETH0}\nxdp_mode = \"generic\""), "");
    assert_eq!(find(&generic, &with("virtio_net", 8, 8), "driver-queues").severity, Severity::Ok);
}

#[test]
fn packets_that_the_card_merges() {
    let mut state = card("ixgbe");
    state.offloads.insert("eth0".into(), Offloads { lro: true, ..Offloads::default() });
    let finding = found(&state, "lro");
    let want = (Severity::Warn, "ethtool -K eth0 lro off");
    assert_eq!((finding.severity, remedy(&finding).as_str()), want);
    let generic = config(&format!("{ETH0}\nxdp_mode = \"generic\""), "");
    assert_eq!(find(&generic, &state, "lro").severity, Severity::Ok);
}

#[test]
fn bonds() {
    let mut state = card("bonding");
    state.links[0].kind = Some("bond".into());
    state.links.push(Link { master: Some(2), ..link(5, "enp1s0") });
    state.offloads.insert("enp1s0".into(), Offloads::default());
    state.drivers.insert("enp1s0".into(), "ixgbe".into());
    let finding = found(&state, "bond-xdp");
    assert_eq!(finding.severity, Severity::Unknown, "{finding}");
    assert!(finding.found.contains("enp1s0 (ixgbe)"), "{finding}");
    state.features = features(3);
    assert_eq!(found(&state, "bond-xdp").severity, Severity::Ok);
}

#[test]
fn a_far_end_in_another_namespace_shows_by_what_the_kernel_redirects() {
    let mut state = card("veth");
    state.links[0].kind = Some("veth".into());
    (state.links[0].lower, state.links[0].lower_elsewhere) = (Some(3), true);
    for (bits, told) in [(3, vec![Severity::Warn]), (7, vec![Severity::Ok])] {
        state.features = features(bits);
        let findings = judge(&config(ETH0, ""), &state).findings;
        let about = findings.iter().filter(|finding| finding.check == "veth-checksum");
        assert_eq!(about.map(|finding| finding.outcome.severity).collect::<Vec<_>>(), told);
    }
}

#[test]
fn room_for_tunnels() {
    let of =
        |more: &str| config(ETH0, &format!("forward = \"dsr-gue\"\nannounce = \"arp\"\n{more}"));
    let severity = |more: &str, state: &MachineState| find(&of(more), state, "mtu").severity;
    let mut state = machine();
    assert_eq!(severity("", &state), Severity::Ok);
    let clamped = find(&of(""), &state, "mtu").found;
    assert!(clamped.contains("mss_clamp bounds what backends send"), "{clamped}");
    assert!(clamped.contains("advmss 1432"), "{clamped}");
    assert_eq!(severity("mss_clamp = \"off\"", &state), Severity::Warn);
    let finding = find(&of("protocol = \"udp\""), &state, "mtu");
    assert_eq!(finding.severity, Severity::Warn);
    assert!(remedy(&finding).starts_with("ip link set dev eth0 mtu 1528"), "{finding}");
    // Clients come by eth0 with 1500 bytes, backends are behind an eth1 with room.
    state.links[1].mtu = 1528;
    state.paths.extend([path("10.0.0.2", RouteKind::Unicast, 3)]);
    assert_eq!(severity("protocol = \"udp\"", &state), Severity::Ok);
}

#[test]
fn ipv6_needs_1280_bytes_inside_a_tunnel() {
    let text = format!(
        "[node]\nname = \"gw\"\n{ETH0}\n[[service]]\nname = \"web\"\naddress = \"2001:db8::9\"\n\
         port = 80\nforward = \"dsr-gue\"\nannounce = \"arp\"\nbackends = [{{ address = \"fd00::2\" }}]\n"
    );
    let config = ringway_config::parse(&text, "ringway.toml").expect("valid");
    let mut state = machine();
    state.paths.extend([path("fd00::2", RouteKind::Unicast, 2)]);
    // GUE over IPv6 takes 48.
    for (mtu, severity) in [(1300, Severity::Warn), (1327, Severity::Warn), (1328, Severity::Ok)] {
        state.links[0].mtu = mtu;
        let finding = find(&config, &state, "mtu");
        assert_eq!(finding.severity, severity, "{mtu}: {finding}");
        let raised = remedy(&finding).starts_with("ip link set dev eth0 mtu 1328 or more");
        assert_eq!(raised, severity == Severity::Warn, "{finding}");
    }
}

#[test]
fn firewall_rules_that_see_nothing() {
    let rule = |destinations: &str, port: u16, owner| Rule {
        place: Place {
            family: "inet".into(),
            table: "filter".into(),
            chain: "input".into(),
            handle: Some(4),
        },
        text: "dropped".into(),
        removal: "nft delete rule inet filter input handle 4".into(),
        destinations: destinations.parse().ok().map(|address| (address, 32)).into_iter().collect(),
        ports: vec![(port, port)],
        owner,
        protocol: None,
    };
    let found = |rules| found(&MachineState { firewall: Some(rules), ..machine() }, "firewall");
    let finding = found(Ok(vec![rule("203.0.113.9", 80, None)]));
    assert_eq!(finding.severity, Severity::Warn);
    assert_eq!(remedy(&finding), "nft delete rule inet filter input handle 4");
    for (owner, fix) in
        [("Docker", "docker ps --filter publish=80"), ("firewalld", "--remove-port=80/tcp")]
    {
        let finding = found(Ok(vec![rule("", 80, Some(owner))]));
        assert!(remedy(&finding).contains(fix), "{finding}");
    }
    assert_eq!(found(Ok(vec![rule("203.0.113.9", 81, None)])).severity, Severity::Ok);
    assert_eq!(found(Ok(vec![rule("203.0.113.8", 80, None)])).severity, Severity::Ok);
    assert_eq!(found(Err("no nft".into())).severity, Severity::Unknown);
    assert!(has(&machine(), ETH0, "firewall").is_none(), "not looked at");
}

#[test]
fn dsr_backends_must_be_quiet() {
    let dsr = config(ETH0, "forward = \"dsr-l2\"\nannounce = \"arp\"");
    let mac = Mac([2, 0, 0, 0, 0, 9]);
    let answer =
        |answers| MachineState { answering: [(ip("203.0.113.9"), answers)].into(), ..machine() };
    assert_eq!(find(&dsr, &answer(Ok(vec![])), "arp-quiet").severity, Severity::Ok);
    assert_eq!(find(&dsr, &answer(Err("denied".into())), "arp-quiet").severity, Severity::Unknown);
    let mut state = answer(Ok(vec![Answerer { interface: "eth0".into(), mac }]));
    let finding = find(&dsr, &state, "arp-quiet");
    assert_eq!(finding.severity, Severity::Warn, "{finding}");
    assert!(finding.found.contains(&mac.to_string()), "{finding}");
    state.neighbours = vec![Neighbour {
        ifindex: 2,
        address: ip("10.0.0.2"),
        mac: Some(mac),
        state: NeighbourState::Reachable,
        managed: true,
    }];
    let finding = find(&dsr, &state, "arp-quiet");
    assert_eq!(finding.severity, Severity::Crit);
    assert!(finding.found.starts_with("backend 10.0.0.2 (02:00:00:00:00:09) answers"), "{finding}");
    assert!(remedy(&finding).contains("net.ipv4.conf.all.arp_ignore=1"), "{finding}");
}

#[test]
fn whether_dsr_backends_take_packets_their_checks_tell() {
    let text = "forward = \"dsr-ipip\"\nannounce = \"arp\"";
    let checked = config(ETH0, &format!("{text}\ncheck = {{ type = \"tcp\" }}"));
    let with = |health| {
        let backend = Backend {
            health,
            reason: Some("timed out".into()),
            ..Backend::new("10.0.0.2:80".parse().expect("an address"))
        };
        let key = ServiceKey::new("203.0.113.9".parse().expect("an address"), 80, Protocol::Tcp);
        let backends = vec![backend];
        let service = Service { backends, ..Service::new("web", key, Forward::DsrL2) };
        MachineState { thorough: true, health: Some(vec![service]), ..machine() }
    };
    assert_eq!(find(&checked, &with(Health::Up), "dsr-backend").severity, Severity::Ok);
    let finding = find(&checked, &with(Health::Down), "dsr-backend");
    assert_eq!(finding.severity, Severity::Warn, "{finding}");
    assert!(finding.found.ends_with("fails: timed out"), "{finding}");
    let words = "ip address add 203.0.113.9/32 dev lo; ringway decap";
    assert!(remedy(&finding).contains(words), "{finding}");
    let nobody = MachineState { health: None, ..with(Health::Up) };
    assert_eq!(find(&checked, &nobody, "dsr-backend").severity, Severity::Unknown);
    let finding = find(&config(ETH0, text), &with(Health::Unchecked), "dsr-backend");
    assert_eq!(finding.severity, Severity::Unknown, "{finding}");
    assert!(remedy(&finding).starts_with("write check"), "{finding}");
}
