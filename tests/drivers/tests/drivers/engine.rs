//! `ringway engine` and `ringway-lab gen` on real drivers.

use std::collections::HashSet;
use std::net::UdpSocket;
use std::process::Command;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use ringway_driver_tests::Cell;
use ringway_host::netlink::links;
use ringway_net_tests::{binary, lab_binary};
use ringway_testnet::{Child, Signal, slowed, wait_until};
use ringway_xsk::Redirect;
use rustix::net::sockopt;
use serde_json::Value;

use crate::bench::{Bench, Nic, SOON, ip, pings};
use crate::capabilities::{QUEUES, queues_now};

/// Where the generator sends to.
const DISCARD: u16 = 9;

fn start(bench: &Bench, words: &[&str]) -> Result<Child> {
    let mut command: Command = bench.gateway.command(binary()?);
    command.arg("engine").args(words).args(["-o", "json"]);
    // igb has zero-copy only with these.
    if !words.contains(&"--take-over") {
        command.args(["--frame-size", "4096"]);
    }
    let mut child = bench.gateway.spawn(command)?;
    child.wait_for_log("running on", SOON)?;
    Ok(child)
}

/// Ends it; its result, whose ledger balances.
pub fn end(mut child: Child) -> Result<Value> {
    child.signal(Signal::TERM)?;
    let end = child.wait(SOON)?;
    ensure!(end.status.success(), "{}", end.log);
    let document = document(&end.log)?;
    ensure!(document["balanced"] == true, "{document}");
    Ok(document)
}

fn document(log: &str) -> Result<Value> {
    let json = log.find("{\n").map_or("", |at| &log[at..]);
    serde_json::from_str(json).with_context(|| log.to_owned())
}

fn ports(nic: &Nic) -> String {
    format!("af_xdp:{}:all", nic.name)
}

/// Whether a datagram to this address of the NIC comes back.
fn echoes(nic: &Nic, host: u8) -> bool {
    let asked = nic.far.run(|| -> std::io::Result<bool> {
        let socket = UdpSocket::bind((nic.address(2), 0))?;
        socket.set_read_timeout(Some(slowed(Duration::from_millis(500))))?;
        socket.send_to(b"hello", (nic.address(host), 7))?;
        let mut back = [0; 16];
        Ok(socket.recv(&mut back).is_ok_and(|len| &back[..len] == b"hello"))
    });
    matches!(asked, Ok(Ok(true)))
}

fn echoes_soon(nic: &Nic, what: &str) -> Result<()> {
    Ok(wait_until(format!("an echo {what} by {}", nic.name), SOON, || echoes(nic, 1))?)
}

/// Pings of both families are answered by the app, on all queues.
pub fn icmp(bench: &Bench, nic: &Nic) -> Result<()> {
    let (four, six) = (nic.address(10), nic.address6(10));
    let port = ports(nic);
    let engine = start(bench, &["icmp", "--port", &port, "--address", &four, "--address", &six])?;
    for address in [&four, &six] {
        wait_until(format!("an answer of {address}"), SOON, || pings(&nic.far, address, 56))?;
        wait_until(format!("a long answer of {address}"), SOON, || pings(&nic.far, address, 1400))?;
    }
    let count = queues_now(nic)?;
    let document = end(engine)?;
    let queues = document["queues"].as_array().context("queues")?;
    ensure!(queues.len() == count as usize, "it has {count}: {document}");
    for queue in queues {
        ensure!(queue["native"] == bench.has(nic, Cell::Native), "{queue}");
        ensure!(queue["zero_copy"] == bench.has(nic, Cell::ZeroCopy), "{queue}");
    }
    nic.wait_up()
}

/// A successor goes on with the sockets; a killed engine's packets are dropped, as asked for, and
/// those of an engine that ended are the kernel's. All else is the kernel's all the time.
pub fn take_over_and_when_dead(bench: &Bench, nic: &Nic) -> Result<()> {
    let control = bench.gateway.directory().join("control").display().to_string();
    let (port, address) = (ports(nic), nic.address(1));
    let rule = format!("udp:7@{address}");
    let words = [
        ["udp-echo", "--port", &port, "--address", &address],
        ["--only", &rule, "--when-dead", "drop", "--control"],
    ]
    .concat();
    let words = [&words[..], &[&*control]].concat();
    let mut running = start(bench, &words)?;
    echoes_soon(nic, "of the first")?;
    // `--take-over` needs Linux 6.4.
    if bench.kernel() != "6.1" {
        let over = AtomicBool::new(false);
        thread::scope(|scope| -> Result<()> {
            scope.spawn(|| {
                while !over.load(Relaxed) {
                    echoes(nic, 1);
                }
            });
            let taken = (0..3).try_for_each(|_| {
                let next = start(bench, &[&words[..], &["--take-over", &control]].concat())?;
                let ended = running.wait(SOON)?;
                ensure!(
                    ended.status.success() && ended.log.contains("has taken over"),
                    "{}",
                    ended.log
                );
                running = next;
                Ok(())
            });
            over.store(true, Relaxed);
            taken
        })?;
        echoes_soon(nic, "of a successor")?;
    }
    let kernel = bench.gateway.run(|| UdpSocket::bind((nic.address(1), 7)))??;
    kernel.set_read_timeout(Some(Duration::from_millis(500)))?;
    running.kill()?;
    drop(running);
    nic.wait_up()?;
    ensure!(!echoes(nic, 1), "somebody echoes for a dead engine");
    let mut got = [0; 16];
    if let Ok((len, from)) = kernel.recv_from(&mut got) {
        bail!("the kernel got what was to be dropped: {:?} of {from}", &got[..len]);
    }
    let next = start(bench, &words)?;
    ensure!(next.log().contains("has dropped"), "{}", next.log());
    echoes_soon(nic, "after a kill")?;
    end(next)?;
    nic.wait_up()?;
    let passed = || {
        echoes(nic, 1);
        kernel.recv(&mut [0; 16]).is_ok()
    };
    Ok(wait_until("what no engine wants", SOON, passed)?)
}

