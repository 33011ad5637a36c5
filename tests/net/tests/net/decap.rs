//! `ringway decap` on a backend without tunnel devices.

use std::net::{IpAddr, SocketAddr};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use ringway_net_tests::{
    SOON, Tunnel, Wrap, binary, http, module_is_loaded, needs_root, not_tested, packets, ringway,
    tool,
};
use ringway_testnet::{
    Child, End, Link, Namespace, Nginx, Signal, VethOptions, XdpReceive, attach_pass, veth,
    wait_for, wait_until,
};
use serde_json::Value;

const VIP4: &str = "203.0.113.9";
const VIP6: &str = "2001:db8::9";
const PORT: u16 = 6080;

/// A sender, and a backend that has the service addresses on `lo` and serves them.
struct Pair {
    sender: Namespace,
    backend: Namespace,
    eth0: Link,
    _nginx: Nginx,
}

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

impl Pair {
    fn new() -> Result<Pair> {
        let (sender, backend) = (Namespace::new("sender")?, Namespace::new("backend")?);
        let near = End::new(&sender, "eth0")
            .address("10.3.0.1/24")
            .address("fd03::1/64")
            .xdp_receive(XdpReceive::Pass);
        let far = End::new(&backend, "eth0").address("10.3.0.2/24").address("fd03::2/64");
        let (_, eth0) = veth(&near, &far, &VethOptions::default())?;
        backend.ip(&format!("addr add {VIP4}/32 dev lo\naddr add {VIP6}/128 dev lo nodad\n"))?;
        let listen = [VIP4, VIP6].map(|vip| SocketAddr::new(ip(vip), 80));
        let _nginx = Nginx::start(&backend, &listen, "b1")?;
        Ok(Pair { sender, backend, eth0, _nginx })
    }

    /// Routes the service addresses of the sender into its device `tun`.
    fn route(&self) -> Result<()> {
        Ok(self.sender.ip(&format!(
            "route replace {VIP4}/32 dev tun src 10.3.0.1\nroute replace {VIP6}/128 dev tun src fd03::1\n"
        ))?)
    }

    fn decap(&self, arguments: &[&str]) -> Result<Child> {
        let mut command: Command = self.backend.command(binary()?);
        command.args(["decap", "-i", "eth0"]).args(arguments);
        let mut child = self.backend.spawn(command)?;
        child.wait_for_log("attached to eth0", SOON)?;
        Ok(child)
    }

    fn status(&self) -> Result<Value> {
        ringway(&self.backend, &["decap", "-i", "eth0", "--status", "-o", "json"])?.json()
    }

    /// One request to each service address gets through.
    fn serves(&self) -> Result<()> {
        for vip in [VIP4, VIP6] {
            let answer = http(&self.sender, SocketAddr::new(ip(vip), 80), "/")?;
            ensure!(answer.starts_with("HTTP/1.1 200 ") && answer.contains("b1"), "{answer}");
        }
        Ok(())
    }

    fn curl(&self, url: &str) -> Result<()> {
        tool(&self.sender, "curl", &["-sS", "-f", "-m", "30", url])?.done().map(drop)
    }
}

/// Every kind of tunnel to both outer families.
#[test]
fn every_kind_in_both_modes() -> Result<()> {
    needs_root!();
    let pair = Pair::new()?;
    ["native", "generic"].into_iter().try_for_each(|mode| every_kind(&pair, mode).context(mode))
}

fn every_kind(pair: &Pair, mode: &str) -> Result<()> {
    let mut decap = pair.decap(&["--mode", mode])?;
    for far in ["10.3.0.2", "fd03::2"] {
        for wrap in [Wrap::Ipip, Wrap::Gue(PORT), Wrap::Gue0(PORT)] {
            let before = pair.status()?;
            let _tunnel = Tunnel::start(&pair.sender, "tun", ip(far), wrap)?;
            pair.route()?;
            pair.serves()?;
            let after = pair.status()?;
            let reason = if wrap == Wrap::Ipip { "decap-ipip" } else { "decap-gue" };
            let opened = packets(&after, reason) - packets(&before, reason);
            ensure!(opened >= 8, "{wrap:?} to {far}: {opened} packets of two connections");
            ensure!(after["mode"] == mode && after["ledger"]["difference_packets"] == 0, "{after}");
        }
    }
    let tunnel = Tunnel::start(&pair.sender, "tun", ip("10.3.0.2"), Wrap::Ipip)?;
    pair.route()?;
    pair.curl(&format!("http://{VIP4}/"))?;
    pair.curl(&format!("http://[{VIP6}]/"))?;
    drop(tunnel);
    decap.signal(Signal::TERM)?;
    let end = decap.wait(SOON)?;
    ensure!(end.status.success() && end.log.contains("decap-ipip"), "{}", end.log);
    ensure!(ringway(&pair.backend, &["decap", "-i", "eth0", "--status"])?.code == 3);
    Ok(())
}

