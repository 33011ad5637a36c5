//! `ringway engine` that is killed, or whose successor is; and that loses frames.

use std::fs;
use std::io::{ErrorKind, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::UdpSocket;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use ringway_net_tests::{SOON, binary, lab_binary, needs_root, ringway};
use ringway_testnet::{Child, Namespace, Signal, wait_until};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, SocketAddrUnix,
    SocketType, connect, recvmsg, send, socket,
};

use crate::engine::{end, pair, pings, reaches, start};
use crate::engine_ports::echo;

const DROPS: [&str; 11] = [
    "udp-echo",
    "--port",
    "af_xdp:eth0:0",
    "--address",
    "10.8.0.1",
    "--only",
    "udp:7",
    "--when-dead",
    "drop",
    "--control",
    "CONTROL",
];

fn killed(mut engine: Child) -> Result<()> {
    engine.kill()?;
    Ok(())
}

/// The kernel's own socket where the engine's packets go when it is dead.
fn beneath(ours: &Namespace) -> Result<UdpSocket> {
    ours.ip("address add 10.8.0.1/24 dev eth0")?;
    let socket = ours.run(|| UdpSocket::bind("10.8.0.1:7"))??;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

fn has_got(socket: &UdpSocket) -> Result<bool> {
    match socket.recv(&mut [0; 100]) {
        Err(e) if e.kind() == ErrorKind::WouldBlock => Ok(false),
        other => Ok(other.map(|_| true)?),
    }
}

fn tell(client: &Namespace) -> Result<()> {
    let sent = client.run(|| UdpSocket::bind("10.8.0.2:0")?.send_to(b"hello", "10.8.0.1:7"))?;
    ensure!(sent? == 5);
    Ok(())
}

#[test]
fn a_dead_engines_packets_pass() -> Result<()> {
    needs_root!();
    let (client, ours) = pair()?;
    let socket = beneath(&ours)?;
    let engine = start(&ours, &DROPS[..7])?;
    wait_until("an echo", SOON, || echo(&client, "10.8.0.1:7").is_ok_and(|back| back))?;
    ensure!(!has_got(&socket)?, "the kernel had it beside the engine");
    killed(engine)?;
    wait_until("what the engine would have got", SOON, || {
        tell(&client).is_ok() && has_got(&socket).is_ok_and(|got| got)
    })?;
    Ok(())
}

#[test]
fn a_dead_engines_packets_are_dropped() -> Result<()> {
    needs_root!();
    let (client, ours) = pair()?;
    let socket = beneath(&ours)?;
    let directory = tempfile::tempdir()?;
    let control = directory.path().join("control").display().to_string();
    let words = [&DROPS[..10], &[&*control]].concat();
    let echoes = || echo(&client, "10.8.0.1:7").is_ok_and(|back| back);
    let mut first = start(&ours, &words)?;
    ensure!(first.log().contains("packets are dropped until another"), "{}", first.log());
    wait_until("an echo", SOON, echoes)?;

    // A successor does the same, or it is none.
    let pid = first.pid().to_string();
    let other = [&["engine"], &DROPS[..7], &["--take-over", &*control]].concat();
    let ran = ringway(&ours, &other)?;
    ensure!(
        ran.code == 1 && ran.err.contains("`--when-dead drop`; start with the same"),
        "{ran:?}"
    );
    let second = start(&ours, &[&words[..], &["--take-over", &*pid]].concat())?;
    ensure!(first.wait(SOON)?.status.success(), "{}", first.log());
    wait_until("an echo of the successor", SOON, echoes)?;
    killed(second)?;

    for _ in 0..5 {
        tell(&client)?;
    }
    // Behind them on the same queue, and not the engine's: all else is the kernel's.
    wait_until("the kernel's answer to a ping", SOON, || pings(&client, "10.8.0.1"))?;
    ensure!(!has_got(&socket)?, "the kernel has got what was to be dropped");

    let third = start(&ours, &words)?;
    ensure!(third.log().contains("has dropped 5 packets since"), "{}", third.log());
    wait_until("an echo of the next one", SOON, echoes)?;
    end(third)?;
    // It was told to end, and is not dead.
    wait_until("what no engine wants", SOON, || {
        tell(&client).is_ok() && has_got(&socket).is_ok_and(|got| got)
    })?;
    Ok(())
}

/// Numbers its datagrams, one each hundred microseconds, until it is told to stop, and counts them.
fn flood(client: &Namespace, sent: &AtomicU64, stop: &AtomicBool) -> Result<()> {
    client.run(|| {
        let socket = UdpSocket::bind("10.8.0.2:0")?;
        socket.connect("10.8.0.1:7")?;
        while !stop.load(Relaxed) {
            socket.send(&sent.load(Relaxed).to_be_bytes())?;
            sent.fetch_add(1, Relaxed);
            thread::sleep(Duration::from_micros(100));
        }
        Ok(())
    })?
}

/// The first and the last of those that the kernel has got, and how many, until it is told to stop.
fn passed(socket: &UdpSocket, stop: &AtomicBool) -> (Vec<u64>, usize) {
    let (mut ends, mut count, mut number) = (Vec::new(), 0, [0; 8]);
    loop {
        let told = stop.load(Relaxed);
        while let Ok(8) = socket.recv(&mut number) {
            count += 1;
            ends.truncate(1);
            ends.push(u64::from_be_bytes(number));
        }
        if told {
            return (ends, count);
        }
        thread::sleep(Duration::from_millis(1));
    }
}

/// What a dead engine's program drops, the next engine's answers, or drops until it can: between
/// the two nothing goes to the kernel.
#[test]
fn nothing_passes_while_the_next_engine_starts() -> Result<()> {
    needs_root!();
    let (client, ours) = pair()?;
    let socket = beneath(&ours)?;
    let echoes = || echo(&client, "10.8.0.1:7").is_ok_and(|back| back);
    // The rules that make a difference to which program it is.
    let all = [&DROPS[..5], &DROPS[7..9]].concat();
    let some = DROPS[..9].to_vec();
    for (dead, next) in [(&some, &some), (&some, &all), (&all, &some)] {
        let dead = start(&ours, dead)?;
        wait_until("an echo", SOON, echoes)?;
        killed(dead)?;
        let (sent, stop) = (AtomicU64::new(0), AtomicBool::new(false));
        let begin = || -> Result<Child> {
            wait_until("datagrams for the dead one", SOON, || sent.load(Relaxed) >= 10)?;
            let next = start(&ours, next)?;
            wait_until("an echo of the next one", SOON, echoes)?;
            Ok(next)
        };
        let (next, flooded, (ends, count)) = thread::scope(|scope| {
            let flood = scope.spawn(|| flood(&client, &sent, &stop));
            let passed = scope.spawn(|| passed(&socket, &stop));
            let next = begin();
            stop.store(true, Relaxed);
            (next, flood.join(), passed.join().unwrap_or_default())
        });
        flooded.unwrap_or(Ok(()))?;
        let next = next?;
        ensure!(count == 0, "{count} of {sent:?} went to the kernel: {ends:?}\n{}", next.log());
        ensure!(next.log().contains("and its program has dropped"), "{}", next.log());
        end(next)?;
        wait_until("what no engine wants", SOON, || {
            tell(&client).is_ok() && has_got(&socket).is_ok_and(|got| got)
        })?;
    }
    Ok(())
}

/// Without rules all of a queue is the engine's, and stays so.
#[test]
fn a_dead_engines_queue_is_dropped() -> Result<()> {
    needs_root!();
    let (client, ours) = pair()?;
    ours.ip("address add 10.8.0.1/24 dev eth0")?;
    let words = ["icmp", "--port", "af_xdp:eth0:0", "--address", "10.8.0.9", "--when-dead", "drop"];
    let engine = start(&ours, &words)?;
    wait_until("an answer to a ping", SOON, || pings(&client, "10.8.0.9"))?;
    // Whoever lives is not in the way of anybody, and keeps what it has.
    ringway(&ours, &[&["engine"], &words[..]].concat())?
        .complains(1, &["is a running engine and has this interface"])?;
    ensure!(reaches(&client, "10.8.0.9")?, "{}", engine.log());
    killed(engine)?;
    ensure!(!pings(&client, "10.8.0.1"), "the kernel answers");
    end(start(&ours, &["sink", "--port", "af_xdp:eth0:0"])?)?;
    wait_until("the kernel's answer to a ping", SOON, || pings(&client, "10.8.0.1"))?;
    Ok(())
}

/// How far a successor comes before it is killed: what the kernel does for a process that is, it
/// does for a descriptor that is closed.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
enum Step {
    Connected,
    Asked,
    HasMemory,
    SaidSo,
    HasSockets,
}

fn successor(control: &str, until: Step) -> Result<(OwnedFd, Vec<OwnedFd>)> {
    let socket = socket(AddressFamily::UNIX, SocketType::SEQPACKET, None)?;
    set_socket_timeout(&socket, Timeout::Recv, Some(SOON))?;
    connect(&socket, &SocketAddrUnix::new(control)?)?;
    let mut fds = Vec::new();
    if until >= Step::Asked {
        send(&socket, b"ringway.take-over/1", SendFlags::empty())?;
    }
    if until >= Step::HasMemory {
        fds.extend(receive(&socket)?);
        ensure!(fds.len() == 1, "{fds:?}");
    }
    if until >= Step::SaidSo {
        send(&socket, b"mapped", SendFlags::empty())?;
    }
    if until >= Step::HasSockets {
        fds.extend(receive(&socket)?);
        // A map, an attachment and a socket beside the memory.
        ensure!(fds.len() == 4, "{fds:?}");
    }
    Ok((socket, fds))
}

fn receive(socket: &OwnedFd) -> Result<Vec<OwnedFd>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(253))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut letter = vec![0; 64 << 10];
    let letter = &mut [IoSliceMut::new(&mut letter)];
    recvmsg(socket, letter, &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    let rights = ancillary.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(fds) => Some(fds),
        _ => None,
    });
    Ok(rights.flatten().collect())
}

