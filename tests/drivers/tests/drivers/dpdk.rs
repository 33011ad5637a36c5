//! Two igb on vfio-pci: `ringway nic bind`, the engine on DPDK beside testpmd, what befalls their
//! devices, and a reboot. The guest of `packaging/test-drivers dpdk` runs this twice.
//!
//! ```text
//!     far 1, 10.99.0.1          far 2, 10.99.0.2
//!         eth0 --- hub 1 --- igb  igb --- hub 2 --- eth0
//!                            l2fwd or testpmd
//! ```

use std::cell::Cell;
use std::fs;
use std::net::UdpSocket;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use ringway_host::netlink::links;
use ringway_host::nics::{self, Nic};
use ringway_net_tests::{Ran, not_tested, ringway};
use ringway_testnet::{Child, Namespace, Signal, slowed, wait_for, wait_until};
use serde_json::Value;

use crate::bench::{SOON, downs, ip, pings};
use crate::engine::end;
use crate::harness::{self, Case};

const IGB: &str = "8086:10c9";
const PORT: u16 = 9;
/// Both ways in each round.
const DATAGRAMS: u32 = 300;

struct Guest {
    own: Namespace,
    far: [Namespace; 2],
    /// PCI addresses.
    nics: [String; 2],
    /// Whether the engine waits for a link that is down; of the machine's cables.
    unplugged: Cell<bool>,
}

type Test = fn(&Guest) -> Result<()>;

const BEFORE_REBOOT: [(&str, Test); 6] = [
    ("dpdk::refused", refused),
    ("dpdk::bound-and-given-back", bound_and_given_back),
    ("dpdk::forward", forward),
    ("dpdk::testpmd", testpmd),
    ("dpdk::link", link),
    ("dpdk::removed", removed),
];

const AFTER_REBOOT: [(&str, Test); 4] = [
    ("dpdk::bound-at-boot", bound_at_boot),
    ("dpdk::forward", forward),
    ("dpdk::unbind", unbind),
    ("igb::forward-bridge", forward_by_xdp),
];

/// Whether all passed.
pub fn test(phase: &str) -> Result<bool> {
    let guest = Guest::find()?;
    let tests = if phase == "after-reboot" { &AFTER_REBOOT[..] } else { &BEFORE_REBOOT };
    let guest = &guest;
    let case = |(name, run): &(&str, Test)| -> Case<'_> {
        let (name, run) = (format!("{name}, {phase}"), *run);
        Case { name, run: Box::new(move || run(guest)) }
    };
    Ok(harness::run(&tests.iter().map(case).collect::<Vec<_>>(), &[]))
}

impl Guest {
    fn find() -> Result<Guest> {
        let far = [far_end(1)?, far_end(2)?];
        let nics: Vec<_> = nics::all()?.into_iter().filter(|nic| nic.id == IGB).collect();
        let nics: Vec<_> = nics.into_iter().map(|nic| nic.address).collect();
        let nics = nics.try_into().map_err(|nics| anyhow::anyhow!("two igb, not {nics:?}"))?;
        let (own, unplugged) = (Namespace::own("gw")?, Cell::new(false));
        Ok(Guest { own, far, nics, unplugged })
    }

    fn ringway(&self, words: &[&str]) -> Result<Ran> {
        let ran = ringway(&self.own, words)?;
        println!("  $ ringway {}", words.join(" "));
        if !words.contains(&"json") {
            println!("{}", ran.said());
        }
        Ok(ran)
    }

    /// It is refused so.
    fn is_refused(&self, words: &[&str], code: i32, why: &str) -> Result<()> {
        let ran = self.ringway(words)?;
        ensure!(ran.code == code && ran.err.contains(why), "{}: {}", ran.code, ran.said());
        Ok(())
    }

    fn does(&self, words: &[&str]) -> Result<Ran> {
        let ran = self.ringway(words)?;
        ensure!(ran.code == 0, "{words:?}: {}: {}", ran.code, ran.said());
        Ok(ran)
    }

    fn nic(&self, n: usize) -> Result<Nic> {
        let mut all = nics::all()?.into_iter();
        all.find(|nic| nic.address == self.nics[n]).context("it is gone")
    }

    fn interface(&self, n: usize) -> Result<String> {
        let nic = self.nic(n)?;
        ensure!(nic.driver.as_deref() == Some("igb"), "{nic:?}");
        nic.interfaces.first().cloned().context("no interface")
    }

