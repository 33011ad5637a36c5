//! `ringway engine`: packet programs on veth, whose other end is the kernel's own stack; and on
//! capture files.

use std::io::{Read as _, Write as _};
use std::net::{TcpStream, UdpSocket};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use ringway_net_tests::{SOON, all_answered, binary, needs_root, ringway, tool};
use ringway_testnet::{Child, End, Namespace, Signal, VethOptions, veth, wait_until};
use serde_json::Value;

/// A client, and a namespace where nobody but the engine has an address.
pub fn pair() -> Result<(Namespace, Namespace)> {
    let (client, ours) = (Namespace::new("client")?, Namespace::new("engine")?);
    let near = End::new(&client, "eth0").address("10.8.0.2/24").address("fd08::2/64");
    veth(&near, &End::new(&ours, "eth0"), &VethOptions::default())?;
    // Nobody else finishes checksums.
    tool(&client, "ethtool", &["-K", "eth0", "tx", "off"])?.done()?;
    Ok((client, ours))
}

pub fn start(ours: &Namespace, arguments: &[&str]) -> Result<Child> {
    let mut command: Command = ours.command(binary()?);
    command.arg("engine").args(arguments).args(["-o", "json"]);
    let mut child = ours.spawn(command)?;
    child.wait_for_log("running on", SOON)?;
    Ok(child)
}

/// Ends it; its result, whose ledger balances.
pub fn end(mut child: Child) -> Result<Value> {
    child.signal(Signal::TERM)?;
    let end = child.wait(SOON)?;
    ensure!(end.status.success(), "{}", end.log);
    let json = end.log.find("{\n").map_or("", |at| &end.log[at..]);
    let document: Value = serde_json::from_str(json)?;
    ensure!(document["schema"] == "ringway.engine/1" && document["balanced"] == true, "{document}");
    ensure!(document["workers"][0]["packets"]["difference_packets"] == 0, "{document}");
    Ok(document)
}

/// Whether a ping is answered within a second: one of several tries.
pub fn pings(client: &Namespace, address: &str) -> bool {
    tool(client, "ping", &["-c1", "-W1", address]).is_ok_and(|ping| ping.code == 0)
}

/// Whether this one is.
pub fn reaches(client: &Namespace, address: &str) -> Result<bool> {
    all_answered(client, address, 1, "1")
}

const PORTS: [&str; 2] = ["af_packet:eth0", "af_xdp:eth0:0"];

#[test]
fn pings_are_answered() -> Result<()> {
    needs_root!();
    for port in PORTS {
        let (client, ours) = pair()?;
        let address = ["--address", "10.8.0.9", "--address", "fd08::9"];
        let mut icmp = start(&ours, &[&["icmp", "--port", port], &address[..]].concat())?;
        for address in ["10.8.0.9", "fd08::9"] {
            wait_until("an answer to a ping", SOON, || pings(&client, address))?;
        }
        icmp.signal(Signal::USR1)?;
        icmp.wait_for_log("worker 0: icmp, idle ", SOON)?;
        let log = icmp.log();
        let document = end(icmp)?;
        ensure!(document["workers"][0]["ports"][0]["port"] == port, "{document}");
        driver_is_told(port, &log, &document)?;
    }
    Ok(())
}

/// What veth's driver could do beside is said at the start and at the end; or that this kernel does
/// not tell.
fn driver_is_told(port: &str, log: &str, document: &Value) -> Result<()> {
    let queues = document["queues"].as_array().context("queues")?;
    if !port.starts_with("af_xdp") {
        ensure!(queues.is_empty() && !log.contains("RX hints"), "{log}");
        return Ok(());
    }
    let hints = match &queues[0]["rx_hints"] {
        Value::Null => "RX hints: unknown, kernel too old",
        told => {
            ensure!(told.as_array().is_some_and(|told| told.contains(&"hash".into())), "{told}");
            "ok: metadata: eth0: RX hints: timestamp, hash"
        }
    };
    ensure!(log.contains(hints), "{log}");
    let sends = &queues[0]["tx_metadata"];
    ensure!(sends.is_null() || sends.as_array().is_some_and(Vec::is_empty), "{sends}");
    Ok(())
}