/// What a namespace's kernel has counted of ICMP.
fn icmp(namespace: &Namespace, name: &str) -> Result<usize> {
    let snmp = namespace.run(|| fs::read_to_string("/proc/thread-self/net/snmp"))??;
    let lines: Vec<_> = snmp.lines().filter_map(|line| line.strip_prefix("Icmp: ")).collect();
    let [names, counts] = lines[..] else { bail!("{snmp}") };
    let at = names.split(' ').position(|found| found == name).context("a counter of ICMP")?;
    Ok(counts.split(' ').nth(at).context("a counter of ICMP")?.parse()?)
}

#[test]
fn a_successor_is_killed_halfway() -> Result<()> {
    needs_root!();
    let (client, ours) = pair()?;
    let directory = tempfile::tempdir()?;
    let control = directory.path().join("control").display().to_string();
    let words = ["icmp", "--port", "af_xdp:eth0:0", "--address", "10.8.0.9", "--control"];
    let engine = start(&ours, &[&words[..], &[&*control]].concat())?;
    wait_until("an answer to a ping", SOON, || pings(&client, "10.8.0.9"))?;
    let mut flood = client.command("ping");
    flood.args(["-i", "0.01", "-w", "90", "10.8.0.9"]);
    let mut flood = client.spawn(flood)?;
    let goes_on = |times: usize| {
        wait_until(format!("the engine going on, {times} times"), SOON, || {
            engine.log().matches("this engine continues").count() >= times
        })
    };
    // The last one does not even go, and is waited for no longer than workers may stand still.
    let mut times = 0;
    for (step, hangs) in [
        (Step::Connected, false),
        (Step::Asked, false),
        (Step::HasMemory, false),
        (Step::SaidSo, false),
        (Step::HasSockets, false),
        (Step::HasSockets, true),
    ] {
        let dead = successor(&control, step).with_context(|| format!("{step:?}"))?;
        let hanging = hangs.then_some(dead);
        times += usize::from(step > Step::Connected);
        goes_on(times).with_context(|| format!("{step:?}: {}", engine.log()))?;
        drop(hanging);
        ensure!(reaches(&client, "10.8.0.9")?, "{step:?}: {}", engine.log());
    }
    flood.signal(Signal::INT)?;
    flood.wait(SOON)?;
    // What waited in rings meanwhile was answered; what is not read at once by `ping` itself is not
    // the engine's fault.
    let sent = icmp(&client, "OutEchos")?;
    ensure!(sent > 100, "{sent} requests");
    let answered = || icmp(&client, "InEchoReps").is_ok_and(|answered| answered == sent);
    wait_until(format!("{sent} answers"), SOON, answered)?;
    end(engine)?;
    Ok(())
}

