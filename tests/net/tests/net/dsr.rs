//! dsr-l2, dsr-ipip and dsr-gue carry traffic: backends have the service address, see their
//! clients' own, and answer past the gateway's program.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr, UdpSocket};

use anyhow::{Context, Result, ensure};
use ringway_net_tests::{
    Bulk, Echo, Gateway, Line, SERVICE_V4, SERVICE_V6, SOON, ask_udp, behind_small_link, binary,
    bulk, configuration, get, is_silent, needs_root, packets, service,
};
use ringway_testnet::{Child, Families, Namespace, Nginx, Node, TwoArmed, two_armed};

pub(super) const ECHO: u16 = 7000;
const BULK: u16 = 7001;
const VIPS: [IpAddr; 2] = [SERVICE_V4, SERVICE_V6];

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
        let (net, decaps) = backends_with_the_addresses(opener)?;
        let (mut nginx, mut echo) = (Vec::new(), Vec::new());
        for (n, node) in net.backends.iter().enumerate() {
            let name = format!("b{}", n + 1);
            nginx.push(Nginx::start(&node.ns, &VIPS.map(|vip| SocketAddr::new(vip, 80)), &name)?);
            for vip in VIPS {
                echo.push(Echo::start(&node.ns, SocketAddr::new(vip, ECHO), &name)?);
            }
        }
        Ok(Dsr { net, nginx, echo, _decaps: decaps })
    }

    /// Everything at one service address, to the backends' addresses of one family.
    pub(super) fn configuration(&self, forward: &str, vip: IpAddr, v6: bool) -> String {
        let address = |node: &Node| node.addresses().into_iter().find(|ip| ip.is_ipv6() == v6);
        let one = |name: &str, port: u16, more: &str| {
            let backends = self.net.backends.iter().filter_map(address);
            let backends: Vec<SocketAddr> = backends.map(|ip| (ip, port).into()).collect();
            let more = format!("forward = {forward:?}\nannounce = \"arp\"\n{more}");
            service(name, SocketAddr::new(vip, port), &backends, &more)
        };
        let body = one("web", 80, "")
            + &one("echo", ECHO, "protocol = [\"tcp\", \"udp\"]\n")
            + &one("bulk", BULK, "");
        configuration(&self.net.gateway, &["eth0", "eth1"], &body)
    }

    pub(super) fn client(&self) -> &Namespace {
        &self.net.client.ns
    }

    pub(super) fn start(&self, forward: &str, vip: IpAddr, v6: bool) -> Result<Gateway> {
        Gateway::start(&self.net.gateway, &self.configuration(forward, vip, v6))
    }

    /// HTTP, TCP and UDP get through to both backends, and nothing else of the gateway's has a hand
    /// in it.
    fn carries(&self, forward: &str, vip: IpAddr, v6: bool) -> Result<()> {
        let what = || format!("{forward}: {vip}, backends by {}", if v6 { "IPv6" } else { "IPv4" });
        let gateway = self.start(forward, vip, v6).with_context(what)?;
        self.http(vip).with_context(what)?;
        self.echoes(vip).with_context(what)?;
        let status = gateway.status()?;
        ensure!(packets(&status, forward) > 100, "{}: {status}", what());
        ensure!(packets(&status, "nat-reply") == 0, "{}: {status}", what());
        ensure!(status["services"][0]["forward"] == forward, "{status}");
        Ok(())
    }

    fn http(&self, vip: IpAddr) -> Result<()> {
        let target = SocketAddr::new(vip, 80);
        let names: BTreeSet<String> =
            (0..32).map(|_| get(self.client(), target)).collect::<Result<_>>()?;
        ensure!(names.len() == 2, "answered by {names:?} alone");
        let url = format!("http://{target}/");
        let mut curl = self.client().command("curl");
        let output = curl.args(["-sS", "-f", "--max-time", "30", &url]).output()?;
        let said = String::from_utf8_lossy(&output.stdout);
        ensure!(output.status.success() && said.starts_with('b'), "curl {url}: {output:?}");
        Ok(())
    }

    fn echoes(&self, vip: IpAddr) -> Result<()> {
        let target = SocketAddr::new(vip, ECHO);
        let mut line = Line::open(self.client(), target)?;
        let first = line.ask("first")?;
        for _ in 0..10 {
            ensure!(line.ask("again")? == first, "another backend on one connection");
        }
        // Longer than what is left beside an outer header: the client learns that and sends less at
        // once.
        line.ask(&"x".repeat(20_000)).context("a long line")?;
        let any = if vip.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
        let socket = self.client().run(|| UdpSocket::bind(any))??;
        socket.connect(target)?;
        let first = ask_udp(&socket, "question")?;
        ensure!(ask_udp(&socket, &"y".repeat(1000))? == first, "another backend");
        let clients: BTreeSet<IpAddr> =
            self.echo.iter().flat_map(|echo| echo.seen.addresses()).collect();
        let own: BTreeSet<IpAddr> = self.net.client.addresses().into_iter().collect();
        ensure!(clients.is_subset(&own), "backends saw {clients:?}, not the client's address");
        Ok(())
    }
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
    let output =
        node.ns.command("ip").args(["-6", "fou", "add", "port", "6080", "gue"]).output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
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

fn every_tunnel(dsr: &Dsr, forward: &str) -> Result<()> {
    for vip in VIPS {
        for v6 in [false, true] {
            dsr.carries(forward, vip, v6)?;
        }
    }
    Ok(())
}

#[test]
fn by_frame() -> Result<()> {
    needs_root!();
    let dsr = Dsr::new(Opener::Nobody)?;
    dsr.carries("dsr-l2", SERVICE_V4, false)?;
    dsr.carries("dsr-l2", SERVICE_V6, true)
}

#[test]
fn by_ipip() -> Result<()> {
    needs_root!();
    every_tunnel(&Dsr::new(Opener::Ringway)?, "dsr-ipip")
}

#[test]
fn by_gue() -> Result<()> {
    needs_root!();
    every_tunnel(&Dsr::new(Opener::Ringway)?, "dsr-gue")
}

/// Linux's own tunnels open what Ringway sends.
#[test]
fn the_kernel_opens_tunnels() -> Result<()> {
    needs_root!();
    if !kernel_opens_tunnels()? {
        return Ok(());
    }
    let dsr = Dsr::new(Opener::Kernel)?;
    every_tunnel(&dsr, "dsr-ipip")?;
    every_tunnel(&dsr, "dsr-gue")
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
            let mut ip = node.ns.command("ip");
            ensure!(ip.args([family, "route", "flush", "cache"]).status()?.success());
        }
        for _ in 0..4 {
            bulk(&far, SocketAddr::new(vip, BULK), 0, 4 << 20)
                .with_context(|| format!("{forward}: {vip}, by IPv{}", if v6 { 6 } else { 4 }))?;
        }
    }
    Ok(())
}
