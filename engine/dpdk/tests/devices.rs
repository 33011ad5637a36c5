//! Apps on DPDK's virtual devices, beside the same apps on frames of a UMEM; and what is refused.
//! As root: DPDK wants it.
#![cfg(feature = "dpdk")]
#![allow(clippy::unwrap_used)]

#[path = "../../engine/tests/engine/frames.rs"]
#[allow(dead_code)]
mod frames;

use std::fs::File;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use pcap_file::pcap::{PcapPacket, PcapReader, PcapWriter};
use ringway_dpdk::{Dpdk, MbufPool, Options};
use ringway_engine::apps::{Bid, Icmp, L2fwd, Macs, UdpEcho};
use ringway_engine::{
    App, AppFactory, BufferPool, Burst, Cycles, Engine, EngineConfig, Idle, Port, PortOpener,
    PortSpec, Reason, Verdict, Worker, WorkerConfig, WorkerOptions, WorkerReport,
};
use ringway_testnet::{wait_for, wait_until};
use ringway_xsk::{Batch, Buffer as _, NoRoom};

const SOON: Duration = Duration::from_secs(30);
const FRAMES: u32 = 2048;

/// DPDK has one memory in a process: one test at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(|error| error.into_inner())
}

fn options() -> Options {
    Options { frames: FRAMES, ..Options::default() }
}

fn ports(texts: &[&str]) -> Vec<PortSpec> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

/// A device as one worker has it.
fn open(text: &str) -> (Dpdk, MbufPool, Vec<Box<dyn Port<MbufPool>>>) {
    let specs = ports(&[text]);
    let opener = Dpdk::open(std::slice::from_ref(&specs), &options()).unwrap();
    let (pool, opened) = opener.open(0, &specs).unwrap();
    (opener, pool, opened)
}

fn refusal(texts: &[&str]) -> String {
    let _alone = alone();
    match Dpdk::open(&[ports(texts)], &options()) {
        Ok(_) => panic!("{texts:?} was opened"),
        Err(error) => error.to_string(),
    }
}

fn start<R: PortOpener>(opener: R, specs: Vec<R::Port>, app: AppFactory<R::Pool>) -> Engine<R> {
    let options = WorkerOptions { idle: Idle::Latency, ..WorkerOptions::default() };
    let worker = WorkerConfig { cpu: None, ports: specs, app };
    Engine::start_with(opener, options, vec![worker]).unwrap()
}

fn report<R: PortOpener>(engine: Engine<R>) -> WorkerReport {
    engine.stop().pop().unwrap().unwrap()
}

fn factory<P: BufferPool, A: App<P> + 'static>(
    make: impl Fn() -> A + Send + Sync + 'static,
) -> AppFactory<P> {
    Arc::new(move || Box::new(make()))
}

fn app<P: BufferPool>(n: usize) -> AppFactory<P> {
    match n {
        0 => factory(|| L2fwd::new(Macs::Swap)),
        1 => factory(|| Icmp::new(frames::host())),
        2 => factory(|| UdpEcho::new(frames::host(), frames::PORT)),
        _ => factory(|| Bid::new(frames::host(), frames::PORT, frames::offers(), 16)),
    }
}

/// Everything that apps read, and some that is damaged.
fn everything() -> Vec<Vec<u8>> {
    let mut all = vec![
        frames::arp(),
        frames::ping(),
        frames::ping_v6(),
        frames::ping_of(&[7; 1400]),
        frames::ping_v6_of(&[7; 1400]),
        vec![0xff; 14],
        vec![0; 60],
    ];
    let cut = all.iter().map(|frame| frame[..frame.len() - 7].to_vec());
    let cut: Vec<_> = cut.filter(|frame| frame.len() > 14).collect();
    all.extend(cut);
    all
}

fn write(path: &Path, packets: &[Vec<u8>]) {
    let mut writer = PcapWriter::new(File::create(path).unwrap()).unwrap();
    for bytes in packets {
        let packet = PcapPacket::new(Duration::ZERO, bytes.len() as u32, bytes);
        writer.write_packet(&packet).unwrap();
    }
}