/// Many more packets pass to the kernel than all rings have room for, by a program alone and beside
/// a socket: igb was seen to fill its RX ring so (xdp-project/xdp-tutorial#466).
pub fn passing(bench: &Bench, nic: &Nic) -> Result<()> {
    let alone = Redirect::attach(&nic.name, bench.xdp_mode(nic), QUEUES)?;
    nic.wait_up()?;
    many_pings(nic)?;
    drop(alone);
    nic.wait_up()?;
    let (port, address) = (ports(nic), nic.address(1));
    let rule = format!("udp:7@{address}");
    let engine =
        start(bench, &["udp-echo", "--port", &port, "--address", &address, "--only", &rule])?;
    echoes_soon(nic, "before the pings")?;
    many_pings(nic)?;
    echoes_soon(nic, "after the pings")?;
    end(engine)?;
    nic.wait_up()
}

fn many_pings(nic: &Nic) -> Result<()> {
    let mut flood = nic.far.command("ping");
    flood.args(["-q", "-i", "0.002", "-c", "4000", "-W", "1", &nic.address(1)]);
    let ran = flood.output()?;
    let said = String::from_utf8_lossy(&ran.stdout).into_owned();
    let summary = said.lines().find(|line| line.contains("received")).context("ping")?;
    println!("  {}: {summary}", nic.name);
    let numbers: Vec<u64> = summary.split(' ').filter_map(|word| word.parse().ok()).collect();
    let [sent, received] = numbers[..2] else { bail!("{summary}") };
    ensure!(sent == 4000 && received * 100 >= sent * 99, "{summary}");
    Ok(())
}

/// The generator sends by AF_XDP; the far end gets every packet, the first ones, too, whether or not
/// the link goes down for the generator's program.
pub fn generator(bench: &Bench, nic: &Nic) -> Result<()> {
    let far = nic.far.run(|| UdpSocket::bind((nic.address(2), DISCARD)))??;
    // All of them wait here until the generator has ended.
    sockopt::set_socket_recv_buffer_size_force(&far, 16 << 20)?;
    far.set_read_timeout(Some(slowed(Duration::from_secs(1))))?;
    let (port, to) = (format!("af_xdp:{}:0", nic.name), nic.address(2));
    let mac = nic.far.run(|| links::by_name("eth0"))??.mac.context("a MAC")?.to_string();
    let mut command = bench.gateway.command(lab_binary()?);
    command.args(["gen", "--port", &port, "--destination", &to, "--destination-mac", &mac]);
    command.args(["--count", "3000", "--rate", "500", "-o", "json"]);
    let ran = command.output()?;
    ensure!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    let sent = document(&String::from_utf8_lossy(&ran.stdout))?;
    ensure!(sent["sent"]["sent_packets"] == 3000, "{sent}");
    // Each is stamped with a number of its own.
    let (mut came, mut data) = (HashSet::new(), [0; 64]);
    while came.len() < 3000 {
        let Ok(len) = far.recv(&mut data) else { bail!("{} of 3000 came: {sent}", came.len()) };
        came.insert(data[..len].to_vec());
    }
    nic.wait_up()
}

/// Frames between two unlike drivers, by a forwarder in user space.
pub fn forward(bench: &Bench, a: &Nic, b: &Nic) -> Result<()> {
    for nic in [a, b] {
        // Frames to others' addresses, which a NIC drops otherwise.
        ip(&format!("link set {} promisc on", nic.name))?;
        nic.far.ip(&format!("addr replace 10.99.0.{}/24 dev eth0\n", nic.hub))?;
    }
    // A pair of queues is a worker. QEMU's vmxnet3 fills its first alone, and knows no other number.
    if a.row == "igb" {
        a.ethtool(&["-L", "combined", "1"])?;
    }
    let [a_port, b_port] = [a, b].map(|nic| format!("af_xdp:{}:0", nic.name));
    let engine = start(bench, &["l2fwd", "--port", &a_port, "--port", &b_port])?;
    let to = format!("10.99.0.{}", b.hub);
    wait_until(format!("a ping from {} to {}", a.name, b.name), SOON, || pings(&a.far, &to, 56))?;
    for _ in 0..50 {
        ensure!(pings(&a.far, &to, 1400), "a ping was lost");
    }
    end(engine)?;
    if a.row == "igb" {
        a.ethtool(&["-L", "combined", bench.expected(a, Cell::Queues)?])?;
    }
    for nic in [a, b] {
        ip(&format!("link set {} promisc off", nic.name))?;
        nic.far.ip(&format!("addr del 10.99.0.{}/24 dev eth0\n", nic.hub))?;
        nic.wait_up()?;
    }
    Ok(())
}
