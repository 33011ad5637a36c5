//! Ways to the backend over devices that not every kernel has: VLAN devices, bonds, WireGuard.

use std::net::SocketAddr;

use anyhow::{Context, Result, ensure};
use ringway_net_tests::{
    Echo, Gateway, Line, SERVICE_V4, SERVICE_V6, SOON, configuration, module_is_loaded, needs_root,
    not_tested, service, tool,
};
use ringway_testnet::{End, Namespace, VethOptions, XdpReceive, bridge, veth, wait_for};

use crate::layer3::balanced;
use crate::passing::counted;

const PORT: u16 = 7;

/// A client, a gateway with `eth0` to it, and a backend; between these two what a test puts there.
struct Site {
    client: Namespace,
    gateway: Namespace,
    backend: Namespace,
}

impl Site {
    fn new() -> Result<Site> {
        let (client, gateway) = (Namespace::new("client")?, Namespace::new("gw")?);
        let near = End::new(&client, "eth0").address("10.1.0.2/24").address("fd01::2/64");
        let far = End::new(&gateway, "eth0").address("10.1.0.1/24").address("fd01::1/64");
        veth(&near.xdp_receive(XdpReceive::Pass), &far, &VethOptions::default())?;
        Ok(Site { client, gateway, backend: Namespace::new("b1")? })
    }

    /// `eth1` of the gateway to `eth0` of the backend.
    fn cable(&self, near: &[&str], far: &[&str]) -> Result<()> {
        let with = |end: End, all: &[&str]| all.iter().fold(end, |end, one| end.address(*one));
        let near = with(End::new(&self.gateway, "eth1"), near);
        let far = with(End::new(&self.backend, "eth0"), far).xdp_receive(XdpReceive::Pass);
        veth(&near, &far, &VethOptions::default())?;
        Ok(())
    }

    /// Gives the device on either side its addresses and sets it up.
    fn address(&self, near: &str, far: &str) -> Result<()> {
        for (ns, device, host) in [(&self.gateway, near, 1), (&self.backend, far, 2)] {
            ns.ip(&format!(
                "addr add 10.2.0.{host}/24 dev {device}\n\
                 addr add fd02::{host}/64 dev {device} nodad\nlink set {device} up\n"
            ))?;
        }
        Ok(())
    }

    fn allow_forwarding(&self) -> Result<()> {
        for key in ["ipv4/conf/eth0/forwarding", "ipv4/conf/eth0/accept_local"] {
            self.gateway.sysctl(&format!("net/{key}"), "1")?;
        }
        Ok(self.gateway.sysctl("net/ipv6/conf/all/forwarding", "1")?)
    }

    fn serve(&self) -> Result<Vec<Echo>> {
        let listen = ["10.2.0.2".parse()?, "fd02::2".parse()?];
        listen
            .map(|ip| Echo::start(&self.backend, SocketAddr::new(ip, PORT), "b1"))
            .into_iter()
            .collect()
    }

    /// A gateway with `eth0` and these interfaces.
    fn start(&self, interfaces: &[&str], mode: &str) -> Result<Gateway> {
        let interfaces = [&["eth0"], interfaces].concat();
        let one = |name: &str, vip, backend: &str| -> Result<String> {
            let backend = SocketAddr::new(backend.parse()?, PORT);
            let more = "announce = \"arp\"\ncheck = { type = \"tcp\", interval = \"1s\" }\n";
            Ok(service(name, SocketAddr::new(vip, PORT), &[backend], more))
        };
        let services = one("v4", SERVICE_V4, "10.2.0.2")? + &one("v6", SERVICE_V6, "fd02::2")?;
        let text = configuration(&self.gateway, &interfaces, &services);
        Gateway::start(
            &self.gateway,
            &text.replacen("\n\n", &format!("\nxdp_mode = {mode:?}\n\n"), 1),
        )
    }

