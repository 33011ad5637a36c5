//! The result: JSON by serde, a table, a page.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use super::{Share, Side, State};
use crate::machine::Machine;
use crate::plot::{Bar, Page};

/// Name and version of the JSON form.
pub const SCHEMA: &str = "ringway.bench.tcp-memory/1";
/// What the other columns are.
const BOOKS: &str = "tcp_mem: what TCP accounts for, in pages (sockstat). memcg: what a memory cgroup is charged, slabs + buffers.";
/// Bytes of a cache that are fewer, or below zero, are strangers' or a half-filled slab's.
const LEAST: f64 = 4.0;

/// Everything that was measured. [`fmt::Display`] is the table.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// [`SCHEMA`].
    pub schema: &'static str,
    /// Each state, client and server apart. Medians.
    pub states: Vec<Row>,
    /// Connections of each state.
    pub connections: u32,
    /// Rounds, of which the figures are the medians.
    pub rounds: u32,
    /// Why no memory cgroup could be asked; none where one was.
    pub no_memcg: Option<String>,
    /// `slabinfo`, or `meminfo` where caches could not be told apart.
    pub method: &'static str,
    /// Where this was measured.
    pub machine: Machine,
}

/// One side of a state.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// The state.
    pub state: State,
    /// Which of its ends.
    pub side: Side,
    /// What it is, for people.
    pub what: &'static str,
    /// The sum of `caches`.
    pub bytes_per_socket: u64,
    /// Bytes of a socket in each of the kernel's caches.
    pub caches: BTreeMap<String, f64>,
    /// Bytes that TCP accounts for, in whole pages, against its limit (tcp_mem): buffers, not objects.
    pub charged_bytes: i64,
    /// Bytes that a memory cgroup (v2) with the sockets alone is charged: a second book beside the caches.
    pub memcg: Option<Charged>,
    /// By how much the rounds differ at most, in per cent of the median.
    pub spread_percent: f64,
    /// What the lab's source has, for Linux 3.10.
    pub source_bytes: Option<u64>,
}

/// What a cgroup is charged for a socket, in bytes.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Charged {
    /// The kernel's objects.
    pub slab_bytes: i64,
    /// Buffers, in whole pages.
    pub sock_bytes: i64,
}

impl Report {
    pub(super) fn new(
        connections: u32,
        rounds: u32,
        by_cache: bool,
        shares: &BTreeMap<(State, Side), Vec<Share>>,
    ) -> Self {
        let row = |((state, side), shares): (&(State, Side), &Vec<Share>)| {
            Row::new(*state, *side, connections, shares)
        };
        Self {
            schema: SCHEMA,
            states: shares.iter().map(row).collect(),
            connections,
            rounds,
            no_memcg: None,
            method: if by_cache { "slabinfo" } else { "meminfo" },
            machine: Machine::with(&[]),
        }
    }

    /// One self-contained page with the plot.
    pub fn html(&self) -> String {
        let mut page = Page::new(
            "What a TCP socket takes of the kernel's memory",
            &format!(
                "Medians of {} rounds of {} connections in each state. The mark is what a book of 2022 found on Linux 3.10.",
                self.rounds, self.connections
            ),
        );
        let bar = |row: &Row| {
            let mut parts: Vec<_> = row.caches.clone().into_iter().collect();
            parts.sort_by(|a, b| b.1.total_cmp(&a.1));
            let label = format!("{}, {}", row.state, row.side);
            Bar { label, parts, mark: row.source_bytes.map(|bytes| bytes as f64) }
        };
        // A whole record is so much that beside it nothing else could be told apart.
        let is_tls = |row: &&Row| matches!(row.state, State::TlsSent | State::TlsRead);
        let (tls, small): (Vec<_>, Vec<_>) = self.states.iter().partition(is_tls);
        for (title, rows) in
            [("Bytes a socket, by the kernel's cache", small), ("With a TLS record of 16 KiB", tls)]
        {
            let bars: Vec<Bar> = rows.into_iter().map(bar).collect();
            if !bars.is_empty() {
                page.bars(title, "bytes", "the book, Linux 3.10", &bars);
            }
        }
        let rows = self.states.iter().map(|row| {
            let source = row.source_bytes.map_or_else(|| "-".into(), |n| n.to_string());
            let state = format!("{}: {}", row.state, row.what);
            let bytes = row.bytes_per_socket.to_string();
            let memcg = row.memcg.map(|m| format!("{} + {}", m.slab_bytes, m.sock_bytes));
            let (tcp, memcg) = (row.charged_bytes.to_string(), memcg.unwrap_or_else(|| "-".into()));
            vec![state, row.side.to_string(), bytes, source, tcp, memcg]
        });
        page.table(&["state", "side", "bytes a socket", "source", "tcp_mem", "memcg"], rows);
        page.text(BOOKS);
        if let Some(reason) = &self.no_memcg {
            page.text(&format!("No figures of a memory cgroup: {reason}."));
        }
        page.finish(&self.machine)
    }
}