/// It asks, too: whoever is there answers, and who is not there is missed.
#[test]
fn pings_are_sent() -> Result<()> {
    needs_root!();
    for port in PORTS {
        let (_client, ours) = pair()?;
        let icmp =
            ["engine", "icmp", "--port", port, "--address", "10.8.0.9", "--address", "fd08::9"];
        let asks = ["--interval", "0.05", "-o", "json", "--count"];
        for address in ["10.8.0.2", "fd08::2"] {
            let words = ["5", "--size", "600", "--ping", address];
            let document = ringway(&ours, &[&icmp[..], &asks, &words].concat())?.done()?.json()?;
            ensure!(document["schema"] == "ringway.ping/1", "{document}");
            ensure!(document["sent_packets"] == 5 && document["balanced"] == true, "{document}");
            ensure!(document["received_packets"] == 5, "{document}");
            ensure!(document["duplicate_packets"] == 0, "{document}");
            let rtt = |name: &str| document["rtt"][name].as_f64().unwrap_or(-1.0);
            ensure!(0.0 < rtt("min_ms") && rtt("min_ms") <= rtt("avg_ms"), "{document}");
            ensure!(rtt("avg_ms") <= rtt("max_ms") && rtt("mdev_ms") >= 0.0, "{document}");
        }
        let shown = ringway(&ours, &[&icmp[..], &["--ping", "10.8.0.2", "--count", "1"]].concat())?;
        ensure!(shown.err.contains("64 bytes from 10.8.0.2: icmp_seq=1 ttl=64"), "{shown:?}");
        ensure!(shown.out.contains("1 packets transmitted, 1 received, 0.0000% packet loss"));
        let nobody = ringway(&ours, &[&icmp[..], &asks, &["2", "--ping", "10.8.0.99"]].concat())?;
        ensure!(nobody.code == 3 && nobody.json()?["mac"].is_null(), "{nobody:?}");
    }
    let (_client, ours) = pair()?;
    let icmp = ["engine", "icmp", "--port", "af_packet:eth0", "--address", "10.8.0.9"];
    for (words, said) in [
        (&["--ping", "fd08::2"][..], "add an --address of its family"),
        (&["--count", "2"], "--ping"),
        (&["--ping", "10.8.0.2", "--size", "17"], "18"),
        (&["--ping", "10.8.0.2", "--interval", "0"], "0.001"),
    ] {
        let ran = ringway(&ours, &[&icmp[..], words].concat())?;
        ensure!(ran.code == 2 && ran.err.contains(said), "{words:?}: {ran:?}");
    }
    Ok(())
}

#[test]
fn datagrams_and_bids_are_answered() -> Result<()> {
    needs_root!();
    let directory = tempfile::tempdir()?;
    let offers = directory.path().join("offers.txt");
    std::fs::write(&offers, "# segment price creative\n77 1000 5\n")?;
    let offers = offers.display().to_string();
    let mut request = [0; 50];
    request[..4].copy_from_slice(b"BQ\x01\0");
    request[31] = 77;
    for port in PORTS {
        let (client, ours) = pair()?;
        let socket = client.run(|| UdpSocket::bind("10.8.0.2:0"))??;
        socket.set_read_timeout(Some(Duration::from_secs(1)))?;
        let asks = |to: &str, bytes: &[u8]| {
            let mut back = [0; 100];
            let sent = socket.send_to(bytes, to).is_ok();
            let len = socket.recv(&mut back).ok().filter(|_| sent)?;
            Some(back[..len].to_vec())
        };
        let echo = start(&ours, &["udp-echo", "--port", port, "--address", "10.8.0.9"])?;
        let came_back = || asks("10.8.0.9:7", b"hello").is_some_and(|back| back == b"hello");
        wait_until("an echo", SOON, came_back)?;
        end(echo)?;

        let bid = ["bid", "--port", port, "--address", "10.8.0.9", "--offers", &offers];
        let bid = start(&ours, &bid)?;
        let bidden = || {
            // A bid of 1000.
            let is_bid = |back: Vec<u8>| {
                back.len() == 30 && back[..4] == *b"BA\x01\x01" && back[16..20] == [0, 0, 3, 232]
            };
            asks("10.8.0.9:4242", &request).is_some_and(is_bid)
        };
        wait_until("a bid", SOON, bidden)?;
        let document = end(bid)?;
        let counters = &document["workers"][0]["app_counters"];
        ensure!(counters[0]["name"] == "client 0: requests", "{document}");
    }
    Ok(())
}