    /// Connections of both families, short lines and long.
    fn exchange(&self) -> Result<()> {
        for vip in [SERVICE_V4, SERVICE_V6] {
            for _ in 0..5 {
                let mut line = Line::open(&self.client, SocketAddr::new(vip, PORT))
                    .with_context(|| vip.to_string())?;
                for text in ["a", &"b".repeat(1200), &"c".repeat(9000)] {
                    ensure!(
                        line.ask(text).with_context(|| format!("{vip}: {}", text.len()))? == "b1"
                    );
                }
            }
        }
        Ok(())
    }
}

/// False, said aloud, where this kernel has no such device.
fn has(module: &str) -> bool {
    let has = module_is_loaded(module);
    if !has {
        not_tested(format_args!("this kernel has no {module}, or has not loaded it"));
    }
    has
}

/// Leaves tags where XDP sees them.
fn keep_tags(ns: &Namespace, device: &str) -> Result<()> {
    tool(ns, "ethtool", &["-K", device, "rxvlan", "off", "txvlan", "off"])?.done().map(drop)
}

fn site_with_vlan() -> Result<Site> {
    let site = Site::new()?;
    site.cable(&[], &[])?;
    for (ns, below) in [(&site.gateway, "eth1"), (&site.backend, "eth0")] {
        keep_tags(ns, below)?;
        ns.ip(&format!("link add link {below} name {below}.7 type vlan id 7\n"))?;
    }
    site.address("eth1.7", "eth0.7")?;
    Ok(site)
}

/// By itself it is a device that native XDP cannot redirect into.
#[test]
fn a_vlan_device_alone() -> Result<()> {
    needs_root!();
    if !has("8021q") {
        return Ok(());
    }
    let site = site_with_vlan()?;
    site.allow_forwarding()?;
    let _echo = site.serve()?;
    for (mode, verdict, reason) in
        [("native", "pass", "pass-rewritten"), ("auto", "redirect", "nat-forward")]
    {
        let gateway = site.start(&["eth1.7"], mode)?;
        site.exchange().context(mode)?;
        let status = gateway.status()?;
        ensure!(counted(&status, "eth0", verdict, reason) > 100, "{mode}: {status}");
        ensure!(counted(&status, "eth1.7", "redirect", "nat-reply") > 100, "{mode}: {status}");
        balanced(&status)?;
    }
    Ok(())
}

/// With the device below it, its frames are met there and leave with their tag.
#[test]
fn a_vlan_device_and_the_one_below() -> Result<()> {
    needs_root!();
    if !has("8021q") {
        return Ok(());
    }
    let site = site_with_vlan()?;
    let _echo = site.serve()?;
    for mode in ["native", "generic"] {
        let gateway = site.start(&["eth1", "eth1.7"], mode)?;
        site.exchange().context(mode)?;
        let status = gateway.status()?;
        ensure!(counted(&status, "eth0", "redirect", "nat-forward") > 100, "{mode}: {status}");
        ensure!(counted(&status, "eth0", "pass", "pass-rewritten") == 0, "{mode}: {status}");
        balanced(&status)?;
    }
    Ok(())
}

/// A macvlan has an address of its own, and no native XDP.
#[test]
fn a_macvlan() -> Result<()> {
    needs_root!();
    if !has("macvlan") {
        return Ok(());
    }
    let site = Site::new()?;
    site.cable(&[], &[])?;
    site.gateway.ip("link add link eth1 name mv0 type macvlan mode bridge\n")?;
    site.address("mv0", "eth0")?;
    site.allow_forwarding()?;
    let _echo = site.serve()?;
    for mode in ["native", "auto"] {
        let gateway = site.start(&["mv0"], mode)?;
        site.exchange().context(mode)?;
        balanced(&gateway.status()?)?;
    }
    Ok(())
}

