//! What comes and goes while packets are routed: rules, neighbours, interfaces, and the daemon.

use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use anyhow::{Result, ensure};
use ringway_net_tests::{Gateway, Numbered, SOON, module_is_loaded, needs_root, not_tested, tool};
use ringway_testnet::{Namespace, VethOptions, wait_for};

use super::{Site, address, cable, count, goes_by_xdp, ping, reached, ways};

/// A neighbour that only listens and has another MAC address: the kernel is not sent to by it, so
/// it would believe the old one for ever.
#[test]
fn finds_a_neighbour_again_whose_mac_changes() -> Result<()> {
    needs_root!();
    let site = Site::without_servers(&VethOptions::default())?;
    for family in ["ipv4", "ipv6"] {
        site.router.sysctl(&format!("net/{family}/neigh/eth2/base_reachable_time_ms"), "1000")?;
    }
    let gateway = site.start("")?;
    site.warm_up()?;
    for v6 in [false, true] {
        let end = SocketAddr::new(address(2, 2, v6)?, 5000);
        let receiver = site.b().run(|| UdpSocket::bind(end))??;
        receiver.set_read_timeout(Some(Duration::from_millis(50)))?;
        let any = if v6 { "[::]:0" } else { "0.0.0.0:0" };
        let sender = site.a().run(|| UdpSocket::bind(any))??;
        let arrives = || -> Result<(), String> {
            discard_waiting(&receiver).map_err(|error| error.to_string())?;
            sender.send_to(b"anybody", end).map_err(|error| error.to_string())?;
            receiver.recv(&mut [0; 16]).map(drop).map_err(|error| error.to_string())
        };
        wait_for("the neighbour", SOON, arrives)?;
        let mac = if v6 { "02:72:77:66:00:06" } else { "02:72:77:66:00:04" };
        // Nobody is told of it.
        site.b().ip(&format!("link set eth0 address {mac}\n"))?;
        ensure!(arrives().is_err(), "something arrived by the old address");
        let before = ways(&gateway)?.0;
        wait_for("the neighbour's new address", SOON, arrives)?;
        wait_for("XDP to use it", SOON, || {
            arrives()?;
            match ways(&gateway).map_err(|error| error.to_string())?.0 > before {
                true => Ok(()),
                false => Err(gateway.status().map_or_else(|e| e.to_string(), |s| s.to_string())),
            }
        })?;
    }
    Ok(())
}

/// Takes out what an earlier try has sent.
fn discard_waiting(receiver: &UdpSocket) -> Result<()> {
    receiver.set_nonblocking(true)?;
    while receiver.recv(&mut [0; 32]).is_ok() {}
    Ok(receiver.set_nonblocking(false)?)
}

/// Sends one datagram from this address, and says whether it arrives at `b`.
fn arrives(site: &Site, receiver: &UdpSocket, source: &str) -> Result<bool> {
    discard_waiting(receiver)?;
    let sender = site.a().run(|| UdpSocket::bind((source, 0)))??;
    sender.send_to(b"from somewhere", receiver.local_addr()?)?;
    Ok(receiver.recv(&mut [0; 32]).is_ok())
}

