//! `[forward] mode = "route"`: packets between networks go past the kernel, as its routes say.

mod changes;

use std::net::{IpAddr, SocketAddr};

use anyhow::{Context, Result, ensure};
use ringway_net_tests::{
    Bulk, Gateway, SOON, bulk, configuration, get, needs_root, no_ping_is_lost, tool,
};
use ringway_testnet::{
    Child, End, Link, Namespace, Nginx, Signal, VethOptions, XdpReceive, veth, wait_for,
};
use serde_json::Value;

use crate::capture;
use crate::passing::counted;

const HOSTS: [&str; 3] = ["a", "b", "c"];

/// Hosts `a`, `b` and `c`, each in a network of its own (10.N.0.2, fd0N::2), and a router between
/// them with `eth1`, `eth2` and `eth3`.
struct Site {
    router: Namespace,
    hosts: Vec<Namespace>,
    /// The router's.
    links: Vec<Link>,
    /// The hosts'.
    ends: Vec<Link>,
    nginx: Vec<Nginx>,
}

impl Site {
    fn new(options: &VethOptions) -> Result<Site> {
        let site = Site::without_servers(options)?;
        site.served(&[])
    }

    fn without_servers(options: &VethOptions) -> Result<Site> {
        let router = Namespace::new("router")?;
        for key in ["net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"] {
            router.sysctl(key, "1")?;
        }
        let (mut hosts, mut links, mut ends) = (Vec::new(), Vec::new(), Vec::new());
        for (n, name) in (1..).zip(HOSTS) {
            let host = Namespace::new(name)?;
            let (end, link) = cable(&host, &router, n, options)?;
            hosts.push(host);
            links.push(link);
            ends.push(end);
        }
        Ok(Site { router, hosts, links, ends, nginx: Vec::new() })
    }

    /// Every host serves its name at its own addresses and these.
    fn served(mut self, also: &[IpAddr]) -> Result<Site> {
        for ((n, name), host) in (1..).zip(HOSTS).zip(&self.hosts) {
            let own = [address(n, 2, false)?, address(n, 2, true)?];
            let listen: Vec<SocketAddr> =
                own.iter().chain(also).map(|ip| SocketAddr::new(*ip, 80)).collect();
            self.nginx.push(Nginx::start(host, &listen, name)?);
        }
        Ok(self)
    }

    fn a(&self) -> &Namespace {
        &self.hosts[0]
    }

    fn b(&self) -> &Namespace {
        &self.hosts[1]
    }

    fn text(&self, more: &str) -> String {
        let body = format!("[forward]\nmode = \"route\"\n{more}\n");
        configuration(&self.router, &["eth1", "eth2", "eth3"], &body)
    }

    fn start(&self, more: &str) -> Result<Gateway> {
        Gateway::start(&self.router, &self.text(more))
    }

    /// The neighbours are known, so that nothing else has to go by the kernel.
    fn warm_up(&self) -> Result<()> {
        for target in ["10.2.0.2", "fd02::2", "10.3.0.2", "fd03::2"] {
            reached(self.a(), &["-c", "2", "-i", "0.1", target])?;
        }
        Ok(())
    }
}

/// `eth0` of a host and the router's `ethN`, and the host's default routes.
fn cable(
    host: &Namespace,
    router: &Namespace,
    n: u8,
    options: &VethOptions,
) -> Result<(Link, Link)> {
    let end = |ns, name: &str, own: u8| {
        End::new(ns, name)
            .address(format!("10.{n}.0.{own}/24"))
            .address(format!("fd0{n}::{own}/64"))
    };
    let near = end(host, "eth0", 2).xdp_receive(XdpReceive::Gro);
    let links = veth(&near, &end(router, &format!("eth{n}"), 1), options)?;
    host.ip(&format!("route add default via 10.{n}.0.1\nroute add default via fd0{n}::1\n"))?;
    Ok(links)
}

fn address(network: u8, host: u8, v6: bool) -> Result<IpAddr> {
    let text = if v6 { format!("fd0{network}::{host}") } else { format!("10.{network}.0.{host}") };
    Ok(text.parse()?)
}

