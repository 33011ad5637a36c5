//! Other people's decoders must find in a frame what this crate finds: tshark every field, in
//! tunnels too; etherparse what tshark's versions tell in different units.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use etherparse::{Ipv6ExtensionSlice, NetSlice, SlicedPacket};
use pcap_file::pcap::{PcapPacket, PcapWriter};
use proptest::strategy::{Strategy as _, ValueTree as _};
use proptest::test_runner::TestRunner;

use crate::facts::{Facts, facts};
use crate::packets::{Body, Carries, Link, Packet};
use crate::strategies;

/// The same frames every time.
fn corpus(frames: usize) -> Vec<Link> {
    let mut runner = TestRunner::deterministic();
    (0..frames).map(|_| strategies::link().new_tree(&mut runner).unwrap().current()).collect()
}

#[test]
fn tshark_reads_what_we_read() {
    let Some(tshark) = find_tshark() else {
        let ci = std::env::var("CI").as_deref() == Ok("true");
        assert!(!ci, "no tshark here (packaging/bootstrap --tests); CI=true forbids skipping it");
        eprintln!("SKIPPED: tshark_reads_what_we_read: no tshark here");
        return;
    };
    // It has no dissector for GUE's own header.
    let frames: Vec<_> = corpus(1500).iter().filter(|l| !has_gue(l)).map(Link::build).collect();
    let mut ours: Vec<_> = frames.iter().map(|frame| facts(frame)).collect();
    // By version it is in bytes or in units of eight; etherparse is asked for these.
    ours.iter_mut().for_each(|facts| facts.retain(|field, _| !field.ends_with("_offset")));
    let fields: BTreeSet<_> = ours.iter().flat_map(|facts| facts.keys().copied()).collect();
    let fields: Vec<_> = fields.into_iter().collect();
    // Every kind of frame has been made, or this test would say less than it seems to.
    for field in ["gre.key", "vxlan.vni", "tcp.options.sack_le", "icmpv6.nd.ra.reachable_time"] {
        assert!(fields.contains(&field), "{field}");
    }
    assert!(ours.iter().any(|facts| facts.get("ip.src").is_some_and(|all| all.len() == 3)));

    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("corpus.pcap");
    let mut writer = PcapWriter::new(File::create(&file).unwrap()).unwrap();
    for frame in &frames {
        writer.write_packet(&PcapPacket::new(Duration::ZERO, frame.len() as u32, frame)).unwrap();
    }
    drop(writer.into_writer());

    let theirs = decode(&tshark, &file, &fields);
    assert_eq!(theirs.len(), frames.len());
    for ((theirs, ours), frame) in theirs.iter().zip(&ours).zip(&frames) {
        assert_eq!(theirs, ours, "{frame:02x?}");
    }
    eprintln!("tshark agrees on {} frames, {} fields", frames.len(), fields.len());
}

fn has_gue(link: &Link) -> bool {
    fn in_packet(packet: &Packet) -> bool {
        match &packet.carries {
            Carries::Gue(..) => true,
            Carries::Ip(inner) | Carries::Gre(_, _, inner) | Carries::GueDirect(_, inner) => {
                in_packet(inner)
            }
            Carries::Vxlan(_, _, inner) => has_gue(inner),
            _ => false,
        }
    }
    matches!(&link.body, Body::Ip(packet) if in_packet(packet))
}

fn peers() -> PathBuf {
    let default = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/peers");
    std::env::var_os("RINGWAY_PEERS").map_or(default, PathBuf::from)
}

fn find_tshark() -> Option<PathBuf> {
    let works =
        |path: &PathBuf| tshark(path).arg("--version").output().is_ok_and(|o| o.status.success());
    [PathBuf::from("tshark"), peers().join("usr/bin/tshark")].into_iter().find(works)
}