/// Sources are judged as the kernel judges them (RFC 3704), as soon as the daemon sees the setting.
#[test]
fn forged_sources_are_dropped_as_by_the_kernel() -> Result<()> {
    needs_root!();
    let site = Site::without_servers(&VethOptions::default())?;
    // The last is the router's own.
    for source in ["10.7.0.1/32", "10.3.0.9/32", "10.3.0.1/32"] {
        site.a().ip(&format!("addr add {source} dev lo\n"))?;
    }
    let gateway = site.start("")?;
    site.warm_up()?;
    // One for all: while another process is made, what was closed stays open a moment.
    let receiver = site.b().run(|| UdpSocket::bind("10.2.0.2:5000"))??;
    receiver.set_read_timeout(Some(Duration::from_millis(300)))?;
    // Nowhere, behind another interface, the router itself, and where it is.
    let sources = ["10.7.0.1", "10.3.0.9", "10.3.0.1", "10.1.0.2"];
    for (rp_filter, change, expected, judged) in [
        ("1", "", [false, false, false, true], 3),
        ("2", "", [false, true, false, true], 2),
        ("0", "", [true, true, false, true], 1),
        ("0", "addr add 10.3.0.9/32 dev eth3", [true, false, false, true], 2),
        ("0", "addr del 10.3.0.9/32 dev eth3", [true, true, false, true], 1),
        // A network of its own, of which it has no address.
        ("0", "route add local 10.7.0.0/24 dev lo", [false, true, false, true], 2),
    ] {
        site.router.sysctl("net/ipv4/conf/eth1/rp_filter", rp_filter)?;
        site.router.ip(change)?;
        let judge = || -> Result<([bool; 4], [u64; 2])> {
            let counts = || -> Result<[u64; 2]> {
                Ok([count(&gateway, "eth1", "pass", "route-source")?, ways(&gateway)?.0])
            };
            let before = counts()?;
            let mut arrived = [false; 4];
            for (source, arrived) in sources.iter().zip(&mut arrived) {
                *arrived = arrives(&site, &receiver, source)?;
            }
            let after = counts()?;
            Ok((arrived, [after[0] - before[0], after[1] - before[1]]))
        };
        // As soon as the daemon sees the setting.
        wait_for(format!("rp_filter {rp_filter}"), SOON, || {
            let found = judge().map_err(|error| error.to_string())?;
            let wanted = (expected, [judged, 4 - judged]);
            if found == wanted { Ok(()) } else { Err(format!("{found:?}, not {wanted:?}")) }
        })?;
    }
    Ok(())
}

/// A rule that packets would no longer meet: how it is made and taken away, and what is said of it.
struct Obstacle {
    tool: &'static str,
    make: &'static str,
    remove: &'static str,
    said: &'static str,
}

const OBSTACLES: [Obstacle; 4] = [
    Obstacle {
        tool: "ip",
        make: "rule add from 10.1.0.0/24 lookup 100 priority 900",
        remove: "rule del priority 900",
        said: "the routing rule of IPv4 with priority 900, which leads to table 100",
    },
    Obstacle {
        tool: "ip",
        make: "-6 rule add from fd01::/64 lookup 100 priority 901",
        remove: "-6 rule del priority 901",
        said: "the routing rule of IPv6 with priority 901, which leads to table 100",
    },
    Obstacle {
        tool: "nft",
        make: "table inet t { chain f { type filter hook forward priority 0; tcp dport 23 drop; }; }",
        remove: "delete table inet t",
        said: "1 rule of the nft chain inet t f",
    },
    Obstacle {
        tool: "nft",
        make: "table ip n { chain p { type nat hook postrouting priority 100; masquerade; }; }",
        remove: "delete table ip n",
        said: "1 rule of the nft chain ip n p",
    },
];

impl Obstacle {
    fn make(&self, ns: &Namespace) -> Result<()> {
        self.run(ns, self.make)
    }

    fn remove(&self, ns: &Namespace) -> Result<()> {
        self.run(ns, self.remove)
    }

    fn run(&self, ns: &Namespace, words: &str) -> Result<()> {
        let words: Vec<&str> =
            if self.tool == "ip" { words.split(' ').collect() } else { vec![words] };
        tool(ns, self.tool, &words)?.done().map(drop)
    }
}

/// Rules and firewalls that would be bypassed: no start with them, and none is bypassed that comes
/// later; unless that is meant.
#[test]
fn no_rule_of_the_kernels_is_bypassed() -> Result<()> {
    needs_root!();
    let site = Site::without_servers(&VethOptions::default())?;
    for obstacle in &OBSTACLES {
        obstacle.make(&site.router)?;
    }
    let (code, words) = Gateway::launch(&site.router, &site.text(""))?.refusal()?;
    ensure!(code == 1 && words.contains("bypass_firewall = true in [forward]"), "{code}: {words}");
    for obstacle in &OBSTACLES {
        let expected = format!("forwarded packets would not meet {}", obstacle.said);
        ensure!(words.contains(&expected), "no {expected}: {words}");
        obstacle.remove(&site.router)?;
    }
    let gateway = site.start("")?;
    site.warm_up()?;
    for obstacle in &OBSTACLES {
        goes_by_xdp(&gateway, site.a(), "10.2.0.2", true)?;
        obstacle.make(&site.router)?;
        suspended(&gateway, true, obstacle.said)?;
        for target in ["10.2.0.2", "fd02::2"] {
            goes_by_xdp(&gateway, site.a(), target, false)?;
        }
        obstacle.remove(&site.router)?;
        suspended(&gateway, false, "")?;
    }
    goes_by_xdp(&gateway, site.a(), "fd02::2", true)?;
    drop(gateway);

    let gateway = site.start("bypass_firewall = true\n")?;
    for obstacle in &OBSTACLES {
        obstacle.make(&site.router)?;
    }
    // One look at what would be bypassed has this, too, and none of the obstacles.
    for forwards in ["0", "1"] {
        for key in ["net/ipv4/conf/eth1/forwarding", "net/ipv6/conf/all/forwarding"] {
            site.router.sysctl(key, forwards)?;
        }
        port(&gateway, "eth1", forwards == "1")?;
        ensure!(gateway.status()?["forward"]["suspended"] == false, "{}", gateway.status()?);
    }
    goes_by_xdp(&gateway, site.a(), "10.2.0.2", true)?;
    ensure!(gateway.status()?["healthy"] == true, "{}", gateway.status()?["problems"]);
    Ok(())
}

