//! The result: JSON by serde, a table, a page.

use std::collections::BTreeMap;
use std::time::Duration;
use std::{fmt, fs};

use ringway_testnet::Namespace;
use serde::Serialize;

use super::Scheme;
use crate::benches::tcp::counters::{Counters, in_words};
use crate::benches::tcp::slab::{OfSockets, kib_of};
use crate::harness::machine::Machine;
use crate::harness::plot::{Line, Page};
use crate::{Error, Result};
use ringway_terminal::text::counted;

/// Name and version of the JSON form.
pub const SCHEMA: &str = "ringway.bench.million/1";
/// Objects of strangers' for each socket that are too many.
const STRANGERS: f64 = 0.05;

/// What came of it. [`fmt::Display`] is for people.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// [`SCHEMA`].
    pub schema: &'static str,
    /// Connections asked for.
    pub connections: u64,
    /// Whether connecting was paced.
    pub paced: bool,
    /// Processes that share listeners.
    pub server_processes: u64,
    /// Processes that connect.
    pub client_processes: u64,
    /// Memory that it was taken to need beforehand.
    pub needed_bytes: u64,
    /// Each scheme.
    pub rounds: Vec<Round>,
    /// Where this was done.
    pub machine: Machine,
}

/// One scheme.
#[derive(Debug, Clone, Serialize)]
pub struct Round {
    /// Which.
    pub scheme: Scheme,
    /// Addresses of the client, or ports of the server.
    pub groups: u64,
    /// Connections a second at most; none: not paced.
    pub rate_per_s: Option<u64>,
    /// Connections that clients have.
    pub connected: u64,
    /// Connections that servers have.
    pub accepted: u64,
    /// Established sockets by inet_diag (`ss`): two for each connection.
    pub sockets_by_diag: u64,
    /// Connections that a token was sent over.
    pub sampled: u64,
    /// Tokens that came back.
    pub echoed: u64,
    /// Seconds that connecting took.
    pub connect_s: f64,
    /// The longest that a connection took, in milliseconds.
    pub slowest_connect_ms: f64,
    /// Seconds until all was gone again.
    pub teardown_s: f64,
    /// Counters of trouble that moved.
    pub counters: BTreeMap<&'static str, u64>,
    /// Bytes of both ends of a connection, in the kernel's caches that sockets are made of; none: see `disturbed`.
    pub bytes_per_connection: Option<u64>,
    /// Why there are no bytes per connection.
    pub disturbed: Option<String>,
    /// The memory curve.
    pub samples: Vec<Sample>,
}

/// One moment.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Sample {
    /// Seconds since the first connection.
    pub at_s: f64,
    /// Established sockets in the namespace, both ends of each connection.
    pub established: u64,
    /// The kernel's objects, of everybody.
    pub slab_bytes: u64,
    /// Memory that could still be had.
    pub available_bytes: u64,
}

impl Sample {
    pub(super) fn now(namespace: &Namespace, at: Duration) -> Result<Self> {
        let established = namespace.run(Counters::read)??.get("CurrEstab");
        let path = "/proc/meminfo";
        let text =
            fs::read_to_string(path).map_err(|source| Error::Read { path: path.into(), source })?;
        let bytes = |what| kib_of(&text, what).unwrap_or(0) * 1024;
        Ok(Self {
            at_s: (at.as_secs_f64() * 1000.0).round() / 1000.0,
            established,
            slab_bytes: bytes("Slab"),
            available_bytes: bytes("MemAvailable"),
        })
    }
}

/// Fewer connections have no figure.
const FEW: u64 = 100;