/// What `ping` says, whatever becomes of it.
fn ping(ns: &Namespace, arguments: &[&str]) -> Result<String> {
    Ok(tool(ns, "ping", &[&["-n", "-W", "2"], arguments].concat())?.said())
}

/// Every echo request is answered.
fn reached(ns: &Namespace, arguments: &[&str]) -> Result<String> {
    let count = arguments.iter().skip_while(|word| **word != "-c").nth(1).context("no -c")?;
    let said = ping(ns, &[&["-w", "30"], arguments].concat())?;
    ensure!(no_ping_is_lost(&said, count.parse()?), "{arguments:?}: {said}");
    Ok(said)
}

/// Requests that a `ping` has sent: more than asked for if an answer was late.
fn requests(said: &str) -> Result<u64> {
    let before = said.split_once(" packets transmitted").context("no summary")?.0;
    Ok(before.rsplit(char::is_whitespace).next().unwrap_or_default().parse()?)
}

/// Packets of these ends at an interface; a status counts all that has happened before it.
fn count(gateway: &Gateway, interface: &str, verdict: &str, reason: &str) -> Result<u64> {
    Ok(counted(&gateway.status()?, interface, verdict, reason))
}

/// Packets that have gone by XDP, and by the kernel.
fn ways(gateway: &Gateway) -> Result<(u64, u64)> {
    let status = gateway.status()?;
    ensure!(status["ledger"]["difference_packets"] == 0, "{}", status["ledger"]);
    ensure!(status["losses"] == Value::Array(vec![]), "{}", status["losses"]);
    let of = |verdict: &str| {
        let counters = status["counters"].as_array().into_iter().flatten();
        let own = counters.filter(|counter| counter["verdict"] == verdict);
        own.filter_map(|counter| counter["packets"].as_u64()).sum::<u64>()
    };
    Ok((of("redirect"), of("pass")))
}

/// Ten packets each way to this address go by XDP, or all by the kernel.
fn goes_by_xdp(gateway: &Gateway, from: &Namespace, target: &str, expected: bool) -> Result<()> {
    let before = ways(gateway)?.0;
    reached(from, &["-c", "10", "-i", "0.02", target])?;
    let packets = ways(gateway)?.0 - before;
    let fits = if expected { packets >= 20 } else { packets == 0 };
    ensure!(fits, "{packets} packets to {target} went by XDP: {}", gateway.status()?);
    Ok(())
}

/// Both families, and between any two: neighbours are found by the kernel, the rest goes past it.
#[test]
fn goes_past_the_kernel_as_the_kernel_would_send_it() -> Result<()> {
    needs_root!();
    let site = Site::new(&VethOptions::default())?;
    let gateway = site.start("")?;
    site.router.ip("neigh flush all\n")?;
    let arrives = sniff(site.b(), "icmp or icmp6")?;
    for target in ["10.2.0.2", "fd02::2"] {
        let said = reached(site.a(), &["-c", "20", "-i", "0.02", target])?;
        let (all, fit) = (said.matches("ttl=").count(), said.matches("ttl=63").count());
        ensure!(all == fit, "one hop less each way: {said}");
    }
    let (own, there) = (site.links[1].mac, site.ends[1].mac);
    let hops = format!("{own} > {there}");
    wait_for("40 requests", SOON, || match arrives.log().matches(&hops).count() {
        40.. => Ok(()),
        less => Err(format!("{less} of {hops}")),
    })?;
    let log = stop(arrives)?;
    ensure!(!log.contains("bad ") && log.contains("ttl 63") && log.contains("hlim 63"), "{log}");
    let status = gateway.status()?;
    // `a` has asked for the router before, which knows it from then on.
    for (interface, unknown) in [("eth1", 2..=8), ("eth2", 0..=8)] {
        let neighbour = counted(&status, interface, "pass", "route-neighbour");
        ensure!(unknown.contains(&neighbour), "{neighbour} at {interface}: {status}");
        let routed = counted(&status, interface, "redirect", "routed");
        ensure!(routed >= 32, "{routed} at {interface}: {status}");
    }

    for (n, host) in (1..).zip(&site.hosts) {
        for (to, name) in (1..).zip(HOSTS).filter(|(to, _)| *to != n) {
            for v6 in [false, true] {
                let answer = get(host, SocketAddr::new(address(to, 2, v6)?, 80))?;
                ensure!(answer == name, "{answer} for {name}");
            }
        }
    }
    let status = gateway.status()?;
    let unfinished = counted(&status, "eth1", "pass", "forward-unfinished");
    let routed = counted(&status, "eth1", "redirect", "routed");
    ensure!(unfinished == 0 && routed > 50, "{status}");
    ways(&gateway)?;
    explained_and_captured(&site, &gateway)
}