/// A frame of each thousand packets is lost at full rate: whose fault it is becomes known.
#[test]
fn frames_that_are_lost_are_told() -> Result<()> {
    needs_root!();
    let (client, ours) = pair()?;
    let mut sink = start(&ours, &["sink", "--port", "af_xdp:eth0:0", "--leak-every", "1000"])?;
    let mut source = client.command(lab_binary()?);
    source.args(["gen", "--port", "xdp:eth0", "--destination", "10.8.0.9", "--seconds", "60"]);
    source.args(["--destination-mac", "02:00:00:00:00:09"]);
    let mut source = client.spawn(source)?;
    // The end of the line: it is written in parts.
    sink.wait_for_log("the engine stops when no frame is left", SOON)?;
    let log = sink.log();
    let named = |line: &&str| line.starts_with("leak: worker 0 has lost ");
    let line = log.lines().find(named).context("a leak")?;
    ensure!(line.contains("frames of stage `leaky sink: received`"), "{line}");
    ensure!(line.contains(") for "), "no age: {line}");
    source.signal(Signal::TERM)?;
    source.wait(SOON)?;
    sink.signal(Signal::TERM)?;
    let ended = sink.wait(SOON)?;
    ensure!(ended.status.code() == Some(3), "{}", ended.log);
    ensure!(ended.log.contains("\"stage\": \"leaky sink: received\""), "{}", ended.log);
    ensure!(ended.log.contains("\"balanced\": false"), "{}", ended.log);
    Ok(())
}

