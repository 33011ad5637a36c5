//! `ringway run` between two unlike drivers: nat and dsr, both families, and what befalls the
//! interfaces meanwhile.

use std::fs;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use ringway_driver_tests::Cell;
use ringway_net_tests::{
    Echo, Gateway, Line, ask_udp_within, binary, configuration, lab_binary, ringway, service,
};
use ringway_testnet::{Child, wait_for, wait_until};
use serde_json::Value;

use crate::bench::{Bench, Nic, SOON, ip, pings};
use crate::harness::Case;

const PORT: u16 = 7;
/// Host parts of service addresses.
const NAT: u8 = 80;
const DSR_L2: u8 = 81;
const DSR_IPIP: u8 = 82;

/// Each NIC once to the clients and once to the backends, beside one of another driver.
pub fn cases(bench: &Bench) -> Vec<Case<'_>> {
    let next = |n: usize| &bench.nics[(n + 1) % bench.nics.len()];
    let pairs =
        bench.nics.iter().enumerate().map(|(n, client)| Pair { bench, client, backend: next(n) });
    let mut cases = Vec::new();
    for pair in pairs.filter(|pair| pair.client.row != pair.backend.row) {
        let name = |what: &str| format!("{}::{what}-to-{}", pair.client.row, pair.backend.row);
        let (of_gateway, of_vlan) = (pair, pair);
        cases.push(Case { name: name("gateway"), run: Box::new(move || of_gateway.gateway()) });
        cases.push(Case { name: name("vlan"), run: Box::new(move || of_vlan.vlan()) });
    }
    cases
}

/// Of two that are native.
pub fn arming(bench: &Bench, client: &Nic, backend: &Nic) -> Result<()> {
    Pair { bench, client, backend }.arming()
}

#[derive(Clone, Copy)]
struct Pair<'a> {
    bench: &'a Bench,
    client: &'a Nic,
    backend: &'a Nic,
}

