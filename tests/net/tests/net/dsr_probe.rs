//! Health checks of dsr backends: at the service address, which is not the gateway's, by the path
//! that the traffic takes.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use anyhow::{Context, Result, bail, ensure};
use ringway_net_tests::{
    Dns, Echo, Gateway, SERVICE_V4, SERVICE_V6, SOON, configuration, get, module_is_loaded,
    needs_root, not_tested, ringway, service,
};
use ringway_testnet::{Child, Namespace, Nginx, TwoArmed, wait_for};
use serde_json::Value;

use crate::dsr::{Opener, backends_with_the_addresses, forwards};

const CHECK: &str = "announce = \"arp\"\n\
                     check = { type = \"http\", interval = \"200ms\", timeout = \"200ms\", fall = 5 }\n";

/// A gateway, and two backends that have the service addresses on `lo` and serve nothing else.
struct Dsr {
    net: TwoArmed,
    nginx: Vec<Nginx>,
    _decaps: Vec<Child>,
}

impl Dsr {
    fn new(opener: Opener) -> Result<Dsr> {
        let (net, decaps) = backends_with_the_addresses(opener)?;
        let nginx = (0..2).map(|n| serve(&net, n)).collect::<Result<_>>()?;
        Ok(Dsr { net, nginx, _decaps: decaps })
    }

    fn configuration(&self, forward: &str, vip: IpAddr, v6: bool) -> String {
        let more = format!("forward = {forward:?}\n{CHECK}");
        let address = |node: &ringway_testnet::Node| {
            node.addresses().into_iter().find(|address| address.is_ipv6() == v6)
        };
        let backends = self.net.backends.iter().filter_map(address);
        let backends: Vec<SocketAddr> = backends.map(|ip| SocketAddr::new(ip, 80)).collect();
        let service = service("web", SocketAddr::new(vip, 80), &backends, &more);
        configuration(&self.net.gateway, &["eth0", "eth1"], &service)
    }

    /// Both are up; one dies, alone; it comes back.
    fn checks(&mut self, forward: &str, vip: IpAddr, v6: bool) -> Result<()> {
        let what = || format!("{forward}: {vip}, backends by {}", if v6 { "IPv6" } else { "IPv4" });
        let text = self.configuration(forward, vip, v6);
        let gateway = Gateway::start(&self.net.gateway, &text).with_context(what)?;
        gateway.wait_status("both up", |s| healths(s) == ["up", "up"]).with_context(what)?;
        self.nginx[0].kill()?;
        gateway
            .wait_status("b1 down, refused", |status| {
                healths(status) == ["down", "up"] && reason_of(status, 0).contains("refused")
            })
            .with_context(what)?;
        let name = get(&self.net.client.ns, SocketAddr::new(vip, 80)).with_context(what)?;
        ensure!(name == "b2", "{}: {name}", what());
        self.nginx[0] = serve(&self.net, 0)?;
        gateway.wait_status("b1 up", |s| healths(s) == ["up", "up"]).with_context(what)?;
        Ok(())
    }
}

fn serve(net: &TwoArmed, n: usize) -> Result<Nginx> {
    let at = [SERVICE_V4, SERVICE_V6].map(|vip| SocketAddr::new(vip, 80));
    Nginx::start(&net.backends[n].ns, &at, &format!("b{}", n + 1)).context("nginx")
}

fn healths(status: &Value) -> Vec<&str> {
    healths_of(status, 0)
}

fn healths_of(status: &Value, service: usize) -> Vec<&str> {
    let backends = status["services"][service]["backends"].as_array().into_iter().flatten();
    backends.map(|backend| backend["health"].as_str().unwrap_or_default()).collect()
}

/// Why the first backend of a service is down.
fn reason_of(status: &Value, service: usize) -> String {
    status["services"][service]["backends"][0]["reason"].to_string()
}

