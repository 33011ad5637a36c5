//! dsr flows keep their backend: on another node, through changes of the ring, beside a flood.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use ringway_net_tests::raw_tcp::{Client, SYN, Segment, mac};
use ringway_net_tests::{Echo, Flow, Gateway, Load, SOON, configuration, get, needs_root, packets};
use ringway_testnet::{End, Namespace, Nginx, VethOptions, XdpReceive, bridge, veth, wait_for};
use serde_json::Value;

const VIP: IpAddr = IpAddr::V4(Ipv4Addr::new(203, 0, 113, 10));
const ECHO: SocketAddr = SocketAddr::new(VIP, 7);
const WEB: SocketAddr = SocketAddr::new(VIP, 80);
const BACKENDS: usize = 3;

/// One network: a client, two gateways with an arm each, and backends that have the service
/// address.
struct Site {
    client: Namespace,
    gateways: Vec<Namespace>,
    _backends: Vec<Namespace>,
    _switch: Namespace,
    _echo: Vec<Echo>,
    _nginx: Vec<Nginx>,
}

impl Site {
    fn new() -> Result<Site> {
        let switch = Namespace::new("switch")?;
        bridge(&switch, "br0", &[])?;
        let join = |name: &str, host: u8| -> Result<Namespace> {
            let namespace = Namespace::new(name)?;
            let end = End::new(&namespace, "eth0").address(format!("10.1.0.{host}/24"));
            let port = End::new(&switch, name).port_of("br0").xdp_receive(XdpReceive::Pass);
            veth(&end, &port, &VethOptions::default())?;
            Ok(namespace)
        };
        let client = join("client", 2)?;
        client.sysctl("net/ipv4/ip_local_port_range", "1024 65535")?;
        let gateways = vec![join("gw1", 101)?, join("gw2", 102)?];
        let (mut backends, mut echo, mut nginx) = (Vec::new(), Vec::new(), Vec::new());
        for n in 1..=BACKENDS {
            let name = format!("b{n}");
            let backend = join(&name, 10 + n as u8)?;
            backend.sysctl("net/ipv4/conf/all/arp_ignore", "1")?;
            backend.sysctl("net/ipv4/conf/all/arp_announce", "2")?;
            // Nobody is where floods say they come from.
            backend
                .ip(&format!("addr add {VIP}/32 dev lo\nroute add blackhole 198.18.0.0/15\n"))?;
            echo.push(Echo::start(&backend, ECHO, &name)?);
            nginx.push(Nginx::start(&backend, &[WEB], &name)?);
            backends.push(backend);
        }
        let site = Site {
            client,
            gateways,
            _backends: backends,
            _switch: switch,
            _echo: echo,
            _nginx: nginx,
        };
        site.client.ip(&format!("route add {VIP} via 10.1.0.101\n"))?;
        Ok(site)
    }

    /// Both services, with these weights.
    fn configuration(&self, node: usize, weights: [u32; BACKENDS], more: &str) -> String {
        let backends: Vec<String> = (1..)
            .zip(weights)
            .map(|(n, weight)| format!("{{ address = \"10.1.0.1{n}\", weight = {weight} }}"))
            .collect();
        let service = |name: &str, port: u16, protocols: &str| {
            format!(
                "[[service]]\nname = {name:?}\naddress = \"{VIP}\"\nport = {port}\n\
                 protocol = {protocols}\nforward = \"dsr-l2\"\nannounce = \"routed\"\n\
                 backends = [{}]\n",
                backends.join(", ")
            )
        };
        let body = service("echo", ECHO.port(), "[\"tcp\", \"udp\"]")
            + &service("web", WEB.port(), "\"tcp\"")
            + more;
        configuration(&self.gateways[node], &["eth0"], &body)
    }

    fn start(&self, node: usize, weights: [u32; BACKENDS], more: &str) -> Result<Gateway> {
        Gateway::start(&self.gateways[node], &self.configuration(node, weights, more))
    }

    fn lines(&self, count: usize) -> Result<Vec<Flow>> {
        (0..count).map(|_| Flow::tcp(&self.client, ECHO)).collect()
    }

