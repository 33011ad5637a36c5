//! `ringway doctor --path`: what is sent is found again, each packet at the step where it ended.

use std::net::UdpSocket;
use std::os::fd::AsRawFd;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use ringway_net_tests::{SOON, binary, needs_root, not_tested, ringway};
use ringway_testnet::{Child, End, Namespace, VethOptions, veth, wait_for, wait_until};
use serde_json::Value;

use crate::doctor::{Patient, pair};

/// The longest look, and as much again.
const PATIENCE: Duration = Duration::from_secs(128);
/// Seconds to look: more, where the machine was too busy for all to be sent meanwhile.
const LOOKS: [&str; 5] = ["4", "8", "16", "32", "64"];

/// A look that is under way: it has read its first sample and sleeps until the second.
fn start_doctor(patient: &Patient, before: &[&str], seconds: &str) -> Result<Child> {
    let mut words = before.to_vec();
    let ringway = binary()?;
    words.push(ringway.to_str().context("a path")?);
    words.extend(["doctor", "--path", "va", "--interval", seconds, "-o", "json"]);
    let mut command = patient.ns.command(words[0]);
    command.args(&words[1..]);
    let mut child = patient.ns.spawn(command)?;
    let under_way = || asleep(&child) || !child.running();
    wait_until("the second look to be waited for", SOON, under_way)?;
    Ok(child)
}

fn asleep(child: &Child) -> bool {
    let wchan = std::fs::read_to_string(format!("/proc/{}/wchan", child.pid()));
    wchan.is_ok_and(|at| at.contains("nanosleep"))
}

/// What is seen of what is sent: all of it between the two looks.
fn seen<T>(patient: &Patient, before: &[&str], send: impl Fn() -> Result<T>) -> Result<(Value, T)> {
    for seconds in LOOKS {
        let mut child = start_doctor(patient, before, seconds)?;
        let sent = send()?;
        let in_time = asleep(&child);
        let end = child.wait(PATIENCE)?;
        ensure!(end.status.success(), "{}", end.log);
        if in_time {
            let picture = serde_json::from_str(&end.log).with_context(|| end.log.clone())?;
            return Ok((picture, sent));
        }
    }
    bail!("too busy: not all could be sent within {} s", LOOKS[4])
}

/// A socket that has room for hardly more than one datagram.
fn tiny(address: &str) -> Result<UdpSocket> {
    let socket = UdpSocket::bind(address)?;
    let size: libc::c_int = 1;
    // SAFETY: an open socket, and an integer that outlives the call with its length.
    let rc = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_RCVBUF,
            (&raw const size).cast(),
            size_of_val(&size) as libc::socklen_t,
        )
    };
    ensure!(rc == 0, "{}", std::io::Error::last_os_error());
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// UDP to a closed port of 10.9.0.1, with a checksum that is wrong.
fn wrong_checksums(count: usize) -> Result<()> {
    // SAFETY: takes no pointer.
    let fd = unsafe {
        libc::socket(libc::AF_INET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, libc::IPPROTO_UDP)
    };
    ensure!(fd >= 0, "{}", std::io::Error::last_os_error());
    // SAFETY: the descriptor is fresh and nobody else's.
    let socket: std::net::UdpSocket = unsafe { std::os::fd::FromRawFd::from_raw_fd(fd) };
    let mut datagram = vec![0x12, 0x34, 0x13, 0x8a, 0, 28, 0xde, 0xad];
    datagram.extend([7; 20]);
    for _ in 0..count {
        socket.send_to(&datagram, "10.9.0.1:0")?;
    }
    Ok(())
}

fn send(socket: &UdpSocket, count: usize, port: u16) -> Result<()> {
    for _ in 0..count {
        // An ICMP error about an earlier one may be told here: it was sent all the same.
        while socket.send_to(&[0; 1000], ("10.9.0.1", port)).is_err() {}
    }
    Ok(())
}

const FULL: usize = 500;
const CLOSED: usize = 300;
const WRONG: usize = 100;
const RULED_OUT: usize = 200;
const GOOD: usize = 50;

/// Sends all kinds; returns the tiny socket: one that is closed is no longer listed.
fn traffic(patient: &Patient, far: &Namespace) -> Result<UdpSocket> {
    let (tiny, good) = patient.ns.run(|| {
        Ok::<_, anyhow::Error>((tiny("10.9.0.1:5000")?, UdpSocket::bind("10.9.0.1:5004")?))
    })??;
    far.run(|| -> Result<()> {
        let sender = UdpSocket::bind("10.9.0.2:0")?;
        for (count, port) in [(FULL, 5000), (CLOSED, 5001), (RULED_OUT, 5003), (GOOD, 5004)] {
            send(&sender, count, port)?;
        }
        wrong_checksums(WRONG)
    })??;
    drop(good);
    Ok(tiny)
}