/// Bytes of a connection, or why they cannot be said.
pub(super) fn judge(sockets: Option<OfSockets>, accepted: u64) -> (Option<u64>, Option<String>) {
    let why = match sockets {
        None => "this kernel does not tell its caches apart (/proc/slabinfo)".to_owned(),
        Some(_) if accepted < FEW => format!("others' objects blur what fewer than {FEW} take"),
        Some(OfSockets { strangers, .. }) if strangers > STRANGERS => format!(
            "others opened or closed sockets meanwhile, {:.0} for each 100 of these",
            strangers * 100.0
        ),
        // A socket has less in other caches than in its own.
        Some(OfSockets { known, rest, .. }) if !(0.0..known / 2.0).contains(&rest) => {
            "others took or freed memory meanwhile".into()
        }
        Some(OfSockets { known, rest, .. }) => {
            return (Some(((known + rest) / accepted as f64).round() as u64), None);
        }
    };
    (None, Some(why))
}

impl Round {
    fn ok(&self, connections: u64) -> bool {
        self.connected == connections
            && self.accepted == connections
            && self.sockets_by_diag == 2 * connections
            && self.echoed == self.sampled
    }
}

impl Report {
    /// Whether all connections were there and carried data. Nothing is promised where nobody paces.
    pub fn ok(&self) -> bool {
        !self.paced || self.rounds.iter().all(|round| round.ok(self.connections))
    }

    /// One self-contained page with the memory curve.
    pub fn html(&self) -> String {
        let title = format!("{} connections on one machine", self.connections);
        let lede = format!(
            "Servers that share listeners: {}. Clients: {}. Both ends are here.",
            counted(self.server_processes, "process"),
            counted(self.client_processes, "process")
        );
        let mut page = Page::new(&title, &lede);
        let lines = |of: fn(&Round, &Sample) -> (f64, f64)| -> Vec<Line> {
            let line = |round: &Round| Line {
                label: round.scheme.to_string(),
                points: round.samples.iter().map(|sample| of(round, sample)).collect(),
            };
            self.rounds.iter().map(line).collect()
        };
        page.lines(
            "The kernel's objects",
            ("connections", "bytes of slabs"),
            &lines(|round, sample| {
                let start = round.samples.first().map_or(0, |first| first.slab_bytes);
                let grown = sample.slab_bytes.saturating_sub(start);
                ((sample.established / 2) as f64, grown as f64)
            }),
        );
        page.lines(
            "Connections",
            ("seconds", "connections"),
            &lines(|_, sample| (sample.at_s, (sample.established / 2) as f64)),
        );
        page.lines_of_text(&self.to_string());
        page.finish(&self.machine)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for round in &self.rounds {
            let many = match (round.scheme, round.groups) {
                (Scheme::ManyClientIps, 1) => "address of the client",
                (Scheme::ManyClientIps, _) => "addresses of the client",
                (Scheme::ManyServerPorts, 1) => "port of the server",
                (Scheme::ManyServerPorts, _) => "ports of the server",
            };
            let pace =
                round.rate_per_s.map_or("not paced".into(), |rate| format!("at most {rate}/s"));
            writeln!(f, "{} ({} {many}), {pace}", round.scheme, round.groups)?;
            writeln!(
                f,
                "  {:>10}  connected, slowest in {:.1} ms",
                round.connected, round.slowest_connect_ms
            )?;
            writeln!(f, "  {:>10}  accepted", round.accepted)?;
            writeln!(
                f,
                "  {:>10}  established sockets by inet_diag, two for each",
                round.sockets_by_diag
            )?;
            writeln!(
                f,
                "  {:>10}  of {} sampled carried data there and back",
                round.echoed, round.sampled
            )?;
            let bytes = round.bytes_per_connection;
            let bytes = bytes.map_or_else(|| "-".into(), |bytes| bytes.to_string());
            writeln!(f, "  {bytes:>10}  bytes of the kernel's memory for a connection, both ends")?;
            if let Some(why) = &round.disturbed {
                writeln!(f, "              not known: {why}")?;
            }
            writeln!(
                f,
                "  {:>10.1}  s to connect, {:.1} s to take down",
                round.connect_s, round.teardown_s
            )?;
            writeln!(f, "  {}", in_words(&round.counters))?;
        }
        writeln!(
            f,
            "\n{}, {}; {} of memory were set aside for it",
            counted(self.server_processes, "server process"),
            counted(self.client_processes, "client process"),
            bytes_in_words(self.needed_bytes)
        )?;
        let m = &self.machine;
        writeln!(f, "{} of {} cores, Linux {}, {}", m.cpu, m.cores, m.kernel, m.date)
    }
}