    fn both_are_bound(&self) -> Result<()> {
        for n in [0, 1] {
            let nic = self.nic(n)?;
            ensure!(nic.driver.as_deref() == Some("vfio-pci"), "{nic:?}");
        }
        Ok(())
    }

    /// The engine's l2fwd between both.
    fn engine(&self, more: &[&str]) -> Result<Child> {
        let mut command = self.own.command("ringway-dpdk");
        command.args(["engine", "l2fwd", "--cpu", "1", "-o", "json"]).args(more);
        command.args(self.nics.iter().flat_map(|nic| ["--port".into(), format!("dpdk:{nic}")]));
        let mut child = self.own.spawn(command)?;
        child.wait_for_log("running on", SOON)?;
        Ok(child)
    }

    fn crosses(&self) -> Result<()> {
        let crosses = || pings(&self.far[0], "10.99.0.2", 56);
        Ok(wait_until("a ping from far end to far end", SOON, crosses)?)
    }

    /// Asks the machine; it pulls a cable or plugs it in.
    fn plug(&self, plugged: bool) {
        self.unplugged.set(!plugged);
        println!("\nRINGWAY-MONITOR set_link h1n1 {}", if plugged { "on" } else { "off" });
    }
}

/// The other NIC of a hub, in a namespace of its own.
fn far_end(hub: u8) -> Result<Namespace> {
    let is_it = |link: &links::Link| link.mac.is_some_and(|mac| mac.0 == [2, 0, 0, 0, hub, 2]);
    let link = links::all()?.into_iter().find(is_it).context("no far end")?;
    let far = Namespace::new(&format!("far{hub}"))?;
    ip(&format!("link set {} netns {} name eth0", link.name, far.name()))?;
    far.command("ethtool").args(["-K", "eth0", "tx", "off"]).output()?;
    far.ip(&format!("addr add 10.99.0.{hub}/24 dev eth0\nlink set eth0 up\n"))?;
    Ok(far)
}

fn refused(guest: &Guest) -> Result<()> {
    let (nic, name) = (&*guest.nics[0], guest.interface(0)?);
    guest.is_refused(&["nic", "bind", "7f:1f.7"], 2, "there is no PCI device 0000:7f:1f.7")?;
    guest.is_refused(&["nic", "bind", "eth99"], 2, "neither a PCI address")?;
    guest.is_refused(&["nic", "bind", "0000:00:00.0"], 2, "it is no network device")?;
    guest.is_refused(&["nic", "unbind", nic], 2, "igb has it: it is not bound to vfio-pci")?;
    let port = format!("dpdk:{nic}");
    let mut engine = Command::new("ringway-dpdk");
    let ran: Ran = engine.args(["engine", "sink", "--port", &port]).output()?.into();
    let remedy = format!("the kernel's driver igb has it; `ringway nic bind {nic}`");
    ensure!(ran.code == 1 && ran.err.contains(&remedy), "{}: {}", ran.code, ran.said());
    ip(&format!("addr add 10.1.0.1/24 dev {name}"))?;
    ip(&format!("link set {name} up"))?;
    guest.is_refused(&["nic", "bind", nic], 1, "which has the address 10.1.0.1; `--force`")?;
    ip(&format!("route add default via 10.1.0.2 dev {name}"))?;
    guest.is_refused(&["nic", "bind", &name, "--force"], 1, "carries the default route")?;
    ip("route del default")?;
    guest.interface(0).map(drop)
}

fn bound_and_given_back(guest: &Guest) -> Result<()> {
    let [a, b] = [&*guest.nics[0], &guest.nics[1]];
    let (name, address) = (guest.interface(0)?, guest.interface(1)?);
    guest.does(&["nic", "bind", &name, b, "--force"])?;
    guest.both_are_bound()?;
    let list = guest.does(&["nic", "list"])?;
    ensure!(list.out.contains(&format!("dpdk       yes  dpdk:{a}")), "{}", list.out);
    ensure!(list.out.contains(&format!("it was {address}, with igb")), "{}", list.out);
    guest.does(&["nic", "bind", a])?;
    guest.does(&["nic", "unbind", a, b])?;
    guest.interface(0)?;
    guest.interface(1)?;
    guest.does(&["nic", "bind", a, b])?;
    guest.both_are_bound()
}