/// How many datagrams it had room for.
fn fitted(tiny: &UdpSocket) -> usize {
    std::iter::from_fn(|| tiny.recv(&mut [0; 2000]).ok()).count()
}

/// Lost at a step for a reason, or by a counter.
fn lost(picture: &Value, step: &str, what: &str) -> u64 {
    let all = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let steps = all(&picture["steps"]);
    let of_step = steps.iter().filter(|one| one["step"] == step);
    let losses: Vec<Value> = of_step.flat_map(|one| all(&one["losses"])).collect();
    let wanted =
        losses.iter().filter(|loss| loss["what"].as_str().is_some_and(|w| w.starts_with(what)));
    wanted.filter_map(|loss| loss["packets"].as_u64()).sum()
}

/// Whether a rule drops what is sent to port 5003.
fn rule_out(patient: &Patient) -> Result<bool> {
    if patient.ns.command("nft").arg("--version").output().is_err() {
        not_tested("packets that a rule drops: no nft here");
        return Ok(false);
    }
    patient.sh(
        "nft add table ip t; nft 'add chain ip t c { type filter hook input priority 0; }'; \
         nft add rule ip t c udp dport 5003 drop",
    )?;
    Ok(true)
}

#[test]
fn every_packet_ends_at_a_step() -> Result<()> {
    needs_root!();
    let (patient, far) = pair("path")?;
    let (ruled_out, closed) =
        if rule_out(&patient)? { (RULED_OUT, CLOSED) } else { (0, CLOSED + RULED_OUT) };
    let inside = ["ip", "netns", "exec", patient.ns.name()];
    let (picture, tiny) = seen(&patient, &inside, || traffic(&patient, &far))?;
    let fitted = fitted(&tiny);
    if picture["traced"] != true {
        not_tested(format!("reasons of lost packets: {}", picture["notes"]));
        return Ok(());
    }
    for (step, what, wanted) in [
        ("socket", "SOCKET_RCVBUFF", FULL - fitted),
        ("socket", "socket udp port 5000", FULL - fitted),
        ("protocol", "NO_SOCKET", closed),
        ("protocol", "UDP_CSUM", WRONG),
        ("ip", "NETFILTER_DROP", ruled_out),
    ] {
        ensure!(lost(&picture, step, what) == wanted as u64, "{what} {wanted}: {picture:#}");
    }
    let balance = &picture["books"];
    let all = (FULL + CLOSED + WRONG + RULED_OUT + GOOD) as u64;
    let received = balance["received"].as_u64().context("no sum")?;
    // Beside them there are ARP and neighbour discovery.
    ensure!((all..all + 30).contains(&received), "{received}: {picture:#}");
    let rest = balance["rest"].as_i64().context("no rest")?;
    ensure!(rest.abs() <= 3, "{picture:#}");
    let delivered = balance["delivered"].as_u64().context("not delivered")?;
    ensure!(
        delivered >= (GOOD + fitted) as u64 && delivered < (GOOD + fitted + 30) as u64,
        "{picture:#}"
    );
    Ok(())
}

#[test]
fn without_permission_counters_tell() -> Result<()> {
    needs_root!();
    let (patient, far) = pair("plain")?;
    let (ruled_out, closed) =
        if rule_out(&patient)? { (RULED_OUT, CLOSED) } else { (0, CLOSED + RULED_OUT) };
    let plain = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all"];
    let known = patient.ns.command(plain[0]).args(&plain[1..]).arg("true").status();
    if !known.is_ok_and(|status| status.success()) {
        not_tested("the path without permission: no setpriv here that can do it");
        return Ok(());
    }
    let (picture, tiny) = seen(&patient, &plain, || traffic(&patient, &far))?;
    let fitted = fitted(&tiny);
    ensure!(picture["traced"] == false, "{picture:#}");
    ensure!(picture["notes"].to_string().contains("not permitted"), "{picture:#}");
    for (step, what, wanted) in [
        ("socket", "Udp RcvbufErrors", FULL - fitted),
        ("protocol", "Udp NoPorts", closed),
        ("protocol", "Udp InCsumErrors", WRONG),
    ] {
        ensure!(lost(&picture, step, what) == wanted as u64, "{what} {wanted}: {picture:#}");
    }
    // Rules drop without a counter: these are what is left, beside ARP.
    let rest = picture["books"]["rest"].as_u64().context("no rest")?;
    ensure!((ruled_out as u64..ruled_out as u64 + 30).contains(&rest), "{picture:#}");
    Ok(())
}