/// `explain` foretells both ways; a capture has each routed packet twice, changed by one hop.
fn explained_and_captured(site: &Site, gateway: &Gateway) -> Result<()> {
    for (words, verdict, reason) in [
        ("tcp 10.1.0.2:999 > 10.2.0.2:80", "redirect", "routed"),
        ("tcp 10.1.0.2:999 > 10.1.0.1:80", "pass", "route-none"),
        ("tcp 10.1.0.2:999 > 10.2.0.77:80", "pass", "route-neighbour"),
    ] {
        let ran = gateway.ringway(&["explain", "-i", "eth1", "-o", "json", words])?;
        let said = ran.json().with_context(|| format!("{words}: {}", ran.said()))?;
        ensure!(said["verdict"] == verdict && said["reason"] == reason, "{words}: {said}");
    }
    let ran = gateway.ringway(&["explain", "-i", "eth1", "tcp 10.1.0.2:999 > 10.2.0.2:80"])?;
    ensure!(ran.out.contains("redirect, routed"), "{}", ran.said());

    let file = site.router.directory().join("routed.pcapng");
    let path = file.to_string_lossy().into_owned();
    let running = capture::begin(&site.router, &["-w", &path, "icmp"])?;
    let said = reached(site.a(), &["-c", "5", "-i", "0.05", "10.2.0.2"])?;
    let (code, log) = capture::end(running)?;
    let [captured, lost, matched] = capture::totals(&log)?;
    let all = (10..=2 * requests(&said)?).contains(&captured);
    ensure!(code == 0 && all && lost == 0 && captured == matched, "{code}: {log}");
    let fields = ["frame.interface_name", "frame.comment", "ip.ttl", "eth.dst"];
    let rows = capture::tshark(&site.router, &file, &fields)?;
    let rows: Vec<Vec<&str>> = rows.iter().map(|row| row.split('\t').collect()).collect();
    ensure!(rows.len() as u64 == 2 * captured, "{rows:?}");
    for pair in rows.chunks(2) {
        let [came, left] = pair else { continue };
        ensure!(came[1].starts_with("redirect routed"), "{pair:?}");
        ensure!((came[2], left[2]) == ("64", "63") && came[0] != left[0], "{pair:?}");
        let to = if left[0] == "eth2" { &site.ends[1] } else { &site.ends[0] };
        ensure!(left[3] == to.mac.to_string(), "{pair:?}");
    }
    Ok(())
}

/// tcpdump at a host, once it listens.
fn sniff(ns: &Namespace, filter: &str) -> Result<Child> {
    let mut tcpdump = ns.tool("tcpdump")?;
    tcpdump.args([
        "-n",
        "-e",
        "-v",
        "-l",
        "--immediate-mode",
        "-p",
        "-Z",
        "root",
        "-i",
        "eth0",
        filter,
    ]);
    let mut child = ns.spawn(tcpdump)?;
    child.wait_for_log("listening on", SOON)?;
    Ok(child)
}

fn stop(mut child: Child) -> Result<String> {
    child.signal(Signal::INT)?;
    Ok(child.wait(SOON)?.log)
}