/// `80 MiB`, `9.2 GiB`.
pub(super) fn bytes_in_words(bytes: u64) -> String {
    let mib = bytes as f64 / f64::from(1 << 20);
    if mib < 1000.0 { format!("{mib:.0} MiB") } else { format!("{:.1} GiB", mib / 1024.0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        let sample = |at_s, established, slab_bytes| Sample {
            at_s,
            established,
            slab_bytes,
            available_bytes: 1,
        };
        let round = Round {
            scheme: Scheme::ManyClientIps,
            groups: 1,
            rate_per_s: Some(10),
            connected: 100,
            accepted: 100,
            sockets_by_diag: 200,
            sampled: 10,
            echoed: 10,
            connect_s: 1.0,
            slowest_connect_ms: 0.1,
            teardown_s: 0.1,
            counters: BTreeMap::new(),
            bytes_per_connection: Some(8000),
            disturbed: None,
            samples: vec![sample(0.0, 0, 1000), sample(1.0, 200, 801_000)],
        };
        Report {
            schema: SCHEMA,
            connections: 100,
            paced: true,
            server_processes: 1,
            client_processes: 1,
            needed_bytes: 1 << 30,
            rounds: vec![round],
            machine: Machine::with(&[]),
        }
    }

    #[test]
    fn all_or_not_ok() {
        assert!(report().ok());
        let broken: [fn(&mut Round); 4] = [
            |round| round.connected -= 1,
            |round| round.accepted -= 1,
            |round| round.sockets_by_diag -= 1,
            |round| round.echoed -= 1,
        ];
        for break_it in broken {
            let mut report = report();
            break_it(&mut report.rounds[0]);
            assert!(!report.ok(), "{report:?}");
        }
    }

    /// Neither too few bytes nor none without a word where others have freed memory.
    #[test]
    fn bytes_or_why_not() {
        let of = |known, rest, strangers| Some(OfSockets { known, rest, strangers });
        assert_eq!(judge(of(8e6, 2e5, 0.02), 1000), (Some(8200), None));
        for (sockets, accepted, why) in [
            (of(8e6, 2e5, 0.3), 1000, "others opened or closed sockets meanwhile, 30 for"),
            (of(8e6, -2e6, 0.0), 1000, "others took or freed memory"),
            (of(8e6, 5e6, 0.0), 1000, "others took or freed memory"),
            (None, 1000, "/proc/slabinfo"),
            (of(0.0, 0.0, 0.0), 0, "fewer than 100"),
        ] {
            let (bytes, said) = judge(sockets, accepted);
            assert!(bytes.is_none() && said.as_ref().is_some_and(|s| s.contains(why)), "{said:?}");
            let mut report = report();
            (report.rounds[0].bytes_per_connection, report.rounds[0].disturbed) = (bytes, said);
            assert!(report.to_string().contains(why), "{report}");
            assert!(
                serde_json::to_value(&report).unwrap()["rounds"][0]["bytes_per_connection"]
                    .is_null()
            );
        }
    }

    #[test]
    fn what_it_says() {
        let report = report();
        let text = report.to_string();
        assert!(text.contains("8000  bytes of the kernel's memory for a connection"), "{text}");
        assert!(text.contains("no counter of trouble") && text.contains("(1 address of"), "{text}");
        assert!(text.contains("\n1 server process, 1 client process; "), "{text}");
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["rounds"][0]["scheme"], "many-client-ips");
        assert_eq!(json["rounds"][0]["bytes_per_connection"], 8000);
        assert!(report.html().contains("<polyline"));
    }
}
