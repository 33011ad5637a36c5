//! How many processes, addresses and ports many connections take, and whether this machine has what
//! they need.

use std::net::{Ipv4Addr, SocketAddrV4};

use crate::error::raise_files;
use crate::harness::named_enum::named;
use crate::{Error, Result};

/// Ports of a client's address that connect to one server port.
pub(super) const PORTS: u64 = 50_000;
/// The first of them.
const FIRST_PORT: u16 = 10_000;
/// The server's, or the first of them.
pub(super) const SERVER_PORT: u16 = 5000;
pub(super) const SERVER: Ipv4Addr = Ipv4Addr::LOCALHOST;
/// Both ends of an idle connection in the kernel, with its files and what slabs waste, and some to
/// spare (`ringway-lab bench tcp-memory` has it exactly).
const BYTES: u64 = 10_000;
/// Memory of a helper process.
const PROCESS_BYTES: u64 = 8 << 20;
/// Files that a helper has beside its connections and listeners.
const OTHER_FILES: u64 = 16;
/// Files that this process has beside two pipes to each helper.
const OWN_FILES: u64 = 48;
/// Files of a process with which a million fit.
pub(super) const ENOUGH_FILES: u64 = 20_000;
/// Fewer files do not even do for one connection.
pub(super) const FEWEST_FILES: u64 = 64;
/// SO_REUSEPORT shares connections out by their hash, which is not even for ports that count up:
/// one of fifty servers has been seen with an eighth more than its share. They have room for a
/// sixth more, and for four times what chance adds to few.
const UNEVEN: f64 = 7.0 / 6.0;
const CHANCE: f64 = 4.0;
/// Addresses 127.1.0.1 to 127.1.250.1, or as many ports.
const MOST_GROUPS: u64 = 250;

named! {
    /// The part of the four-tuple that varies.
    pub enum Scheme {
        /// One server port, and an address of the client for each 50 000 connections.
        ManyClientIps = "many-client-ips",
        /// One address of the client, and a server port for each 50 000 connections.
        ManyServerPorts = "many-server-ports",
    }
}