impl Pair<'_> {
    /// A service address of either family.
    fn vips(&self, host: u8) -> Result<[IpAddr; 2]> {
        Ok([self.client.address(host).parse()?, self.client.address6(host).parse()?])
    }

    fn native(&self) -> bool {
        [self.client, self.backend].iter().all(|nic| self.bench.has(nic, Cell::Native))
    }

    /// nat, dsr-l2 and dsr-ipip, of both families.
    fn configuration(&self, interfaces: &[&str], backend: [IpAddr; 2]) -> Result<String> {
        let mut body = String::new();
        for (forward, host, check) in [
            ("nat", NAT, "check = { type = \"tcp\", interval = \"1s\" }\n"),
            ("dsr-l2", DSR_L2, ""),
            ("dsr-ipip", DSR_IPIP, ""),
        ] {
            for (vip, to) in self.vips(host)?.into_iter().zip(backend) {
                let name = format!("{forward}-{}", if vip.is_ipv4() { 4 } else { 6 });
                let more = format!(
                    "forward = {forward:?}\nannounce = \"arp\"\nprotocol = [\"tcp\", \"udp\"]\n{check}"
                );
                body += &service(&name, (vip, PORT).into(), &[(to, PORT).into()], &more);
            }
        }
        Ok(configuration(&self.bench.gateway, interfaces, &body))
    }

    /// Servers at the backend's own addresses and at those of dsr services, which it has for itself.
    fn serve(&self) -> Result<(Vec<Echo>, Child)> {
        let far = &self.backend.far;
        for (key, value) in [("arp_ignore", "1"), ("arp_announce", "2")] {
            far.sysctl(&format!("net/ipv4/conf/all/{key}"), value)?;
        }
        let own = [self.backend.address(2).parse()?, self.backend.address6(2).parse()?];
        let dsr = [self.vips(DSR_L2)?, self.vips(DSR_IPIP)?].concat();
        let mut lines = String::new();
        for vip in &dsr {
            let length = if vip.is_ipv4() { 32 } else { 128 };
            lines += &format!("addr replace {vip}/{length} dev lo\n");
        }
        far.ip(&lines)?;
        let echo = |address: &IpAddr| Echo::start(far, SocketAddr::new(*address, PORT), "b1");
        let echoes = own.iter().chain(&dsr).map(echo).collect::<Result<_>>()?;
        let mut command = far.command(binary()?);
        command.args(["decap", "-i", "eth0", "--mode", "generic"]);
        let mut decap = far.spawn(command)?;
        decap.wait_for_log("attached to eth0", SOON)?;
        Ok((echoes, decap))
    }

    /// Lines and datagrams through every service, short and long, come back as they were.
    fn exchange(&self) -> Result<()> {
        for host in [NAT, DSR_L2, DSR_IPIP] {
            for vip in self.vips(host)? {
                self.ask(vip).with_context(|| {
                    format!("{vip}, from {} to {}", self.client.name, self.backend.name)
                })?;
            }
        }
        Ok(())
    }

    fn ask(&self, vip: IpAddr) -> Result<()> {
        let to = SocketAddr::new(vip, PORT);
        let mut line = Line::open(&self.client.far, to)?;
        let long: String = (0..40_000).map(|n| char::from(b'a' + (n * 7 % 26) as u8)).collect();
        for text in ["a", &long[..1200], &long] {
            ensure!(line.ask(text).with_context(|| format!("{} bytes", text.len()))? == "b1");
        }
        let any = if vip.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
        let socket = self.client.far.run(|| UdpSocket::bind(any))??;
        socket.connect(to)?;
        for text in ["d", &long[..1200]] {
            let asked = || ask_udp_within(Duration::from_secs(1), &socket, text);
            wait_for("an answer to a datagram", SOON, asked)?;
        }
        Ok(())
    }

    fn exchange_soon(&self, what: &str) -> Result<()> {
        Ok(wait_for(what, SOON, || self.exchange().map_err(|error| format!("{error:#}")))?)
    }

    fn interfaces(&self) -> [&str; 2] {
        [&self.client.name, &self.backend.name]
    }

    fn gateway(&self) -> Result<()> {
        let _servers = self.serve()?;
        let own = [self.backend.address(2).parse()?, self.backend.address6(2).parse()?];
        let text = self.configuration(&self.interfaces(), own)?;
        let start = Instant::now();
        let mut gateway = Gateway::start(&self.bench.gateway, &text)?;
        println!("  served after {} s", start.elapsed().as_secs());
        self.exchange_soon("an answer through every service")?;
        self.modes(&gateway)?;
        self.cells(&gateway)?;
        self.link_down_and_up(&gateway)?;
        self.mtu_changes(&gateway)?;
        if !self.bench.quick {
            self.captured(&gateway)?;
        }
        // The daemon goes, and the packet path stays; then that goes, too.
        gateway.terminate()?;
        self.ask(self.vips(NAT)?[0])?;
        self.detach(&gateway)?;
        Ok(())
    }

    /// Native where both have it.
    fn modes(&self, gateway: &Gateway) -> Result<()> {
        let status = gateway.status()?;
        let mode = if self.native() { "native" } else { "generic" };
        for interface in status["interfaces"].as_array().context("interfaces")? {
            ensure!(
                interface["mode"] == mode && interface["attached"] == true,
                "not {mode}: {interface}"
            );
        }
        Ok(())
    }

    /// What was sent back, and what was redirected either way, by Ringway's own counters.
    fn cells(&self, gateway: &Gateway) -> Result<()> {
        for vip in self.vips(NAT)? {
            wait_until(format!("an answer to a ping of {vip}"), SOON, || {
                pings(&self.client.far, &vip.to_string(), 56)
            })?;
        }
        self.exchange()?;
        let status = gateway.status()?;
        balances(&status)?;
        let lost = status["losses"].as_array().context("losses")?;
        if !lost.is_empty() {
            println!("  lost: {lost:?}");
        }
        let some = |interface: &Nic, verdict| {
            if counted(&status, &interface.name, verdict) > 10 { "yes" } else { "no" }
        };
        let sent = if counted(&status, &self.client.name, "tx") > 0 { "yes" } else { "no" };
        self.bench.see(self.client, Cell::Tx, sent)?;
        ensure!(
            some(self.backend, "redirect") == "yes",
            "no reply was redirected: {}",
            status["counters"]
        );
        self.bench.see(self.client, Cell::Redirect, some(self.client, "redirect"))
    }

    /// A capture sees a ping of the service address.
    fn captured(&self, gateway: &Gateway) -> Result<()> {
        let vip = self.vips(NAT)?[0].to_string();
        let file = self.bench.gateway.directory().join("capture.pcapng");
        let mut command = self.bench.gateway.command(binary()?);
        let configuration = gateway.configuration();
        command
            .args(["capture", "--overwrite", "-c", "4", "-w"])
            .arg(&file)
            .arg("-i")
            .arg(&self.client.name);
        command.arg("icmp").arg("--config").arg(configuration);
        let mut capture = self.bench.gateway.spawn(command)?;
        let done = || {
            pings(&self.client.far, &vip, 56);
            !capture.running()
        };
        // It loads the gateway's program once more.
        if wait_until("a capture of four packets", SOON * 6, done).is_err() {
            anyhow::bail!("no capture of four packets: {}", capture.log());
        }
        let end = capture.wait(SOON)?;
        ensure!(end.status.success() && fs::metadata(&file)?.len() > 400, "{}", end.log);
        Ok(())
    }

    fn link_down_and_up(&self, gateway: &Gateway) -> Result<()> {
        for nic in [self.client, self.backend] {
            if self.forgets(nic) {
                continue;
            }
            let name = &nic.name;
            ip(&format!("link set {name} down"))?;
            ip(&format!("link set {name} up"))?;
            // The kernel takes IPv6 addresses off with the link.
            ip(&format!("addr replace {}/64 dev {name} nodad", nic.address6(1)))?;
            nic.wait_up()?;
            self.exchange_soon(&format!("answers after {name} was down"))?;
        }
        balances(&gateway.status()?)
    }

    /// It does not run its program any more after its link was down, or at another MTU, seen on 7.3:
    /// docs/nics.md.
    fn forgets(&self, nic: &Nic) -> bool {
        nic.driver == "vmxnet3" && self.native()
    }

    /// A smaller MTU and back, and one that the driver cannot have beside a program.
    fn mtu_changes(&self, gateway: &Gateway) -> Result<()> {
        for nic in [self.client, self.backend] {
            if self.forgets(nic) {
                continue;
            }
            for mtu in [1400, 1500] {
                nic.set_mtu(mtu)?;
                nic.wait_up()?;
                self.exchange_soon(&format!("answers at an MTU of {mtu} on {}", nic.name))?;
            }
            let refused = ip(&format!("link set {} mtu 9000", nic.name));
            let frags = self.bench.expected(nic, Cell::Frags)?;
            if self.native() {
                // 6.1's virtio_net looks at the MTU when a program comes, and when it goes: it would
                // stay attached then, with a WARNING.
                let blind = nic.driver == "virtio_net" && self.bench.kernel() == "6.1";
                ensure!(
                    refused.is_ok() == (frags == "yes" || blind),
                    "frags {frags}, and MTU 9000 under native XDP: {refused:?}"
                );
            }
            ip(&format!("link set {} mtu 1500", nic.name))?;
            nic.wait_up()?;
        }
        self.exchange_soon("answers at the first MTU again")?;
        self.modes(gateway)
    }

    /// A flood of SYNs arms their answers, and its end disarms them: nothing is attached for it, so no
    /// link goes down.
    fn arming(&self) -> Result<()> {
        let vip = self.vips(NAT)?[0];
        let backend: SocketAddr = (self.backend.address(2).parse::<IpAddr>()?, PORT).into();
        let _echo = Echo::start(&self.backend.far, backend, "b1")?;
        let shield = "[shield]\nmitigation = { new_flows = \"100pps\", for = \"1s\" }\n";
        let more = "announce = \"arp\"\nsyn = \"challenge\"\n";
        let body = shield.to_owned() + &service("web", (vip, PORT).into(), &[backend], more);
        let text = configuration(&self.bench.gateway, &self.interfaces(), &body);
        let mut gateway = Gateway::start(&self.bench.gateway, &text)?;
        let asked = || {
            let mut line = Line::open(&self.client.far, (vip, PORT).into())
                .map_err(|error| format!("{error:#}"))?;
            line.ask("a").map_err(|error| format!("{error:#}"))
        };
        wait_for("an answer", SOON, asked)?;
        self.modes(&gateway)?;
        let downs = || Ok::<_, anyhow::Error>([self.client.downs()?, self.backend.downs()?]);
        let (before, start) = (downs()?, Instant::now());
        let (to, port) = (vip.to_string(), PORT.to_string());
        let flood = [
            &["gen", "--port", "af_packet:eth0", "--protocol", "tcp-syn", "--rate", "1k"][..],
            &["--source", "198.18.0.0/16", "--destination", &to],
            &["--destination-ports", &port, "--count", "8000"],
        ]
        .concat();
        let mut command = self.client.far.command(lab_binary()?);
        let ran = command.args(flood).output()?;
        ensure!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
        let shield =
            || -> Result<Value> { gateway.ringway(&["shield", "status", "-o", "json"])?.json() };
        let answered = shield()?["limits"][0]["syns_answered"]["packets"].as_u64();
        ensure!(answered > Some(0), "not armed: {}", shield()?);
        let is_over = || shield().is_ok_and(|it| it["mitigation"][0]["attack"].is_null());
        wait_until("the end of the attack", SOON, is_over)?;
        wait_for("an answer afterwards", SOON, asked)?;
        let seconds = start.elapsed().as_secs();
        println!("  {answered:?} SYNs answered, armed and disarmed within {seconds} s");
        ensure!(downs()? == before, "links went down: {before:?}, then {:?}", downs()?);
        gateway.terminate()?;
        self.detach(&gateway)
    }

    /// `ringway detach`: no program is left, and the links come back.
    fn detach(&self, gateway: &Gateway) -> Result<()> {
        let before = [self.client.downs()?, self.backend.downs()?];
        let ran = ringway(&self.bench.gateway, &["detach", "--node", gateway.node()])?;
        ensure!(ran.code == 0, "{}", ran.said());
        for (nic, before) in [self.client, self.backend].into_iter().zip(before) {
            let start = Instant::now();
            nic.wait_up()?;
            let downs = nic.downs()? - before;
            println!(
                "  {}: detached, link down {downs} times, packets again after {} ms",
                nic.name,
                start.elapsed().as_millis()
            );
            ensure!(nic.link()?.xdp.is_empty(), "{:?}", nic.link()?.xdp);
        }
        Ok(())
    }

    /// The backend is behind a VLAN of its NIC: refused while the NIC takes tags off, and served then.
    fn vlan(&self) -> Result<()> {
        let (near, name) = (self.backend, format!("{}.7", self.backend.name));
        let hub = near.hub;
        let _servers = self.serve()?;
        ip(&format!("link add link {} name {name} type vlan id 7", near.name))?;
        near.far.ip("link add link eth0 name eth0.7 type vlan id 7\n")?;
        ip(&format!("addr add 10.20{hub}.0.1/24 dev {name}"))?;
        ip(&format!("addr add fd2{hub}::1/64 dev {name} nodad"))?;
        ip(&format!("link set {name} up"))?;
        near.far.ip(&format!(
            "addr add 10.20{hub}.0.2/24 dev eth0.7\naddr add fd2{hub}::2/64 dev eth0.7 nodad\nlink set eth0.7 up\n"
        ))?;
        let seen = self.tags(&name);
        ip(&format!("link del {name}"))?;
        near.far.ip("link del eth0.7\n")?;
        let _ = near.ethtool(&["-K", "rxvlan", "on"]);
        near.wait_up()?;
        self.bench.see(near, Cell::Vlan, seen?)
    }

    fn tags(&self, name: &str) -> Result<&'static str> {
        let (near, hub) = (self.backend, self.backend.hub);
        let backend: [IpAddr; 2] =
            [format!("10.20{hub}.0.2").parse()?, format!("fd2{hub}::2").parse()?];
        let _echoes = backend.map(|address| Echo::start(&near.far, (address, PORT).into(), "b1"));
        let mut body = String::new();
        for (vip, to) in self.vips(NAT)?.into_iter().zip(backend) {
            let name = if vip.is_ipv4() { "v4" } else { "v6" };
            let more = "announce = \"arp\"\nprotocol = [\"tcp\", \"udp\"]\n";
            body += &service(name, (vip, PORT).into(), &[(to, PORT).into()], more);
        }
        let interfaces = [&*self.client.name, &near.name, name];
        let text = configuration(&self.bench.gateway, &interfaces, &body);
        let takes_off = near.ethtool(&["-k"])?.contains("rx-vlan-offload: on");
        if takes_off {
            let mut refused = Gateway::launch(&self.bench.gateway, &text)?;
            let (code, said) = refused.refusal()?;
            let remedy = format!("ethtool -K {} rxvlan off", near.name);
            ensure!(
                code != 0 && said.contains("takes VLAN tags off") && said.contains(&remedy),
                "{said}"
            );
            if near.ethtool(&["-K", "rxvlan", "off"]).is_err()
                || near.ethtool(&["-k"])?.contains("rx-vlan-offload: on")
            {
                return Ok("fixed");
            }
            near.wait_up()?;
        }
        let _gateway = Gateway::start(&self.bench.gateway, &text)?;
        for vip in self.vips(NAT)? {
            wait_for(format!("{vip} behind a VLAN"), SOON, || {
                self.ask(vip).map_err(|error| format!("{error:#}"))
            })?;
        }
        Ok(if takes_off { "offload" } else { "kept" })
    }
}

/// The ledger accounts for every packet.
pub fn balances(status: &Value) -> Result<()> {
    ensure!(status["ledger"]["difference_packets"] == 0, "{}", status["ledger"]);
    Ok(())
}

/// Packets of an interface with this verdict, for whatever reason.
fn counted(status: &Value, interface: &str, verdict: &str) -> u64 {
    let counters = status["counters"].as_array().into_iter().flatten();
    let fits =
        |counter: &&Value| counter["interface"] == interface && counter["verdict"] == verdict;
    counters.filter(fits).filter_map(|counter| counter["packets"].as_u64()).sum()
}
