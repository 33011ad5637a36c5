//! `ringway-lab gen`: all that is sent is found again, by every kind of port; and what it says to
//! words that cannot be.

use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use ringway_net_tests::{SOON, lab_binary, needs_root, ringway_lab};
use ringway_testnet::{Child, End, Namespace, Signal, VethOptions, veth};
use serde_json::Value;

/// As many as fit into the shortest queue on the way, that of a veth (VETH_RING_SIZE), whoever has
/// to wait for a processor.
const COUNT: u64 = 240;
const PACKETS: &str = "240";
const MAC: [&str; 2] = ["--destination-mac", "02:00:00:00:00:02"];

/// A cable whose ends are both here.
fn cable() -> Result<Namespace> {
    let ours = Namespace::new("gen")?;
    veth(&End::new(&ours, "eth0"), &End::new(&ours, "eth1"), &VethOptions::default())?;
    Ok(ours)
}

fn is(document: &Value, place: &str, want: u64) -> Result<()> {
    let found = document.pointer(place);
    ensure!(found.and_then(Value::as_u64) == Some(want), "{place} is not {want}: {document:#}");
    Ok(())
}

#[test]
fn all_that_is_sent_comes() -> Result<()> {
    needs_root!();
    for (port, sink, more) in [
        ("af_packet:eth0", "af_packet:eth1,blocks=256", &["--size", "60,590,1514"][..]),
        ("af_xdp:eth0:0", "af_xdp:eth1:0", &["--size", "78,1514", "--protocol", "tcp-syn"]),
        ("af_packet:eth0", "af_xdp:eth1:0", &["--vlan", "7", "--protocol", "icmp"]),
        ("xdp:eth0", "af_xdp:eth1:0", &["--size", "1514", "--protocol", "udp"]),
        ("xdp:eth0", "af_xdp:eth1:0", &["--vlan", "7", "--protocol", "tcp-syn"]),
        ("memory:a", "memory:a", &[]),
    ] {
        let ours = cable()?;
        let words = ["gen", "--port", port, "--sink", sink, "--count", PACKETS, "--rate", "20k"];
        let flows = ["--destination", "10.8.0.0/28", "--source", "10.9.0.0/27", "-o", "json"];
        let ran = ringway_lab(&ours, &[&words[..], &flows, &MAC, more].concat())?;
        ensure!(ran.code == 0, "{port}: {}", ran.said());
        let document = ran.json()?;
        ensure!(
            document["schema"] == "ringway.gen/1" && document["balanced"] == true,
            "{document}"
        );
        for (place, want) in [
            ("/sent/sent_packets", COUNT),
            ("/sent/unsent_packets", 0),
            ("/received/unique_packets", COUNT),
            ("/received/lost_packets", 0),
            ("/received/duplicate_packets", 0),
            ("/received/late_packets", 0),
            ("/received/streams/0/missing_packets", 0),
            ("/received/latency/packets", COUNT),
            ("/received/latency/clock_behind_packets", 0),
        ] {
            is(&document, place, want).with_context(|| format!("{port} to {sink}"))?;
        }
    }
    Ok(())
}

/// A veth drops, and counts nowhere that a sender looks, what is longer than the far end's MTU: the
/// sink misses every other packet.
#[test]
fn what_is_lost_on_the_way_is_told() -> Result<()> {
    needs_root!();
    let ours = cable()?;
    ours.ip("link set eth1 mtu 1000")?;
    let words = [
        "gen",
        "--port",
        "af_xdp:eth0:0",
        "--sink",
        "af_packet:eth1,blocks=256",
        "--count",
        PACKETS,
    ];
    let sizes = ["--size", "60,1514", "--rate", "20k", "--destination", "10.8.0.2"];
    let all = [&words[..], &sizes, &MAC].concat();
    let document = ringway_lab(&ours, &[&all[..], &["-o", "json"]].concat())?.json()?;
    for (place, want) in [
        ("/sent/sent_packets", COUNT),
        ("/received/unique_packets", COUNT / 2),
        ("/received/lost_packets", COUNT / 2),
        ("/received/lost_ppm", 500_000),
        ("/received/duplicate_packets", 0),
    ] {
        let found = document.pointer(place).and_then(Value::as_f64);
        ensure!(found == Some(want as f64), "{place} is not {want}: {document:#}");
    }
    ensure!(document["balanced"] == true, "{document:#}");
    let ran = ringway_lab(&ours, &all)?;
    ensure!(ran.out.contains("120 once, 120 lost (500000 per million)"), "{}", ran.said());
    Ok(())
}

