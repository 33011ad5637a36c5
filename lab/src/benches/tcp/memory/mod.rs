//! The kernel's memory for a TCP socket, state by state: `ringway-lab bench tcp-memory`.
//!
//! Many connections within a namespace are brought into one state, and the kernel's objects are
//! counted before and after. Then the server's sockets vanish without a word (TCP_REPAIR), and what
//! goes with them was theirs; what is left over is the clients'.

mod moment;
pub(crate) mod report;
mod socket_state;

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddrV4};

use ringway_terminal::quantity::whole;
use ringway_testnet::Namespace;
use rustix::event::epoll;
use rustix::fd::OwnedFd;
use serde_json::{Value, json};

pub use socket_state::SocketState;

use self::moment::Moment;
use self::report::{MemoryFigures, Row};
use super::limits;
use super::memcg::Cgroup;
use super::slab::{Names, Slabs};
use super::socket::{Pair, address, listener, vanish};
use crate::error::raise_files;
use crate::harness::named_enum::named;
use crate::harness::{self, Case, Harness, Rounds, Scenario};
use crate::{Error, Result};

/// Connections of a state when nobody asks for another number: each has slabs of its own, and
/// strangers' few objects do not count among theirs.
const CONNECTIONS: u32 = 8000;
/// Files that the process has beside its sockets.
const OTHER_FILES: u64 = 64;
/// Fewer connections drown in the slabs that they share with others.
pub const LEAST_CONNECTIONS: u32 = 100;
/// More than a connection takes in any state, both sides together.
const MOST_BYTES: u64 = 64 << 10;
/// Objects of strangers' for each socket that are too many, of any cache that is counted; and how
/// often they are not put up with.
const QUIET: f64 = 0.03;
const TRIES: u32 = 5;

/// Bytes that a TCP socket takes of the kernel's memory, state by state.
#[derive(Debug, clap::Args)]
#[command(
    mut_arg("rounds", |rounds| rounds.default_value("3")),
    after_help = "Needs root. Takes a minute; runs in network namespaces of its own. Both ends of each connection are \
    here, client and server counted apart. Keep the machine quiet: others' files and sockets are in the same caches. Numbers may end in k, M, G or T.\n\n\
    Examples:\n  ringway-lab bench tcp-memory\n  ringway-lab bench tcp-memory --only established,time-wait --rounds 1 --connections 2k -o json\n  \
    ringway-lab bench tcp-memory --html tcp-memory.html"
)]
pub struct TcpMemory {
    /// Only these states.
    #[arg(long, value_name = "STATE", value_delimiter = ',')]
    pub only: Vec<SocketState>,
    /// Connections in each state [default: 8000, or as many as open files and memory allow].
    #[arg(long, value_name = "N", value_parser = whole::<u32>(LEAST_CONNECTIONS.into()..=1_000_000))]
    pub connections: Option<u32>,
    #[command(flatten)]
    pub rounds: Rounds,
}

named! {
    /// An end of a connection.
    pub enum Side {
        /// The one that connected.
        Client = "client",
        /// The one that accepted.
        Server = "server",
    }
}

/// Bytes by cache, of one side of all connections of one round.
#[derive(Debug, Clone, Default, PartialEq)]
struct Share {
    caches: BTreeMap<String, f64>,
    /// Pages that TCP accounts for, in bytes.
    charged: f64,
    /// Bytes that the cgroup is charged, if there is one: objects and buffers.
    memcg: Option<(f64, f64)>,
    /// Whether strangers' objects came between every time that it was tried.
    disturbed: bool,
}

#[derive(Debug)]
struct Measured {
    /// The client's and the server's.
    shares: [Share; 2],
    /// By how many objects for each socket the caches of sockets and files differ from what there
    /// must be.
    disturbed: f64,
    /// Why there was no cgroup.
    no_memcg: Option<String>,
}

impl Case for SocketState {
    fn key(&self) -> Value {
        json!({ "state": self })
    }
}

impl Scenario for TcpMemory {
    const NAME: &'static str = "tcp-memory";
    type Figures = MemoryFigures;

    fn check(&self) -> Result<()> {
        self.possible().map(drop)
    }

    fn measure(&self, harness: &mut Harness<'_>) -> Result<MemoryFigures> {
        let (connections, names) = (self.possible()?, Names::read());
        let mut states = harness::chosen(&SocketState::ALL, &self.only);
        let mut no_memcg = None;
        let mut all: BTreeMap<(SocketState, Side), Vec<Share>> = BTreeMap::new();
        harness.rounds(self.rounds.count, &mut states, |harness, _, &state| {
            let measured = measure(state, connections, &names)?;
            let disturbed = measured.disturbed > QUIET;
            no_memcg = measured.no_memcg;
            let mut line = format!("{state:<20}");
            for (side, share) in Side::ALL.into_iter().zip(measured.shares) {
                let share = Share { disturbed, ..share };
                let row = Row::new(state, side, connections, std::slice::from_ref(&share));
                line += &format!(" {side} {:>6} B", row.bytes_per_socket);
                all.entry((state, side)).or_default().push(share);
            }
            if disturbed {
                line += &format!("  disturbed: others opened or closed files, {TRIES} times");
            }
            harness.say(line);
            Ok(())
        });
        let by_cache = Slabs::read()?.by_cache();
        Ok(MemoryFigures::new(connections, self.rounds.count, by_cache, no_memcg, &all))
    }
}

