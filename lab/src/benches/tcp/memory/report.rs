//! Figures: bytes of a socket, state by state.

use std::collections::BTreeMap;

use ringway_terminal::text::counted;
use serde::Serialize;

use super::{Share, Side, SocketState};
use crate::harness::Figures;
use crate::harness::median::rounded;
use crate::harness::plot::{Bar, Page};
use crate::harness::table::{Column, or_dash, table};

const COLUMNS_ARE: &str = "bytes: of one socket, in pages of the slabs, shared out to their objects. source: the same on Linux 3.10, by a book \
    of 2022; ratio: to it.\n+-: how far the furthest round is from this one, the round in the middle; -: one round alone counts. \
    !: others opened or closed files and sockets in every round, do not trust it.\ntcp_mem: what TCP accounts for, in pages (sockstat). memcg: what a memory cgroup is charged, slabs + buffers.";
/// Bytes of a cache that are fewer, or below zero, are strangers' or a half-filled slab's.
const LEAST: f64 = 4.0;

#[derive(Debug, Serialize)]
pub struct MemoryFigures {
    /// Each state, client and server apart: the round in the middle.
    pub states: Vec<Row>,
    /// Of each state.
    pub connections: u32,
    pub rounds: u32,
    /// Why no memory cgroup could be asked; none where one was.
    pub no_memcg: Option<String>,
    /// `slabinfo`, or `meminfo` where caches could not be told apart.
    pub method: &'static str,
}

/// One side of a state.
#[derive(Debug, Serialize)]
pub struct Row {
    pub state: SocketState,
    pub side: Side,
    /// The state in words.
    pub what: &'static str,
    /// The sum of `caches`.
    pub bytes_per_socket: u64,
    /// Bytes of a socket in each of the kernel's caches.
    pub caches: BTreeMap<String, f64>,
    /// Bytes that TCP accounts for, in whole pages, against its limit (tcp_mem): buffers, not
    /// objects.
    pub charged_bytes: i64,
    /// Bytes that a memory cgroup (v2) with the sockets alone is charged: a second book beside the
    /// caches.
    pub memcg: Option<Charged>,
    /// How far the furthest round that counts is from this one, in per cent of it; none where one
    /// alone counts.
    pub spread_percent: Option<f64>,
    /// Rounds in which others' objects came between however often they were repeated. They do not
    /// count, unless there are no others.
    pub disturbed_rounds: usize,
    /// Whether this is one of those: the figure is not to be trusted.
    pub disturbed: bool,
    /// The figure of the lab's source, for Linux 3.10.
    pub source_bytes: Option<u64>,
}

/// Bytes that a cgroup is charged for a socket.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Charged {
    pub slab_bytes: i64,
    /// Buffers, in whole pages.
    pub sock_bytes: i64,
}

impl MemoryFigures {
    pub(super) fn new(
        connections: u32,
        rounds: u32,
        by_cache: bool,
        no_memcg: Option<String>,
        shares: &BTreeMap<(SocketState, Side), Vec<Share>>,
    ) -> Self {
        let row = |((state, side), shares): (&(SocketState, Side), &Vec<Share>)| {
            Row::new(*state, *side, connections, shares)
        };
        let method = if by_cache { "slabinfo" } else { "meminfo" };
        Self { states: shares.iter().map(row).collect(), connections, rounds, no_memcg, method }
    }

    fn measured(&self) -> String {
        let connections = counted(self.connections, "connection");
        match self.rounds {
            1 => format!("One round of {connections}"),
            rounds => format!("The middle one of {rounds} rounds of {connections}"),
        }
    }
}

impl Figures for MemoryFigures {
    fn tables(&self) -> String {
        table(&COLUMNS, &self.states)
    }

    fn notes(&self) -> Vec<String> {
        let mut notes = vec![COLUMNS_ARE.to_owned()];
        notes.extend(self.no_memcg.as_ref().map(|why| format!("memcg: not available: {why}")));
        if self.method != "slabinfo" {
            notes.push(
                "/proc/slabinfo cannot be read here: what all slabs grew by, which strangers' objects blur."
                    .into(),
            );
        }
        notes.push(format!("{} in each state, over lo of a namespace.", self.measured()));
        notes
    }

