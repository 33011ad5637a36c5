//! Capture files in place of interfaces: what is cut off, too long, or one file by two names.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Arc;

use ringway_engine::apps::{L2fwd, Macs, Sink};
use ringway_engine::{
    App, Burst, Cycles, Engine, EngineConfig, EngineError, Reason, Verdict, WorkerConfig,
    WorkerReport,
};
use ringway_xsk::UmemConfig;

use crate::pcap::capture;

/// Whether a file is a capture of packets of these lengths.
fn holds(path: &Path, lens: &[usize]) -> bool {
    fs::metadata(path).unwrap().len() == capture(lens).len() as u64
}

fn start<A: App + 'static>(
    directory: &Path,
    ports: &[&str],
    app: impl Fn() -> A + Send + Sync + 'static,
) -> Result<Engine, EngineError> {
    // `@` is the directory.
    let port = |text: &&str| text.replace('@', &directory.display().to_string()).parse().unwrap();
    let ports = ports.iter().map(port).collect();
    let umem = UmemConfig { frames: 512, ..UmemConfig::default() };
    let config = EngineConfig { umem, ..EngineConfig::default() };
    let app = Arc::new(move || Box::new(app()) as Box<dyn App>);
    Engine::start(&config, vec![WorkerConfig { cpu: None, ports, app }])
}

fn ends(engine: Engine) -> WorkerReport {
    while !engine.is_over() {
        std::thread::yield_now();
    }
    engine.stop().pop().unwrap().unwrap()
}

fn l2fwd() -> L2fwd {
    L2fwd::new(Macs::AsIs)
}

#[test]
fn a_truncated_capture_loses_what_is_cut_off_and_nothing_else() {
    let directory = tempfile::tempdir().unwrap();
    let whole = capture(&[60; 5]);
    // Within the last packet, and within what the format puts in front of it.
    for cut in [whole.len() - 20, whole.len() - 60 - 7] {
        fs::write(directory.path().join("in.pcap"), &whole[..cut]).unwrap();
        let report = ends(start(directory.path(), &["pcap:@/in.pcap:@/out.pcap"], l2fwd).unwrap());
        let error = report.error.expect("it is truncated").to_string();
        assert!(error.contains("truncated in packet 5 of"), "{error}");
        assert!(report.audit.balanced(), "{}", report.audit);
        let packets = &report.status.packets;
        assert_eq!((packets.received_packets, packets.transmitted_packets), (4, 4));
        assert_eq!(report.status.ports[0].statistics.received_packets, 4);
        assert!(holds(&directory.path().join("out.pcap"), &[60; 4]));
    }
}

#[test]
fn what_is_longer_than_the_frames_of_a_packet_is_counted() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("in.pcap"), capture(&[60, 40_000, 30_000, 60])).unwrap();
    let report = ends(start(directory.path(), &["pcap:@/in.pcap:@/out.pcap"], l2fwd).unwrap());
    assert!(report.error.is_none() && report.audit.balanced(), "{}", report.status);
    let port = &report.status.ports[0].statistics;
    assert_eq!((port.received_packets, port.too_long_packets), (3, 1), "{}", report.status);
    assert!(holds(&directory.path().join("out.pcap"), &[60, 30_000, 60]));
}

#[test]
fn no_capture_is_written_over_by_whatever_name() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    fs::write(at("a.pcap"), capture(&[60])).unwrap();
    fs::create_dir(at("sub")).unwrap();
    fs::hard_link(at("a.pcap"), at("hard.pcap")).unwrap();
    symlink(at("a.pcap"), at("soft.pcap")).unwrap();
    for ports in [
        &["pcap:@/a.pcap:@/sub/../a.pcap"][..],
        &["pcap:@/a.pcap:@/hard.pcap"],
        &["pcap:@/soft.pcap:@/a.pcap"],
        &["pcap::@/a.pcap", "pcap:@/soft.pcap:"],
        &["pcap::@/a.pcap", "pcap::@/hard.pcap"],
        &["pcap::@/new.pcap", "pcap::@/sub/../new.pcap"],
    ] {
        let error = start(directory.path(), ports, Sink::default).err();
        let error = error.unwrap_or_else(|| panic!("{ports:?} were taken")).to_string();
        assert!(error.contains("the same file") && error.contains("its own files"), "{error}");
        assert!(holds(&at("a.pcap"), &[60]) && !at("new.pcap").exists(), "{ports:?}");
    }
    // It may be read twice, and what is no file can be written to by many.
    let ports = ["pcap:@/a.pcap:/dev/null", "pcap:@/soft.pcap:/dev/null"];
    let report = ends(start(directory.path(), &ports, Sink::default).unwrap());
    assert_eq!(report.status.packets.received_packets, 2, "{}", report.status);
}

/// Seconds and nanoseconds of each packet of a capture as it is written here.
fn times(path: &Path) -> Vec<(u32, u32)> {
    let file = fs::read(path).unwrap();
    assert_eq!(file[..4], [0xa1, 0xb2, 0x3c, 0x4d], "nanoseconds, big endian");
    let word = |at: usize| u32::from_be_bytes(file[at..at + 4].try_into().unwrap());
    let (mut at, mut times) = (24, Vec::new());
    while at < file.len() {
        times.push((word(at), word(at + 4)));
        at += 16 + word(at + 8) as usize;
    }
    times
}

/// Makes a packet of its own for each that comes, of a frame that another one had, and sends both.
#[derive(Default)]
struct Doubles(usize);

impl App for Doubles {
    fn name(&self) -> &'static str {
        "doubles"
    }

    fn on_burst(&mut self, _now: Cycles, burst: &mut Burst<'_>) {
        burst.decide(|_packet| {
            self.0 += 1;
            if self.0.is_multiple_of(2) {
                Verdict::Drop(Reason::Consumed)
            } else {
                Verdict::Forward(0)
            }
        });
    }

    fn on_round(&mut self, _now: Cycles, burst: &mut Burst<'_>) {
        while self.0 > 0 {
            self.0 -= 1;
            burst.originate(|packet| {
                packet.append(&[7; 60]).unwrap();
                Verdict::Forward(0)
            });
        }
    }
}

#[test]
fn packets_of_a_capture_keep_their_times_and_others_have_that_of_writing() {
    let directory = tempfile::tempdir().unwrap();
    let out = directory.path().join("out.pcap");
    fs::write(directory.path().join("in.pcap"), capture(&[60, 3000, 60, 60])).unwrap();
    let ports = ["pcap:@/in.pcap:@/out.pcap"];
    ends(start(directory.path(), &ports, l2fwd).unwrap());
    let of_capture = |n: u32| (1_000_000_000 + n, 123_456_000);
    assert_eq!(times(&out), [of_capture(0), of_capture(1), of_capture(2), of_capture(3)]);

    ends(start(directory.path(), &ports, Doubles::default).unwrap());
    let times = times(&out);
    assert_eq!(times[..2], [of_capture(0), of_capture(2)]);
    // This was written after 2020.
    assert!(times.len() == 6 && times[2..].iter().all(|time| time.0 > 1_577_836_800), "{times:?}");
}