impl TcpMemory {
    fn possible(&self) -> Result<u32> {
        let needed = files_for(self.connections.unwrap_or(CONNECTIONS));
        let files = limits::open_files_at_least(files_for(LEAST_CONNECTIONS), needed)?;
        possible(self.connections, files, limits::available())
    }
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
    let asked = asked.unwrap_or(CONNECTIONS);
    let (short, more) = if by_files < by_memory {
        ("open files (`ulimit -Hn`)", raise_files(files_for(asked)))
    } else {
        ("free memory", "end what takes memory".into())
    };
    Err(Error::TooMany { asked: asked.into(), possible: most.into(), short: short.into(), more })
}

/// Both ends of each connection are here.
fn files_for(connections: u32) -> u64 {
    2 * u64::from(connections) + OTHER_FILES
}

/// One state, again where strangers' objects came between; the least disturbed measurement counts.
fn measure(state: SocketState, connections: u32, names: &Names) -> Result<Measured> {
    let mut best = measure_once(state, connections, names)?;
    for _ in 1..TRIES {
        if best.disturbed <= QUIET {
            break;
        }
        let again = measure_once(state, connections, names)?;
        if again.disturbed < best.disturbed {
            best = again;
        }
    }
    Ok(best)
}

/// In a namespace of its own, which takes with it what is in TIME_WAIT, and a cgroup where there
/// can be one.
fn measure_once(state: SocketState, connections: u32, names: &Names) -> Result<Measured> {
    let namespace = Namespace::new("tcpmem")?;
    // Both ends are here: more ports than the 28 232 that clients have by default are of no use,
    // but the range may have been narrowed by whoever set the machine up.
    namespace.sysctl("net/ipv4/ip_local_port_range", "10000 60999")?;
    let cgroup = Cgroup::enter(namespace.name());
    let measured = namespace.run(|| inside(state, connections, names, cgroup.as_ref().ok()))??;
    Ok(Measured { no_memcg: cgroup.err(), ..measured })
}

fn inside(
    state: SocketState,
    connections: u32,
    names: &Names,
    cgroup: Option<&Cgroup>,
) -> Result<Measured> {
    let failed = |source| Error::Socket { what: state.what(), source };
    let listener =
        listener(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0), 1024, false).map_err(failed)?;
    let to = address(&listener).map_err(failed)?;
    let set = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(|e| failed(e.into()))?;
    let before = Moment::settled(names, cgroup)?;
    let mut pairs = connect(connections, &listener, to, state, &set).map_err(failed)?;
    let both = Moment::settled(names, cgroup)?;
    remove(&mut pairs, |pair| &mut pair.server).map_err(failed)?;
    let clients = Moment::settled(names, cgroup)?;
    remove(&mut pairs, |pair| &mut pair.client).map_err(failed)?;
    let none = Moment::settled(names, cgroup)?;
    // Sockets go faster than they come, so that less of strangers' comes between; but what has been
    // closed before stays for a while.
    let empty = if state.has_file(Side::Client) { &none } else { &before };
    let pairs = [(Side::Client, &clients, empty), (Side::Server, &both, &clients)];
    let mut disturbed: f64 = 0.0;
    let shares = pairs.map(|(side, with, without)| {
        disturbed = disturbed.max(with.strangers_since(without, (state, side), connections));
        with.share_since(without, names, (state, side), connections)
    });
    Ok(Measured { shares, disturbed, no_memcg: None })
}

fn connect(
    connections: u32,
    listener: &OwnedFd,
    to: SocketAddrV4,
    state: SocketState,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_connections_as_there_can_be() {
        let plenty = 64 << 30;
        assert_eq!(possible(None, 20_000, plenty).unwrap(), 8000);
        assert_eq!(possible(None, 1024, plenty).unwrap(), 480);
        assert_eq!(possible(Some(9968), 20_000, plenty).unwrap(), 9968);
        let files = possible(Some(9969), 20_000, plenty).unwrap_err().to_string();
        assert!(files.contains("`--connections 9968`"), "{files}");
        assert!(files.contains("--nofile=20002 "), "{files}");
        let memory = possible(Some(9900), 20_000, 256 << 20).unwrap_err().to_string();
        assert!(memory.contains("2048") && memory.contains("free memory"), "{memory}");
        let none = possible(None, 64, plenty).unwrap_err().to_string();
        assert!(none.contains("for 8000 connections: not even one is possible; raise"), "{none}");
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
        const CONNECTIONS: u32 = 3000;
        let measured = measure(SocketState::Idle, CONNECTIONS, &Names::read()).unwrap();
        for share in &measured.shares {
            let inode = share.caches["sock_inode_cache"] / f64::from(CONNECTIONS);
            assert!((700.0..1100.0).contains(&inode), "{measured:?}");
        }
    }
}