impl Row {
    pub(super) fn new(state: State, side: Side, connections: u32, shares: &[Share]) -> Self {
        let each = |bytes: f64| bytes / f64::from(connections);
        let names = shares.iter().flat_map(|share| share.caches.keys());
        let mut caches = BTreeMap::new();
        for name in names {
            let of = |share: &Share| each(share.caches.get(name).copied().unwrap_or(0.0));
            let bytes = middle(shares.iter().map(of).collect());
            if bytes >= LEAST {
                caches.insert(name.clone(), (bytes * 10.0).round() / 10.0);
            }
        }
        let sum: f64 = caches.values().sum();
        let sums = shares.iter().map(|share| {
            let known = share.caches.iter().filter(|(name, _)| caches.contains_key(*name));
            each(known.map(|(_, bytes)| bytes).sum())
        });
        let median_of = |of: &dyn Fn(&Share) -> Option<f64>| -> Option<i64> {
            Some(each(middle(shares.iter().map(of).collect::<Option<_>>()?)).round() as i64)
        };
        let furthest = sums.map(|one| (one - sum).abs()).fold(0.0, f64::max);
        Self {
            state,
            side,
            what: state.what(),
            bytes_per_socket: sum.max(0.0).round() as u64,
            charged_bytes: median_of(&|share| Some(share.charged)).unwrap_or(0),
            memcg: median_of(&|share| Some(share.memcg?.0))
                .zip(median_of(&|share| Some(share.memcg?.1)))
                .map(|(slab_bytes, sock_bytes)| Charged { slab_bytes, sock_bytes }),
            spread_percent: if sum >= 1.0 { (furthest / sum * 1000.0).round() / 10.0 } else { 0.0 },
            source_bytes: state.source_bytes(side),
            caches,
        }
    }
}

fn middle(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    all.get(all.len() / 2).copied().unwrap_or(0.0)
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "  {:<20} {:<6} {:>6} {:>6} {:>5} {:>6} {:>8} {:>12}  made of",
            "state", "side", "bytes", "source", "ratio", "+-", "tcp_mem", "memcg"
        )?;
        for row in &self.states {
            let or_none = |text: Option<String>| text.unwrap_or_else(|| "-".into());
            let ratio = row.source_bytes.filter(|n| *n > 0);
            let ratio = ratio.map(|n| format!("{:.2}", row.bytes_per_socket as f64 / n as f64));
            let mut parts: Vec<_> = row.caches.iter().collect();
            parts.sort_by(|a, b| b.1.total_cmp(a.1));
            let parts: Vec<_> =
                parts.iter().map(|(name, bytes)| format!("{name} {bytes:.0}")).collect();
            writeln!(
                f,
                "  {:<20} {:<6} {:>6} {:>6} {:>5} {:>5.1}% {:>8} {:>12}  {}",
                row.state,
                row.side,
                row.bytes_per_socket,
                or_none(row.source_bytes.map(|n| n.to_string())),
                or_none(ratio),
                row.spread_percent,
                row.charged_bytes,
                or_none(row.memcg.map(|m| format!("{}+{}", m.slab_bytes, m.sock_bytes))),
                parts.join(", ")
            )?;
        }
        writeln!(
            f,
            "\nsource: Linux 3.10, a book of 2022. Bytes: pages of the slabs, shared out to their objects.\n{BOOKS}"
        )?;
        if let Some(reason) = &self.no_memcg {
            writeln!(f, "memcg: not available: {reason}")?;
        }
        let m = &self.machine;
        if self.method != "slabinfo" {
            writeln!(
                f,
                "/proc/slabinfo cannot be read here: what all slabs grew by, which strangers' objects blur."
            )?;
        }
        writeln!(f, "{} of {} cores, Linux {}, {}", m.cpu, m.cores, m.kernel, m.date)?;
        writeln!(
            f,
            "medians of {} rounds of {} connections over lo of a namespace.",
            self.rounds, self.connections
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share(bytes: &[(&str, f64)]) -> Share {
        let caches = bytes.iter().map(|(name, n)| ((*name).to_owned(), n * 100.0)).collect();
        Share { caches, charged: 0.0, memcg: Some((250_000.0, 409_600.0)) }
    }

    fn report() -> Report {
        let rounds = vec![
            share(&[("TCP", 2500.0), ("filp", 192.0), ("kmalloc-64", 1.0)]),
            share(&[("TCP", 2520.0), ("filp", 192.0)]),
            share(&[("TCP", 2900.0), ("filp", 200.0)]),
        ];
        let shares = [
            ((State::Idle, Side::Client), rounds),
            ((State::TimeWait, Side::Server), vec![share(&[("TCP", -1.0)])]),
        ];
        Report::new(100, 3, true, &shares.into())
    }

    #[test]
    fn medians_by_cache() {
        let report = report();
        let [idle, gone] = &report.states[..] else { panic!("{report:?}") };
        assert_eq!(idle.bytes_per_socket, 2712);
        let caches: Vec<_> = idle.caches.iter().map(|(name, n)| (name.as_str(), *n)).collect();
        assert_eq!(caches, [("TCP", 2520.0), ("filp", 192.0)], "strangers' bytes");
        assert_eq!(idle.spread_percent, 14.3);
        assert_eq!(idle.source_bytes, Some(3502));
        assert_eq!((gone.bytes_per_socket, gone.source_bytes), (0, Some(0)));
    }

    #[test]
    fn json_has_the_promised_keys() {
        let json = serde_json::to_value(report()).unwrap();
        assert_eq!(json["schema"], SCHEMA);
        let row = &json["states"][0];
        assert_eq!((&row["state"], &row["side"]), (&"established".into(), &"client".into()));
        assert_eq!(row["caches"]["TCP"], 2520.0);
        assert!(row["bytes_per_socket"].is_u64() && row["source_bytes"].is_u64());
    }

    #[test]
    fn table_and_page() {
        let table = report().to_string();
        assert!(table.contains("TCP 2520, filp 192"), "{table}");
        let page = report().html();
        assert!(page.contains("<svg") && page.contains("sock") && page.contains("2712"), "{page}");
    }
}
