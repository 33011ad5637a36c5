//! Forwarding beside a Linux bridge, as hosts on the bridge see it.

use std::ops::Range;

use anyhow::{Context, Result, ensure};
use ringway_net_tests::{
    Gateway, SOON, all_answered, configuration, needs_root, not_tested, packets, tool,
};
use ringway_testnet::Signal;
use ringway_testnet::{
    End, Namespace, VethOptions, XdpReceive, bridge, veth, wait_for, wait_until,
};
use serde_json::Value;

use crate::capture;

/// `10.7.0.1` to `10.7.0.3` behind ports p1 to p3 of `br0`.
struct Site {
    switch: Namespace,
    hosts: Vec<Namespace>,
}

impl Site {
    fn new() -> Result<Site> {
        let switch = Namespace::new("sw")?;
        bridge(&switch, "br0", &[])?;
        let mut hosts = Vec::new();
        for n in 1..=3 {
            let host = Namespace::new(&format!("h{n}"))?;
            let end = End::new(&host, "eth0").address(format!("10.7.0.{n}/24"));
            let port = End::new(&switch, &format!("p{n}")).port_of("br0");
            veth(&end.xdp_receive(XdpReceive::Pass), &port, &VethOptions::default())?;
            hosts.push(host);
        }
        Ok(Site { switch, hosts })
    }

    fn start(&self, ports: &[&str], more: &str) -> Result<Gateway> {
        let mut gateway = Gateway::launch(&self.switch, &self.text(ports, more))?;
        gateway.wait_healthy()?;
        Ok(gateway)
    }

    fn text(&self, ports: &[&str], more: &str) -> String {
        configuration(&self.switch, ports, &format!("[forward]\nmode = \"bridge\"\n{more}"))
    }

    /// Whether all of `count` pings, 0.1 s apart, are answered.
    fn ping(&self, from: usize, to: usize, count: u32) -> Result<bool> {
        all_answered(&self.hosts[from - 1], &format!("10.7.0.{to}"), count, "0.1")
    }

    /// Pings from the first host until the packet path has all of `count` pings and their answers,
    /// and loses none: the daemon hears of a station after the bridge has learnt it.
    fn wait_bridged(&self, gateway: &Gateway, to: usize, count: u32) -> Result<()> {
        let frames = || {
            let before = bridged(gateway)?;
            ensure!(self.ping(1, to, count)?, "lost");
            Ok(bridged(gateway)? - before)
        };
        wait_for("pings by the packet path", SOON, || match frames() {
            Ok(frames) if frames < u64::from(2 * count) => Err(format!("it had {frames} frames")),
            other => Ok(other.map(drop)),
        })?
    }

    /// Whether one is, within a second.
    fn answered(&self, from: usize, to: usize) -> Result<bool> {
        let to = format!("10.7.0.{to}");
        Ok(tool(&self.hosts[from - 1], "ping", &["-q", "-W", "1", "-c", "1", &to])?.code == 0)
    }

    fn run(&self, program: &str, arguments: &str) -> Result<String> {
        let arguments: Vec<&str> = arguments.split(' ').collect();
        Ok(tool(&self.switch, program, &arguments)?.done()?.out)
    }

    /// 10.7.0.2 is unplugged at p2 and plugged in at p3.
    fn move_to_p3(&self) -> Result<()> {
        let mac = self.mac(2)?;
        self.hosts[1].ip("link set eth0 down\n")?;
        let there = format!("link set eth0 address {mac}\naddr add 10.7.0.2/24 dev eth0\n");
        self.hosts[2].ip(&there)?;
        ensure!(self.ping(3, 1, 1)?, "lost at its new port");
        Ok(())
    }

    /// Entries of the bridge's table, set by hand.
    fn stations(&self, change: &str, port: &str, numbers: Range<u32>) -> Result<()> {
        let line = |number: u32| {
            let [_, a, b, c] = number.to_be_bytes();
            format!("fdb {change} 02:09:00:{a:02x}:{b:02x}:{c:02x} dev {port} master static\n")
        };
        let batch = self.switch.directory().join("stations");
        std::fs::write(&batch, numbers.map(line).collect::<String>())?;
        self.run("bridge", &format!("-batch {}", batch.display())).map(drop)
    }

    fn mac(&self, host: usize) -> Result<String> {
        let shown = tool(&self.hosts[host - 1], "ip", &["-o", "link", "show", "eth0"])?.out;
        let mac = shown.split(' ').skip_while(|word| *word != "link/ether").nth(1);
        Ok(mac.context("no address")?.to_owned())
    }