/// Another process looks on, and the engine does not notice.
#[test]
fn an_engine_is_inspected() -> Result<()> {
    needs_root!();
    let (client, ours) = pair()?;
    ours.ip("link set lo up")?;
    let words = [
        ["icmp", "--port", "af_xdp:eth0:0", "--address"],
        ["10.8.0.9", "--memory-map", "--metrics", "127.0.0.1:9811"],
    ]
    .concat();
    let began = Instant::now();
    let icmp = start(&ours, &words)?;
    wait_until("an answer to a ping", SOON, || pings(&client, "10.8.0.9"))?;
    let pid = icmp.pid().to_string();
    let inspect = |words: &[&str]| ringway(&ours, &[&["engine", "inspect"], words].concat());

    let ran = inspect(&[&pid, "-o", "json"])?;
    let look = ran.json()?;
    let owners = look["owners"].as_array().context("owners")?;
    let frames: u64 = owners.iter().filter_map(|owner| owner["frames"].as_u64()).sum();
    ensure!(frames == 16_384 && look["schema"] == "ringway.inspect/1", "{look}");
    // Frames that were never used are there since it began.
    let ages = owners.iter().filter_map(|owner| owner["oldest_ms"].as_u64());
    ensure!(ages.max().map(u128::from) <= Some(began.elapsed().as_millis() + 100), "{look}");
    let fill = owners.iter().find(|owner| owner["place"] == "fill").context("fill")?;
    ensure!(fill["frames"] == 2048 && fill["whose"] == "eth0, queue 0", "{look}");
    let interface = &look["interfaces"][0];
    ensure!(interface["interface"] == "eth0", "{look}");
    ensure!(interface["rx_packets"].as_u64() > Some(0), "{look}");

    let asked = |path: &str| -> Result<String> {
        let mut stream = ours.run(|| TcpStream::connect("127.0.0.1:9811"))??;
        write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    };
    let metrics = asked("/metrics")?;
    for line in [
        "HTTP/1.1 200 OK\r\n",
        "ringway_engine_worker_info{worker=\"0\",app=\"icmp\"} 1\n",
        "ringway_engine_frames{worker=\"0\",place=\"fill\"} 2048\n",
        "ringway_engine_rx_ring_full_packets_total{worker=\"0\",port=\"af_xdp:eth0:0\"} 0\n",
        "ringway_engine_ledger_difference_packets{worker=\"0\"} 0\n",
    ] {
        ensure!(metrics.contains(line), "{line} is not in {metrics}");
    }
    ensure!(asked("/")?.starts_with("HTTP/1.1 404 "), "{}", asked("/")?);

    let map = inspect(&[&pid, "--memory-map"])?;
    for part in [
        "UMEM: frames",
        "UMEM: ledger",
        "ring: RX",
        "ring: TX",
        "ring: FILL",
        "ring: COMPLETION",
        "code",
        "stack",
    ] {
        ensure!(map.code == 0 && map.out.contains(part), "{part}: {map:?}");
    }

    // It looks again and again, until the engine ends; which still balances.
    let mut command = ours.command(binary()?);
    command.args(["engine", "inspect", &pid, "--interval", "1", "--hex"]);
    let mut looking = ours.spawn(command)?;
    looking.wait_for_log("eth0, queue 0", SOON)?;
    end(icmp)?;
    let looked = looking.wait(SOON)?;
    ensure!(looked.status.success() && looked.log.contains("has ended"), "{}", looked.log);

    for (pid, said) in [(&*pid, "no process"), ("2147483647", "no process"), ("0", "no process")] {
        let ran = inspect(&[pid])?;
        ensure!(ran.code == 1 && ran.err.contains(said), "{pid}: {ran:?}");
    }
    let own = std::process::id().to_string();
    inspect(&[&own])?.complains(1, &["is no engine"])?;
    Ok(())
}