    fn page(&self) -> Option<Page> {
        let mut page = Page::new(
            "What a TCP socket takes of the kernel's memory",
            &format!(
                "{} in each state. The mark is what a book of 2022 found on Linux 3.10.",
                self.measured()
            ),
        );
        let bar = |row: &Row| {
            let mut parts: Vec<_> = row.caches.clone().into_iter().collect();
            parts.sort_by(|a, b| b.1.total_cmp(&a.1));
            let label = format!("{}, {}", row.state, row.side);
            Bar {
                label,
                parts,
                marks: row.source_bytes.iter().map(|bytes| *bytes as f64).collect(),
            }
        };
        // A whole record is so much that beside it nothing else could be told apart.
        let is_tls = |row: &&Row| matches!(row.state, SocketState::TlsSent | SocketState::TlsRead);
        let (tls, small): (Vec<_>, Vec<_>) = self.states.iter().partition(is_tls);
        for (title, rows) in
            [("Bytes a socket, by the kernel's cache", small), ("With a TLS record of 16 KiB", tls)]
        {
            let bars: Vec<Bar> = rows.into_iter().map(bar).collect();
            if !bars.is_empty() {
                page.bars(title, "bytes", "the book, Linux 3.10", &bars);
            }
        }
        page.table(&COLUMNS.each_ref(), &self.states);
        let clients = self.states.iter().filter(|row| row.side == Side::Client);
        let what = Column::text("what it is", |row: &Row| row.state.what().into());
        page.table(&[&COLUMNS[0], &what], clients);
        Some(page)
    }
}

impl Row {
    pub(super) fn new(state: SocketState, side: Side, connections: u32, shares: &[Share]) -> Self {
        let each = |bytes: f64| bytes / f64::from(connections);
        let caches_of = |share: &Share| -> BTreeMap<String, f64> {
            let caches = share.caches.iter().map(|(name, bytes)| (name.clone(), each(*bytes)));
            let caches = caches.filter(|(_, bytes)| *bytes >= LEAST);
            caches.map(|(name, bytes)| (name, rounded(bytes, 1))).collect()
        };
        let disturbed_rounds = shares.iter().filter(|share| share.disturbed).count();
        let disturbed = disturbed_rounds == shares.len();
        let mut rounds: Vec<_> = shares
            .iter()
            .filter(|share| disturbed || !share.disturbed)
            .map(|share| (caches_of(share).values().sum::<f64>(), share))
            .collect();
        rounds.sort_by(|a, b| a.0.total_cmp(&b.0));
        let nothing = Share::default();
        // One that was measured, so that its parts make its sum, and it stands among the lines of
        // progress.
        let (sum, middle) = rounds.get(rounds.len() / 2).copied().unwrap_or((0.0, &nothing));
        let furthest = rounds.iter().map(|(one, _)| (one - sum).abs()).fold(0.0, f64::max);
        let spread = if sum >= 1.0 { rounded(furthest / sum * 100.0, 1) } else { 0.0 };
        let round = |bytes| each(bytes).round() as i64;
        Self {
            state,
            side,
            what: state.what(),
            bytes_per_socket: sum.round() as u64,
            caches: caches_of(middle),
            charged_bytes: round(middle.charged),
            memcg: middle
                .memcg
                .map(|(slab, sock)| Charged { slab_bytes: round(slab), sock_bytes: round(sock) }),
            spread_percent: (rounds.len() > 1).then_some(spread),
            disturbed_rounds,
            disturbed,
            source_bytes: state.source_bytes(side),
        }
    }

    fn spread(&self) -> String {
        let spread = self.spread_percent.map_or_else(|| "-".into(), |n| format!("{n:.1}%"));
        if self.disturbed { format!("!{spread}") } else { spread }
    }

    fn ratio(&self) -> Option<f64> {
        let source = self.source_bytes.filter(|bytes| *bytes > 0)?;
        Some(self.bytes_per_socket as f64 / source as f64)
    }

    fn made_of(&self) -> String {
        let mut parts: Vec<_> = self.caches.iter().collect();
        parts.sort_by(|a, b| b.1.total_cmp(a.1));
        parts
            .iter()
            .map(|(name, bytes)| format!("{name} {bytes:.0}"))
            .collect::<Vec<_>>()
            .join(", ")
    }
}