/// A pin that would vanish with the engine is no pin; what ends a terminal does not kill an engine.
#[test]
fn pins_that_would_vanish_are_refused() -> Result<()> {
    needs_root!();
    let (_client, ours) = pair()?;
    let words = "engine udp-echo --port af_xdp:eth0:0 --address 10.8.0.1 --when-dead drop";
    // As `ip netns exec` does it: mounts of its own, and no bpffs among them.
    let script = format!(
        "while umount -l /sys/fs/bpf 2>/dev/null; do :; done; exec {} {words}",
        binary()?.display()
    );
    let mut command = ours.command("unshare");
    command.args(["--mount", "sh", "-c", &script]);
    let ran = command.output()?;
    let said = String::from_utf8_lossy(&ran.stderr).into_owned();
    ensure!(ran.status.code() == Some(1) && said.contains("nsenter --net="), "{said}");

    let mut engine = start(&ours, &["sink", "--port", "af_xdp:eth0:0"])?;
    engine.signal(Signal::HUP)?;
    let ended = engine.wait(SOON)?;
    ensure!(ended.status.success() && ended.log.contains("\"balanced\": true"), "{}", ended.log);
    Ok(())
}

/// By number or by path; and whoever cannot be taken over says why.
#[test]
fn whom_to_take_over() -> Result<()> {
    needs_root!();
    let (_client, ours) = pair()?;
    let sink = ["sink", "--port", "af_xdp:eth0:0"];
    let engine = start(&ours, &sink)?;
    // Of this process, other tests may hold an engine's memory.
    let mut command = ours.command("sleep");
    command.arg("infinity");
    let no_engine = ours.spawn(command)?;
    let (silent, other) = (engine.pid().to_string(), no_engine.pid().to_string());
    for (pid, said) in [
        (&*silent, "it listens for no successor; start it with `--control PATH`"),
        (&other, "is no engine: it has no packet memory"),
        ("2147483647", "there is no process 2147483647; `pgrep"),
        ("/nowhere", "/nowhere: No such file or directory (os error 2); give the path"),
    ] {
        let ran = ringway(&ours, &[&["engine"], &sink[..], &["--take-over", pid]].concat())?;
        ensure!(ran.code == 1 && ran.err.contains(said), "{pid}: {ran:?}");
        ensure!(ran.err.matches("No such file").count() < 2, "{ran:?}");
    }
    end(engine)?;

    let directory = tempfile::tempdir()?;
    // Relative to where it was started.
    let mut command = ours.command(binary()?);
    command.current_dir(directory.path()).arg("engine").args(sink).args(["--control", "socket"]);
    let mut first = ours.spawn(command)?;
    first.wait_for_log("running on", SOON)?;
    let pid = first.pid().to_string();
    let second = start(&ours, &[&sink[..], &["--take-over", &pid]].concat())?;
    let ended = first.wait(SOON)?;
    ensure!(ended.status.success() && ended.log.contains("has taken over"), "{}", ended.log);
    end(second)?;
    Ok(())
}

