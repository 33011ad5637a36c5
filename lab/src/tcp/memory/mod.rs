//! What a TCP socket takes of the kernel's memory, state by state: `ringway bench tcp-memory`.
//!
//! Many connections within a namespace are brought into one state, and the kernel's objects are counted before and
//! after. Then the server's sockets vanish without a word (TCP_REPAIR), and what goes with them was theirs; what is
//! left over is the clients'.

mod report;
mod state;

use std::collections::BTreeMap;
use std::fs;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use ringway_testnet::Namespace;
use rustix::event::epoll;
use rustix::fd::OwnedFd;
use serde::Serialize;

pub use report::{Report, Row, SCHEMA};
pub use state::State;

use super::limits;
use super::slab::{Names, Slabs};
use super::socket::{Pair, address, listener, vanish};
use crate::demo::clean::{Guard, end_on_signals};
use crate::{Error, Result, needs_root};

/// Connections of a state when nobody asks for another number: each has slabs of its own, and strangers' few objects
/// do not count among theirs.
const CONNECTIONS: u32 = 8000;
/// Files that the process has beside its sockets.
const OTHER_FILES: u64 = 200;
/// More than a connection takes in any state, both sides together.
const MOST_BYTES: u64 = 64 << 10;
/// For what is freed after a grace period (RCU) to be gone, at most.
const SETTLE: Duration = Duration::from_secs(5);
/// Between two looks. Grace periods take some tens of milliseconds.
const LOOK: Duration = Duration::from_millis(60);
/// What connections are counted by.
const COUNTED: [&str; 4] = ["TCP", "sock_inode_cache", "filp", "tw_sock_TCP"];

/// How much to measure.
#[derive(Debug, Clone)]
pub struct Options {
    /// Connections in each state; none: as many as make the result exact, or as there can be.
    pub connections: Option<u32>,
    /// Times that each state is measured; the medians count.
    pub rounds: u32,
    /// Only these states; empty: all.
    pub only: Vec<State>,
    /// The `ringway` binary, for the guard that removes what a killed bench leaves.
    pub ringway: PathBuf,
}

impl Default for Options {
    /// All states, three times, the running binary.
    fn default() -> Self {
        Self {
            connections: None,
            rounds: 3,
            only: Vec::new(),
            ringway: std::env::current_exe().unwrap_or_else(|_| "ringway".into()),
        }
    }
}

/// An end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Side {
    /// The one that connected.
    Client,
    /// The one that accepted.
    Server,
}

/// Bytes by cache, of one side of all connections of one round.
#[derive(Debug, Clone, Default, PartialEq)]
struct Share {
    caches: BTreeMap<String, f64>,
    /// Pages that TCP accounts for, in bytes.
    charged: f64,
}

/// Measures, as a command does it: an interrupt takes everything down at once, and a guard process does so should
/// this one be killed. `progress` is told in words what goes on. Needs root.
///
/// # Errors
/// It cannot be measured here, or not with so many connections.
pub fn run_guarded(options: &Options, mut progress: impl FnMut(&str)) -> Result<Report> {
    needs_root("bench tcp-memory")?;
    let connections = possible(options.connections, limits::open_files(), limits::available())?;
    let guard = Guard::start(&options.ringway)?;
    end_on_signals()?;
    let report = run(options, connections, &mut progress);
    guard.dismiss();
    report
}

/// How many connections there are to be: those asked for if they can be.
fn possible(asked: Option<u32>, files: u64, memory: u64) -> Result<u32> {
    // Half of the memory, for others live here too.
    let by_memory = memory / 2 / MOST_BYTES;
    let by_files = files.saturating_sub(OTHER_FILES) / 2;
    let most = u32::try_from(by_memory.min(by_files)).unwrap_or(u32::MAX);
    let asks = asked.unwrap_or(CONNECTIONS.min(most));
    if (1..=most).contains(&asks) {
        return Ok(asks);
    }
    let short = if by_files < by_memory { "open files (`ulimit -Hn`)" } else { "free memory" };
    Err(Error::TooMany { asked: asks.into(), possible: most.into(), short: short.into() })
}

fn run(options: &Options, connections: u32, progress: &mut impl FnMut(&str)) -> Result<Report> {
    let rounds = options.rounds.max(1);
    let mut states = State::ALL.to_vec();
    states.retain(|state| options.only.is_empty() || options.only.contains(state));
    let names = Names::read();
    let mut shares: BTreeMap<(State, Side), Vec<Share>> = BTreeMap::new();
    for round in 1..=rounds {
        for &state in &states {
            let [client, server] = measure(state, connections, &names)?;
            let each = |share: &Share| share.caches.values().sum::<f64>() / f64::from(connections);
            progress(&format!(
                "round {round}/{rounds}  {state:<20} client {:>6.0} B, server {:>6.0} B",
                each(&client),
                each(&server)
            ));
            shares.entry((state, Side::Client)).or_default().push(client);
            shares.entry((state, Side::Server)).or_default().push(server);
        }
    }
    Ok(Report::new(connections, rounds, Slabs::read()?.by_cache(), &shares))
}

/// One state, in a namespace of its own, which takes with it what is in TIME_WAIT.
fn measure(state: State, connections: u32, names: &Names) -> Result<[Share; 2]> {
    let namespace = Namespace::new("tcpmem")?;
    // Both ends are here: more ports than the 28 232 that clients have by default are of no use, but the range may
    // have been narrowed by whoever set the machine up.
    namespace.sysctl("net/ipv4/ip_local_port_range", "10000 60999")?;
    namespace.run(|| inside(state, connections, names))?
}

