//! The tables, as text and on the page.

use std::collections::BTreeMap;

use super::ratio::Ratio;
use super::{CellFigures, ForwardFigures, Point, Spread};
use crate::benches::forward::latency::{Percentiles, measurable};
use crate::benches::forward::measure::{LatencyAt, Minute};
use crate::benches::forward::{Road, Size};
use crate::harness::plot::Page;
use crate::harness::table::{Column, or_dash, table};

/// Where tables go.
pub(super) trait Sheet {
    fn add<R>(&mut self, title: &str, columns: &[Column<R>], rows: &[R]);
}

impl Sheet for String {
    fn add<R>(&mut self, title: &str, columns: &[Column<R>], rows: &[R]) {
        if !self.is_empty() {
            self.push('\n');
        }
        self.push_str(title);
        self.push('\n');
        self.push_str(&table(columns, rows));
    }
}

impl Sheet for Page {
    fn add<R>(&mut self, title: &str, columns: &[Column<R>], rows: &[R]) {
        self.text(title);
        self.table(&columns.iter().collect::<Vec<_>>(), rows);
    }
}

/// A load of a road and size, and p99 of all rounds.
struct LatencyRow(Road, Size, LatencyAt, Spread);

/// Percent lost, by tenths of the sender's ceiling.
struct LossRow(Road, Size, BTreeMap<u32, f64>);

struct TuneRow(Road, Size, Point);

struct SoakRow(Road, Size, Minute);

/// Ratios that may be 1.
const NOT_SHOWN: &str = "no difference shown";

const THROUGHPUT: [Column<CellFigures>; 9] = [
    Column::text("road", |cell| cell.road.to_string()),
    Column::number("bytes", |cell| cell.size.to_string()),
    Column::number("frames/s", |cell| or_dash(cell.fps(), 0)),
    Column::number("from", |cell| or_dash(cell.throughput().and_then(|t| t.lower), 0)),
    Column::number("to", |cell| or_dash(cell.throughput().and_then(|t| t.upper), 0)),
    Column::number("% lost there", |cell| {
        let lost = cell.throughput().and_then(|t| t.upper_loss_ratio);
        or_dash(lost.map(|lost| lost * 100.0), 3)
    }),
    Column::number("Mbit/s", |cell| or_dash(cell.mbit(), 0)),
    Column::number("in overload", |cell| or_dash(cell.in_overload(), 0)),
    Column::number("burst", |cell| match cell.burst() {
        Some((frames, true)) => format!("> {frames:.0}"),
        found => or_dash(found.map(|(frames, _)| frames), 0),
    }),
];

const RATIOS: [Column<Ratio>; 8] = [
    Column::text("of", |row| row.of.to_string()),
    Column::text("road", |row| row.road.to_string()),
    Column::text("beside", |row| row.beside.to_string()),
    Column::number("bytes", |row| row.size.to_string()),
    Column::number("ratio", |row| format!("{:.2}", row.ratio)),
    Column::number("from", |row| format!("{:.2}", row.lower)),
    Column::number("to", |row| format!("{:.2}", row.upper)),
    Column::text("", |row| if row.is_shown() { String::new() } else { NOT_SHOWN.into() }),
];

/// Milliseconds until losses ended; those of a round without an end are more.
fn recovered(cell: &CellFigures, of: fn(&Spread) -> f64) -> String {
    let Some((spread, limit)) = cell.after_overload() else { return "-".into() };
    let time = of(&spread);
    if time < limit { format!("{time:.1}") } else { format!("> {limit:.0}") }
}

fn killed(cell: &CellFigures, of: fn(&Spread) -> f64) -> String {
    or_dash(cell.killed().map(|spread| of(&spread)), 0)
}

const RECOVERY: [Column<CellFigures>; 11] = [
    Column::text("road", |cell| cell.road.to_string()),
    Column::number("bytes", |cell| cell.size.to_string()),
    Column::number("overload, frames/s", |cell| or_dash(cell.overload_fps(), 0)),
    Column::number("overloads", |cell| {
        let (overloads, trials) = cell.overloads();
        format!("{overloads} of {trials}")
    }),
    Column::number("ms", |cell| recovered(cell, |spread| spread.middle)),
    Column::number("from", |cell| recovered(cell, |spread| spread.least)),
    Column::number("to", |cell| recovered(cell, |spread| spread.most)),
    Column::number("kill -9, ms", |cell| killed(cell, |spread| spread.middle)),
    Column::number("from", |cell| killed(cell, |spread| spread.least)),
    Column::number("to", |cell| killed(cell, |spread| spread.most)),
    Column::number("frames lost", |cell| or_dash(cell.killed_lost(), 0)),
];

impl LossRow {
    fn at(&self, tenths: u32) -> String {
        or_dash(self.2.get(&tenths).copied(), 2)
    }
}

const LOSS: [Column<LossRow>; 12] = [
    Column::text("road", |row| row.0.to_string()),
    Column::number("bytes", |row| row.1.to_string()),
    Column::number("100 %", |row| row.at(10)),
    Column::number("90 %", |row| row.at(9)),
    Column::number("80 %", |row| row.at(8)),
    Column::number("70 %", |row| row.at(7)),
    Column::number("60 %", |row| row.at(6)),
    Column::number("50 %", |row| row.at(5)),
    Column::number("40 %", |row| row.at(4)),
    Column::number("30 %", |row| row.at(3)),
    Column::number("20 %", |row| row.at(2)),
    Column::number("10 %", |row| row.at(1)),
];