/// Waits for it.
fn suspended(gateway: &Gateway, is: bool, words: &str) -> Result<()> {
    wait_for(format!("suspended: {is}, {words}"), SOON, || {
        let status = gateway.status().map_err(|error| error.to_string())?;
        let problems = status["problems"].to_string();
        let told = problems.contains("forward-suspended") && problems.contains(words);
        let as_told = status["forward"]["suspended"] == is && told == is;
        if as_told { Ok(()) } else { Err(format!("{problems}, {}", status["forward"])) }
    })?;
    Ok(())
}

/// The daemon's death costs no packet: XDP goes on, then the kernel takes over, then XDP again.
#[test]
fn no_packet_is_lost_with_the_daemon() -> Result<()> {
    needs_root!();
    let site = Site::without_servers(&VethOptions::default())?;
    let mut gateway = site.start("")?;
    site.warm_up()?;
    let end: SocketAddr = "10.2.0.2:5000".parse()?;
    let stream = Numbered::start(site.a(), end, (site.b(), end))?;

    gateway.kill()?;
    // Its tables count for five seconds, and it has renewed them every second.
    let killed = ways(&gateway)?.0;
    wait_for("the kernel's turn", SOON, || {
        let stale = count(&gateway, "eth1", "pass", "forward-stale").map_err(|e| e.to_string())?;
        if stale > 0 { Ok(()) } else { Err("by XDP yet".to_owned()) }
    })?;
    ensure!(ways(&gateway)?.0 > killed, "nothing by XDP after its death");
    goes_by_xdp_beside(&gateway, false)?;
    reached(site.a(), &["-c", "10", "-i", "0.02", "fd02::2"])?;

    gateway.start_healthy()?;
    goes_by_xdp_beside(&gateway, true)?;
    gateway.terminate()?;
    gateway.start_healthy()?;
    goes_by_xdp_beside(&gateway, true)?;
    gateway.terminate()?;
    let ran = gateway.plain(&["detach", "--node", gateway.node()])?;
    ensure!(ran.code == 0 && !gateway.pins().exists(), "{}", ran.said());
    for target in ["10.2.0.2", "fd02::2"] {
        reached(site.a(), &["-c", "10", "-i", "0.02", target])?;
    }
    let sent = stream.finish()?;
    ensure!(sent > 500, "{sent}");
    Ok(())
}

/// The stream goes by XDP now, or by the kernel alone.
fn goes_by_xdp_beside(gateway: &Gateway, expected: bool) -> Result<()> {
    let mut last = ways(gateway)?;
    wait_for(format!("by XDP: {expected}"), SOON, || {
        let now = ways(gateway).map_err(|error| error.to_string())?;
        let more = (now.0 - last.0, now.1 - last.1);
        let is = if expected { more.0 > 50 } else { more.0 == 0 && more.1 > 50 };
        if !expected && more.0 > 0 {
            last = now;
        }
        if is { Ok(()) } else { Err(format!("{more:?} more packets")) }
    })?;
    Ok(())
}