fn inside(state: State, connections: u32, names: &Names) -> Result<[Share; 2]> {
    let failed = |source| Error::Socket { what: state.what(), source };
    let listener =
        listener(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0), 1024, false).map_err(failed)?;
    let to = address(&listener).map_err(failed)?;
    let set = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(|e| failed(e.into()))?;
    let before = Moment::settled()?;
    let mut pairs = connect(connections, &listener, to, state, &set).map_err(failed)?;
    let both = Moment::settled()?;
    remove(&mut pairs, |pair| &mut pair.server).map_err(failed)?;
    let clients = Moment::settled()?;
    let shares = [clients.since(&before, names), both.since(&clients, names)];
    // So that no port is searched for and no FIN sent when the rest goes.
    remove(&mut pairs, |pair| &mut pair.client).map_err(failed)?;
    let sides = [Side::Client, Side::Server].map(|side| state.unread(side));
    let mut shares = shares;
    for (share, unread) in shares.iter_mut().zip(sides).filter(|(_, unread)| *unread > 0) {
        share
            .caches
            .insert("pages of data".into(), (unread as u64 * u64::from(connections)) as f64);
    }
    Ok(shares)
}

fn connect(
    connections: u32,
    listener: &OwnedFd,
    to: SocketAddrV4,
    state: State,
    set: &OwnedFd,
) -> std::io::Result<Vec<Pair>> {
    let mut pairs = Vec::with_capacity(connections as usize);
    for _ in 0..connections {
        let mut pair = Pair::connect(listener, to)?;
        state.reach(&mut pair, set)?;
        pairs.push(pair);
    }
    Ok(pairs)
}

fn remove(pairs: &mut [Pair], side: fn(&mut Pair) -> &mut Option<OwnedFd>) -> std::io::Result<()> {
    pairs.iter_mut().filter_map(|pair| side(pair).take()).try_for_each(vanish)
}

/// The kernel's memory at one moment.
struct Moment {
    slabs: Slabs,
    /// Pages.
    charged: u64,
}

impl Moment {
    /// Once sockets neither come nor go any more.
    fn settled() -> Result<Self> {
        let began = Instant::now();
        let mut last = Slabs::read()?;
        let mut quiet = 0;
        while quiet < 2 && began.elapsed() < SETTLE {
            std::thread::sleep(LOOK);
            let now = Slabs::read()?;
            let moved: u64 =
                COUNTED.iter().map(|cache| now.objects(cache).abs_diff(last.objects(cache))).sum();
            // Others open and close files too.
            quiet = if moved <= 64 { quiet + 1 } else { 0 };
            last = now;
        }
        let sockstat = fs::read_to_string("/proc/thread-self/net/sockstat").unwrap_or_default();
        Ok(Self { slabs: last, charged: tcp_pages(&sockstat).unwrap_or(0) })
    }

    fn since(&self, before: &Self, names: &Names) -> Share {
        let mut caches = BTreeMap::new();
        for (cache, bytes) in self.slabs.since(&before.slabs) {
            if let Some(name) = names.of_sockets(&cache) {
                *caches.entry(name).or_default() += bytes;
            }
        }
        let pages = self.charged as f64 - before.charged as f64;
        Share { caches, charged: pages * rustix::param::page_size() as f64 }
    }
}

/// `TCP: inuse 3 orphan 0 tw 0 alloc 4 mem 17`, of all namespaces together.
fn tcp_pages(sockstat: &str) -> Option<u64> {
    let line = sockstat.lines().find_map(|line| line.strip_prefix("TCP: "))?;
    line.split_once("mem ")?.1.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_connections_as_there_can_be() {
        let plenty = 64 << 30;
        assert_eq!(possible(None, 20_000, plenty).unwrap(), 8000);
        assert_eq!(possible(None, 1024, plenty).unwrap(), 412);
        assert_eq!(possible(Some(9900), 20_000, plenty).unwrap(), 9900);
        let files = possible(Some(9901), 20_000, plenty).unwrap_err().to_string();
        assert!(files.contains("9900") && files.contains("ulimit"), "{files}");
        let memory = possible(Some(9900), 20_000, 256 << 20).unwrap_err().to_string();
        assert!(memory.contains("2048") && memory.contains("free memory"), "{memory}");
        assert!(possible(None, 200, plenty).is_err());
    }

    #[test]
    fn pages_of_sockstat() {
        let text =
            "sockets: used 9\nTCP: inuse 3 orphan 0 tw 0 alloc 4 mem 17\nUDP: inuse 1 mem 2\n";
        assert_eq!(tcp_pages(text), Some(17));
        assert_eq!(tcp_pages("sockets: used 9\n"), None);
    }

    /// A socket is one TCP object on each side, and the listener's is neither's.
    #[test]
    fn a_socket_is_one_object() {
        if !ringway_testnet::root_or_skip("tcp::memory::a_socket_is_one_object") {
            return;
        }
        if !Slabs::read().unwrap().by_cache() {
            ringway_testnet::skip("tcp::memory::a_socket_is_one_object", "no /proc/slabinfo");
            return;
        }
        limits::open_files();
        // The kernel counts for everyone, and tests beside this one open sockets too: many, and again if disturbed.
        const CONNECTIONS: u32 = 3000;
        let one_object = |share: &Share| {
            let sock = share.caches["sock_inode_cache"] / f64::from(CONNECTIONS);
            (700.0..1100.0).contains(&sock)
        };
        let mut shares = measure(State::Idle, CONNECTIONS, &Names::read()).unwrap();
        for _ in 0..10 {
            if shares.iter().all(one_object) {
                return;
            }
            shares = measure(State::Idle, CONNECTIONS, &Names::read()).unwrap();
        }
        panic!("{shares:?}");
    }
}