/// A successor goes on with sockets and memory while packets come; one that does not fit leaves the
/// engine as it was.
#[test]
fn one_engine_takes_over_from_another() -> Result<()> {
    needs_root!();
    let (client, ours) = pair()?;
    let directory = tempfile::tempdir()?;
    let control = directory.path().join("control").display().to_string();
    let icmp = ["icmp", "--address", "10.8.0.9", "--port"];
    let first = [&icmp[..], &["af_xdp:eth0:0", "--control", &control]].concat();
    let mut running = start(&ours, &first)?;
    wait_until("an answer to a ping", SOON, || pings(&client, "10.8.0.9"))?;

    // Another one on the same interface is told who has it.
    let ran = ringway(&ours, &[&["engine"], &icmp[..], &["af_xdp:eth0:0"]].concat())?;
    let who = format!(
        "eth0: process {0} is a running engine and has this interface; take over from it with `--take-over {0}`",
        running.pid()
    );
    ensure!(ran.code == 1 && ran.err.contains(&who), "{ran:?}");

    let mut flood = client.command("ping");
    flood.args(["-i", "0.002", "-w", "60", "-c", "20000", "10.8.0.9"]);
    let mut flood = client.spawn(flood)?;
    for (times, word) in ["af_packet:eth0", "af_xdp:eth0:1"].into_iter().enumerate() {
        let other = [&["engine"], &icmp[..], &[word, "--take-over", &control]].concat();
        ringway(&ours, &other)?.complains(1, &["start with the same"])?;
        wait_until("the engine going on", SOON, || {
            running.log().matches("this engine continues").count() > times
        })?;
    }
    for (word, only, said) in [
        ("af_xdp:eth0:0,generic", None, "the running engine has it as `native`"),
        (
            "af_xdp:eth0:0",
            Some("udp:9"),
            "takes all packets, and here it is udp:9; start with the same",
        ),
    ] {
        let only = only.map_or(vec![], |only| vec!["--only", only]);
        let other = [&["engine"], &icmp[..], &[word, "--take-over", &control], &only].concat();
        ringway(&ours, &other)?.complains(1, &[said])?;
    }
    let next = [&first[..], &["--take-over", &control]].concat();
    for _ in 0..3 {
        let successor = start(&ours, &next)?;
        let ended = running.wait(SOON)?;
        ensure!(ended.status.success() && ended.log.contains("has taken over"), "{}", ended.log);
        ensure!(ended.log.contains("\"balanced\": true"), "{}", ended.log);
        running = successor;
        ensure!(running.log().contains("the rings were not read for"), "{}", running.log());
        wait_until("an answer to a ping", SOON, || pings(&client, "10.8.0.9"))?;
    }
    flood.signal(Signal::INT)?;
    let flooded = flood.wait(SOON)?;
    // All that was in the rings was answered, but what came while an app was being changed may have
    // been dropped with it.
    let summary = flooded.log.lines().find(|line| line.contains("received")).context("ping")?;
    let numbers: Vec<u64> = summary.split(' ').filter_map(|word| word.parse().ok()).collect();
    let [sent, received] = numbers[..2] else { anyhow::bail!("{summary}") };
    ensure!(sent > 0 && sent - received <= 3 * 64, "{summary}");
    let document = end(running)?;
    let frames = &document["workers"][0]["frames"];
    let all: u64 = ["free_frames", "fill_frames", "held_frames", "tx_frames"]
        .iter()
        .filter_map(|place| frames[place].as_u64())
        .sum();
    ensure!(all == 16_384 && frames["held_frames"] == 0, "{document}");
    ensure!(!std::path::Path::new(&control).exists(), "the socket is still there");

    ringway(&ours, &[&["engine"], &next[..]].concat())?.complains(1, &["--control PATH"])?;
    Ok(())
}