    /// MAC addresses that the bridge has learnt.
    fn learnt(&self) -> Result<Vec<String>> {
        let all = self.run("bridge", "fdb show br br0")?;
        let learnt = all.lines().filter(|l| l.contains("master br0") && !l.contains("permanent"));
        Ok(learnt.filter_map(|line| line.split(' ').next()).map(str::to_owned).collect())
    }

    /// All that somebody may have set: bridge, ports and interfaces.
    fn settings(&self) -> Result<[String; 2]> {
        let without_timers = |text: String| {
            let mut is_time = false;
            let stays = |word: &&str| !std::mem::replace(&mut is_time, word.ends_with("_timer"));
            text.split_whitespace().filter(stays).collect::<Vec<_>>().join(" ")
        };
        let [links, ports] = [self.run("ip", "-d link show")?, self.run("bridge", "-d link show")?];
        Ok([without_timers(links), without_timers(ports)])
    }
}

fn stations(status: &Value) -> u64 {
    status["forward"]["stations"].as_u64().unwrap_or_default()
}

fn bridged(gateway: &Gateway) -> Result<u64> {
    Ok(packets(&gateway.status()?, "bridged"))
}

#[test]
fn stations_that_send_are_not_forgotten() -> Result<()> {
    needs_root!();
    let site = Site::new()?;
    site.run("ip", "link set br0 type bridge ageing_time 300")?;
    let gateway = site.start(&["p1", "p2", "p3"], "")?;
    site.wait_bridged(&gateway, 2, 1)?;
    let before = gateway.status()?;
    // Twice the time after which the bridge forgets who it does not hear.
    ensure!(site.ping(1, 2, 60)?, "lost");
    let status = gateway.status()?;
    let more = |reason: &str| packets(&status, reason) - packets(&before, reason);
    ensure!(more("bridged") >= 100 && more("bridge-destination") <= 2, "{status:#}");
    ensure!(site.learnt()?.len() == 2, "{:?}", site.learnt()?);
    ensure!(
        status["forward"]["bridge"] == "br0" && status["forward"]["stations"] == 2,
        "{status:#}"
    );
    // And who is silent is.
    wait_until("both", SOON, || site.learnt().is_ok_and(|learnt| learnt.is_empty()))?;
    gateway.wait_status("no station", |status| status["forward"]["stations"] == 0)?;
    Ok(())
}

#[test]
fn a_station_that_moves_is_followed() -> Result<()> {
    needs_root!();
    let site = Site::new()?;
    let gateway = site.start(&["p1", "p2", "p3"], "")?;
    ensure!(site.ping(1, 2, 3)?, "lost");
    site.move_to_p3()?;
    site.wait_bridged(&gateway, 2, 5).context("its new port")
}

/// The kernel announces more than the daemon's buffer takes, and in between that a station moves.
#[test]
fn lost_announcements_are_made_up_for() -> Result<()> {
    needs_root!();
    let site = Site::new()?;
    let mut gateway = site.start(&["p1", "p2", "p3"], "")?;
    ensure!(site.ping(1, 2, 3)?, "lost");
    gateway.child().signal(Signal::STOP)?;
    site.stations("add", "p3", 0..1000)?;
    for _ in 0..50 {
        site.stations("del", "p3", 0..1000)?;
        site.stations("add", "p3", 0..1000)?;
    }
    // The tables do not count any more: nobody has kept them.
    wait_until("the bridge's turn", SOON, || {
        let stale = || packets(&gateway.status().unwrap_or_default(), "forward-stale") > 0;
        site.ping(1, 2, 1).is_ok_and(|answered| answered) && stale()
    })?;
    site.move_to_p3()?;
    gateway.child().signal(Signal::CONT)?;
    wait_for("all stations", SOON, || match stations(&gateway.status().unwrap_or_default()) {
        1002..1010 => Ok(()),
        other => Err(format!("{other} are known, {:?} were learnt", site.learnt())),
    })?;
    ensure!(gateway.log().contains("came faster than they were read"), "{}", gateway.log());
    site.wait_bridged(&gateway, 2, 5).context("its new port")
}