/// Each datagram comes as it was sent, both ways, and the ledger balances.
fn forward(guest: &Guest) -> Result<()> {
    let child = guest.engine(&[])?;
    let nic = &*guest.nics[0];
    guest.is_refused(
        &["nic", "unbind", nic],
        1,
        "(ringway-dpdk) has it\n  to do: end that first",
    )?;
    guest.crosses()?;
    every_datagram(guest)?;
    println!("  ringway-dpdk: {:.0} packets/s, emulated", rate(guest)?);
    let document = end(child)?;
    let ports = document["workers"][0]["ports"].as_array().context("ports")?;
    for port in ports {
        let count = |key: &str| port[key].as_u64().unwrap_or(0);
        ensure!(count("received_packets") >= DATAGRAMS.into(), "{port}");
    }
    guest.both_are_bound()
}

fn every_datagram(guest: &Guest) -> Result<()> {
    let [a, b] = sockets(guest)?;
    for n in 0..DATAGRAMS {
        // All sizes that an interface sends.
        let size = 4 + (n as usize * 61) % 1468;
        let data: Vec<u8> = n.to_be_bytes().into_iter().cycle().take(size).collect();
        for (from, to) in [(&a, &b), (&b, &a)] {
            from.send(&data)?;
            let mut got = [0; 1500];
            let len = to.recv(&mut got).with_context(|| format!("datagram {n} is lost"))?;
            ensure!(got[..len] == data, "datagram {n} of {size} bytes is not the same");
        }
    }
    Ok(())
}

/// A socket at each far end, which sends to the other.
fn sockets(guest: &Guest) -> Result<[UdpSocket; 2]> {
    let open = |n: usize| -> Result<UdpSocket> {
        let socket = guest.far[n].run(|| -> std::io::Result<UdpSocket> {
            let socket = UdpSocket::bind((format!("10.99.0.{}", n + 1), PORT))?;
            socket.connect((format!("10.99.0.{}", 2 - n), PORT))?;
            socket.set_read_timeout(Some(slowed(Duration::from_secs(2))))?;
            Ok(socket)
        })??;
        Ok(socket)
    };
    Ok([open(0)?, open(1)?])
}

/// Packets in a second, with 32 on their way at any time.
fn rate(guest: &Guest) -> Result<f64> {
    let [a, b] = sockets(guest)?;
    let (start, mut data) = (Instant::now(), [0; 64]);
    for n in 0..2000 {
        a.send(&data[..22])?;
        if n >= 32 {
            b.recv(&mut data)?;
        }
    }
    Ok(2000.0 / start.elapsed().as_secs_f64())
}

/// The same packets by DPDK's own forwarder.
fn testpmd(guest: &Guest) -> Result<()> {
    let mut command = Command::new("dpdk-testpmd");
    let devices = guest.nics.iter().flat_map(|nic| ["-a", nic]);
    command.args(["-l", "0,1", "--in-memory", "--no-telemetry"]).args(devices).arg("--");
    command.args(["--total-num-mbufs=8192", "--forward-mode=io", "--auto-start"]);
    command.args(["--no-lsc-interrupt", "-i"]);
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    let Ok(mut child) = command.spawn() else {
        not_tested("testpmd beside ringway-dpdk: no dpdk-testpmd");
        return Ok(());
    };
    let ran = guest.crosses().and_then(|()| every_datagram(guest)).and_then(|()| rate(guest));
    let _ = child.kill();
    child.wait()?;
    println!("  testpmd: {:.0} packets/s, emulated", ran?);
    Ok(())
}

/// Without a link it ends, or waits if it is told to.
fn link(guest: &Guest) -> Result<()> {
    let tried = link_goes(guest);
    if guest.unplugged.get() {
        guest.plug(true);
    }
    tried
}

fn link_goes(guest: &Guest) -> Result<()> {
    let mut child = guest.engine(&["--on-loss", "reopen"])?;
    guest.crosses()?;
    guest.plug(false);
    child.wait_for_log("its link is down; waiting for it", SOON)?;
    guest.plug(true);
    child.wait_for_log("its link is up again", SOON)?;
    guest.crosses()?;
    end(child)?;
    let mut child = guest.engine(&[])?;
    guest.crosses()?;
    guest.plug(false);
    let ended = child.wait(SOON)?;
    println!("{}", ended.log);
    let told = ended.log.contains("its link is down; see to its cable");
    ensure!(ended.status.code() == Some(1) && told, "{}", ended.log);
    Ok(())
}