/// Rules and devices of the tunnel in the gateway's namespace.
fn traces(namespace: &Namespace) -> Result<(usize, usize)> {
    let lines = |arguments: &[&str], word: &str| -> Result<usize> {
        let output = namespace.command("ip").args(arguments).output()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        Ok(text.lines().filter(|line| line.contains(word)).count())
    };
    let rules = lines(&["-4", "rule"], "0x72770000")? + lines(&["-6", "rule"], "0x72770000")?;
    Ok((rules, lines(&["-o", "link"], "rwprobe")?))
}

#[test]
fn by_frame() -> Result<()> {
    needs_root!();
    let mut dsr = Dsr::new(Opener::Nobody)?;
    dsr.checks("dsr-l2", SERVICE_V4, false)?;
    dsr.checks("dsr-l2", SERVICE_V6, true)
}

#[test]
fn by_ipip_of_every_family() -> Result<()> {
    needs_root!();
    let mut dsr = Dsr::new(Opener::Ringway)?;
    for vip in [SERVICE_V4, SERVICE_V6] {
        for v6 in [false, true] {
            dsr.checks("dsr-ipip", vip, v6)?;
        }
    }
    Ok(())
}

#[test]
fn by_gue_of_every_family() -> Result<()> {
    needs_root!();
    let mut dsr = Dsr::new(Opener::Ringway)?;
    for vip in [SERVICE_V4, SERVICE_V6] {
        for v6 in [false, true] {
            dsr.checks("dsr-gue", vip, v6)?;
        }
    }
    Ok(())
}

/// Opened by the backends' own kernels, as katran's backends do it; what this kernel does not have
/// is said and left out.
#[test]
fn the_kernels_own_tunnel_devices() -> Result<()> {
    needs_root!();
    let mut dsr = Dsr::new(Opener::Nobody)?;
    // sit0 comes with its module.
    let kinds = [
        (false, false, "ipip", "link add name t4 type ipip external\nlink set t4 up\n"),
        (true, false, "sit", "link set sit0 up\n"),
        (
            false,
            true,
            "ip6_tunnel",
            "link add name t6 type ip6tnl mode any external\nlink set t6 up\n",
        ),
        (true, true, "ip6_tunnel", "link show dev t6\n"),
    ];
    let mut gue = [None; 2];
    for (inner_v6, outer_v6, module, devices) in kinds {
        if !module_is_loaded(module) {
            not_tested(format_args!("this kernel has no {module}, or has not loaded it"));
            continue;
        }
        for node in &dsr.net.backends {
            node.ns.ip(devices)?;
        }
        let vip = if inner_v6 { SERVICE_V6 } else { SERVICE_V4 };
        dsr.checks("dsr-ipip", vip, outer_v6)?;
        let listens = match gue[usize::from(outer_v6)] {
            Some(listens) => listens,
            None => *gue[usize::from(outer_v6)].insert(listen_for_gue(&dsr.net, outer_v6)?),
        };
        if !listens {
            let family = if outer_v6 { "IPv6" } else { "IPv4" };
            not_tested(format_args!("this kernel has no GUE over {family}"));
            continue;
        }
        dsr.checks("dsr-gue", vip, outer_v6)?;
    }
    Ok(())
}

