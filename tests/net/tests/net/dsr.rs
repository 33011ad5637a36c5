//! dsr-l2, dsr-ipip and dsr-gue carry traffic and health checks: backends have the service address,
//! see their clients' own, and answer past the gateway's program.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use anyhow::{Context, Result, ensure};
use ringway_net_tests::{
    Bulk, Echo, Gateway, Line, SERVICE_V4, SERVICE_V6, SOON, ask_udp, behind_small_link, binary,
    bulk, configuration, get, is_silent, needs_root, packets, service, tool, udp_to,
};
use ringway_testnet::{Child, Families, Namespace, Nginx, Node, TwoArmed, two_armed};
use serde_json::Value;

pub(super) const ECHO: u16 = 7000;
const BULK: u16 = 6999;
const VIPS: [IpAddr; 2] = [SERVICE_V4, SERVICE_V6];
const BOTH: &str = "protocol = [\"tcp\", \"udp\"]\n";
pub(super) const CHECK: &str =
    "check = { type = \"http\", interval = \"200ms\", timeout = \"200ms\", fall = 5 }\n";

/// Who opens the tunnels at the backends.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Opener {
    Nobody,
    Ringway,
    Kernel,
}

/// A gateway that their answers pass as they would any router, and two backends that have the
/// service addresses on `lo`, with what opens their tunnels.
pub(super) fn backends_with_the_addresses(opener: Opener) -> Result<(TwoArmed, Vec<Child>)> {
    some_backends_with_the_addresses(2, opener)
}

pub(super) fn some_backends_with_the_addresses(
    count: usize,
    opener: Opener,
) -> Result<(TwoArmed, Vec<Child>)> {
    let net = two_armed(count, Families::Both)?;
    forwards(&net.gateway, "eth1")?;
    let mut decaps = Vec::new();
    for node in &net.backends {
        have_service_addresses(&node.ns)?;
        match opener {
            Opener::Nobody => {}
            Opener::Kernel => open_by_kernel(node)?,
            Opener::Ringway => {
                let mut command = node.ns.command(binary()?);
                command.args(["decap", "-i", "eth0"]);
                let mut child = node.ns.spawn(command)?;
                child.wait_for_log("attached to eth0", SOON)?;
                decaps.push(child);
            }
        }
    }
    Ok((net, decaps))
}

/// A router, also for packets that come in by this interface from addresses that are elsewhere.
pub(super) fn forwards(node: &Namespace, interface: &str) -> Result<()> {
    node.sysctl("net/ipv4/ip_forward", "1")?;
    node.sysctl("net/ipv6/conf/all/forwarding", "1")?;
    node.sysctl("net/ipv4/conf/all/rp_filter", "0")?;
    Ok(node.sysctl(&format!("net/ipv4/conf/{interface}/rp_filter"), "0")?)
}

pub(super) struct Dsr {
    pub(super) net: TwoArmed,
    pub(super) nginx: Vec<Nginx>,
    pub(super) echo: Vec<Echo>,
    _decaps: Vec<Child>,
}

impl Dsr {
    pub(super) fn new(opener: Opener) -> Result<Dsr> {
        Dsr::serving(opener, 1)
    }

    /// Every backend serves its name at so many ports from 80 on, and echoes as many from [`ECHO`] on.
    fn serving(opener: Opener, ports: u16) -> Result<Dsr> {
        let (net, decaps) = backends_with_the_addresses(opener)?;
        let (mut nginx, mut echo) = (Vec::new(), Vec::new());
        for (n, node) in net.backends.iter().enumerate() {
            nginx.push(serve(&net, n, ports)?);
            for at in at_both(ECHO, ports) {
                echo.push(Echo::start(&node.ns, at, &format!("b{}", n + 1))?);
            }
        }
        Ok(Dsr { net, nginx, echo, _decaps: decaps })
    }

    /// Everything at one service address, to the backends' addresses of one family.
    pub(super) fn configuration(&self, forward: &str, vip: IpAddr, v6: bool) -> String {
        self.checked(forward, vip, v6, "")
    }

    /// The same, with a check of the web servers.
    pub(super) fn checked(&self, forward: &str, vip: IpAddr, v6: bool, check: &str) -> String {
        let one = |name: &str, port: u16, more: &str| {
            self.service(name, forward, SocketAddr::new(vip, port), v6, more)
        };
        let body = one("web", 80, check) + &one("echo", ECHO, BOTH) + &one("bulk", BULK, "");
        configuration(&self.net.gateway, &["eth0", "eth1"], &body)
    }