    fn datagrams(&self, count: usize) -> Result<Vec<Flow>> {
        (0..count).map(|_| Flow::udp(&self.client, ECHO)).collect()
    }
}

fn ask_all(flows: &mut [Flow], what: &str) -> Result<()> {
    flows.iter_mut().try_for_each(|flow| flow.stays(what))
}

fn owners(flows: &[Flow]) -> BTreeSet<&str> {
    flows.iter().map(|flow| flow.owner.as_str()).collect()
}

/// Another daemon, with another configuration.
fn reconfigure(gateway: &mut Gateway, text: &str) -> Result<()> {
    gateway.terminate()?;
    gateway.rewrite(text)?;
    gateway.start_again()?;
    gateway.wait_serving()
}

#[test]
fn flows_go_on_by_another_node() -> Result<()> {
    needs_root!();
    let site = Site::new()?;
    let gateways = [site.start(0, [1, 1, 2], "")?, site.start(1, [1, 1, 2], "")?];
    let mut flows = site.lines(40)?;
    flows.extend(site.datagrams(20)?);
    ensure!(owners(&flows).len() == BACKENDS, "only {:?} serve", owners(&flows));
    let sent = |gateway: &Gateway| -> Result<u64> { Ok(packets(&gateway.status()?, "dsr-l2")) };
    ensure!(sent(&gateways[0])? > 0 && sent(&gateways[1])? == 0);
    for (via, node) in [("10.1.0.102", 1), ("10.1.0.101", 0)] {
        let before = sent(&gateways[node])?;
        site.client.ip(&format!("route replace {VIP} via {via}\n"))?;
        ask_all(&mut flows, "from elsewhere")?;
        ensure!(sent(&gateways[node])? > before + 40, "not by {via}");
    }
    Ok(())
}

#[test]
fn flows_stay_through_three_changes() -> Result<()> {
    needs_root!();
    let site = Site::new()?;
    let mut gateway = site.start(0, [1, 1, 1], "")?;
    let mut busy = site.lines(30)?;
    busy.extend(site.datagrams(15)?);
    let mut idle = site.lines(30)?;
    idle.extend(site.datagrams(15)?);
    ensure!(owners(&busy).len() == BACKENDS && owners(&idle).len() == BACKENDS);
    for drained in 0..BACKENDS {
        let mut weights = [1; BACKENDS];
        weights[drained] = 0;
        reconfigure(&mut gateway, &site.configuration(0, weights, ""))?;
        ask_all(&mut busy, "still there?")?;
        let new = site.lines(15)?;
        let name = format!("b{}", drained + 1);
        // A connection in a slot that has not changed goes where it went.
        ensure!(!owners(&new).contains(name.as_str()), "{name} is drained and gets new ones");
        busy.extend(new);
    }
    ask_all(&mut busy, "still there?")?;
    ask_all(&mut idle, "back again")?;
    ask_all(&mut busy, "and again")
}

/// The nth flow's SYN, from an address in 198.18.0.0/15.
fn syn(n: u32) -> Segment {
    // A permutation, so that prefixes come in no order; 31 million flows before one comes again.
    let scrambled = n.wrapping_mul(2_654_435_761);
    let [a, b] = ((scrambled >> 16) as u16).to_be_bytes();
    let source = [198, 18 | (scrambled & 1) as u8, a, b];
    let port = 1024 + (n >> 8) as u16 % 60_000;
    Segment::bare(SocketAddr::from((source, port)), WEB, SYN, n)
}