/// Native XDP would lose what is to be finished of them: the kernel has them, and they arrive.
#[test]
fn unfinished_checksums_go_by_the_kernel() -> Result<()> {
    needs_root!();
    let site = Site::new(&VethOptions { offloads: true, ..VethOptions::default() })?;
    let gateway = site.start("")?;
    for v6 in [false, true] {
        let target = SocketAddr::new(address(2, 2, v6)?, 80);
        for _ in 0..10 {
            ensure!(get(site.a(), target)? == "b");
        }
        let target = SocketAddr::new(target.ip(), 9);
        let _bulk = Bulk::start(site.b(), target)?;
        bulk(site.a(), target, 3 << 20, 3 << 20)?;
    }
    for interface in ["eth1", "eth2"] {
        let unfinished = count(&gateway, interface, "pass", "forward-unfinished")?;
        ensure!(unfinished > 100, "{unfinished} at {interface}: {}", gateway.status()?);
    }
    ways(&gateway)?;
    Ok(())
}

/// A flow label of 0, or of bits that would be a tag's, where frames of a VLAN have theirs.
#[test]
fn an_ipv6_header_is_no_tag() -> Result<()> {
    needs_root!();
    let site = Site::without_servers(&VethOptions::default())?;
    for host in &site.hosts {
        host.sysctl("net/ipv6/auto_flowlabels", "0")?;
    }
    let gateway = site.start("")?;
    site.warm_up()?;
    goes_by_xdp(&gateway, site.a(), "fd02::2", true)?;
    for label in ["0x800", "0x6dd"] {
        let before = ways(&gateway)?.0;
        reached(site.a(), &["-F", label, "-c", "10", "-i", "0.02", "fd02::2"])?;
        let packets = ways(&gateway)?.0 - before;
        ensure!(packets >= 20, "{packets} with label {label}: {}", gateway.status()?);
    }
    Ok(())
}

/// What has to be answered, cut, or judged is the kernel's.
#[test]
fn leaves_the_kernel_what_it_has_to_answer() -> Result<()> {
    needs_root!();
    let site = Site::without_servers(&VethOptions::default())?;
    let gateway = site.start("")?;
    site.warm_up()?;
    for (target, router, words) in [
        ("10.2.0.2", "10.1.0.1", "Time to live exceeded"),
        ("fd02::2", "fd01::1", "Time exceeded: Hop limit"),
    ] {
        let said = ping(site.a(), &["-c", "1", "-t", "1", target])?;
        ensure!(said.contains(&format!("From {router}")) && said.contains(words), "{said}");
        let said = reached(site.a(), &["-c", "1", "-t", "2", target])?;
        ensure!(said.contains("ttl=63"), "{said}");
    }
    ensure!(count(&gateway, "eth1", "pass", "route-hop-limit")? == 2, "{}", gateway.status()?);

    too_long(&site, &gateway)?;

    // To groups, and to and from the link itself.
    let before = count(&gateway, "eth1", "redirect", "routed")?;
    let router = format!("{}%eth0", link_local_of(&site.router, "eth1")?);
    for target in [router.as_str(), "ff02::1%eth0", "10.1.0.1", "fd01::1", "10.2.0.1"] {
        let said = ping(site.a(), &["-c", "3", "-i", "0.1", target])?;
        ensure!(said.contains(" 0% packet loss"), "{target}: {said}");
    }
    ping(site.a(), &["-c", "3", "-i", "0.1", "-t", "4", "-I", "eth0", "239.1.1.1"])?;
    let uncommon = count(&gateway, "eth1", "pass", "route-uncommon")?;
    ensure!(uncommon >= 9, "{uncommon}: {}", gateway.status()?);
    ensure!(count(&gateway, "eth1", "redirect", "routed")? == before, "{}", gateway.status()?);
    Ok(())
}