    fn service(&self, name: &str, forward: &str, at: SocketAddr, v6: bool, more: &str) -> String {
        let own = |node: &Node| node.addresses().into_iter().find(|ip| ip.is_ipv6() == v6);
        let backends = self.net.backends.iter().filter_map(own);
        let backends: Vec<SocketAddr> = backends.map(|ip| (ip, at.port()).into()).collect();
        let more = format!("forward = {forward:?}\nannounce = \"arp\"\n{more}");
        service(name, at, &backends, &more)
    }

    pub(super) fn client(&self) -> &Namespace {
        &self.net.client.ns
    }

    pub(super) fn start(&self, forward: &str, vip: IpAddr, v6: bool) -> Result<Gateway> {
        Gateway::start(&self.net.gateway, &self.configuration(forward, vip, v6))
    }

    fn http(&self, target: SocketAddr) -> Result<()> {
        let names: BTreeSet<String> =
            (0..32).map(|_| get(self.client(), target)).collect::<Result<_>>()?;
        ensure!(names.len() == 2, "answered by {names:?} alone");
        let url = format!("http://{target}/");
        tool(self.client(), "curl", &["-sS", "-f", "--max-time", "30", &url])?.says(0, &["b"])?;
        Ok(())
    }

    fn echoes(&self, target: SocketAddr) -> Result<()> {
        let mut line = Line::open(self.client(), target)?;
        let first = line.ask("first")?;
        for _ in 0..10 {
            ensure!(line.ask("again")? == first, "another backend on one connection");
        }
        // Longer than what is left beside an outer header: the client learns that and sends less at
        // once.
        line.ask(&"x".repeat(20_000)).context("a long line")?;
        let socket = udp_to(self.client(), target)?;
        let first = ask_udp(&socket, "question")?;
        ensure!(ask_udp(&socket, &"y".repeat(1000))? == first, "another backend");
        let clients: BTreeSet<IpAddr> =
            self.echo.iter().flat_map(|echo| echo.seen.addresses()).collect();
        let own: BTreeSet<IpAddr> = self.net.client.addresses().into_iter().collect();
        ensure!(clients.is_subset(&own), "backends saw {clients:?}, not the client's address");
        Ok(())
    }
}

/// Both service addresses, with so many ports from this one on.
fn at_both(first: u16, ports: u16) -> Vec<SocketAddr> {
    let of = |vip: IpAddr| (first..first + ports).map(move |port| SocketAddr::new(vip, port));
    VIPS.into_iter().flat_map(of).collect()
}

pub(super) fn serve(net: &TwoArmed, n: usize, ports: u16) -> Result<Nginx> {
    Ok(Nginx::start(&net.backends[n].ns, &at_both(80, ports), &format!("b{}", n + 1))?)
}

/// docs/forwarding.md, "Every backend".
fn have_service_addresses(backend: &Namespace) -> Result<()> {
    backend.sysctl("net/ipv4/conf/all/arp_ignore", "1")?;
    backend.sysctl("net/ipv4/conf/all/arp_announce", "2")?;
    Ok(backend.ip(&format!(
        "addr add {SERVICE_V4}/32 dev lo\naddr add {SERVICE_V6}/128 dev lo nodad\n"
    ))?)
}

/// docs/forwarding.md, "With the kernel's tunnels".
fn open_by_kernel(node: &Node) -> Result<()> {
    let (v4, v6) = (node.v4.context("IPv4")?, node.v6.context("IPv6")?);
    node.ns.ip(&format!(
        "link add ringway4 type ipip local {v4}\n\
         link add ringway64 type sit local {v4}\n\
         link add ringway6 type ip6tnl mode any local {v6} encaplimit none\n\
         link set ringway4 up\nlink set ringway64 up\nlink set ringway6 up\n\
         fou add port 6080 gue\n"
    ))?;
    tool(&node.ns, "ip", &["-6", "fou", "add", "port", "6080", "gue"])?.done()?;
    for name in ["all", "ringway4", "ringway6"] {
        node.ns.sysctl(&format!("net/ipv4/conf/{name}/rp_filter"), "0")?;
    }
    Ok(())
}

