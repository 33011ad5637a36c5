//! What an engine counts, for Prometheus: `--metrics ADDRESS:PORT`. docs/metrics.md lists it; a
//! test holds it to this list.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use ringway_daemon::metrics::text::{Family, Kind, Sheet};
use ringway_engine::status::{Packets, WorkerStatus};
use ringway_engine::{Engine, PortOpener, PortStatistics, Status};

/// How long whoever asks may take for it.
const PATIENCE: Duration = Duration::from_secs(1);
/// Connections served at once; others wait.
const MOST: usize = 16;
/// Bytes of a request: its first line is of interest, and a scraper's headers.
const MOST_BYTES: usize = 8192;
const LOOKS: Duration = Duration::from_millis(20);

pub struct Metrics(TcpListener);

impl Metrics {
    pub fn listen(address: SocketAddr) -> anyhow::Result<Self> {
        let listening = TcpListener::bind(address).and_then(|listener| {
            listener.set_nonblocking(true)?;
            Ok(Self(listener))
        });
        listening.with_context(|| format!("--metrics {address}: choose an address that is free"))
    }

    /// Answers each who asks on a thread of its own, until it is over.
    pub fn serve(&self, over: &AtomicBool, text: impl Fn() -> String + Sync) {
        let (text, asking) = (&text, &AtomicUsize::new(0));
        thread::scope(|scope| {
            while !over.load(Relaxed) {
                let room = asking.load(Relaxed) < MOST;
                let Some((stream, _)) = room.then(|| self.0.accept().ok()).flatten() else {
                    thread::sleep(LOOKS);
                    continue;
                };
                asking.fetch_add(1, Relaxed);
                scope.spawn(move || {
                    // The client may have disconnected.
                    let _ = answer(stream, text);
                    asking.fetch_sub(1, Relaxed);
                });
            }
        });
    }
}

/// Exported counters of an engine.
pub fn text<R: PortOpener>(engine: &Engine<R>) -> String {
    let (status, silent) = engine.status();
    render(&status, silent.len())
}

/// The head of a request, as far as it has come by then.
fn head(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let deadline = Instant::now() + PATIENCE;
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") && head.len() < MOST_BYTES {
        let rest = deadline.saturating_duration_since(Instant::now());
        if rest.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(rest))?;
        let mut some = [0; 1024];
        match stream.read(&mut some)? {
            0 => break,
            len => head.extend_from_slice(&some[..len]),
        }
    }
    Ok(head)
}

fn answer(mut stream: TcpStream, text: impl Fn() -> String) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let (state, text) = if head(&mut stream)?.starts_with(b"GET /metrics ") {
        ("200 OK", text())
    } else {
        ("404 Not Found", "there is /metrics alone\n".into())
    };
    write!(
        stream,
        "HTTP/1.1 {state}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{text}",
        text.len()
    )
}

const fn family(
    kind: Kind,
    name: &'static str,
    labels: &'static [&'static str],
    help: &'static str,
) -> Family {
    Family { name, kind, labels, help }
}

/// A family, and what it shows of a port; none where this kind of port has no such figure.
type OfPort = (Family, fn(&PortStatistics) -> Option<u64>);
/// A family, and what it shows of a worker.
type OfWorker = (Family, fn(&WorkerStatus) -> f64);

const fn of_port(
    name: &'static str,
    help: &'static str,
    value: fn(&PortStatistics) -> Option<u64>,
) -> OfPort {
    (family(Kind::Counter, name, &["worker", "port"], help), value)
}

const fn of_worker(
    kind: Kind,
    name: &'static str,
    help: &'static str,
    value: fn(&WorkerStatus) -> f64,
) -> OfWorker {
    (family(kind, name, &["worker"], help), value)
}

static SILENT: Family = family(
    Kind::Gauge,
    "ringway_engine_silent_workers",
    &[],
    "Workers that have ended, or did not answer within a second.",
);
static INFO: Family = family(
    Kind::Gauge,
    "ringway_engine_worker_info",
    &["worker", "app"],
    "Always 1: what the worker runs.",
);
static DROPPED: Family = family(
    Kind::Counter,
    "ringway_engine_dropped_packets_total",
    &["worker", "reason"],
    "Packets dropped, by reason; those that never were are left out.",
);
static BURSTS: Family = family(
    Kind::Histogram,
    "ringway_engine_burst_packets",
    &["worker"],
    "Packets that came in together.",
);
static FRAMES: Family = family(
    Kind::Gauge,
    "ringway_engine_frames",
    &["worker", "place"],
    "Frames by the ledger: free, fill and tx (with the kernel), held, lost (of those held, nobody's).",
);
static DEVICE: Family = family(
    Kind::Gauge,
    "ringway_engine_device_count",
    &["worker", "port", "counter"],
    "Counters of a DPDK device's own, by its driver's names; those at 0 are left out.",
);
static LEAKS: Family = family(
    Kind::Gauge,
    "ringway_engine_leaked_frames",
    &["worker", "stage"],
    "Frames that are never let go, by the stage of the app that had them last.",
);