/// To and from an interface that is not forwarded on, by the kernel; and one that is made again.
#[test]
fn interfaces_left_out_gone_and_back() -> Result<()> {
    needs_root!();
    let mut site = Site::without_servers(&VethOptions::default())?;
    let gateway = site.start("interfaces = [\"eth1\", \"eth2\"]\n")?;
    site.warm_up()?;
    goes_by_xdp(&gateway, site.a(), "10.2.0.2", true)?;
    for (host, target) in [(0, "10.3.0.2"), (2, "10.1.0.2"), (2, "fd02::2")] {
        goes_by_xdp(&gateway, &site.hosts[host], target, false)?;
    }
    let elsewhere = count(&gateway, "eth1", "pass", "route-elsewhere")?;
    ensure!(elsewhere >= 20, "{elsewhere}: {}", gateway.status()?);

    // Down, and up again: the carrier's return is a new start.
    site.router.ip("link set eth2 down\n")?;
    let said = ping(site.a(), &["-c", "1", "10.2.0.2"])?;
    ensure!(said.contains("100% packet loss"), "{said}");
    port(&gateway, "eth2", false)?;
    site.router.ip("link set eth2 up\naddr replace fd02::1/64 dev eth2 nodad\n")?;
    port(&gateway, "eth2", true)?;
    site.warm_up()?;
    goes_by_xdp(&gateway, site.a(), "10.2.0.2", true)?;

    site.router.ip("link del eth2\n")?;
    port(&gateway, "eth2", false)?;
    goes_by_xdp(&gateway, site.a(), "10.3.0.2", false)?;
    site.ends[1] = cable(&site.hosts[1], &site.router, 2, &VethOptions::default())?.0;
    port(&gateway, "eth2", true)?;
    gateway.wait_status("a healthy gateway", |status| status["healthy"] == true)?;
    site.warm_up()?;
    for target in ["10.2.0.2", "fd02::2"] {
        goes_by_xdp(&gateway, site.a(), target, true)?;
    }
    Ok(())
}

fn port(gateway: &Gateway, name: &str, forwards: bool) -> Result<()> {
    gateway.wait_status(&format!("{name} forwards: {forwards}"), |status| {
        let mut ports = status["forward"]["interfaces"].as_array().into_iter().flatten();
        ports.any(|port| port["interface"] == name && port["forwards"] == forwards)
    })?;
    Ok(())
}

/// VLAN devices on one side and on both: tags come off and are put on.
#[test]
fn between_vlan_devices() -> Result<()> {
    needs_root!();
    if !module_is_loaded("8021q") {
        not_tested("this kernel has no 8021q, or has not loaded it");
        return Ok(());
    }
    let site = Site::without_servers(&VethOptions::default())?;
    for (n, vlan) in [(2, 7), (3, 8)] {
        let router = (&site.router, format!("eth{n}"), 1);
        let host = (&site.hosts[n - 1], "eth0".to_owned(), 2);
        for (ns, below, own) in [router, host] {
            tool(ns, "ethtool", &["-K", &below, "rxvlan", "off", "txvlan", "off"])?.done()?;
            ns.ip(&format!(
                "link add link {below} name {below}.{vlan} type vlan id {vlan}\n\
                 link set {below}.{vlan} up\naddr add 10.{n}{n}.0.{own}/24 dev {below}.{vlan}\n\
                 addr add fd{n}{n}::{own}/64 dev {below}.{vlan} nodad\n"
            ))?;
        }
    }
    site.hosts[2].ip("route add 10.22.0.0/24 via 10.33.0.1\nroute add fd22::/64 via fd33::1\n")?;
    site.hosts[1].ip("route add 10.33.0.0/24 via 10.22.0.1\nroute add fd33::/64 via fd22::1\n")?;
    let interfaces = r#""eth1", "eth2", "eth2.7", "eth3", "eth3.8""#;
    let text = site.text("").replacen(r#""eth1", "eth2", "eth3""#, interfaces, 1);
    let gateway = Gateway::start(&site.router, &text)?;
    for (host, target) in
        [(0, "10.22.0.2"), (0, "fd22::2"), (2, "10.22.0.2"), (2, "fd22::2"), (0, "10.2.0.2")]
    {
        reached(&site.hosts[host], &["-c", "2", "-i", "0.1", target])?;
        goes_by_xdp(&gateway, &site.hosts[host], target, true)?;
    }
    Ok(())
}