/// False, said aloud, where the kernel has no tunnels of its own.
fn kernel_opens_tunnels() -> Result<bool> {
    let probe = Namespace::new("probe")?;
    for arguments in [
        "link add t4 type ipip local 10.0.0.2",
        "link add t64 type sit local 10.0.0.2",
        "link add t6 type ip6tnl mode any local fd00::2",
        "fou add port 6080 gue",
    ] {
        let output = probe.command("ip").args(arguments.split(' ')).output()?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            eprintln!("SKIPPED: `ip {arguments}`: {}", said.trim());
            return Ok(false);
        }
    }
    Ok(true)
}

/// From a service address to the backends' addresses of one family.
#[derive(Clone, Copy, Debug)]
struct Path {
    forward: &'static str,
    vip: IpAddr,
    v6: bool,
}

/// All there are of these kinds.
fn paths(forwards: &[&'static str]) -> Vec<Path> {
    let of = |forward: &&'static str| {
        let forward = *forward;
        VIPS.into_iter().flat_map(move |vip| [false, true].map(|v6| Path { forward, vip, v6 }))
    };
    let all = forwards.iter().flat_map(of);
    all.filter(|path| path.forward != "dsr-l2" || path.vip.is_ipv6() == path.v6).collect()
}

/// Of each path, by one gateway: HTTP, TCP and UDP get through to both backends, and nothing else of
/// the gateway's has a hand in it. One backend dies, alone; it comes back.
fn every_path_carries(opener: Opener, forwards: &[&'static str]) -> Result<()> {
    let paths = paths(forwards);
    let ports = paths.len() as u16;
    let mut dsr = Dsr::serving(opener, ports)?;
    let mut body = String::new();
    for (n, Path { forward, vip, v6 }) in (0..).zip(&paths) {
        let at = |first: u16| SocketAddr::new(*vip, first + n);
        body += &dsr.service(&format!("web{n}"), forward, at(80), *v6, CHECK);
        body += &dsr.service(&format!("echo{n}"), forward, at(ECHO), *v6, BOTH);
    }
    let text = configuration(&dsr.net.gateway, &["eth0", "eth1"], &body);
    let gateway = Gateway::start(&dsr.net.gateway, &text)?;
    let webs = |status: &Value| -> Vec<Value> {
        let services = status["services"].as_array().into_iter().flatten();
        let is_web = |service: &&Value| service["name"].to_string().contains("web");
        services.filter(is_web).cloned().collect()
    };
    // Of every path: the health of its first backend, for a reason with these words.
    let first_is = |status: &Value, health: &str, why: &str| {
        webs(status).iter().all(|service| {
            let both = &service["backends"];
            let fits = both[0]["health"] == health && both[1]["health"] == "up";
            fits && both[0]["reason"].to_string().contains(why)
        })
    };
    gateway.wait_status("all up", |status| first_is(status, "up", ""))?;
    for (n, path) in (0..).zip(&paths) {
        let what = || format!("{path:?}");
        let before = packets(&gateway.status()?, path.forward);
        dsr.http(SocketAddr::new(path.vip, 80 + n)).with_context(what)?;
        dsr.echoes(SocketAddr::new(path.vip, ECHO + n)).with_context(what)?;
        let status = gateway.status()?;
        ensure!(packets(&status, path.forward) > before + 100, "{path:?}: {status}");
        ensure!(packets(&status, "nat-reply") == 0, "{path:?}: {status}");
        ensure!(webs(&status)[usize::from(n)]["forward"] == path.forward, "{status}");
    }
    dsr.nginx[0].kill()?;
    gateway.wait_status("b1 down, refused", |status| first_is(status, "down", "refused"))?;
    for (n, path) in (0..).zip(&paths) {
        let name = get(dsr.client(), SocketAddr::new(path.vip, 80 + n))?;
        ensure!(name == "b2", "{path:?}: {name}");
    }
    dsr.nginx[0] = serve(&dsr.net, 0, ports)?;
    gateway.wait_status("b1 up", |status| first_is(status, "up", ""))?;
    Ok(())
}

#[test]
fn by_frame_and_by_tunnel() -> Result<()> {
    needs_root!();
    every_path_carries(Opener::Ringway, &["dsr-l2", "dsr-ipip", "dsr-gue"])
}

/// Linux's own tunnels open what Ringway sends.
#[test]
fn the_kernel_opens_tunnels() -> Result<()> {
    needs_root!();
    if !kernel_opens_tunnels()? {
        return Ok(());
    }
    every_path_carries(Opener::Kernel, &["dsr-ipip", "dsr-gue"])
}

/// The client is told how much fits, and all of a long line arrives; with a longer way nobody needs
/// telling.
#[test]
fn long_packets() -> Result<()> {
    needs_root!();
    let dsr = Dsr::new(Opener::Ringway)?;
    let long = "x".repeat(50_000);
    {
        let gateway = dsr.start("dsr-gue", SERVICE_V4, true)?;
        let mut line = Line::open(dsr.client(), SocketAddr::new(SERVICE_V4, ECHO))?;
        line.ask(&long)?;
        let status = gateway.status()?;
        ensure!(packets(&status, "sent-too-big") > 0, "{status}");
    }
    dsr.client().ip("route flush cache\n")?;
    for (namespace, links) in [
        (&dsr.net.switch, "gw b1 b2 br0"),
        (&dsr.net.gateway, "eth1"),
        (&dsr.net.backends[0].ns, "eth0"),
        (&dsr.net.backends[1].ns, "eth0"),
    ] {
        for link in links.split(' ') {
            namespace.ip(&format!("link set {link} mtu 1600\n"))?;
        }
    }
    let gateway = dsr.start("dsr-gue", SERVICE_V4, true)?;
    let mut line = Line::open(dsr.client(), SocketAddr::new(SERVICE_V4, ECHO))?;
    line.ask(&long)?;
    let status = gateway.status()?;
    ensure!(packets(&status, "sent-too-big") == 0, "{status}");
    Ok(())
}

/// A backend that lacks the service address must not make packets go in circles.
#[test]
fn a_backend_without_the_address() -> Result<()> {
    needs_root!();
    let net = two_armed(1, Families::V4)?;
    net.gateway.sysctl("net/ipv4/ip_forward", "1")?;
    net.backends[0].ns.sysctl("net/ipv4/ip_forward", "1")?;
    let backend = net.backends[0].sockets(80)[0];
    let web = service(
        "web",
        SocketAddr::new(SERVICE_V4, 80),
        &[backend],
        "forward = \"dsr-l2\"\nannounce = \"routed\"\n",
    );
    let gateway =
        Gateway::start(&net.gateway, &configuration(&net.gateway, &["eth0", "eth1"], &web))?;
    net.client.ns.ip(&format!("route add {SERVICE_V4}/32 via 10.1.0.1\n"))?;
    ensure!(is_silent(&net.client.ns, SocketAddr::new(SERVICE_V4, 80))?);
    let status = gateway.status()?;
    ensure!(status["services"][0]["answers"] == "routed", "{status}");
    let (sent, loops) = (packets(&status, "dsr-l2"), packets(&status, "loop"));
    ensure!(loops > 0 && sent <= 2 * loops + 2, "{sent} sent, {loops} came back: {status}");
    Ok(())
}

/// A router on the client's side says that an answer does not fit: the backend it came from must
/// learn it, by whatever way its requests come.
#[test]
fn a_small_link_behind_the_clients_router() -> Result<()> {
    needs_root!();
    let dsr = Dsr::new(Opener::Ringway)?;
    let far = behind_small_link(dsr.client(), 1300)?;
    dsr.net.gateway.ip("route add 10.9.0.0/24 via 10.1.0.2\nroute add fd09::/64 via fd01::2\n")?;
    let mut servers = Vec::new();
    for node in &dsr.net.backends {
        for vip in VIPS {
            servers.push(Bulk::start(&node.ns, SocketAddr::new(vip, BULK))?);
        }
    }
    for (forward, vip, v6) in [
        ("dsr-l2", SERVICE_V4, false),
        ("dsr-l2", SERVICE_V6, true),
        ("dsr-ipip", SERVICE_V4, true),
        ("dsr-gue", SERVICE_V6, false),
    ] {
        let _gateway = dsr.start(forward, vip, v6)?;
        // Path MTUs that the backends have learnt before.
        for (node, family) in dsr.net.backends.iter().flat_map(|node| [(node, "-4"), (node, "-6")])
        {
            tool(&node.ns, "ip", &[family, "route", "flush", "cache"])?.done()?;
        }
        for _ in 0..4 {
            bulk(&far, SocketAddr::new(vip, BULK), 0, 4 << 20)
                .with_context(|| format!("{forward}: {vip}, by IPv{}", if v6 { 6 } else { 4 }))?;
        }
    }
    Ok(())
}
