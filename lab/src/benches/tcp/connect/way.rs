//! The ways between a client and a server: `lo`, a veth pair, and one that takes time.
//!
//! Time is what netem takes on both ends of a veth pair. On kernels without it, two TAP devices
//! with this process between them, which hands each frame on when it is due.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use ringway_host::Tap;
use ringway_testnet::{End, Namespace, VethOptions, veth};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::{Result, programs};

const CLIENT: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const SERVER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 2);
/// Both devices have it: each sends to its own address, as it does not ask for neighbours.
const MAC: &str = "02:72:77:00:00:01";
/// Of a frame: MTU, Ethernet header, and some.
const FRAME: usize = 2048;
/// A relay looks so often whether to stop.
const PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };

/// The means by which a way takes time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Delays {
    /// The kernel, `tc netem`.
    Netem,
    /// This process, since netem cannot be had: why not.
    Relay(String),
}

impl Delays {
    /// Netem, where this kernel and its tools have it.
    pub(super) fn here() -> Result<Self> {
        let namespace = Namespace::new("netem")?;
        Ok(match netem(&namespace, "lo", Duration::from_millis(1)) {
            Ok(()) => Self::Netem,
            Err(error) => Self::Relay(error.to_string().trim_end_matches('.').to_owned()),
        })
    }
}

impl fmt::Display for Delays {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Netem => f.write_str("tc netem on a veth pair"),
            Self::Relay(why) => write!(f, "a relay between two TAP devices, no netem here: {why}"),
        }
    }
}

fn netem(namespace: &Namespace, device: &str, delay: Duration) -> Result<()> {
    let delay = format!("{}us", delay.as_micros());
    // It holds what is under way: more than all connections have at once.
    let words =
        ["qdisc", "add", "dev", device, "root", "netem", "limit", "100000", "delay", &delay];
    programs::run(namespace, "tc", &words)
}

/// Client and server, and what is between them.
pub(super) struct Way {
    pub client: Namespace,
    pub server: Namespace,
    /// Where a server listens that is to be reached.
    pub at: SocketAddrV4,
    _relay: Option<Relay>,
}

impl Way {
    fn new(client: Namespace, server: Namespace, at: Ipv4Addr, relay: Option<Relay>) -> Self {
        Self { client, server, at: SocketAddrV4::new(at, 0), _relay: relay }
    }

    /// `lo` of one namespace.
    pub(super) fn loopback() -> Result<Self> {
        let both = Namespace::new("connect")?;
        Ok(Self::new(both.clone(), both, Ipv4Addr::LOCALHOST, None))
    }

    pub(super) fn veth() -> Result<Self> {
        let (client, server) = (Namespace::new("client")?, Namespace::new("server")?);
        let options = VethOptions { offloads: true, ..VethOptions::default() };
        let end =
            |namespace, name, address| End::new(namespace, name).address(format!("{address}/24"));
        veth(&end(&client, "c0", CLIENT), &end(&server, "s0", SERVER), &options)?;
        Ok(Self::new(client, server, SERVER, None))
    }

    /// So long there and back, at least.
    pub(super) fn delayed(rtt: Duration, delays: &Delays) -> Result<Self> {
        match delays {
            Delays::Netem => {
                let way = Self::veth()?;
                netem(&way.client, "c0", rtt / 2)?;
                netem(&way.server, "s0", rtt / 2)?;
                Ok(way)
            }
            Delays::Relay(_) => Self::relayed(rtt),
        }
    }

    fn relayed(rtt: Duration) -> Result<Self> {
        let (client, server) = (Namespace::new("client")?, Namespace::new("server")?);
        let tap = |namespace: &Namespace, address: Ipv4Addr| -> Result<Tap> {
            let tap = namespace.run(|| Tap::create("far%d", 1500))?;
            let tap = tap.map_err(ringway_testnet::Error::from)?;
            let name = tap.name();
            namespace.ip(&format!(
                "link set {name} address {MAC}\naddr add {address}/24 dev {name}\nlink set {name} up\n"
            ))?;
            Ok(tap)
        };
        let relay = Relay::start(tap(&client, CLIENT)?, tap(&server, SERVER)?, rtt / 2);
        Ok(Self::new(client, server, SERVER, Some(relay)))
    }
}

/// A frame, and when it is due.
type Due = (Instant, Vec<u8>);

struct Relay {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Relay {
    fn start(a: Tap, b: Tap, delay: Duration) -> Self {
        let (a, b) = (Arc::new(a), Arc::new(b));
        let stop = Arc::new(AtomicBool::new(false));
        let mut threads = Vec::new();
        for (from, to) in [(&a, &b), (&b, &a)] {
            let (frames, arriving) = channel();
            let (from, to, stop) = (Arc::clone(from), Arc::clone(to), Arc::clone(&stop));
            threads.push(thread::spawn(move || take(&from, delay, &frames, &stop)));
            threads.push(thread::spawn(move || deliver(&to, &arriving)));
        }
        Self { stop, threads }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn take(from: &Tap, delay: Duration, frames: &Sender<Due>, stop: &AtomicBool) {
    let mut bytes = [0; FRAME];
    while !stop.load(Relaxed) {
        let ready = poll(&mut [PollFd::new(from, PollFlags::IN)], Some(&PAUSE));
        if ready.is_ok_and(|ready| ready > 0)
            && let Ok(len) = rustix::io::read(from, &mut bytes)
        {
            let _ = frames.send((Instant::now() + delay, bytes[..len].to_vec()));
        }
    }
}

/// Until there is nobody any more who takes.
fn deliver(to: &Tap, arriving: &Receiver<Due>) {
    for (due, frame) in arriving {
        thread::sleep(due.saturating_duration_since(Instant::now()));
        // A device that is full or gone loses it, as a wire would.
        let _ = rustix::io::write(to, &frame);
    }
}