/// A percentile, with the tester's own.
fn time(row: &LatencyRow, of: fn(&Percentiles) -> f64) -> String {
    let (device, own) = (of(&row.2.device), of(&row.2.own));
    let time = measurable(device, own).map_or("not measurable".into(), |time| format!("{time:.1}"));
    format!("{time} ({own:.1})")
}

const LATENCY: [Column<LatencyRow>; 11] = [
    Column::text("road", |row| row.0.to_string()),
    Column::number("bytes", |row| row.1.to_string()),
    Column::number("% load", |row| row.2.percent.to_string()),
    Column::number("frames/s", |row| format!("{:.0}", row.2.load)),
    Column::number("% lost", |row| format!("{:.3}", row.2.loss_ratio * 100.0)),
    Column::number("p50 us", |row| time(row, |times| times.p50_us)),
    Column::number("p99 us", |row| time(row, |times| times.p99_us)),
    Column::number("from", |row| format!("{:.1}", row.3.least)),
    Column::number("to", |row| format!("{:.1}", row.3.most)),
    Column::number("p99.9 us", |row| time(row, |times| times.p999_us)),
    Column::number("max us", |row| time(row, |times| times.max_us)),
];

const TUNE: [Column<TuneRow>; 10] = [
    Column::text("road", |row| row.0.to_string()),
    Column::number("bytes", |row| row.1.to_string()),
    Column::text("swept", |row| row.2.knob.to_string()),
    Column::number("ring", |row| row.2.setting.ring.to_string()),
    Column::number("burst", |row| row.2.setting.burst.to_string()),
    Column::number("frames", |row| row.2.setting.frames.to_string()),
    Column::number("busy-poll us", |row| row.2.setting.busy_poll.to_string()),
    Column::number("frames/s", |row| format!("{:.0}", row.2.throughput.fps)),
    Column::number("from", |row| or_dash(row.2.throughput.lower, 0)),
    Column::number("to", |row| or_dash(row.2.throughput.upper, 0)),
];

const SOAK: [Column<SoakRow>; 8] = [
    Column::text("road", |row| row.0.to_string()),
    Column::number("bytes", |row| row.1.to_string()),
    Column::number("minute", |row| row.2.number.to_string()),
    Column::number("frames/s", |row| format!("{:.0}", row.2.load)),
    Column::number("lost", |row| row.2.lost.to_string()),
    Column::number("p99 us", |row| format!("{:.1}", row.2.p99_us)),
    Column::number("program KiB", |row| {
        row.2.program_kib.map_or_else(|| "-".into(), |kib| kib.to_string())
    }),
    Column::number("available KiB", |row| row.2.available_kib.to_string()),
];

impl ForwardFigures {
    /// Those that have rows.
    pub(super) fn add_tables(&self, sheet: &mut impl Sheet) {
        fn add<R>(sheet: &mut impl Sheet, title: &str, columns: &[Column<R>], rows: &[R]) {
            if !rows.is_empty() {
                sheet.add(title, columns, rows);
            }
        }
        let recovered: Vec<CellFigures> =
            self.cells.iter().filter(|cell| cell.has_recovered()).cloned().collect();
        add(sheet, "frames without loss", &THROUGHPUT, &self.cells);
        add(sheet, "beside the kernel's own road", &RATIOS, &self.ratios);
        add(
            sheet,
            "recovery, after an overload, and from kill -9 of what forwards",
            &RECOVERY,
            &recovered,
        );
        add(
            sheet,
            "% lost of the frames that were sent, where this share of the sender's ceiling was to \
                be sent",
            &LOSS,
            &self.losses(),
        );
        add(sheet, "latency, in parentheses the tester's own", &LATENCY, &self.latencies());
        add(sheet, "settings of the engine", &TUNE, &self.settings());
        add(sheet, "soak at 80 % of the throughput", &SOAK, &self.minutes());
    }

    /// A row of each of these that each cell has.
    fn rows<'c, T, R, I: IntoIterator<Item = T>>(
        &'c self,
        of: impl Fn(&'c CellFigures) -> I,
        row: impl Fn(Road, Size, T) -> R,
    ) -> Vec<R> {
        let of = |cell: &'c CellFigures| of(cell).into_iter().map(move |one| (cell, one));
        let all = self.cells.iter().flat_map(of);
        all.map(|(cell, one)| row(cell.road, cell.size, one)).collect()
    }

    fn latencies(&self) -> Vec<LatencyRow> {
        self.rows(CellFigures::latency, |road, size, (at, p99)| LatencyRow(road, size, at, p99))
    }

    fn losses(&self) -> Vec<LossRow> {
        let lost = |cell: &CellFigures| {
            let ceiling = self.ceilings.iter().find(|ceiling| ceiling.size == cell.size)?.fps;
            let tenths = |load: f64| (10.0 * load / ceiling).round() as u32;
            let lost = cell.lost().into_iter().map(|at| (tenths(at.load), at.percent));
            Some(lost.collect()).filter(|lost: &BTreeMap<u32, f64>| !lost.is_empty())
        };
        self.rows(lost, LossRow)
    }

    fn settings(&self) -> Vec<TuneRow> {
        self.rows(|cell| cell.curve.iter().copied(), TuneRow)
    }

    fn minutes(&self) -> Vec<SoakRow> {
        self.rows(|cell| cell.soak.iter().copied(), SoakRow)
    }
}