#[test]
fn what_is_passed_on_is_not_lost() -> Result<()> {
    needs_root!();
    let (patient, far) = pair("passed")?;
    let other = Namespace::new("other")?;
    let ends = (
        End::new(&patient.ns, "vc").address("10.8.0.1/24"),
        End::new(&other, "vd").address("10.8.0.2/24"),
    );
    veth(&ends.0, &ends.1, &VethOptions::default())?;
    patient.ns.sysctl("net/ipv4/ip_forward", "1")?;
    far.ip("route add 10.8.0.0/24 via 10.9.0.1\n")?;
    other.ip("route add 10.9.0.0/24 via 10.8.0.1\n")?;
    let ping = || -> Result<()> {
        let ping = far.command("ping").args(["-c", "40", "-i", "0.01", "10.8.0.2"]).output()?;
        ensure!(ping.status.success(), "{ping:?}");
        Ok(())
    };
    let inside = ["ip", "netns", "exec", patient.ns.name()];
    let (picture, ()) = seen(&patient, &inside, ping)?;
    if picture["traced"] == true {
        ensure!(picture["books"]["passed_on"] == 40, "{picture:#}");
    }
    ensure!(picture["books"]["rest"].as_i64().is_some_and(|rest| rest.abs() <= 8), "{picture:#}");
    Ok(())
}

#[test]
fn interfaces_that_are_not_there() -> Result<()> {
    needs_root!();
    let (patient, _far) = pair("gone")?;
    let ran = ringway(&patient.ns, &["doctor", "--path", "nosuch0"])?;
    ensure!(ran.code == 2 && ran.err.contains("no interface nosuch0"), "{ran:?}");
    ensure!(ran.err.contains("lo, ") && ran.err.contains("va"), "{ran:?}");
    let mut child = start_doctor(&patient, &["ip", "netns", "exec", patient.ns.name()], LOOKS[1])?;
    patient.ns.ip("link delete va\n")?;
    let end = child.wait(PATIENCE)?;
    ensure!(end.status.code() == Some(1) && end.log.contains("va went away"), "{}", end.log);
    // An archive knows the interfaces of where it was made.
    let file = patient.ns.directory().join("host.tar");
    let file = file.to_str().context("a path")?;
    ringway(&patient.ns, &["doctor", "--collect", file, "--interval", "0.1"])?.done()?;
    let ran = ringway(&patient.ns, &["doctor", "--from", file, "--path", "va"])?;
    ensure!(
        ran.code == 2 && ran.err.contains("there are: lo") && !ran.err.contains("vb"),
        "{ran:?}"
    );
    ringway(&patient.ns, &["doctor", "--from", file, "--path", "lo"])?
        .says(0, &["not accounted for"])?;
    Ok(())
}

/// Devices upon a veth: what they receive came by the veth, and each picture says so.
#[test]
fn devices_upon_others() -> Result<()> {
    needs_root!();
    for (kind, far_address) in [("vlan id 7", "dev vb.7"), ("macvlan mode bridge", "dev vb")] {
        let (patient, far) = pair("upon")?;
        if patient.ns.ip(&format!("link add link va name uv type {kind}\n")).is_err() {
            not_tested(format!("--path of {kind}: this kernel has none"));
            continue;
        }
        if kind.starts_with("vlan") {
            far.ip("link add link vb name vb.7 type vlan id 7\nlink set vb.7 up\n")?;
        }
        patient.ns.ip("link set uv up\naddress add 10.9.1.1/24 dev uv\n")?;
        far.ip(&format!("address add 10.9.1.2/24 {far_address}\n"))?;
        let mut command = far.command("ping");
        command.args(["-q", "-i", "0.02", "-w", "60", "10.9.1.1"]);
        let _ping = far.spawn(command)?;
        let path_report = |name: &str| -> Result<Value> {
            let arguments = ["doctor", "--path", name, "--interval", "1.5", "-o", "json"];
            let ran = patient.inside(binary()?, &arguments)?;
            ensure!(ran.code == 0, "{ran:?}");
            ran.json()
        };
        let answered = || Ok::<_, anyhow::Error>(path_report("uv")?["books"]["delivered"] != 0);
        wait_until("packets", SOON, || answered().unwrap_or(false))?;
        // Between one counter and the next a packet or two may come, and more on a busy machine.
        wait_for(format!("both pictures of {kind}"), SOON, || -> Result<()> {
            let (upper, lower) = (path_report("uv")?, path_report("va")?);
            ensure!(upper["below"]["interface"] == "va", "{upper:#}");
            ensure!(
                upper["steps"][0]["step"] == "upon" && upper["steps"][0]["packets"] != 0,
                "{upper:#}"
            );
            ensure!(lower["uppers"][0]["interface"] == "uv", "{lower:#}");
            let handed = lower["books"]["handed_up"].as_u64().unwrap_or_default();
            let (rest, received) = (&lower["books"]["rest"], &lower["books"]["received"]);
            ensure!(handed > 0, "{lower:#}");
            let few = rest.as_i64().context("no sum")?.unsigned_abs();
            ensure!(few * 10 <= received.as_u64().context("no sum")?, "{lower:#}");
            Ok(())
        })?;
    }
    Ok(())
}