fn read(path: &Path) -> Vec<Vec<u8>> {
    let mut reader = PcapReader::new(File::open(path).unwrap()).unwrap();
    let mut packets = Vec::new();
    while let Some(packet) = reader.next_packet() {
        packets.push(packet.unwrap().data.into_owned());
    }
    packets
}

#[test]
fn every_app_does_to_mbufs_what_it_does_to_frames() {
    let _alone = alone();
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let packets = everything();
    write(&at("in.pcap"), &packets);
    for n in 0..4 {
        let texts = [format!("pcap:{}:{}", at("in.pcap").display(), at("frames.pcap").display())];
        let specs = ports(&[&texts[0]]);
        let workers = vec![WorkerConfig { cpu: None, ports: specs, app: app(n) }];
        let engine = Engine::start(&EngineConfig::default(), workers).unwrap();
        wait_until("the capture's end", SOON, || engine.is_over()).unwrap();
        let with_frames = report(engine);

        let text = format!(
            "dpdk:net_pcap{n},rx_pcap={},tx_pcap={}",
            at("in.pcap").display(),
            at("mbufs.pcap").display()
        );
        let specs = ports(&[&text]);
        let opener = Dpdk::open(std::slice::from_ref(&specs), &options()).unwrap();
        let engine = start(opener, specs, app(n));
        let count = packets.len() as u64;
        wait_for("all packets", SOON, || {
            let (status, _) = engine.status();
            let came = status.workers.first().map_or(0, |worker| worker.packets.received_packets);
            if came == count { Ok(()) } else { Err(format!("{came} of {count}")) }
        })
        .unwrap();
        let with_mbufs = report(engine);
        assert!(with_mbufs.audit.balanced(), "{n}: {}", with_mbufs.audit);
        assert_eq!(with_mbufs.status.frames.lost_frames, 0, "{n}");
        let dropped = |report: &WorkerReport| -> Vec<_> {
            report.status.packets.dropped.iter().map(|d| (d.name, d.packets)).collect()
        };
        assert_eq!(dropped(&with_mbufs), dropped(&with_frames), "{n}");
        assert_eq!(read(&at("mbufs.pcap")), read(&at("frames.pcap")), "{n}");
    }
}

struct Forgetful(MbufPool);

impl App<MbufPool> for Forgetful {
    fn name(&self) -> &'static str {
        "forgetful"
    }

    fn on_burst(&mut self, _now: Cycles, burst: &mut Burst<'_, MbufPool>) {
        let mut other = self.0.allocate();
        burst.decide(|packet| {
            if let Some(mut other) = other.take() {
                std::mem::swap(packet, &mut other);
                std::mem::forget(other);
            }
            Verdict::Drop(Reason::Consumed)
        });
    }
}

#[test]
fn what_is_lost_is_counted() {
    let _alone = alone();
    let (_opener, pool, opened) = open("dpdk:net_null0,size=64");
    let mut worker = Worker::new(pool.clone(), opened, Forgetful(pool), WorkerOptions::default());
    for lost in 1..10 {
        assert!(worker.round().unwrap());
        let audit = worker.audit();
        assert_eq!((audit.lost_frames, audit.difference_packets), (lost, 0), "{audit}");
        assert!(audit.frames.balanced() && !audit.balanced(), "{audit}");
        assert_eq!(worker.status().frames.lost_frames, lost as u64);
    }
}

/// One that the pool has no frame for is not made, and a worker goes on when frames are back.
#[test]
fn no_frame_is_taken_that_is_not_there() {
    let _alone = alone();
    let (_opener, pool, _ports) = open("dpdk:net_null0");
    let mut batch = Batch::new(FRAMES as usize + 1);
    let taken = pool.allocate_burst(&mut batch, FRAMES as usize + 1);
    assert!(taken > FRAMES as usize / 2 && taken <= FRAMES as usize, "{taken}");
    while pool.allocate().is_some_and(|packet| batch.push(packet).is_ok()) {}
    assert!(pool.allocate().is_none());
    let audit = pool.audit(&[]);
    assert!(audit.balanced() && audit.found.held == batch.len() as u64, "{audit}");
    batch.clear();
    assert_eq!(pool.free(), FRAMES);
}