/// What a veth's driver drops is in no port's counters alone.
#[test]
fn what_the_interface_dropped_is_told_at_the_end() -> Result<()> {
    needs_root!();
    let (client, ours) = pair()?;
    let socket = client.run(|| UdpSocket::bind("10.8.0.2:0"))??;
    client.ip("neigh add 10.8.0.9 lladdr 02:00:00:00:00:09 dev eth0")?;
    let mut engine = start(&ours, &["sink", "--port", "af_xdp:eth0:0"])?;
    // Nobody reads: more packets than a ring has room for.
    engine.signal(Signal::STOP)?;
    for _ in 0..20_000 {
        socket.send_to(b"x", "10.8.0.9:9")?;
    }
    engine.signal(Signal::CONT)?;
    let document = end(engine)?;
    let dropped = document["interfaces"][0]["rx_dropped_packets"].as_u64();
    ensure!(document["interfaces"][0]["interface"] == "eth0", "{document}");
    ensure!(dropped.is_some_and(|packets| packets > 1000), "{document}");
    Ok(())
}

/// A capture file in, another one out; and what is wrong with the words.
#[test]
fn files_and_words() -> Result<()> {
    needs_root!();
    let ours = Namespace::new("engine")?;
    let directory = tempfile::tempdir()?;
    let (from, to) = (directory.path().join("from.pcap"), directory.path().join("to.pcap"));
    // A header of the format (draft-ietf-opsawg-pcap), and a frame of 14 bytes from 2 to 1.
    let mut capture = vec![0xd4, 0xc3, 0xb2, 0xa1, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    capture
        .extend([0xff, 0xff, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 14, 0, 0, 0, 14, 0, 0, 0]);
    capture.extend([2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x88, 0xb5]);
    std::fs::write(&from, &capture)?;
    let port = format!("pcap:{}:{}", from.display(), to.display());
    let ran = ringway(&ours, &["engine", "l2fwd", "--port", &port, "--swap", "-o", "json"])?;
    ensure!(ran.code == 0 && ran.json()?["balanced"] == true, "{}", ran.said());
    let written = std::fs::read(&to)?;
    ensure!(written.ends_with(&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x88, 0xb5]), "{written:?}");

    std::fs::write(&from, &capture[..capture.len() - 3])?;
    let ran = ringway(&ours, &["engine", "l2fwd", "--port", &port])?;
    let said = format!("truncated in packet 1 of {}", from.display());
    ensure!(ran.code == 1 && ran.err.contains(&said) && !ran.err.contains("bug"), "{ran:?}");
    std::fs::write(&from, &capture)?;
    let again = format!("pcap:{}:{}/./from.pcap", from.display(), directory.path().display());
    let ran = ringway(&ours, &["engine", "l2fwd", "--port", &again])?;
    ensure!(ran.code != 0 && std::fs::read(&from)? == capture, "{ran:?}");
    for (words, code, said) in [
        (&["sink", "--port", "null:64", "--frames", "2000000000"][..], 1, "MiB are available"),
        (&["l2fwd", "--port", "null:64", "--only", "udp:0"], 2, "1 to 65535"),
        (&["sink", "--port", "af_packet:none"], 1, "none"),
        (&["sink", "--port", "memory:a"], 2, "memory:a is named once"),
        (&["icmp", "--port", "pcap:x:", "--address", "10.0.0.1"], 1, "say --mac MAC"),
        (&["sink", "--port", "pcap:none:", "--cpu", "9999"], 2, "cannot run on CPU 9999"),
    ] {
        let ran = ringway(&ours, &[&["engine"], words].concat())?;
        ensure!(ran.code == code && ran.err.contains(said), "{words:?}: {ran:?}");
    }
    Ok(())
}