/// The checksums that the kernel makes and mends are those that another kernel wants: it answers.
#[test]
fn a_kernel_answers_frames_from_within_a_kernel() -> Result<()> {
    needs_root!();
    let (client, ours) = (Namespace::new("client")?, Namespace::new("gen")?);
    let near = End::new(&client, "eth0").address("10.8.0.2/24").address("fd08::2/64");
    let far = End::new(&ours, "eth0").address("10.8.0.1/24").address("fd08::1/64");
    veth(&near, &far, &VethOptions::default())?;
    ringway_testnet::enable_napi(&client, "eth0")?;
    for (destination, key) in [("10.8.0.2", "IcmpMsgInType8"), ("fd08::2", "Icmp6InEchos")] {
        let words = ["gen", "--port", "xdp:eth0", "--destination", destination, "--count", "50"];
        let ran =
            ringway_lab(&ours, &[&words[..], &["--rate", "1k", "--protocol", "icmp"]].concat())?;
        ensure!(ran.code == 0, "{}", ran.said());
        let counted = || {
            let file = if key.starts_with("Icmp6") { "snmp6" } else { "snmp" };
            let read = client.command("cat").arg(format!("/proc/net/{file}")).output();
            let text = read.map(|read| String::from_utf8_lossy(&read.stdout).into_owned());
            let text = text.unwrap_or_default();
            let pairs = text.lines().collect::<Vec<_>>();
            let of_v6 = pairs.iter().find_map(|line| line.strip_prefix(key)?.trim().parse().ok());
            let of_v4 = pairs.windows(2).find_map(|two| {
                let at = two[0].split_whitespace().position(|name| name == "InType8")?;
                let named = two[0].starts_with("IcmpMsg:") && two[1].starts_with("IcmpMsg:");
                two[1].split_whitespace().nth(at).filter(|_| named)?.parse::<u64>().ok()
            });
            if file == "snmp" { of_v4 } else { of_v6 }
        };
        ringway_testnet::wait_until("fifty requests that are right", SOON, || {
            counted().is_some_and(|count| count >= 50)
        })
        .with_context(|| format!("{destination}: {:?}", counted()))?;
    }
    Ok(())
}

fn end(mut child: Child) -> Result<Value> {
    child.signal(Signal::INT)?;
    let end = child.wait(SOON)?;
    ensure!(end.status.success(), "{}", end.log);
    Ok(serde_json::from_str(end.log.find("{\n").map_or("", |at| &end.log[at..]))?)
}

/// Two processes; the sender finds the receiver by itself, and Ctrl-C ends both with a report.
#[test]
fn from_one_machine_to_another() -> Result<()> {
    needs_root!();
    let (near, far) = (Namespace::new("near")?, Namespace::new("far")?);
    let one = End::new(&near, "eth0").address("10.8.0.1/24");
    veth(&one, &End::new(&far, "eth0").address("10.8.0.2/24"), &VethOptions::default())?;
    let start = |ours: &Namespace, words: &[&str]| -> Result<Child> {
        let mut command: Command = ours.command(lab_binary()?);
        command.arg("gen").args(words).args(["-o", "json"]);
        let mut child = ours.spawn(command)?;
        child.wait_for_log("running on", SOON)?;
        Ok(child)
    };
    let sink = start(&far, &["--sink", "af_packet:eth0,blocks=256", "--interval", "0.1"])?;
    let words = ["--port", "af_packet:eth0", "--destination", "10.8.0.2", "--rate", "1k"];
    let once =
        ringway_lab(&near, &[&["gen", "--count", PACKETS, "-o", "json"], &words[..]].concat())?;
    ensure!(once.code == 0, "{}", once.said());
    let endless = start(&near, &words)?;
    let endless = end(endless)?;
    let sent = endless["sent"]["sent_packets"].as_u64().context("a number")?;
    let document = end(sink)?;
    is(&document, "/received/streams/0/unique_packets", COUNT)?;
    is(&document, "/received/unique_packets", COUNT + sent)?;
    is(&document, "/received/lost_packets", 0)?;
    ensure!(document["sent"].is_null() && document["balanced"] == true, "{document}");
    ensure!(!document["intervals"].as_array().context("a list")?.is_empty(), "{document}");
    Ok(())
}