#[test]
fn many_stations_are_followed_and_too_many_are_said() -> Result<()> {
    needs_root!();
    let site = Site::new()?;
    let gateway = site.start(&["p1", "p2", "p3"], "")?;
    ensure!(site.ping(1, 2, 3)?, "lost");
    site.stations("add", "p3", 0..2000)?;
    gateway.wait_status("2 000", |status| stations(status) >= 2002)?;
    let before = bridged(&gateway)?;
    ensure!(site.ping(1, 2, 5)? && bridged(&gateway)? >= before + 8, "by the packet path");
    site.stations("add", "p3", 2000..66_000)?;
    // They come one after the other.
    gateway.wait_status("a full table", |status| {
        stations(status) == 65_536
            && status["forward"]["stations_left_out"].as_u64() >= Some(466)
            && status["findings"].to_string().contains("forward-table-full")
    })?;
    ensure!(site.ping(1, 2, 5)?, "lost");
    // Those that are known stay so.
    ensure!(bridged(&gateway)? >= before + 16, "by the packet path");
    site.run("ip", "link set p3 nomaster")?;
    gateway.wait_status("room", |status| {
        stations(status) < 5 && !status["findings"].to_string().contains("forward-table-full")
    })?;
    Ok(())
}

/// The tags of a local sender's frames are not in them: such ports are the bridge's.
#[test]
fn a_bridge_that_filters_vlans_has_its_veth_ports() -> Result<()> {
    needs_root!();
    let site = Site::new()?;
    let filters = |on: u8| site.run("ip", &format!("link set br0 type bridge vlan_filtering {on}"));
    if filters(1).is_err() {
        not_tested("this kernel's bridges filter no VLANs");
        return Ok(());
    }
    filters(0)?;
    let gateway = site.start(&["p1", "p2"], "")?;
    site.wait_bridged(&gateway, 2, 3)?;
    filters(1)?;
    gateway.wait_status("left to the bridge", |status| {
        status["forward"]["suspended"] == false
            && status["problems"].to_string().contains("no interface of [forward]")
            && status["findings"].to_string().contains("br0 filters VLANs")
    })?;
    let before = bridged(&gateway)?;
    ensure!(site.ping(1, 2, 3)?, "VLAN 1 is everybody's");
    site.run("bridge", "vlan del dev p2 vid 1")?;
    site.run("bridge", "vlan add dev p2 vid 5 pvid untagged")?;
    ensure!(!site.answered(1, 2)?, "from VLAN 1 to VLAN 5");
    site.run("bridge", "vlan add dev p2 vid 1 pvid untagged")?;
    ensure!(site.ping(1, 2, 3)? && bridged(&gateway)? == before, "all by the bridge");
    filters(0)?;
    gateway.wait_status("forwarded again", |status| status["healthy"] == true)?;
    wait_until("by the packet path", SOON, || {
        site.ping(1, 2, 3).is_ok_and(|answered| answered)
            && bridged(&gateway).is_ok_and(|now| now > before)
    })?;
    Ok(())
}

/// Nobody keeps the tables: the bridge has all frames, and loses none.
#[test]
fn the_bridge_takes_over_when_the_daemon_dies() -> Result<()> {
    needs_root!();
    let site = Site::new()?;
    let before = site.settings()?;
    let mut gateway = site.start(&["p1", "p2", "p3"], "")?;
    ensure!(site.ping(1, 2, 3)?, "lost");
    gateway.kill()?;
    ensure!(site.ping(1, 2, 80)?, "lost while the daemon is away");
    let away = gateway.status()?;
    ensure!(packets(&away, "forward-stale") >= 10, "{away:#}");
    gateway.start_healthy()?;
    let again = bridged(&gateway)?;
    ensure!(site.ping(1, 2, 5)? && bridged(&gateway)? >= again + 8, "forwarded again");
    // Taken away, the bridge is as it was, but for what it has learnt.
    gateway.terminate()?;
    gateway.ringway(&["detach", "--verify"])?.done()?;
    ensure!(site.settings()? == before, "{:#?}", site.settings()?);
    ensure!(site.ping(1, 2, 3)? && site.learnt()?.len() >= 2, "by the bridge alone");
    Ok(())
}

#[test]
fn what_would_be_bypassed_suspends_it() -> Result<()> {
    needs_root!();
    let site = Site::new()?;
    let rules = "table bridge f { chain c { type filter hook forward priority 0; ip daddr 10.7.0.3 drop; }; }";
    let nft = |text: &str| site.run("nft", text);
    nft(rules)?;
    let mut refused = Gateway::launch(&site.switch, &site.text(&["p1", "p2", "p3"], ""))?;
    let (code, why) = refused.refusal()?;
    ensure!(code == 1 && why.contains("bridge f c") && why.contains("bypass_firewall"), "{why}");
    nft("delete table bridge f")?;
    let gateway = site.start(&["p1", "p2", "p3"], "")?;
    site.wait_bridged(&gateway, 3, 2)?;
    nft(rules)?;
    let status =
        gateway.wait_status("suspended", |status| status["forward"]["suspended"] == true)?;
    ensure!(status["problems"][0]["kind"] == "forward-suspended", "{status:#}");
    ensure!(!site.answered(1, 3)? && site.ping(1, 2, 1)?, "the rule is obeyed");
    nft("delete table bridge f")?;
    gateway.wait_status("no more", |status| status["forward"]["suspended"] == false)?;
    site.wait_bridged(&gateway, 3, 3).context("forwarded again")
}

