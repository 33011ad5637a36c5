//! Backends behind a device that a redirect from native XDP cannot enter: the kernel forwards.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use anyhow::{Result, ensure};
use ringway_net_tests::{
    ECHO, Echo, Gateway, SERVICE_V6, WEB, ask_udp, configuration, get, needs_root, service, udp_to,
};
use ringway_testnet::{End, Namespace, Nginx, VethOptions, XdpReceive, bridge, veth};
use serde_json::Value;

const WEB_V6: SocketAddr = SocketAddr::new(SERVICE_V6, 80);
/// `auto` would make all generic.
const NATIVE: &str = "xdp_mode = \"native\"";

/// A client, and a gateway that is also the host of three backends on its bridge `br0`, as a
/// container engine arranges them.
struct Site {
    client: Namespace,
    gateway: Namespace,
    _backends: Vec<Namespace>,
    _nginx: Vec<Nginx>,
    _echo: Vec<Echo>,
}

impl Site {
    fn new() -> Result<Site> {
        let (client, gateway) = (Namespace::new("client")?, Namespace::new("gw")?);
        let options = VethOptions::default();
        let outer = End::new(&gateway, "eth0").address("10.1.0.1/24").address("fd01::1/64");
        let eth0 = End::new(&client, "eth0").address("10.1.0.2/24").address("fd01::2/64");
        veth(&eth0.xdp_receive(XdpReceive::Pass), &outer, &options)?;
        bridge(&gateway, "br0", &["10.2.0.1/24", "fd02::1/64"])?;
        let (mut backends, mut nginx, mut echo) = (Vec::new(), Vec::new(), Vec::new());
        for n in 1..=3 {
            let backend = Namespace::new(&format!("b{n}"))?;
            let (v4, v6) = (format!("10.2.0.1{n}"), format!("fd02::1{n}"));
            let end = End::new(&backend, "eth0");
            let end = end.address(format!("{v4}/24")).address(format!("{v6}/64"));
            veth(&end, &End::new(&gateway, &format!("b{n}")).port_of("br0"), &options)?;
            let listen = [SocketAddr::new(v4.parse()?, 80), SocketAddr::new(v6.parse()?, 80)];
            nginx.push(Nginx::start(&backend, &listen, &format!("b{n}"))?);
            echo.push(Echo::start(&backend, SocketAddr::new(v4.parse()?, 7), &format!("b{n}"))?);
            backends.push(backend);
        }
        Ok(Site { client, gateway, _backends: backends, _nginx: nginx, _echo: echo })
    }

    fn configuration(&self, node: &str) -> Result<String> {
        let arp = "announce = \"arp\"\n";
        let services = service("web", WEB, &backends("10.2.0.1", 80)?, arp)
            + &service("web6", WEB_V6, &backends("fd02::1", 80)?, arp)
            + &service(
                "echo",
                ECHO,
                &backends("10.2.0.1", 7)?,
                &format!("{arp}protocol = \"udp\"\n"),
            );
        let text = configuration(&self.gateway, &["eth0", "br0"], &services);
        Ok(text.replacen("\n\n", &format!("\n{node}\n\n"), 1))
    }

    /// Everybody answers, by every family and protocol.
    fn all_answer(&self) -> Result<()> {
        for target in [WEB, WEB_V6] {
            let names = (0..40).map(|_| get(&self.client, target));
            let names = names.collect::<Result<BTreeSet<String>>>()?;
            ensure!(names.into_iter().eq(["b1", "b2", "b3"]), "{target}");
        }
        let socket = udp_to(&self.client, ECHO)?;
        for size in [0, 1, 1400, 1469] {
            ask_udp(&socket, &"x".repeat(size))?;
        }
        Ok(())
    }
}

/// All three, by the common part of their addresses.
fn backends(common: &str, port: u16) -> Result<Vec<SocketAddr>> {
    (1..=3).map(|n| Ok(SocketAddr::new(format!("{common}{n}").parse()?, port))).collect()
}

pub fn counted(status: &Value, interface: &str, verdict: &str, reason: &str) -> u64 {
    let mut counters = status["counters"].as_array().into_iter().flatten();
    let found = counters.find(|counter| {
        counter["interface"] == interface
            && counter["verdict"] == verdict
            && counter["reason"] == reason
    });
    found.and_then(|counter| counter["packets"].as_u64()).unwrap_or(0)
}