/// The kernel removes the device below the engine, which ends and says so. When it is back, igb has
/// it.
fn removed(guest: &Guest) -> Result<()> {
    let nic = &*guest.nics[0];
    let mut child = guest.engine(&[])?;
    guest.crosses()?;
    let file = format!("/sys/bus/pci/devices/{nic}/remove");
    // It returns when nobody has the device any more.
    let removing = thread::spawn(move || fs::write(file, "1"));
    let ended = child.wait(SOON)?;
    println!("{}", ended.log);
    let told = ended.log.contains("its device is gone, or the kernel wants it back");
    ensure!(ended.status.code() == Some(1) && told, "{}", ended.log);
    removing.join().ok().context("a panic")??;
    fs::write("/sys/bus/pci/rescan", "1")?;
    wait_for("igb again", SOON, || guest.interface(0).map_err(|error| error.to_string()))?;
    let list = guest.does(&["nic", "list", "-o", "json"])?.json()?;
    let rows = list["nics"].as_array().context("nics")?;
    let row = rows.iter().find(|row| row["address"] == nic).context("its row")?;
    let is_dpdk = |road: &&Value| road["port"] == "dpdk";
    let road =
        row["roads"].as_array().and_then(|all| all.iter().find(is_dpdk)).context("a road")?;
    let told = road["note"].as_str().unwrap_or_default();
    ensure!(
        told.contains("though it was bound before") && row["bound"]["driver"] == "igb",
        "{row}"
    );
    guest.does(&["nic", "bind", "--recorded"])?;
    guest.both_are_bound()
}

/// The unit's command has run.
fn bound_at_boot(guest: &Guest) -> Result<()> {
    guest.both_are_bound()?;
    guest.does(&["nic", "list"]).map(drop)
}

/// Their interfaces are the kernel's again, and work.
fn unbind(guest: &Guest) -> Result<()> {
    let [a, b] = [&*guest.nics[0], &guest.nics[1]];
    guest.does(&["nic", "unbind", a, b])?;
    let name = guest.interface(0)?;
    guest.interface(1)?;
    ip(&format!("addr add 10.99.0.9/24 dev {name}"))?;
    ip(&format!("link set {name} up"))?;
    wait_until("a ping by igb", SOON, || pings(&guest.far[0], "10.99.0.9", 56))?;
    ip(&format!("addr flush dev {name}"))?;
    guest.does(&["nic", "bind", "--recorded"]).map(drop)?;
    guest.interface(0).map(drop)
}

/// The kernel's interfaces of both as ports of a bridge, and `ringway forward` between them.
fn forward_by_xdp(guest: &Guest) -> Result<()> {
    let names = [guest.interface(0)?, guest.interface(1)?];
    ip("link add br0 type bridge")?;
    for name in &names {
        ensure!(Command::new("ethtool").args(["-K", name, "rxvlan", "off"]).status()?.success());
        ip(&format!("link set {name} master br0 up"))?;
    }
    ip("link set br0 up")?;
    guest.crosses()?;
    let lost = || -> Result<u32> { Ok(downs(&names[0])? + downs(&names[1])?) };
    let before = lost()?;
    let mut command = guest.own.command("ringway");
    command.args(["forward", "--metrics", "off", "-i", &names.join(",")]);
    let mut child = guest.own.spawn(command)?;
    child.wait_for_log("serving: ", Duration::from_secs(60))?;
    guest.crosses()?;
    println!("  links went down {} times for the programs", lost()? - before);
    let before = lost()?;
    every_datagram(guest)?;
    let status = guest.does(&["status", "--ledger", "-o", "json"])?.json()?;
    let counters = status["counters"].as_array().context("counters")?;
    let bridged = counters.iter().filter(|counter| counter["reason"] == "bridged");
    let bridged: u64 = bridged.filter_map(|counter| counter["packets"].as_u64()).sum();
    ensure!(bridged >= DATAGRAMS.into(), "{bridged} of {DATAGRAMS} each way: {status:#}");
    ensure!(lost()? == before, "a link went down");
    println!("  {bridged} packets were bridged in XDP");
    child.signal(Signal::TERM)?;
    let ended = child.wait(SOON)?;
    ensure!(ended.status.success(), "{}", ended.log);
    guest.does(&["detach", "--node", "forward"])?;
    guest.crosses()
}
