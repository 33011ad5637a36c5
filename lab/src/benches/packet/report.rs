//! Figures: medians of each path. The rest of the document is `BenchReport` (harness/report.rs).

use serde::Serialize;

use super::Key;
use super::calls::CallsPerPacket;
use crate::harness::Figures;
use crate::harness::median::median;
use crate::harness::table::{Column, table};

#[derive(Debug, Serialize)]
pub struct PacketFigures {
    /// The cost of the measuring itself per packet, subtracted from every figure. Median of all
    /// rounds.
    pub wrapper_ns: u64,
    /// In the order of paths, then IP versions, then flows.
    pub paths: Vec<Row>,
    pub rounds: u32,
}

/// One path with one number of flows.
#[derive(Debug, Serialize)]
pub struct Row {
    #[serde(flatten)]
    pub key: Key,
    /// Nanoseconds per packet through the loaded program. Median.
    pub net_ns: u64,
    pub net_ns_by_round: Vec<u64>,
    #[serde(flatten)]
    pub per_packet: CallsPerPacket,
}

impl Row {
    pub(super) fn new(key: Key, rounds: &[u64], per_packet: CallsPerPacket) -> Self {
        Self { key, net_ns: median(rounds), net_ns_by_round: rounds.to_vec(), per_packet }
    }

    fn span(&self) -> String {
        let rounds = &self.net_ns_by_round;
        let (least, most) = (rounds.iter().min().unwrap_or(&0), rounds.iter().max().unwrap_or(&0));
        format!("{least} - {most}")
    }
}

const COLUMNS: [Column<Row>; 8] = [
    Column::text("path", |row| row.key.name.to_string()),
    Column::number("IPv", |row| row.key.ip.number().to_string()),
    Column::number("flows", |row| row.key.flows.to_string()),
    Column::number("net ns", |row| row.net_ns.to_string()),
    Column::number("least - most", Row::span),
    Column::number("calls", |row| row.per_packet.calls.to_string()),
    Column::number("tail calls", |row| row.per_packet.tail_calls.to_string()),
    Column::number("look-ups", |row| row.per_packet.lookups.to_string()),
];

impl Figures for PacketFigures {
    fn tables(&self) -> String {
        table(&COLUMNS, &self.paths)
    }

    fn notes(&self) -> Vec<String> {
        let Self { rounds, wrapper_ns, .. } = self;
        vec![
            format!("medians of {rounds} rounds, less {wrapper_ns} ns for the measuring itself"),
            "BPF_PROG_TEST_RUN on one core: no driver, no device; these figures are not packet rates.".into(),
            "calls, tail calls and look-ups of a packet: counted in the loaded programs, in a run that is not timed;".into(),
            "a call that the kernel has replaced by instructions is none.".into(),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Ip, PacketPath};
    use super::*;
    use crate::harness::report::testing;

    fn figures() -> PacketFigures {
        let nat = Key { name: PacketPath::Nat, ip: Ip::V4, flows: 1 };
        let new = Key { name: PacketPath::NewFlow, ip: Ip::V6, flows: 10_000_000 };
        let of_nat = CallsPerPacket { calls: 1.0, tail_calls: 1.0, lookups: 8.0 };
        let of_new = CallsPerPacket { calls: 12.25, tail_calls: 1.0, lookups: 21.5 };
        let paths = vec![Row::new(nat, &[90, 70, 80], of_nat), Row::new(new, &[1234], of_new)];
        PacketFigures { wrapper_ns: 20, paths, rounds: 3 }
    }

    #[test]
    fn json_has_the_promised_keys() {
        let report = testing::report("packet", figures(), Vec::new());
        assert_eq!(
            testing::names(&report),
            "failed machine paths paths.calls paths.flows paths.ip paths.lookups paths.name paths.net_ns \
             paths.net_ns_by_round paths.tail_calls rounds schema skipped wrapper_ns"
        );
        let json = serde_json::to_value(report).unwrap();
        let row = &json["paths"][1];
        assert_eq!((&row["name"], &row["ip"]), (&"new-flow".into(), &6.into()));
        assert_eq!((&row["flows"], &row["net_ns"]), (&10_000_000.into(), &1234.into()));
        assert_eq!((&row["calls"], &row["lookups"]), (&12.25.into(), &21.5.into()));
    }

    #[test]
    fn table_lines_up() {
        let table = figures().tables();
        testing::lines_up(&table, 3);
        assert!(table.lines().nth(1).unwrap().ends_with("1           1         8"), "{table}");
        assert!(table.lines().nth(2).unwrap().ends_with("12.25           1      21.5"), "{table}");
        assert_eq!(figures().paths[0].key.to_string(), "nat, IPv4, 1 flows");
    }
}