#[test]
fn a_packet_outlives_everything_else() {
    let _alone = alone();
    let (opener, pool, ports) = open("dpdk:net_null0");
    let mut packet = pool.allocate().unwrap();
    drop((opener, ports, pool));
    packet.append(&[7; 2048]).unwrap();
    assert_eq!(packet.append(&[7; 1]), Err(NoRoom { wanted: 1, room: 0 }));
    assert_eq!(packet.set_range(100..200), Ok(()));
    assert!(packet.set_range(100..2177).is_err() && packet.len() == 100);
    assert_eq!(packet.data()[28..], [7; 72]);
}

/// The driver brings it in three mbufs.
#[test]
fn a_long_packet_is_one_for_the_ledger() {
    let _alone = alone();
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name).display().to_string();
    let packets = [vec![1; 60], vec![2; 5000], vec![3; 60], vec![4; 9000]];
    write(&directory.path().join("in.pcap"), &packets);
    let text = format!("dpdk:net_pcap9,rx_pcap={},tx_pcap={}", at("in.pcap"), at("out.pcap"));
    let (opener, pool, opened) = open(&text);
    let app = L2fwd::new(Macs::AsIs);
    let mut worker = Worker::new(pool, opened, app, WorkerOptions::default());
    for _ in 0..10 {
        worker.round().unwrap();
        assert!(worker.audit().balanced(), "{}", worker.audit());
    }
    let ended = worker.finish();
    assert!(ended.audit.balanced() && ended.audit.frames.found.held == 0, "{}", ended.audit);
    assert_eq!(ended.status.packets.received_packets, 4);
    drop((ended, opener));
    let sent = read(&directory.path().join("out.pcap"));
    assert!(packets[..3].iter().all(|packet| sent.contains(packet)), "{}", sent.len());
}

#[test]
fn a_device_and_a_worker_are_taken_once() {
    let _alone = alone();
    let specs = ports(&["dpdk:net_null0"]);
    let opener = Dpdk::open(std::slice::from_ref(&specs), &options()).unwrap();
    let second = Dpdk::open(std::slice::from_ref(&specs), &options()).err().unwrap().to_string();
    assert!(second.starts_with("dpdk:net_null0: it is open in this process"), "{second}");
    let (pool, mut opened) = opener.open(0, &specs).unwrap();
    let mut batch = Batch::new(64);
    assert_eq!(opened[0].rx_burst(&mut batch).unwrap(), 64);
    let again = opener.clone();
    let other = std::thread::spawn(move || again.open(0, &specs).err().map(|e| e.to_string()));
    let words = "have one pool each";
    assert!(other.join().unwrap().unwrap().contains(words), "two threads, one queue");
    drop((batch, opened, pool, opener));
}

#[test]
fn what_cannot_be_is_refused_with_cause_and_remedy() {
    for (texts, words) in [
        (&["dpdk:net_nul0"][..], "making a virtual device"),
        (&["dpdk:net_null0", "dpdk:net_null0"], "is there twice"),
        (&["dpdk:0000:7f:1f.7"], "there is no PCI device 0000:7f:1f.7"),
        (&["dpdk:7F:1f.7"], "there is no PCI device 0000:7f:1f.7"),
        (&["dpdk:7F:1f.7", "dpdk:0000:7f:1f.7"], "there is no PCI device"),
        (&["dpdk:net_null0", "memory:a"], "memory:a: its packets do not lie in DPDK's memory"),
        (&["dpdk:net_af_packet0,iface=nowhere0"], "making a virtual device"),
    ] {
        let refused = refusal(texts);
        assert!(refused.contains(words), "{refused}");
        assert!(refused.contains(';') | refused.contains(','), "{refused}");
    }
    assert!("dpdk:".parse::<PortSpec>().is_err() && "dpdk:a b".parse::<PortSpec>().is_err());
    assert!("dpdk:net_null0,workers=0".parse::<PortSpec>().is_err());
    let theirs: PortSpec = "dpdk:net_vhost0,iface=/tmp/a,queues=2".parse().unwrap();
    let device = "net_vhost0,iface=/tmp/a,queues=2".into();
    assert_eq!(theirs, PortSpec::Dpdk { device, queue: 0 });
}
