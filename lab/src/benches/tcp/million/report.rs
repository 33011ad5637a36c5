//! Figures: each scheme, and its memory curve.

use std::collections::BTreeMap;
use std::time::Duration;
use std::{fmt, fs};

use ringway_terminal::text::counted;
use ringway_testnet::Namespace;
use serde::Serialize;

use super::Scheme;
use crate::benches::tcp::counters::{Counters, in_words};
use crate::benches::tcp::slab::{OfSockets, kib_of};
use crate::harness::Figures;
use crate::harness::median::rounded;
use crate::harness::plot::{Line, Page};
use crate::{Error, Result};

/// Objects of strangers' for each socket that are too many.
const STRANGERS: f64 = 0.05;

#[derive(Debug, Serialize)]
pub struct MillionFigures {
    pub connections: u64,
    pub paced: bool,
    /// Processes that share listeners.
    pub server_processes: u64,
    pub client_processes: u64,
    /// Memory that it was taken to need beforehand.
    pub needed_bytes: u64,
    pub rounds: Vec<Round>,
}

#[derive(Debug, Clone, Serialize)]
pub struct Round {
    pub scheme: Scheme,
    /// Addresses of the client, or ports of the server.
    pub groups: u64,
    /// Connections a second at most; none: not paced.
    pub rate_per_s: Option<u64>,
    pub connected: u64,
    pub accepted: u64,
    /// Established sockets by inet_diag (`ss`): two for each connection.
    pub sockets_by_diag: u64,
    /// Connections that a token was sent over.
    pub sampled: u64,
    /// Tokens that came back.
    pub echoed: u64,
    pub connect_s: f64,
    /// The longest that a connection took, in milliseconds.
    pub slowest_connect_ms: f64,
    /// Seconds until all was gone again.
    pub teardown_s: f64,
    /// Counters of trouble that moved.
    pub counters: BTreeMap<&'static str, u64>,
    /// Bytes of both ends of a connection, in the kernel's caches that sockets are made of; none:
    /// see `disturbed`.
    pub bytes_per_connection: Option<u64>,
    /// Why there are no bytes per connection.
    pub disturbed: Option<String>,
    pub samples: Vec<Sample>,
}

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
            at_s: rounded(at.as_secs_f64(), 3),
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

impl Figures for MillionFigures {
    fn tables(&self) -> String {
        self.rounds.iter().map(Round::to_string).collect()
    }

    fn notes(&self) -> Vec<String> {
        vec![format!(
            "{}, {}; {} of memory were set aside for it",
            counted(self.server_processes, "server process"),
            counted(self.client_processes, "client process"),
            bytes_in_words(self.needed_bytes)
        )]
    }

    fn page(&self) -> Option<Page> {
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
        page.lines_of_text(&self.tables());
        Some(page)
    }

    /// Whether all connections were there and carried data. Nothing is promised where nobody paces.
    fn ok(&self) -> bool {
        !self.paced || self.rounds.iter().all(|round| round.ok(self.connections))
    }
}

impl fmt::Display for Round {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let many = match (self.scheme, self.groups) {
            (Scheme::ManyClientIps, 1) => "address of the client",
            (Scheme::ManyClientIps, _) => "addresses of the client",
            (Scheme::ManyServerPorts, 1) => "port of the server",
            (Scheme::ManyServerPorts, _) => "ports of the server",
        };
        let pace = self.rate_per_s.map_or("not paced".into(), |rate| format!("at most {rate}/s"));
        writeln!(f, "{} ({} {many}), {pace}", self.scheme, self.groups)?;
        let bytes = self.bytes_per_connection.map_or_else(|| "-".into(), |n| n.to_string());
        let seconds = format!("s to connect, {:.1} s to take down", self.teardown_s);
        let mut line =
            |figure: &dyn fmt::Display, what: &str| writeln!(f, "  {figure:>10}  {what}");
        line(&self.connected, &format!("connected, slowest in {:.1} ms", self.slowest_connect_ms))?;
        line(&self.accepted, "accepted")?;
        line(&self.sockets_by_diag, "established sockets by inet_diag, two for each")?;
        line(&self.echoed, &format!("of {} sampled carried data there and back", self.sampled))?;
        line(&bytes, "bytes of the kernel's memory for a connection, both ends")?;
        if let Some(why) = &self.disturbed {
            line(&"", &format!("not known: {why}"))?;
        }
        line(&format!("{:.1}", self.connect_s), &seconds)?;
        writeln!(f, "  {}", in_words(&self.counters))
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
    use crate::harness::report::testing;

    fn figures() -> MillionFigures {
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
        MillionFigures {
            connections: 100,
            paced: true,
            server_processes: 1,
            client_processes: 1,
            needed_bytes: 1 << 30,
            rounds: vec![round],
        }
    }

    #[test]
    fn all_or_not_ok() {
        assert!(figures().ok());
        let broken: [fn(&mut Round); 4] = [
            |round| round.connected -= 1,
            |round| round.accepted -= 1,
            |round| round.sockets_by_diag -= 1,
            |round| round.echoed -= 1,
        ];
        for break_it in broken {
            let mut figures = figures();
            break_it(&mut figures.rounds[0]);
            assert!(!figures.ok(), "{figures:?}");
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
            let mut figures = figures();
            (figures.rounds[0].bytes_per_connection, figures.rounds[0].disturbed) = (bytes, said);
            assert!(figures.tables().contains(why), "{figures:?}");
            let json = serde_json::to_value(&figures).unwrap();
            assert!(json["rounds"][0]["bytes_per_connection"].is_null());
        }
    }

    #[test]
    fn what_it_says() {
        let report = testing::report("million", figures(), Vec::new());
        let text = report.to_string();
        assert!(text.contains("8000  bytes of the kernel's memory for a connection"), "{text}");
        assert!(text.contains("no counter of trouble") && text.contains("(1 address of"), "{text}");
        assert!(text.contains("\n1 server process, 1 client process; "), "{text}");
        assert!(report.html().unwrap().contains("<polyline"));
    }

    #[test]
    fn json_has_the_promised_keys() {
        let report = testing::report("million", figures(), Vec::new());
        assert_eq!(
            testing::names(&report),
            "client_processes connections failed machine needed_bytes paced rounds rounds.accepted \
             rounds.bytes_per_connection rounds.connect_s rounds.connected rounds.counters rounds.disturbed \
             rounds.echoed rounds.groups rounds.rate_per_s rounds.sampled rounds.samples rounds.samples.at_s \
             rounds.samples.available_bytes rounds.samples.established rounds.samples.slab_bytes rounds.scheme \
             rounds.slowest_connect_ms rounds.sockets_by_diag rounds.teardown_s schema server_processes skipped"
        );
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["rounds"][0]["scheme"], "many-client-ips");
        assert_eq!(json["rounds"][0]["bytes_per_connection"], 8000);
    }
}