static PORTS: [OfPort; 13] = [
    of_port("ringway_engine_received_packets_total", "Packets that came in.", |p| {
        Some(p.received_packets)
    }),
    of_port("ringway_engine_transmitted_packets_total", "Packets that went out.", |p| {
        Some(p.transmitted_packets)
    }),
    of_port(
        "ringway_engine_tx_full_packets_total",
        "Packets that had to wait, since TX was full.",
        |p| Some(p.tx_full_packets),
    ),
    of_port("ringway_engine_unsendable_packets_total", "Packets that cannot be sent.", |p| {
        Some(p.unsendable_packets)
    }),
    of_port(
        "ringway_engine_no_frame_total",
        "Times that nothing could be received, since no frame was free.",
        |p| Some(p.no_frame_times),
    ),
    of_port(
        "ringway_engine_too_long_packets_total",
        "Packets that did not come in, since they are longer than 17 frames take.",
        |p| Some(p.too_long_packets),
    ),
    of_port(
        "ringway_engine_filled_frames_total",
        "Frames given to the kernel to be filled.",
        |p| p.filled_frames,
    ),
    of_port("ringway_engine_completed_frames_total", "Frames that came back after sending.", |p| {
        p.completed_frames
    }),
    of_port(
        "ringway_engine_rx_dropped_packets_total",
        "Packets that the kernel dropped before they came here.",
        |p| p.kernel_rx_dropped_packets,
    ),
    of_port(
        "ringway_engine_rx_invalid_descs_total",
        "Descriptors that the kernel refused in FILL.",
        |p| p.kernel_rx_invalid_descs,
    ),
    of_port(
        "ringway_engine_tx_invalid_descs_total",
        "Descriptors that the kernel refused in TX; of af_packet, frames that the device refused.",
        |p| p.kernel_tx_invalid_descs,
    ),
    of_port(
        "ringway_engine_rx_ring_full_packets_total",
        "Packets that the kernel dropped, since RX was full.",
        |p| p.kernel_rx_ring_full_packets,
    ),
    of_port(
        "ringway_engine_fill_ring_empty_total",
        "Times that the kernel found no frame in FILL.",
        |p| p.kernel_fill_ring_empty_times,
    ),
];

static WORKERS: [OfWorker; 8] = [
    of_worker(
        Kind::Counter,
        "ringway_engine_originated_packets_total",
        "Packets that the app made.",
        |w| w.packets.originated_packets as f64,
    ),
    of_worker(
        Kind::Gauge,
        "ringway_engine_waiting_packets",
        "Packets that wait to be sent.",
        |w| w.packets.waiting_packets as f64,
    ),
    of_worker(
        Kind::Gauge,
        "ringway_engine_held_packets",
        "0: no app holds packets any more.",
        |w| w.packets.held_packets as f64,
    ),
    of_worker(
        Kind::Gauge,
        "ringway_engine_ledger_difference_packets",
        "Packets that came or were made, less those that went, wait or were dropped: 0.",
        |w| w.packets.difference_packets as f64,
    ),
    of_worker(
        Kind::Counter,
        "ringway_engine_app_no_frame_total",
        "Times that the app could not make a packet, since no frame was free.",
        |w| w.packets.no_frame_times as f64,
    ),
    of_worker(Kind::Counter, "ringway_engine_rounds_total", "Times through all ports.", |w| {
        w.rounds as f64
    }),
    of_worker(Kind::Counter, "ringway_engine_sleeps_total", "Times it slept.", |w| w.sleeps as f64),
    of_worker(
        Kind::Gauge,
        "ringway_engine_idle_ratio",
        "Share of its time with nothing to do since it began: 0 to 1.",
        |w| w.idle_share,
    ),
];