#[test]
fn ports_follow_their_state() -> Result<()> {
    needs_root!();
    let site = Site::new()?;
    // p3 is not named: the bridge's alone.
    let gateway = site.start(&["p1", "p2"], "")?;
    ensure!(site.ping(1, 2, 2)? && site.ping(1, 3, 2)?, "lost");
    let of_port = |status: &Value| status["forward"]["interfaces"][1].clone();
    site.run("ip", "link set p2 type bridge_slave isolated on")?;
    site.run("ip", "link set p1 type bridge_slave isolated on")?;
    wait_until("isolated", SOON, || site.answered(1, 2).is_ok_and(|answered| !answered))?;
    site.run("ip", "link set p1 type bridge_slave isolated off")?;
    wait_until("together", SOON, || site.answered(1, 2).is_ok_and(|answered| answered))?;
    // Out of the bridge, and back.
    site.run("ip", "link set p2 nomaster")?;
    let status = gateway.wait_status("left out", |status| of_port(status)["forwards"] == false)?;
    ensure!(
        status["healthy"] == true && status["findings"][0]["kind"] == "forward-interface",
        "{status:#}"
    );
    ensure!(!site.answered(1, 2)?, "it is not in the bridge");
    site.run("ip", "link set p2 master br0")?;
    gateway.wait_status("back", |status| of_port(status)["forwards"] == true)?;
    wait_until("there", SOON, || site.answered(1, 2).is_ok_and(|answered| answered))?;
    site.wait_bridged(&gateway, 2, 3).context("forwarded again")
}

#[test]
fn explain_capture_and_status_know_it() -> Result<()> {
    needs_root!();
    let site = Site::new()?;
    let mut gateway = site.start(&["p1", "p2", "p3"], "")?;
    site.wait_bridged(&gateway, 2, 1)?;
    let reasons = gateway.plain(&["reasons", "bridged"])?;
    ensure!(reasons.out.contains("past the kernel's bridge"), "{reasons:?}");
    // Hosts send unicast ARP, too.
    let pings = ["--reason", "bridged", "--count", "2", "icmp"];
    let capture = capture::begin(&site.switch, &pings)?;
    ensure!(site.ping(1, 2, 3)?, "lost");
    let (code, seen) = capture::ended(capture)?;
    ensure!(code == 0 && seen.contains("p1 in  icmp 10.7.0.1 > 10.7.0.2"), "{code}: {seen}");
    ensure!(seen.contains("p2 out icmp 10.7.0.1 > 10.7.0.2"), "{code}: {seen}");
    let packet = ["explain", "-i", "p1", "icmp 10.7.0.1 > 10.7.0.2"];
    let typed = gateway.ringway(&packet)?;
    ensure!(typed.out.contains("made up") && typed.out.contains("--source-mac"), "{typed:?}");
    let (source, destination) = (site.mac(1)?, site.mac(2)?);
    let named = ["--source-mac", &source, "--destination-mac", &destination];
    let named = gateway.ringway(&[&packet[..], &named].concat())?;
    ensure!(named.out.contains("redirect, bridged"), "{named:?}");
    // Of a node that has no service nobody says that backends are not checked.
    let top = gateway.ringway(&["top", "--once"])?;
    ensure!(top.out.contains("forwarded") && !top.out.contains("flows"), "{top:?}");
    let busy = gateway.ringway(&["detach"])?;
    ensure!(busy.err.contains("kernel bridges") && !busy.err.contains("systemctl"), "{busy:?}");
    gateway.kill()?;
    let status = gateway.ringway(&["status"])?;
    ensure!(status.out.contains("the kernel bridges everything"), "{status:?}");
    ensure!(status.out.contains("ringway forward -i p1,p2,p3 --name"), "{status:?}");
    for balancer in ["backends", "flows now", "ringway run"] {
        ensure!(!status.out.contains(balancer), "{balancer}: {status:?}");
    }
    Ok(())
}