/// Where the kernel has tunnel devices: their packets are opened as well.
#[test]
fn the_kernels_own_tunnel_devices() -> Result<()> {
    needs_root!();
    let pair = Pair::new()?;
    let _decap = pair.decap(&[])?;
    let near = "link add name tun type";
    let devices = [
        ("ipip", format!("{near} ipip local 10.3.0.1 remote 10.3.0.2"), vec![VIP4]),
        ("sit", format!("{near} sit local 10.3.0.1 remote 10.3.0.2"), vec![VIP6]),
        (
            "ip6tnl",
            format!("{near} ip6tnl mode any local fd03::1 remote fd03::2"),
            vec![VIP4, VIP6],
        ),
        (
            "fou",
            format!(
                "{near} ipip local 10.3.0.1 remote 10.3.0.2 encap fou encap-sport auto encap-dport {PORT}"
            ),
            vec![VIP4],
        ),
        (
            "gue",
            format!(
                "{near} ipip local 10.3.0.1 remote 10.3.0.2 encap gue encap-sport auto encap-dport {PORT}"
            ),
            vec![VIP4],
        ),
    ];
    for (kind, make, vips) in devices {
        let module = match kind {
            "ip6tnl" => "ip6_tunnel",
            "sit" => "sit",
            _ => "ipip",
        };
        if !module_is_loaded(module) {
            not_tested(format_args!("{kind}: this kernel has no {module}, or has not loaded it"));
            continue;
        }
        if let Err(error) = pair.sender.ip(&format!("{make}\n")) {
            not_tested(format_args!("this kernel has no {kind}: {error}"));
            continue;
        }
        let mut lines = String::from("link set tun up\n");
        for vip in &vips {
            let source = if ip(vip).is_ipv4() { "10.3.0.1" } else { "fd03::1" };
            lines += &format!("route replace {vip} dev tun src {source}\n");
        }
        pair.sender.ip(&lines)?;
        for vip in vips {
            let answer = http(&pair.sender, SocketAddr::new(ip(vip), 80), "/")?;
            ensure!(answer.starts_with("HTTP/1.1 200 "), "{kind}, {vip}: {answer}");
        }
        pair.sender.ip("link del tun\n")?;
    }
    Ok(())
}

#[test]
fn addresses_come_and_the_interface_goes() -> Result<()> {
    needs_root!();
    let pair = Pair::new()?;
    pair.backend.ip(&format!("addr del {VIP4}/32 dev lo\n"))?;
    let mut decap = pair.decap(&[])?;
    let _tunnel = Tunnel::start(&pair.sender, "tun", ip("10.3.0.2"), Wrap::Gue(PORT))?;
    pair.route()?;
    let inner = |status: &Value| {
        status["inner_addresses"].as_array().is_some_and(|all| all.iter().any(|a| a == VIP4))
    };
    ensure!(!inner(&pair.status()?));
    pair.backend.ip(&format!("addr add {VIP4}/32 dev lo\n"))?;
    wait_until("the service address", SOON, || pair.status().is_ok_and(|status| inner(&status)))?;
    pair.serves()?;
    // An interface that is taken away ends it with an error.
    pair.backend.ip("link del eth0\n")?;
    let end = wait_for("its end", SOON, || decap.wait(SOON).map_err(|e| e.to_string()))?;
    ensure!(end.status.code() == Some(1) && end.log.contains("vanished"), "{}", end.log);
    Ok(())
}

/// With --pin tunnels stay open over the end of the process, even by SIGKILL, and the next one
/// takes over; nothing is left after --detach.
#[test]
fn what_is_pinned_stays() -> Result<()> {
    needs_root!();
    let pair = Pair::new()?;
    let mut first = pair.decap(&["--pin"])?;
    let _tunnel = Tunnel::start(&pair.sender, "tun", ip("10.3.0.2"), Wrap::Ipip)?;
    pair.route()?;
    first.kill()?;
    pair.serves()?;
    let before = packets(&pair.status()?, "decap-ipip");
    let mut second = pair.decap(&["--pin", "--gue-port", "7000"])?;
    ensure!(second.log().contains("in place of the one before"), "{}", second.log());
    pair.serves()?;
    let status = pair.status()?;
    ensure!(status["pinned"] == true && status["gue_port"] == 7000, "{status}");
    ensure!(packets(&status, "decap-ipip") > before, "the ledger begins anew: {status}");
    // Only what stays as well may take its place: a foreground one would take it away at its end.
    let third = ringway(&pair.backend, &["decap", "-i", "eth0"])?;
    ensure!(third.code == 1 && third.err.contains("pinned since 2"), "{third:?}");
    ensure!(third.err.contains("--detach") && third.err.contains("--pin"), "{third:?}");
    pair.serves()?;
    second.signal(Signal::TERM)?;
    ensure!(second.wait(SOON)?.status.success());
    pair.serves()?;
    ringway(&pair.backend, &["decap", "-i", "eth0", "--detach"])?.says(0, &["removed"])?;
    ensure!(ringway(&pair.backend, &["decap", "-i", "eth0", "--status"])?.code == 3);
    Ok(())
}

#[test]
fn what_cannot_be_is_refused_with_a_remedy() -> Result<()> {
    needs_root!();
    let pair = Pair::new()?;
    for (arguments, code, words) in [
        (&["-i", "nosuch0"][..], 2, "nosuch0"),
        (&["-i", "lo"], 2, "not an Ethernet interface"),
        (&["-i", "eth0", "--gue-port", "0"], 2, "--gue-port"),
        (&["-i", "eth0", "--status"], 3, "start it with"),
    ] {
        let ran = ringway(&pair.backend, &[&["decap"], arguments].concat())?;
        ensure!(ran.code == code && ran.err.contains(words), "{arguments:?}: {ran:?}");
    }
    let running = pair.decap(&[])?;
    for arguments in [&["decap", "-i", "eth0"][..], &["decap", "-i", "eth0", "--pin"]] {
        ringway(&pair.backend, arguments)?.complains(1, &["another running ringway decap"])?;
    }
    drop(running);
    attach_pass(&pair.backend, &pair.eth0.name)?;
    ringway(&pair.backend, &["decap", "-i", "eth0"])?.complains(1, &["xdp off"])?;
    Ok(())
}