fn render(status: &Status, silent: usize) -> String {
    let mut sheet = Sheet::default();
    let workers = || status.workers.iter().map(|worker| (worker.worker.to_string(), worker));
    sheet.family(&SILENT).add(&[], silent);
    let mut series = sheet.family(&INFO);
    workers().for_each(|(n, worker)| series.add(&[&n, &worker.app], 1));
    for (family, value) in &PORTS {
        let mut series = sheet.family(family);
        for (n, worker) in workers() {
            for port in &worker.ports {
                if let Some(value) = value(&port.statistics) {
                    series.add(&[&n, &port.port], value);
                }
            }
        }
    }
    for (family, value) in &WORKERS {
        let mut series = sheet.family(family);
        workers().for_each(|(n, worker)| series.add(&[&n], value(worker)));
    }
    let mut series = sheet.family(&DROPPED);
    for (n, worker) in workers() {
        let Packets { dropped, .. } = &worker.packets;
        dropped.iter().for_each(|d| series.add(&[&n, d.name], d.packets));
    }
    let mut series = sheet.family(&BURSTS);
    for (n, worker) in workers() {
        // Each size is told by its least, and up to the next; the last has no end.
        let times: Vec<_> = worker.bursts.iter().map(|b| (b.packets, b.times)).collect();
        let Some(((_, more), sizes)) = times.split_last() else { continue };
        let at_most = |(least, times): &(u64, u64)| ((2 * least - 1) as f64, *times);
        let sizes: Vec<_> = sizes.iter().map(at_most).collect();
        series.histogram(&[&n], &sizes, *more, worker.packets.received_packets as f64);
    }
    let mut series = sheet.family(&FRAMES);
    for (n, worker) in workers() {
        let f = &worker.frames;
        for (place, frames) in [
            ("free", f.free_frames),
            ("fill", f.fill_frames),
            ("held", f.held_frames),
            ("tx", f.tx_frames),
            ("lost", f.lost_frames),
        ] {
            series.add(&[&n, place], frames);
        }
    }
    let mut series = sheet.family(&DEVICE);
    for (n, worker) in workers() {
        for port in &worker.ports {
            port.device_counters
                .iter()
                .for_each(|c| series.add(&[&n, &port.port, &c.name], c.count));
        }
    }
    let mut series = sheet.family(&LEAKS);
    for leak in &status.leaks {
        series.add(&[&leak.worker.to_string(), &leak.stage], leak.frames);
    }
    sheet.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Who does not ask to the end neither keeps others waiting nor stays; a request may come in
    /// pieces.
    #[test]
    fn one_that_is_slow_hinders_nobody() {
        let metrics = Metrics::listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = metrics.0.local_addr().unwrap();
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            let _ends = Ends(&over);
            scope.spawn(|| metrics.serve(&over, || "served".into()));
            let connect = || {
                let stream = TcpStream::connect(address).unwrap();
                // Longer than PATIENCE, 1 s.
                stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
                stream
            };
            let mut idle: Vec<_> = (0..MOST - 1).map(|_| connect()).collect();
            let mut asking = connect();
            let mut said = String::new();
            for part in ["GET /met", "rics HTTP/1.1\r\nHost: x\r\n", "\r\n"] {
                asking.set_nodelay(true).unwrap();
                asking.write_all(part.as_bytes()).unwrap();
            }
            asking.read_to_string(&mut said).unwrap();
            assert!(said.starts_with("HTTP/1.1 200") && said.ends_with("served"), "{said}");
            for stream in &mut idle {
                let read = stream.read(&mut [0; 9]);
                let late = read.as_ref().is_err_and(|e| e.kind() == io::ErrorKind::WouldBlock);
                assert!(!late && read.unwrap_or(0) == 0, "closed");
            }
        });
    }

    /// The server ends with the test, also with one that fails.
    struct Ends<'o>(&'o AtomicBool);

    impl Drop for Ends<'_> {
        fn drop(&mut self) {
            self.0.store(true, Relaxed);
        }
    }

    #[test]
    fn the_document_lists_them() {
        let document = include_str!("../../../docs/metrics.md");
        let ours = |line: &&str| line.starts_with("| `ringway_engine_");
        let rows: Vec<&str> = document.lines().filter(ours).collect();
        let families = [&SILENT, &INFO]
            .into_iter()
            .chain(PORTS.iter().map(|(family, _)| family))
            .chain(WORKERS.iter().map(|(family, _)| family))
            .chain([&DROPPED, &BURSTS, &FRAMES, &DEVICE, &LEAKS]);
        let row = |family: &Family| {
            let Family { name, kind, labels, help } = family;
            let labels: Vec<_> = labels.iter().map(|label| format!("`{label}`")).collect();
            format!("| `{name}` | {} | {} | {help} |", kind.name(), labels.join(", "))
        };
        let want: Vec<String> = families.map(row).collect();
        assert_eq!(rows, want, "the table of docs/metrics.md should be:\n{}", want.join("\n"));
    }
}