#[test]
fn three_backends_behind_one_bridge_on_this_host() -> Result<()> {
    needs_root!();
    let site = Site::new()?;
    let text = site.configuration(NATIVE)?;
    // The kernel has to be told that it may.
    let (code, words) = Gateway::launch(&site.gateway, &text)?.refusal()?;
    let sysctl = "sysctl -w net.ipv4.conf.eth0.forwarding=1; sysctl -w net.ipv4.conf.eth0.accept_local=1; \
                  sysctl -w net.ipv6.conf.all.forwarding=1";
    ensure!(code == 1 && words.contains(sysctl), "{code}: {words}");
    for set in sysctl.split("; ") {
        let key = set.trim_start_matches("sysctl -w ").trim_end_matches("=1");
        site.gateway.sysctl(key, "1")?;
    }

    let mut gateway = Gateway::start(&site.gateway, &text)?;
    site.all_answer()?;
    let status = gateway.status()?;
    let mode = |n: usize| &status["interfaces"][n]["mode"];
    ensure!((mode(0), mode(1)) == (&"native".into(), &"generic".into()), "{status}");
    ensure!(status["ledger"]["difference_packets"] == 0, "{}", status["ledger"]);
    ensure!(counted(&status, "eth0", "pass", "pass-rewritten") > 300, "{}", status["counters"]);
    ensure!(counted(&status, "eth0", "redirect", "nat-forward") == 0, "{}", status["counters"]);
    ensure!(counted(&status, "br0", "redirect", "nat-reply") > 300, "{}", status["counters"]);
    ensure!(status["losses"] == Value::Array(vec![]), "{}", status["losses"]);
    // Nobody is needed for it to go on.
    gateway.kill()?;
    site.all_answer()?;
    Ok(())
}

/// In the generic path a redirect enters a bridge, and the kernel need not forward: so `auto` is
/// that.
#[test]
fn all_generic_nothing_is_passed() -> Result<()> {
    needs_root!();
    let site = Site::new()?;
    for (node, why) in [
        ("", "auto: native XDP cannot send to br0, a bridge"),
        ("xdp_mode = \"generic\"", "as configured"),
    ] {
        let gateway = Gateway::start(&site.gateway, &site.configuration(node)?)?;
        site.all_answer()?;
        let status = gateway.status()?;
        let eth0 = &status["interfaces"][0];
        ensure!(eth0["mode"] == "generic" && eth0["mode_reason"] == why, "{eth0}");
        ensure!(counted(&status, "eth0", "pass", "pass-rewritten") == 0, "{}", status["counters"]);
        let redirected = counted(&status, "eth0", "redirect", "nat-forward");
        ensure!(redirected > 300, "{}", status["counters"]);
    }
    Ok(())
}

/// An Ethernet tunnel, as one that is put into WireGuard: both ways go by the kernel's own path.
#[test]
fn a_backend_behind_a_tunnel_device() -> Result<()> {
    needs_root!();
    let (client, gateway) = (Namespace::new("client")?, Namespace::new("gw")?);
    let backend = Namespace::new("b1")?;
    let options = VethOptions::default();
    let eth0 = End::new(&client, "eth0").address("10.1.0.2/24").xdp_receive(XdpReceive::Pass);
    veth(&eth0, &End::new(&gateway, "eth0").address("10.1.0.1/24"), &options)?;
    let underlay = End::new(&gateway, "eth1").address("10.3.0.1/24");
    veth(&underlay, &End::new(&backend, "eth0").address("10.3.0.2/24"), &options)?;
    for (ns, device, own, other) in [(&gateway, "eth1", 1, 2), (&backend, "eth0", 2, 1)] {
        ns.ip(&format!(
            "link add vx0 mtu 1450 type vxlan id 7 dstport 4789 dev {device} local 10.3.0.{own} \
             remote 10.3.0.{other}\naddr add 10.2.0.{own}/24 dev vx0\nlink set vx0 up\n"
        ))?;
    }
    let address = SocketAddr::new("10.2.0.2".parse()?, 80);
    let _nginx = Nginx::start(&backend, &[address], "b1")?;
    for key in ["forwarding", "accept_local"] {
        gateway.sysctl(&format!("net/ipv4/conf/eth0/{key}"), "1")?;
    }
    let web = service("web", WEB, &[address], "announce = \"arp\"\n");
    let text = configuration(&gateway, &["eth0", "vx0"], &web);
    let text = text.replacen("\n\n", &format!("\n{NATIVE}\n\n"), 1);
    let running = Gateway::start(&gateway, &text)?;
    for _ in 0..20 {
        ensure!(get(&client, WEB)? == "b1");
    }
    let status = running.status()?;
    ensure!(counted(&status, "eth0", "pass", "pass-rewritten") > 80, "{}", status["counters"]);
    ensure!(counted(&status, "vx0", "redirect", "nat-reply") > 60, "{}", status["counters"]);
    Ok(())
}