#[test]
fn a_capture_is_sent_and_what_cannot_be_is_refused() -> Result<()> {
    needs_root!();
    let ours = cable()?;
    let directory = tempfile::tempdir()?;
    let file = |name: &str, bytes: &[u8]| -> Result<String> {
        let path = directory.path().join(name);
        std::fs::write(&path, bytes)?;
        Ok(path.display().to_string())
    };
    let header =
        [0xd4, 0xc3, 0xb2, 0xa1, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0, 0, 1, 0, 0, 0];
    let mut capture = header.to_vec();
    capture.extend([0, 0, 0, 0, 0, 0, 0, 0, 14, 0, 0, 0, 14, 0, 0, 0]);
    capture.extend([2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x88, 0xb5]);
    let (good, empty) = (file("good.pcap", &capture)?, file("empty.pcap", &header)?);
    let (cut, garbage) = (file("cut.pcap", &capture[..50])?, file("garbage.pcap", &[0x5a; 100])?);
    let out = directory.path().join("out.pcap");
    let to = format!("pcap::{}", out.display());
    let ran =
        ringway_lab(&ours, &["gen", "--port", &to, "--pcap", &good, "--count", "3", "-o", "json"])?;
    ensure!(ran.code == 0, "{}", ran.said());
    is(&ran.json()?, "/sent/sent_packets", 3)?;
    ensure!(std::fs::read(&out)?.windows(14).filter(|w| w == &&capture[40..]).count() == 3);

    let onto = format!("pcap::{}/./good.pcap", directory.path().display());
    let far = |state| ours.ip(&format!("link set eth1 {state}"));
    let short = ["gen", "--port", "af_packet:eth0", "--destination", "10.8.0.2", "--count", "8"];
    let ran = ringway_lab(&ours, &[&short[..], &MAC, &["-o", "json"]].concat())?;
    ensure!(ran.code == 0 && !ran.err.contains("carrier"), "{}", ran.said());
    ensure!(ran.json()?["sent"]["sent_pps"].as_f64().is_some_and(|pps| pps > 0.0), "{ran:?}");
    far("down")?;
    let ran = ringway_lab(&ours, &[&short[..], &MAC].concat())?;
    ensure!(ran.err.contains("warn: eth0 has no carrier"), "{}", ran.said());
    far("up")?;

    let port = ["--port", "af_packet:eth0"];
    let to = ["--port", "null:64", "--destination", "10.8.0.2"];
    for (words, code, said) in [
        (&[&[][..]][..], 2, "--port"),
        (&[&["--port", "afxdp:eth0"]], 2, "or write xdp:IFACE to send"),
        (&[&["--port", "xdp:none"], &to[2..], &MAC], 1, "none"),
        (&[&["--port", "af_packet:none"], &to[2..]], 1, "none"),
        (&[&port], 2, "add --destination ADDRESS, or --pcap FILE"),
        (&[&port, &to[2..]], 1, "--destination-mac MAC"),
        (&[&to, &["--rate", "0"]], 2, "1 a second at least"),
        (&[&to, &["--count", "0"]], 2, "1.."),
        (&[&to, &["--seconds", "0"]], 2, "seconds, 0.1"),
        (&[&to, &["--size", "9000"]], 2, "ask for 3840 bytes or less"),
        (&[&to, &["--size", "big"]], 2, "imix"),
        (&[&to, &["--vlan", "4095"]], 2, "4094"),
        (&[&to, &["--source", "fd00::1"]], 2, "both as IPv4"),
        (&[&to, &["--protocol", "icmp", "--source-ports", "9"]], 2, "leave the ports out"),
        (&[&to, &["--protocol", "sctp"]], 2, "write udp, tcp-syn or icmp"),
        (&[&to, &["--pcap", &good]], 2, "cannot be used with"),
        (&[&to[..2], &["--pcap", &good, "--sink", "null:64"]], 2, "cannot be used with"),
        (&[&["--port", "xdp:eth0", "--pcap", &good]], 2, "take another --port"),
        (&[&["--port", "xdp:eth0"], &to[2..], &MAC, &["--size", "imix"]], 2, "one --size"),
        (&[&to[..2], &["--pcap", "/none.pcap"]], 1, "/none.pcap"),
        (&[&to[..2], &["--pcap", &empty]], 1, "no packets"),
        (&[&to[..2], &["--pcap", &cut]], 1, "cut.pcap"),
        (&[&to[..2], &["--pcap", &garbage]], 1, "editcap"),
        (&[&["--sink", "null:64", "--rate", "5"]], 2, "--port"),
        (&[&["--port", "xdp:eth0"], &to[2..], &MAC, &["--size", "5000"]], 2, "3000 bytes or less"),
        (&[&["--port", &onto, "--pcap", &good]], 2, "the same file"),
        (&[&to, &["--cpu", "9999"]], 1, "cannot run on CPU 9999"),
    ] {
        let ran = ringway_lab(&ours, &[&["gen"][..], &words.concat()].concat())?;
        ensure!(ran.code == code && ran.err.contains(said), "{words:?}: {ran:?}");
    }
    let long = [&["gen"], &port[..], &to[2..], &MAC, &["--size", "2000", "--count", "5"]].concat();
    let words = ["up to 1514 bytes", "taken none of 5 packets", "5 unsendable"];
    ringway_lab(&ours, &long)?.complains(1, &words)?;
    Ok(())
}