impl Scheme {
    /// From where to where the connection of this number goes; no two the same.
    pub(super) fn addresses(self, number: u64) -> (SocketAddrV4, SocketAddrV4) {
        let group = (number / PORTS) as u16;
        let port = FIRST_PORT + (number % PORTS) as u16;
        let (third, server) = match self {
            Self::ManyClientIps => (group as u8, SERVER_PORT),
            Self::ManyServerPorts => (0, SERVER_PORT + group),
        };
        let client = SocketAddrV4::new(Ipv4Addr::new(127, 1, third, 1), port);
        (client, SocketAddrV4::new(SERVER, server))
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Open files of a process.
    pub files: u64,
    /// Open files that all processes together may still have (fs.file-max).
    pub all_files: u64,
    /// Processes that there may still be.
    pub processes: u64,
    /// Bytes that can be had without swapping.
    pub memory: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Plan {
    pub connections: u64,
    pub servers: u64,
    pub clients: u64,
    /// Addresses of the client, or ports of the server.
    pub groups: u64,
    pub bytes: u64,
}

impl Plan {
    /// For so many connections, whatever the machine has but for files of a process.
    fn of(connections: u64, files: u64) -> Self {
        let groups = connections.div_ceil(PORTS);
        let each = files.saturating_sub(OTHER_FILES + groups).max(1);
        let servers = connections.div_ceil(fair_share(each));
        let clients = connections.div_ceil(each);
        let bytes = connections * BYTES + (servers + clients) * PROCESS_BYTES;
        Self { connections, servers, clients, groups, bytes }
    }

    fn processes(&self) -> u64 {
        self.servers + self.clients
    }

    /// The resource that is too small for it, and the way to get more.
    fn short_of(&self, limits: &Limits) -> Option<(String, String)> {
        let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
        // A fifth stays free.
        let memory = limits.memory / 5 * 4;
        let need = gib(self.bytes);
        let too_much = || {
            let have = gib(memory);
            let short = format!("memory ({need:.1} GiB needed, {have:.1} GiB free to take)");
            Some((short, "end what takes memory".to_owned()))
        };
        if self.connections * BYTES > memory {
            return too_much();
        }
        // Before memory is blamed for processes: they are many where each may have few files.
        if self.processes() * 2 + OWN_FILES > limits.files {
            let most = limits.files.saturating_sub(OWN_FILES) / 2;
            let files = limits.files;
            let short = format!(
                "open files (`ulimit -Hn` of {files} takes {} processes, and this one has pipes to {most})",
                self.processes()
            );
            return Some((short, raise_files(ENOUGH_FILES)));
        }
        if self.bytes > memory {
            return too_much();
        }
        if self.connections * 2 > limits.all_files {
            let need = self.connections * 5 / 2;
            return Some((
                "files in all (`sysctl fs.file-max`)".into(),
                format!("write `sysctl -w fs.file-max={need}`"),
            ));
        }
        if self.processes() > limits.processes {
            return Some((
                format!("processes ({} needed)", self.processes()),
                "raise `ulimit -u`, and `sysctl kernel.pid_max kernel.threads-max`".into(),
            ));
        }
        (self.groups > MOST_GROUPS)
            .then(|| ("addresses and ports".into(), "do with those that there are".into()))
    }

    /// For so many connections here.
    pub(super) fn new(connections: u64, limits: &Limits) -> Result<Self> {
        let plan = Self::of(connections, limits.files);
        let Some((short, more)) = plan.short_of(limits) else { return Ok(plan) };
        // A resource that is too small for some connections is too small for more.
        let (mut fits, mut fails) = (0, connections);
        while fails - fits > 1 {
            let middle = fits + (fails - fits) / 2;
            match Self::of(middle, limits.files).short_of(limits) {
                None => fits = middle,
                Some(_) => fails = middle,
            }
        }
        // Round, and memory moves.
        let possible = if fits >= 1000 { fits / 1000 * 1000 } else { fits };
        Err(Error::TooMany { asked: connections, possible, short, more })
    }

    /// The numbers of the connections that a client process makes.
    pub(super) fn of_client(&self, client: u64) -> std::ops::Range<u64> {
        let at = |n: u64| self.connections * n / self.clients;
        at(client)..at(client + 1)
    }
}

/// How many connections each of some servers may have on average that none gets more than `most`.
fn fair_share(most: u64) -> u64 {
    // Of share * UNEVEN + CHANCE * sqrt(share) = most.
    let root = (CHANCE * CHANCE + 4.0 * UNEVEN * most as f64).sqrt() - CHANCE;
    let share = (root / (2.0 * UNEVEN)).powi(2) as u64;
    share.max(1)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    const LIMITS: Limits =
        Limits { files: 20_000, all_files: 2_400_000, processes: 30_000, memory: 24 << 30 };

    #[test]
    fn a_million_by_processes_of_20_000_files() {
        let plan = Plan::new(1_000_000, &LIMITS).unwrap();
        assert_eq!((plan.clients, plan.servers, plan.groups), (51, 60, 20));
        let mut next = 0;
        for client in 0..plan.clients {
            let numbers = plan.of_client(client);
            assert_eq!(numbers.start, next);
            assert!(numbers.end - next + OTHER_FILES <= LIMITS.files);
            next = numbers.end;
        }
        assert_eq!(next, 1_000_000);
        // And a server that has an eighth more than the others has files for them.
        assert!(1_000_000 / plan.servers * 9 / 8 + OTHER_FILES <= LIMITS.files);
    }

    #[test]
    fn what_is_possible_is() {
        for (limits, short) in [
            (Limits { memory: 4 << 30, ..LIMITS }, "memory (10."),
            (Limits { all_files: 100_000, ..LIMITS }, "fs.file-max"),
            (Limits { processes: 20, ..LIMITS }, "processes (111 needed"),
            (Limits { files: 300, ..LIMITS }, "`ulimit -Hn` of 300 takes "),
        ] {
            let Err(Error::TooMany { possible, short: said, .. }) = Plan::new(1_000_000, &limits)
            else {
                panic!("{limits:?}")
            };
            assert!(said.contains(short), "{said}");
            assert!(possible > 10_000 && Plan::new(possible, &limits).is_ok(), "{possible}");
            assert!(Plan::new(possible + 2000, &limits).is_err(), "{possible}");
        }
        let message = Plan::new(100_000_000, &LIMITS).unwrap_err().to_string();
        assert!(message.contains("write `--connections "), "{message}");
    }

    /// Neither are memory and processes blamed for what few files make of them, nor is none
    /// proposed.
    #[test]
    fn few_files() {
        for files in [FEWEST_FILES, 100, 128, 256, 1024] {
            let limits = Limits { files, ..LIMITS };
            let message = Plan::new(1_000_000, &limits).unwrap_err().to_string();
            assert!(message.starts_with("not enough open files"), "{message}");
            assert!(message.contains("`prlimit --nofile=20000 "), "{message}");
            assert!(!message.contains("connections 0"), "{message}");
            let words = message.split("write `--connections ").nth(1).unwrap();
            let possible = words.split('`').next().unwrap().parse().unwrap();
            let plan = Plan::new(possible, &limits).unwrap();
            assert!(plan.processes() * 2 + OWN_FILES <= files, "{plan:?}");
        }
    }

    #[test]
    fn no_two_connections_are_the_same() {
        for scheme in Scheme::ALL {
            let numbers = [0, 1, PORTS - 1, PORTS, PORTS + 1, 2 * PORTS, MOST_GROUPS * PORTS - 1];
            let all: HashSet<_> = numbers.map(|n| scheme.addresses(n)).into();
            assert_eq!(all.len(), numbers.len());
        }
        let (client, server) = Scheme::ManyClientIps.addresses(PORTS + 2);
        assert_eq!((client.to_string(), server.port()), ("127.1.1.1:10002".into(), 5000));
        let (client, server) = Scheme::ManyServerPorts.addresses(PORTS + 2);
        assert_eq!((client.to_string(), server.port()), ("127.1.0.1:10002".into(), 5001));
    }
}