/// One of its links goes down, and the other takes over.
#[test]
fn an_active_backup_bond() -> Result<()> {
    needs_root!();
    if !has("bonding") {
        return Ok(());
    }
    let site = Site::new()?;
    let switch = Namespace::new("switch")?;
    bridge(&switch, "br0", &[])?;
    let options = VethOptions::default();
    site.gateway.ip("link add bond0 type bond mode active-backup miimon 100\n")?;
    for name in ["eth1", "eth2"] {
        let port = End::new(&switch, name).port_of("br0").xdp_receive(XdpReceive::Pass);
        veth(&End::new(&site.gateway, name), &port, &options)?;
        site.gateway.ip(&format!("link set {name} down\nlink set {name} master bond0\n"))?;
    }
    let port = End::new(&switch, "b1").port_of("br0");
    veth(&End::new(&site.backend, "eth0"), &port, &options)?;
    site.address("bond0", "eth0")?;
    let _echo = site.serve()?;
    for (mode, link) in [("native", "eth1"), ("generic", "eth2")] {
        let gateway = site.start(&["bond0"], mode)?;
        site.exchange().context(mode)?;
        let status = gateway.status()?;
        ensure!(counted(&status, "eth0", "redirect", "nat-forward") > 100, "{mode}: {status}");
        balanced(&status)?;
        let mut line = Line::open(&site.client, SocketAddr::new(SERVICE_V4, PORT))?;
        line.ask("before")?;
        site.gateway.ip(&format!("link set {link} down\n"))?;
        ensure!(line.ask("after").with_context(|| format!("{mode}, without {link}"))? == "b1");
        wait_for("the other link", SOON, || site.exchange().map_err(|error| format!("{error:#}")))?;
        site.gateway.ip(&format!("link set {link} up\n"))?;
    }
    Ok(())
}

/// Packets without Ethernet header, encrypted between the gateway and its backend.
#[test]
fn wireguard() -> Result<()> {
    needs_root!();
    if !has("wireguard") {
        return Ok(());
    }
    let site = Site::new()?;
    site.cable(&["10.3.0.1/24"], &["10.3.0.2/24"])?;
    let sides = [&site.gateway, &site.backend];
    for ns in sides {
        ns.ip("link add wg0 type wireguard\n")?;
    }
    if site.gateway.tool("wg").is_err() {
        not_tested("no wg here, which sets WireGuard's keys (Debian's package wireguard-tools)");
        return Ok(());
    }
    let keys = [wg(&site.gateway, &["genkey"], "")?, wg(&site.gateway, &["genkey"], "")?];
    for (n, ns) in sides.into_iter().enumerate() {
        let public = wg(ns, &["pubkey"], &keys[1 - n])?;
        let endpoint = format!("10.3.0.{}:51820", 2 - n);
        let file = ns.directory().join("key");
        std::fs::write(&file, &keys[n])?;
        let set = format!(
            "set wg0 listen-port 51820 private-key {} peer {public} allowed-ips 0.0.0.0/0,::/0 \
             endpoint {endpoint}",
            file.display()
        );
        wg(ns, &set.split(' ').collect::<Vec<_>>(), "")?;
    }
    site.address("wg0", "wg0")?;
    site.allow_forwarding()?;
    let _echo = site.serve()?;
    for mode in ["auto", "generic"] {
        let gateway = site.start(&["wg0"], mode)?;
        site.exchange().context(mode)?;
        let status = gateway.status()?;
        ensure!(counted(&status, "eth0", "pass", "pass-rewritten") > 100, "{mode}: {status}");
        ensure!(counted(&status, "wg0", "redirect", "nat-reply") > 100, "{mode}: {status}");
        balanced(&status)?;
    }
    Ok(())
}

/// Runs `wg`, with this as its standard input; what it said.
fn wg(ns: &Namespace, arguments: &[&str], input: &str) -> Result<String> {
    let file = ns.directory().join("input");
    std::fs::write(&file, input)?;
    let ran = ns.tool("wg")?.args(arguments).stdin(std::fs::File::open(&file)?).output()?;
    ensure!(ran.status.success(), "wg: {}", String::from_utf8_lossy(&ran.stderr));
    Ok(String::from_utf8(ran.stdout)?.trim().to_owned())
}