/// What is asked for is had, or it is said why not.
#[test]
fn memory_and_modes() -> Result<()> {
    needs_root!();
    let (client, ours) = pair()?;
    let port = "af_xdp:eth0:0";
    for (words, code, said) in [
        (&["--port", port, "--frames", "2048"][..], 1, "`--frames 16384`"),
        (&["--port", "af_xdp:eth0:7"], 1, "it has no such queue; `ethtool -l`"),
        (&["--port", port, "--headroom", "1800"], 2, "take larger frames"),
        (&["--port", port, "--frame-size", "3000"], 2, "2048, 4096"),
        (&["--port", port, "--busy-poll", "0"], 2, "1..=100000"),
        (
            &["--port", port, "--zero-copy", "require"],
            1,
            "no zero-copy for this queue; leave the choice",
        ),
        (&["--port", "af_xdp:eth0:0,copy", "--zero-copy", "require"], 2, "contradict each other"),
        (&["--port", "af_xdp:eth0:0,generic", "--zero-copy", "require"], 2, "leave out `generic`"),
        (&["--port", "null:64", "--zero-copy", "never"], 2, "there is none; leave it out"),
        (&["--port", "null:64", "--when-dead", "drop"], 2, "there is none; leave it out"),
        (&["--port", port, "--take-over", "1", "--huge-pages", "2MiB"], 2, "cannot be used with"),
    ] {
        let ran = ringway(&ours, &[&["engine", "sink"], words].concat())?;
        ensure!(ran.code == code && ran.err.contains(said), "{words:?}: {ran:?}");
    }
    let many: Vec<String> = (1..=33).map(|n| format!("--only=udp:{n}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    ringway(&ours, &[&["engine", "sink", "--port", port][..], &many].concat())?
        .complains(2, &["33 rules", "takes 32"])?;
    let words = [
        ["udp-echo", "--port", port, "--address", "10.8.0.9", "--frame-size", "4096"],
        ["--headroom", "128", "--busy-poll", "50", "--zero-copy", "never", "--frames=4096"],
    ];
    let words = [&words.concat()[..], &["--huge-pages", "1GiB"]].concat();
    let engine = start(&ours, &words)?;
    let log = engine.log();
    ensure!(log.contains("4096 frames of 4096 bytes, of which a received packet can use 3712"));
    let free = fs::read_to_string("/sys/kernel/mm/hugepages/hugepages-1048576kB/free_hugepages");
    let had = if free.is_ok_and(|free| free.trim() != "0") {
        "in pages of 1 GiB"
    } else {
        "warn: memory"
    };
    ensure!(log.contains(had), "{log}");
    ensure!(log.contains("polling: up to 50 µs"), "{log}");
    ensure!(log.contains("copied, as it was asked for"), "{log}");
    ensure!(log.contains("warn: busy-poll") && log.contains("gro_flush_timeout 0"), "{log}");
    wait_until("an echo", SOON, || echo(&client, "10.8.0.9:7").is_ok_and(|back| back))?;
    end(engine)?;
    Ok(())
}