/// What is unpacked but not installed does not find its own files.
fn tshark(path: &Path) -> Command {
    let mut command = Command::new(path);
    let peers = peers();
    if path.starts_with(&peers) {
        let lib = ["lib", "usr/lib"].map(|lib| peers.join(lib));
        let inside = lib.iter().filter_map(|lib| lib.read_dir().ok()).flatten();
        let libraries = inside.filter_map(|entry| Some(entry.ok()?.path()));
        let libraries = std::env::join_paths(libraries.filter(|path| {
            path.ends_with("x86_64-linux-gnu") || path.ends_with("aarch64-linux-gnu")
        }));
        command.env("LD_LIBRARY_PATH", libraries.unwrap());
        command.env("WIRESHARK_DATA_DIR", peers.join("usr/share/wireshark"));
    }
    command
}

/// Frame by frame: no streams, no reassembly; what is behind TCP and UDP is nobody's protocol, but
/// for tunnels.
fn decode(path: &Path, file: &Path, fields: &[&'static str]) -> Vec<Facts> {
    let mut command = tshark(path);
    command
        .args(["-n", "-T", "fields", "-E", "separator=/t", "-E", "aggregator=|", "-r"])
        .arg(file);
    for preference in [
        "ip.check_checksum:TRUE",
        "tcp.check_checksum:TRUE",
        "udp.check_checksum:TRUE",
        "ip.defragment:FALSE",
        "ipv6.defragment:FALSE",
        "ip.tso_support:FALSE",
        "eth.fcs:Never",
        "tcp.analyze_sequence_numbers:FALSE",
        "tcp.desegment_tcp_streams:FALSE",
    ] {
        command.args(["-o", preference]);
    }
    for rule in [
        "tcp.port==0-65535,data",
        // The lower port decides: that of the tunnel.
        "udp.port==0-4788,data",
        "udp.port==6080,ip",
    ] {
        command.args(["-d", rule]);
    }
    for field in fields {
        command.args(["-e", field]);
    }
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let facts_of = |line: &str| {
        let values = line.split('\t').zip(fields).filter(|(values, _)| !values.is_empty());
        values.map(|(values, field)| (*field, values.split('|').map(plain).collect())).collect()
    };
    text.lines().map(facts_of).collect()
}

/// Numbers in hexadecimal and truths as decimal numbers.
fn plain(value: &str) -> String {
    let hex = value.strip_prefix("0x").and_then(|hex| u64::from_str_radix(hex, 16).ok());
    match (hex, value) {
        (Some(number), _) => number.to_string(),
        (None, "True") => "1".into(),
        (None, "False") => "0".into(),
        _ => value.into(),
    }
}

/// Tags, and where a fragment lies, in bytes.
#[test]
fn etherparse_reads_what_we_read() {
    let mut fragments = 0;
    for link in corpus(1500) {
        let frame = link.build();
        let sliced = SlicedPacket::from_ethernet(&frame).unwrap();
        let tags: Vec<_> = sliced.vlan_ids().iter().map(|id| id.value()).collect();
        assert_eq!(tags, link.tags.iter().map(|tag| tag.id()).collect::<Vec<_>>());
        let (field, offset) = match &sliced.net {
            Some(NetSlice::Ipv4(ip)) => ("ip.frag_offset", ip.header().fragments_offset()),
            Some(NetSlice::Ipv6(ip)) => {
                let fragment =
                    ip.extensions().clone().into_iter().find_map(|extension| match extension {
                        Ipv6ExtensionSlice::Fragment(fragment) => Some(fragment.fragment_offset()),
                        _ => None,
                    });
                let Some(offset) = fragment else { continue };
                ("ipv6.frag_offset", offset)
            }
            _ => continue,
        };
        let offset = offset.byte_offset();
        assert_eq!(facts(&frame)[field][0], offset.to_string(), "{field} of {frame:02x?}");
        fragments += u32::from(offset > 0);
    }
    assert!(fragments > 10, "{fragments} fragments");
}