/// Has the backends' kernels take GUE at port 6080, if they can.
fn listen_for_gue(net: &TwoArmed, v6: bool) -> Result<bool> {
    let family = if v6 { "-6" } else { "-4" };
    for node in &net.backends {
        let add = [family, "fou", "add", "port", "6080", "gue"];
        if !node.ns.command("ip").args(add).output()?.status.success() {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Datagrams, and what ICMP says of them, go and come like connections.
#[test]
fn udp_and_dns_take_the_road() -> Result<()> {
    needs_root!();
    for (forward, vip) in
        [("dsr-l2", SERVICE_V6), ("dsr-gue", SERVICE_V4), ("dsr-ipip", SERVICE_V6)]
    {
        let what = || format!("{forward} {vip}");
        let dsr = Dsr::new(if forward == "dsr-l2" { Opener::Nobody } else { Opener::Ringway })?;
        let echo = SocketAddr::new(vip, 7);
        let name = SocketAddr::new(vip, 53);
        let start = |n: usize| -> Result<_> {
            let ns = &dsr.net.backends[n].ns;
            let dns = Dns::start(ns, name, Ipv4Addr::new(192, 0, 2, 7))?;
            Ok((Echo::start(ns, echo, "b")?, dns))
        };
        let (first, _second) = (start(0)?, start(1)?);
        let backends: Vec<SocketAddr> = dsr
            .net
            .backends
            .iter()
            .filter_map(|node| {
                let own =
                    node.addresses().into_iter().find(|own| own.is_ipv6() == vip.is_ipv6())?;
                Some(SocketAddr::new(own, 7))
            })
            .collect();
        let to =
            |port: u16| backends.iter().map(|b| SocketAddr::new(b.ip(), port)).collect::<Vec<_>>();
        // So rarely that the backend's kernel answers every check of a port that is closed: it sends
        // six ICMP errors at once to one host, and then one a second.
        let more = |check: &str| {
            format!(
                "announce = \"arp\"\nprotocol = \"udp\"\nforward = {forward:?}\ncheck = {{ {check}, interval = \"1s\", timeout = \"900ms\", fall = 2 }}\n"
            )
        };
        let services = service(
            "echo",
            echo,
            &to(7),
            &more("type = \"udp\", send = \"ping\", expect = \"b ping\""),
        ) + &service(
            "dns",
            name,
            &to(53),
            &more("type = \"dns\", query = \"a.example\", record = \"AAAA\""),
        );
        let text = configuration(&dsr.net.gateway, &["eth0", "eth1"], &services);
        let gateway = Gateway::start(&dsr.net.gateway, &text).with_context(what)?;
        let both = |status: &Value, want: [&str; 2]| (0..2).all(|n| healths_of(status, n) == want);
        gateway.wait_status("all up", |status| both(status, ["up", "up"])).with_context(what)?;
        drop(first);
        let refused = |status: &Value, n| reason_of(status, n).contains("nobody listens");
        gateway
            .wait_status("b1 down, nobody listens", |status| {
                both(status, ["down", "up"]) && (0..2).all(|n| refused(status, n))
            })
            .with_context(what)?;
    }
    Ok(())
}

/// A backend on which nobody opens the tunnel is down, whatever it serves at its own address;
/// unless it is asked there.
#[test]
fn a_backend_that_opens_no_tunnels_is_down() -> Result<()> {
    needs_root!();
    let dsr = Dsr::new(Opener::Nobody)?;
    let node = &dsr.net.backends[0];
    let _own = Nginx::start(&node.ns, &node.sockets(80), "own")?;
    let text = dsr.configuration("dsr-gue", SERVICE_V4, false);
    let mut gateway = Gateway::launch(&dsr.net.gateway, &text)?;
    gateway.wait_serving()?;
    gateway.wait_status("both down", |status| healths(status) == ["down", "down"])?;
    let address = node.v4.context("no IPv4")?;
    let own = format!("\"{address}\", port = 80");
    let asked = format!("{own}, check = {{ address = \"{address}\" }}");
    gateway.rewrite(&text.replace(&own, &asked))?;
    gateway.ringway(&["reload"])?.says(0, &["check"])?;
    gateway.wait_status("b1 up", |status| healths(status) == ["up", "down"])?;
    Ok(())
}

/// A backend without the service address that forwards would have its checks answered by another:
/// back here, where that one would be chosen, or straight there. It is down, and stays so.
#[test]
fn a_backend_that_sends_checks_on_is_down() -> Result<()> {
    needs_root!();
    let dsr = Dsr::new(Opener::Nobody)?;
    let [first, second] = &dsr.net.backends[..] else { bail!("two backends") };
    first.ns.ip(&format!("addr del {SERVICE_V4}/32 dev lo\naddr del {SERVICE_V6}/128 dev lo\n"))?;
    forwards(&first.ns, "eth0")?;
    stays_down(&dsr, "back here")?;
    for (vip, other) in [SERVICE_V4, SERVICE_V6].into_iter().zip(second.addresses()) {
        first.ns.ip(&format!("route add {vip} via {other}\n"))?;
    }
    stays_down(&dsr, "to the other one")
}

fn stays_down(dsr: &Dsr, to: &str) -> Result<()> {
    for (vip, v6) in [(SERVICE_V4, false), (SERVICE_V6, true)] {
        let text = dsr.configuration("dsr-l2", vip, v6);
        let gateway = Gateway::start(&dsr.net.gateway, &text)?;
        let checked = |status: &Value| {
            let first = &status["services"][0]["backends"][0];
            first["checks_passed"].as_u64().unwrap_or(0)
                + first["checks_failed"].as_u64().unwrap_or(0)
        };
        let status = gateway.wait_status("twenty checks", |status| {
            checked(status) >= 20 && healths(status) == ["down", "up"]
        })?;
        let passed = &status["services"][0]["backends"][0]["checks_passed"];
        ensure!(passed == 0, "{vip} {to}: {passed} checks of what has no service address passed");
        // They have died there.
        let counters = status["counters"].as_array().cloned().unwrap_or_default();
        ensure!(!counters.iter().any(|c| c["reason"] == "loop"), "{vip} {to}: {counters:?}");
    }
    Ok(())
}

/// Device and rules end with the daemon; what SIGKILL leaves, the next one or `detach` removes.
#[test]
fn the_road_ends_with_the_daemon() -> Result<()> {
    needs_root!();
    let dsr = Dsr::new(Opener::Ringway)?;
    let node = &dsr.net.gateway;
    let text = dsr.configuration("dsr-ipip", SERVICE_V4, false);
    let mut gateway = Gateway::start(node, &text)?;
    ensure!(traces(node)? == (1, 1), "{:?}", traces(node)?);
    gateway.terminate()?;
    ensure!(traces(node)? == (0, 0), "{:?}", traces(node)?);
    gateway.start_again()?;
    gateway.wait_healthy()?;
    gateway.kill()?;
    ensure!(traces(node)? == (1, 0), "{:?}", traces(node)?);
    gateway.start_again()?;
    gateway.wait_healthy()?;
    gateway.wait_status("both up", |status| healths(status) == ["up", "up"])?;
    ensure!(traces(node)? == (1, 1), "{:?}", traces(node)?);
    gateway.kill()?;
    ringway(node, &["detach", "--node", gateway.node(), "--verify"])?
        .says(0, &["routing rules"])?;
    ensure!(traces(node)? == (0, 0), "{:?}", traces(node)?);
    Ok(())
}

/// Network managers remove rules they do not know.
#[test]
fn a_rule_that_somebody_removes_comes_back() -> Result<()> {
    needs_root!();
    let dsr = Dsr::new(Opener::Ringway)?;
    let node = &dsr.net.gateway;
    let gateway = Gateway::start(node, &dsr.configuration("dsr-ipip", SERVICE_V4, false))?;
    gateway.wait_status("both up", |status| healths(status) == ["up", "up"])?;
    let removed = node.command("ip").args(["rule", "del", "priority", "50"]).status()?;
    ensure!(removed.success(), "no such rule");
    wait_for("the rule", SOON, || match traces(node)? {
        (1, 1) => Ok(()),
        other => bail!("rules and devices: {other:?}"),
    })?;
    gateway.wait_status("both up", |status| healths(status) == ["up", "up"])?;
    ensure!(gateway.log().contains("put back"), "{}", gateway.log());
    Ok(())
}
