//! Health checks of dsr backends: at the service address, which is not the gateway's, by the path
//! that the traffic takes.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use anyhow::{Context, Result, bail, ensure};
use ringway_net_tests::{
    Dns, Echo, Gateway, SERVICE_V4, SERVICE_V6, SOON, configuration, get, module_is_loaded,
    needs_root, not_tested, ringway, service, tool,
};
use ringway_testnet::{Namespace, Nginx, TwoArmed, wait_for};
use serde_json::Value;

use crate::dsr::{CHECK, Dsr, Opener, backends_with_the_addresses, forwards, serve};

/// Both are up; one dies, alone; it comes back.
fn checks(dsr: &mut Dsr, forward: &str, vip: IpAddr, v6: bool) -> Result<()> {
    let text = dsr.checked(forward, vip, v6, CHECK);
    let gateway = Gateway::start(&dsr.net.gateway, &text)?;
    gateway.wait_status("both up", |status| healths(status) == ["up", "up"])?;
    dsr.nginx[0].kill()?;
    gateway.wait_status("b1 down, refused", |status| {
        healths(status) == ["down", "up"] && reason_of(status, 0).contains("refused")
    })?;
    let name = get(dsr.client(), SocketAddr::new(vip, 80))?;
    ensure!(name == "b2", "{name}");
    dsr.nginx[0] = serve(&dsr.net, 0, 1)?;
    gateway.wait_status("b1 up", |status| healths(status) == ["up", "up"])?;
    Ok(())
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
        let shown = tool(namespace, "ip", arguments)?.out;
        Ok(shown.lines().filter(|line| line.contains(word)).count())
    };
    let rules = lines(&["-4", "rule"], "0x72770000")? + lines(&["-6", "rule"], "0x72770000")?;
    Ok((rules, lines(&["-o", "link"], "rwprobe")?))
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
        checks(&mut dsr, "dsr-ipip", vip, outer_v6).context(module)?;
        let listens = match gue[usize::from(outer_v6)] {
            Some(listens) => listens,
            None => *gue[usize::from(outer_v6)].insert(listen_for_gue(&dsr.net, outer_v6)?),
        };
        if !listens {
            let family = if outer_v6 { "IPv6" } else { "IPv4" };
            not_tested(format_args!("this kernel has no GUE over {family}"));
            continue;
        }
        checks(&mut dsr, "dsr-gue", vip, outer_v6).context(module)?;
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
    let (net, _decaps) = backends_with_the_addresses(Opener::Ringway)?;
    let (mut first, mut second, mut services) = (Vec::new(), Vec::new(), String::new());
    for (n, (forward, vip)) in
        (0..).zip([("dsr-l2", SERVICE_V6), ("dsr-gue", SERVICE_V4), ("dsr-ipip", SERVICE_V6)])
    {
        let (echo, name) = (SocketAddr::new(vip, 7 + n), SocketAddr::new(vip, 53 + n));
        for (node, servers) in net.backends.iter().zip([&mut first, &mut second]) {
            let dns = Dns::start(&node.ns, name, Ipv4Addr::new(192, 0, 2, 7))?;
            servers.push((Echo::start(&node.ns, echo, "b")?, dns));
        }
        let mut one = |kind: &str, at: SocketAddr, check: &str| {
            let own = net.backends.iter().flat_map(|node| node.sockets(at.port()));
            let own: Vec<_> = own.filter(|own| own.is_ipv6() == vip.is_ipv6()).collect();
            let more = format!(
                "announce = \"arp\"\nprotocol = \"udp\"\nforward = {forward:?}\n\
                 check = {{ {check}, interval = \"1s\", timeout = \"900ms\", fall = 2 }}\n"
            );
            services += &service(&format!("{kind}-{forward}"), at, &own, &more);
        };
        one("echo", echo, "type = \"udp\", send = \"ping\", expect = \"b ping\"");
        one("dns", name, "type = \"dns\", query = \"a.example\", record = \"AAAA\"");
    }
    // Else the backend's kernel answers few of the checks of ports that are closed.
    for key in ["ipv4/icmp_ratelimit", "ipv6/icmp/ratelimit"] {
        net.backends[0].ns.sysctl(&format!("net/{key}"), "0")?;
    }
    let text = configuration(&net.gateway, &["eth0", "eth1"], &services);
    let gateway = Gateway::start(&net.gateway, &text)?;
    let all = |status: &Value, want: [&str; 2]| (0..6).all(|n| healths_of(status, n) == want);
    gateway.wait_status("all up", |status| all(status, ["up", "up"]))?;
    drop(first);
    gateway.wait_status("b1 down, nobody listens", |status| {
        let refused = |n| reason_of(status, n).contains("nobody listens");
        all(status, ["down", "up"]) && (0..6).all(refused)
    })?;
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
    let text = dsr.checked("dsr-gue", SERVICE_V4, false, CHECK);
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
        let text = dsr.checked("dsr-l2", vip, v6, CHECK);
        let gateway = Gateway::start_degraded(&dsr.net.gateway, &text)?;
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
    let text = dsr.checked("dsr-ipip", SERVICE_V4, false, CHECK);
    let mut gateway = Gateway::start(node, &text)?;
    ensure!(traces(node)? == (1, 1), "{:?}", traces(node)?);
    gateway.terminate()?;
    ensure!(traces(node)? == (0, 0), "{:?}", traces(node)?);
    gateway.start_healthy()?;
    gateway.kill()?;
    ensure!(traces(node)? == (1, 0), "{:?}", traces(node)?);
    gateway.start_healthy()?;
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
    let gateway = Gateway::start(node, &dsr.checked("dsr-ipip", SERVICE_V4, false, CHECK))?;
    gateway.wait_status("both up", |status| healths(status) == ["up", "up"])?;
    tool(node, "ip", &["rule", "del", "priority", "50"])?.done()?;
    wait_for("the rule", SOON, || match traces(node)? {
        (1, 1) => Ok(()),
        other => bail!("rules and devices: {other:?}"),
    })?;
    gateway.wait_status("both up", |status| healths(status) == ["up", "up"])?;
    ensure!(gateway.log().contains("put back"), "{}", gateway.log());
    Ok(())
}