#[test]
fn a_flood_harms_no_established_flow() -> Result<()> {
    needs_root!();
    const FLOWS: u32 = 200_000;
    let site = Site::new()?;
    let small = "[flows]\ntracked = 65536\n";
    let mut gateway = site.start(0, [1, 1, 1], small)?;
    let load = Load::start(&site.client, &format!("http://{VIP}/"), 30, 120)?;
    let mut lines = site.lines(30)?;
    // Now there are slots whose flows need records.
    reconfigure(&mut gateway, &site.configuration(0, [0, 3, 5], small))?;
    wait_for("the end of their probation", SOON, || {
        ask_all(&mut lines, "busy").map_err(|error| format!("{error:#}"))?;
        let status = gateway.status().map_err(|error| format!("{error:#}"))?;
        let tracked = &status["tracked"];
        let promoted = tracked["promoted_flows"].as_u64() > Some(0);
        let all = promoted && tracked["probation_flows"] == 0;
        if all { Ok(()) } else { Err(tracked.to_string()) }
    })?;
    let macs = [mac(&site.gateways[0], "eth0")?, mac(&site.client, "eth0")?].concat();
    let flood = Client::new(&site.client, macs.try_into().ok().context("two addresses")?)?;
    for first in (0..FLOWS).step_by(20_000) {
        (first..first + 20_000).try_for_each(|n| flood.send(&syn(n)))?;
        ask_all(&mut lines, "still there?")?;
    }
    ask_all(&mut lines, "and now?")?;
    let outcome = load.stop()?;
    ensure!(outcome.errors == 0 && outcome.requests > 100, "{outcome:?}");
    let counts = |status: &Value| {
        ["opened_flows", "evicted_flows", "refused_full_flows"]
            .map(|key| status["tracked"][key].as_u64().unwrap_or(0))
    };
    let status = gateway.wait_status("a table that the flood has filled", |status| {
        let [opened, _, full] = counts(status);
        let probation = status["tracked"]["probation_flows"].as_u64();
        probation > Some(10_000) && (opened > 65_536 || full > 0)
    })?;
    let [opened, evicted, full] = counts(&status);
    println!("{opened} records opened, {evicted} evicted, {full} flows without room");
    // And clients are still served.
    for _ in 0..20 {
        get(&site.client, WEB)?;
    }
    Ok(())
}

/// Once all flows that are older than a change have records or are over, no new flow needs one.
#[test]
fn slots_settle() -> Result<()> {
    needs_root!();
    let site = Site::new()?;
    let short = "[nat]\nflows = 65536\ntimeouts = { established = \"15s\", udp = \"5s\" }\n";
    let mut gateway = site.start(0, [1, 1, 1], short)?;
    let mut kept = site.lines(20)?;
    reconfigure(&mut gateway, &site.configuration(0, [0, 1, 1], short))?;
    // Counted from now on: a count is shown for a while.
    let opened = |kept: &mut [Flow]| -> Result<u64> {
        let begin = Instant::now();
        Ok(wait_for("a count of records", SOON, || {
            let since = begin.elapsed().as_millis();
            ask_all(kept, "busy").map_err(|error| format!("{error:#}"))?;
            let status = gateway.status().map_err(|error| format!("{error:#}"))?;
            let age = status["flow_table"]["age_ms"].as_u64().map(u128::from);
            let fresh = age.is_some_and(|age| age < since);
            let opened = status["tracked"]["opened_flows"].as_u64().filter(|_| fresh);
            opened.ok_or_else(|| format!("{age:?} ms old"))
        })?)
    };
    site.lines(30)?;
    let first = opened(&mut kept)?;
    ensure!(first > 0, "no new flow came to a slot that has changed");
    let begin = Instant::now();
    let mut before = first;
    // The daemon looks through the records every ten seconds.
    while begin.elapsed() < Duration::from_secs(150) {
        let look = Instant::now() + Duration::from_secs(11);
        wait_for("another look", SOON, || {
            // Idle for less than their timeout: they keep their records.
            ask_all(&mut kept, "busy").map_err(|error| format!("{error:#}"))?;
            if Instant::now() > look { Ok(()) } else { Err("not yet".to_owned()) }
        })?;
        site.lines(20)?;
        let now = opened(&mut kept)?;
        if now == before {
            println!("settled after {:?}, {now} records", begin.elapsed());
            return ask_all(&mut kept, "still there");
        }
        before = now;
    }
    anyhow::bail!("new flows still get records after two minutes and a half: {before}")
}