const COLUMNS: [Column<Row>; 9] = [
    Column::text("state", |row| row.state.to_string()),
    Column::text("side", |row| row.side.to_string()),
    Column::number("bytes", |row| row.bytes_per_socket.to_string()),
    Column::number("source", |row| or_dash(row.source_bytes.map(|n| n as f64), 0)),
    Column::number("ratio", |row| or_dash(row.ratio(), 2)),
    Column::number("+-", Row::spread),
    Column::number("tcp_mem", |row| row.charged_bytes.to_string()),
    Column::number("memcg", |row| {
        row.memcg.map_or_else(|| "-".into(), |m| format!("{}+{}", m.slab_bytes, m.sock_bytes))
    }),
    Column::text("made of", Row::made_of),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::report::testing;

    fn share(bytes: &[(&str, f64)]) -> Share {
        let caches = bytes.iter().map(|(name, n)| ((*name).to_owned(), n * 100.0)).collect();
        Share { caches, charged: 0.0, memcg: Some((250_000.0, 409_600.0)), disturbed: false }
    }

    fn figures() -> MemoryFigures {
        let rounds = vec![
            share(&[("TCP", 2500.0), ("filp", 192.0), ("kmalloc-64", 1.0)]),
            share(&[("TCP", 2520.0), ("filp", 192.0)]),
            share(&[("TCP", 2900.0), ("filp", 200.0)]),
        ];
        let shares = [
            ((SocketState::Idle, Side::Client), rounds),
            ((SocketState::TimeWait, Side::Server), vec![share(&[("TCP", -1.0)])]),
        ];
        MemoryFigures::new(100, 3, true, None, &shares.into())
    }

    #[test]
    fn the_middle_round_by_cache() {
        let report = figures();
        let [idle, gone] = &report.states[..] else { panic!("{report:?}") };
        assert_eq!(idle.bytes_per_socket, 2712);
        let caches: Vec<_> = idle.caches.iter().map(|(name, n)| (name.as_str(), *n)).collect();
        assert_eq!(caches, [("TCP", 2520.0), ("filp", 192.0)], "strangers' bytes");
        assert_eq!(idle.spread_percent, Some(14.3));
        assert_eq!(gone.spread_percent, None, "one round has no spread");
        assert_eq!(idle.source_bytes, Some(3502));
        assert_eq!((gone.bytes_per_socket, gone.source_bytes), (0, Some(0)));
    }

    /// The sum is one that was measured, and its parts make it; the middle of each part by itself
    /// would be neither.
    #[test]
    fn no_round_that_never_was() {
        let rounds = [
            share(&[("TCP", 100.0), ("filp", 90.0)]),
            share(&[("TCP", 200.0), ("filp", 10.0)]),
            share(&[("TCP", 150.0), ("filp", 50.0)]),
        ];
        let row = Row::new(SocketState::Idle, Side::Client, 100, &rounds);
        assert_eq!(row.bytes_per_socket, 200);
        assert_eq!(row.caches.values().sum::<f64>(), 200.0);
    }

    #[test]
    fn disturbed_rounds_do_not_count() {
        let disturbed = |bytes| Share { disturbed: true, ..share(&[("TCP", bytes)]) };
        let rounds = [disturbed(9000.0), share(&[("TCP", 2500.0)]), disturbed(9100.0)];
        let row = Row::new(SocketState::Idle, Side::Client, 100, &rounds);
        assert_eq!((row.bytes_per_socket, row.disturbed_rounds, row.disturbed), (2500, 2, false));
        let row =
            Row::new(SocketState::Idle, Side::Client, 100, &[disturbed(1.0), disturbed(9100.0)]);
        assert!(row.disturbed && row.spread().starts_with('!'), "{row:?}");
    }

    #[test]
    fn json_has_the_promised_keys() {
        let report = testing::report("tcp-memory", figures(), Vec::new());
        assert_eq!(
            testing::names(&report),
            "connections failed machine method no_memcg rounds schema skipped states states.bytes_per_socket \
             states.caches states.caches.TCP states.caches.filp states.charged_bytes states.disturbed \
             states.disturbed_rounds states.memcg states.memcg.slab_bytes states.memcg.sock_bytes states.side \
             states.source_bytes states.spread_percent states.state states.what"
        );
        let json = serde_json::to_value(report).unwrap();
        let row = &json["states"][0];
        assert_eq!((&row["state"], &row["side"]), (&"established".into(), &"client".into()));
        assert_eq!(row["caches"]["TCP"], 2520.0);
        assert!(row["bytes_per_socket"].is_u64() && row["source_bytes"].is_u64());
    }

    #[test]
    fn table_and_page() {
        let report = testing::report("tcp-memory", figures(), Vec::new());
        let text = report.to_string();
        assert!(text.contains("TCP 2520, filp 192"), "{text}");
        assert!(text.contains("+-: how far") && text.contains("of 3 rounds of 100 connections"));
        let page = report.html().unwrap();
        for column in COLUMNS.iter().map(|column| column.heading).chain(["what it is"]) {
            assert!(page.contains(&format!("<th>{column}</th>")), "{column}: {page}");
        }
        assert!(page.contains("<svg") && page.contains("sock") && page.contains("2712"), "{page}");
    }
}