/// A way out that takes less: learnt while the daemon runs.
fn too_long(site: &Site, gateway: &Gateway) -> Result<()> {
    site.router.ip("link set eth2 mtu 1400\n")?;
    site.b().ip("link set eth0 mtu 1400\n")?;
    for (target, router) in [("10.2.0.2", "10.1.0.1"), ("fd02::2", "fd01::1")] {
        let said = ping(site.a(), &["-c", "1", "-M", "do", "-s", "1400", target])?;
        let told = said.contains("mtu = 1400") || said.contains("mtu=1400");
        ensure!(told && said.contains(&format!("From {router}")), "{said}");
    }
    for (target, fits) in [("10.2.0.2", "1372"), ("fd02::2", "1352")] {
        let before = count(gateway, "eth1", "redirect", "routed")?;
        let said = reached(site.a(), &["-c", "3", "-i", "0.1", "-M", "do", "-s", fits, target])?;
        let routed = count(gateway, "eth1", "redirect", "routed")? - before;
        ensure!((3..=requests(&said)?).contains(&routed), "{routed} to {target}");
    }
    let too_long = count(gateway, "eth1", "pass", "forward-too-long")?;
    ensure!(too_long == 2, "{too_long}: {}", gateway.status()?);
    // Cut by the router where the sender allows it, whole or in parts.
    site.a().ip("route flush cache\n")?;
    for size in ["1400", "3000"] {
        reached(site.a(), &["-c", "3", "-i", "0.1", "-M", "dont", "-s", size, "10.2.0.2"])?;
    }
    ensure!(count(gateway, "eth1", "pass", "forward-too-long")? > 2, "{}", gateway.status()?);
    Ok(())
}

fn link_local_of(ns: &Namespace, device: &str) -> Result<String> {
    let text = tool(ns, "ip", &["-6", "-o", "addr", "show", "dev", device])?.out;
    let address = text.split_whitespace().find(|word| word.starts_with("fe80::"));
    Ok(address.and_then(|word| word.split('/').next()).context("no fe80::")?.to_owned())
}

/// Changes of routes are obeyed by the next packet.
#[test]
fn follows_routes_at_once() -> Result<()> {
    needs_root!();
    let site = Site::without_servers(&VethOptions::default())?;
    let far: [IpAddr; 2] = ["10.9.0.1".parse()?, "fd09::1".parse()?];
    for host in &site.hosts[1..] {
        host.ip("addr add 10.9.0.1/32 dev lo\naddr add fd09::1/128 dev lo nodad\n")?;
    }
    site.a().ip("addr add 10.9.0.1/32 dev eth0\naddr add fd09::1/128 dev eth0 nodad\n")?;
    let site = site.served(&far)?;
    site.a().ip("addr del 10.9.0.1/32 dev eth0\naddr del fd09::1/128 dev eth0\n")?;
    let gateway = site.start("")?;
    site.warm_up()?;
    let unrouted = || count(&gateway, "eth1", "pass", "route-none");
    let refused = |target: &str| -> Result<String> {
        let before = unrouted()?;
        let said = ping(site.a(), &["-c", "1", target])?;
        ensure!(unrouted()? > before, "{said}, {}", gateway.status()?);
        Ok(said)
    };
    for v6 in [false, true] {
        let (network, far) = if v6 { ("fd09::/64", far[1]) } else { ("10.9.0.0/24", far[0]) };
        let route = |what: String| site.router.ip(&format!("route {what}\n"));
        let target = SocketAddr::new(far, 80);
        for (n, name) in [(2, "b"), (3, "c"), (2, "b")] {
            route(format!("replace {network} via {}", address(n, 2, v6)?))?;
            let before = ways(&gateway)?.0;
            ensure!(get(site.a(), target)? == name, "{network} via {name}");
            // What the kernel needs to find the neighbour goes by it.
            let by_xdp = ways(&gateway)?.0 - before;
            ensure!(by_xdp >= 5, "{by_xdp} to {name}: {}", gateway.status()?);
        }
        let far = far.to_string();
        route(format!("replace unreachable {network}"))?;
        let said = refused(&far)?;
        ensure!(said.contains("nreachable: ") || said.contains("Host Unreachable"), "{said}");
        // IPv6 keeps both kinds beside each other.
        route(format!("del unreachable {network}"))?;
        route(format!("replace blackhole {network}"))?;
        let said = refused(&far)?;
        ensure!(said.contains("100% packet loss") && !said.contains("From"), "{said}");
        route(format!("del blackhole {network}"))?;
        let said = refused(&far)?;
        ensure!(said.contains("Net Unreachable") || said.contains("No route"), "{said}");
    }
    Ok(())
}
