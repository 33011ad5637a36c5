//! What was found, as a table, JSON and a page.

use serde::Serialize;

use super::Road;
use super::latency::{Percentiles, measurable};
use super::measure::{BackToBack, LatencyAt, LossAt, Minute, Recovery, Throughput};
use super::plan::Plan;
use super::size::{GENOME, Size};
use super::tune::{Knob, Setting};
use crate::harness::Figures;
use crate::harness::plot::{Bar, Line, Page};
use crate::harness::table::{Column, table};

/// All roads and sizes.
#[derive(Clone, Debug, Serialize)]
pub struct ForwardFigures {
    plan: &'static str,
    both_ways: bool,
    ipv6: bool,
    deviations: &'static [&'static str],
    command: String,
    /// Of the sender, by frame size.
    ceilings: Vec<Ceiling>,
    cells: Vec<CellFigures>,
}

#[derive(Clone, Copy, Debug, Serialize)]
struct Ceiling {
    size: Size,
    fps: f64,
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct CellFigures {
    pub road: Road,
    pub size: Size,
    /// The mean of the frames' bytes, checksums included.
    pub mean_bytes: f64,
    /// What was swept, and what was found; all else is measured with that.
    pub curve: Vec<Point>,
    pub tuned: Option<Setting>,
    pub throughput: Option<Throughput>,
    pub loss: Vec<LossAt>,
    pub latency: Vec<LatencyAt>,
    pub back_to_back: Option<BackToBack>,
    pub recovery: Option<Recovery>,
    pub soak: Vec<Minute>,
}

/// A setting, and how fast it is.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Point {
    pub knob: Knob,
    #[serde(flatten)]
    pub setting: Setting,
    pub throughput: Throughput,
}

/// A line of the latency table.
struct LatencyRow(Road, Size, LatencyAt);

/// A line of the table of settings.
struct TuneRow(Road, Size, Point);

/// A line of the soak table.
struct SoakRow(Road, Size, Minute);

/// Source of the figures beside ours: DPDK 17.11 on a Loongson 3A2000, two ports of 1 Gbit/s, both
/// ways, 64 bytes.
const CONTEXT: &str = "For context, 64 bytes both ways on a Loongson 3A2000 with two ports of 1 Gbit/s (DPDK 17.11): Linux bridge \
    155 Mbit/s, l2fwd 551.58 (3.56 times as much), with larger buffers 692.2 (4.47 times). That is other hardware: compare ratios, not rates.";

impl CellFigures {
    pub(super) fn new(road: Road, size: Size, ipv6: bool) -> Self {
        Self {
            road,
            size,
            mean_bytes: size.mean(ipv6),
            curve: Vec::new(),
            tuned: None,
            throughput: None,
            loss: Vec::new(),
            latency: Vec::new(),
            back_to_back: None,
            recovery: None,
            soak: Vec::new(),
        }
    }

    /// What was swept, a line for each setting.
    pub(super) fn curve_csv(&self) -> String {
        let row = |point: &Point| {
            let Point { knob, setting: Setting { ring, burst, frames, busy_poll }, .. } = point;
            let Throughput { lower, upper, .. } = point.throughput;
            let (lower, upper) = (number(lower), number(upper));
            format!("{knob},{ring},{burst},{frames},{busy_poll},{lower},{upper}\n")
        };
        let rows: String = self.curve.iter().map(row).collect();
        format!("swept,ring,burst,frames,busy_poll_us,lower_fps,upper_fps\n{rows}")
    }

    fn fps(&self) -> Option<f64> {
        self.throughput?.fps
    }

    /// Of frames with their checksums.
    fn mbit(&self) -> Option<f64> {
        self.fps().map(|fps| fps * self.mean_bytes * 8.0 / 1e6)
    }
}

fn number(figure: Option<f64>) -> String {
    figure.map_or_else(|| "-".into(), |figure| format!("{figure:.0}"))
}

const THROUGHPUT: [Column<CellFigures>; 9] = [
    Column::text("road", |cell| cell.road.to_string()),
    Column::number("bytes", |cell| cell.size.to_string()),
    Column::number("frames/s", |cell| number(cell.fps())),
    Column::number("upper bound", |cell| number(cell.throughput.and_then(|t| t.upper))),
    Column::number("% lost there", |cell| {
        let lost = cell.throughput.and_then(|t| t.upper_loss_ratio);
        lost.map_or_else(|| "-".into(), |lost| format!("{:.3}", lost * 100.0))
    }),
    Column::number("Mbit/s", |cell| number(cell.mbit())),
    Column::number("burst", |cell| match cell.back_to_back {
        Some(BackToBack { unlimited: true, frames, .. }) => format!("> {}", number(frames)),
        found => number(found.and_then(|found| found.frames)),
    }),
    Column::number("overload ms", |cell| {
        cell.recovery
            .as_ref()
            .map_or_else(|| "-".into(), |found| format!("{:.1}", found.overload_ms))
    }),
    Column::number("kill -9 ms", |cell| {
        number(cell.recovery.as_ref().and_then(|found| found.killed_ms))
    }),
];

/// A percentile, with the tester's own.
fn time(row: &LatencyRow, of: fn(&Percentiles) -> f64) -> String {
    let (device, own) = (of(&row.2.device), of(&row.2.own));
    let time = measurable(device, own).map_or("not measurable".into(), |time| format!("{time:.1}"));
    format!("{time} ({own:.1})")
}

const LATENCY: [Column<LatencyRow>; 8] = [
    Column::text("road", |row| row.0.to_string()),
    Column::number("bytes", |row| row.1.to_string()),
    Column::number("% load", |row| row.2.percent.to_string()),
    Column::number("frames/s", |row| format!("{:.0}", row.2.load)),
    Column::number("p50 us", |row| time(row, |times| times.p50_us)),
    Column::number("p99 us", |row| time(row, |times| times.p99_us)),
    Column::number("p99.9 us", |row| time(row, |times| times.p999_us)),
    Column::number("max us", |row| time(row, |times| times.max_us)),
];

const TUNE: [Column<TuneRow>; 8] = [
    Column::text("road", |row| row.0.to_string()),
    Column::number("bytes", |row| row.1.to_string()),
    Column::text("swept", |row| row.2.knob.to_string()),
    Column::number("ring", |row| row.2.setting.ring.to_string()),
    Column::number("burst", |row| row.2.setting.burst.to_string()),
    Column::number("frames", |row| row.2.setting.frames.to_string()),
    Column::number("busy-poll us", |row| row.2.setting.busy_poll.to_string()),
    Column::number("frames/s", |row| number(row.2.throughput.fps)),
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
    pub(super) fn new(plan: &Plan, both_ways: bool, ipv6: bool) -> Self {
        Self {
            plan: plan.name,
            both_ways,
            ipv6,
            deviations: plan.deviations,
            command: crate::typed(std::env::args_os()),
            ceilings: Vec::new(),
            cells: Vec::new(),
        }
    }

    /// What is known of a cell by now.
    pub(super) fn set(&mut self, size: Size, fps: f64, cell: &CellFigures) {
        if self.ceilings.iter().all(|known| known.size != size) {
            self.ceilings.push(Ceiling { size, fps });
        }
        let is_known =
            |known: &&mut CellFigures| (known.road, known.size) == (cell.road, cell.size);
        match self.cells.iter_mut().find(is_known) {
            Some(known) => known.clone_from(cell),
            None => self.cells.push(cell.clone()),
        }
    }

    fn latencies(&self) -> impl Iterator<Item = LatencyRow> + '_ {
        self.cells.iter().flat_map(|cell| {
            cell.latency.iter().map(move |at| LatencyRow(cell.road, cell.size, at.clone()))
        })
    }

    fn settings(&self) -> impl Iterator<Item = TuneRow> + '_ {
        let row = |cell: &CellFigures, point: &Point| TuneRow(cell.road, cell.size, *point);
        self.cells.iter().flat_map(move |cell| cell.curve.iter().map(move |point| row(cell, point)))
    }

    /// What was found, and its file in the folder.
    fn tuned(&self) -> impl Iterator<Item = String> + '_ {
        self.cells.iter().filter_map(|cell| {
            let (CellFigures { road, size, .. }, tuned) = (cell, cell.tuned?);
            Some(format!("{road}, {size}: tuned: {tuned} (`ringway engine l2fwd --config engine-{road}-{size}.toml`); all else is measured with it."))
        })
    }

    fn minutes(&self) -> impl Iterator<Item = SoakRow> + '_ {
        let row = |cell: &CellFigures, minute: &Minute| SoakRow(cell.road, cell.size, *minute);
        self.cells
            .iter()
            .flat_map(move |cell| cell.soak.iter().map(move |minute| row(cell, minute)))
    }

    /// What was measured of the sender in the place of the device.
    fn doubts(&self) -> Vec<String> {
        let doubts = |cell: &CellFigures| {
            let mut doubts = Vec::new();
            let Some(found) = cell.throughput else { return doubts };
            if found.generator_fell_short {
                doubts.push(
                    "the sender fell short at the upper bound, and the device lost nothing".into(),
                );
            } else if found.near_ceiling {
                doubts.push("above nine tenths of the sender's ceiling".into());
            }
            if found.interrupted > 0 {
                let Throughput { interrupted, trials, .. } = found;
                doubts.push(format!("in {interrupted} of {trials} trials the machine kept the sender from its processor; they were made again, or count for what was sent"));
            }
            let of = |why: String| format!("{}, {}: {why}.", cell.road, cell.size);
            doubts.into_iter().map(of).collect()
        };
        self.cells.iter().flat_map(doubts).collect()
    }

    /// Of the kernel's bridge, at 64 bytes, with others' figures for context.
    fn ratios(&self) -> Vec<String> {
        let small = || self.cells.iter().filter(|cell| cell.size == Size::Bytes(64));
        let bridge = small().find(|cell| cell.road == Road::LinuxBridge).and_then(CellFigures::fps);
        let Some(bridge) = bridge.filter(|fps| *fps > 0.0) else { return Vec::new() };
        let ratio = |cell: &CellFigures| {
            let ratio = cell.fps()? / bridge;
            Some(format!("{} / linux-bridge, 64 bytes: {ratio:.2}.", cell.road))
        };
        let others = small().filter(|cell| cell.road != Road::LinuxBridge);
        let mut ratios: Vec<String> = others.filter_map(ratio).collect();
        if !ratios.is_empty() {
            ratios.push(CONTEXT.into());
        }
        ratios
    }

    fn loss_lines(&self, size: Size) -> Vec<Line> {
        let cells = self.cells.iter().filter(|cell| cell.size == size && !cell.loss.is_empty());
        let line = |cell: &CellFigures| Line {
            label: cell.road.to_string(),
            points: cell.loss.iter().rev().map(|at| (at.load, at.loss_ratio * 100.0)).collect(),
        };
        cells.map(line).collect()
    }

    fn tune_lines(&self, knob: Knob) -> Vec<Line> {
        let line = |cell: &CellFigures| Line {
            label: format!("{}, {}", cell.road, cell.size),
            points: cell
                .curve
                .iter()
                .filter(|point| point.knob == knob)
                .map(|point| {
                    (knob.value(&point.setting).into(), point.throughput.fps.unwrap_or(0.0))
                })
                .collect(),
        };
        self.cells.iter().map(line).filter(|line| !line.points.is_empty()).collect()
    }

    fn latency_lines(&self, size: Size) -> Vec<Line> {
        let cells = self.cells.iter().filter(|cell| cell.size == size && !cell.latency.is_empty());
        let line = |cell: &CellFigures| Line {
            label: format!("{} p99", cell.road),
            points: cell
                .latency
                .iter()
                .map(|at| (f64::from(at.percent), at.device.p99_us))
                .collect(),
        };
        cells.map(line).collect()
    }
}

impl Figures for ForwardFigures {
    fn tables(&self) -> String {
        let mut text = table(&THROUGHPUT, &self.cells);
        if self.latencies().next().is_some() {
            text += "\nlatency, in parentheses the tester's own\n";
            text += &table(&LATENCY, self.latencies());
        }
        if self.settings().next().is_some() {
            text += "\nsettings of the engine\n";
            text += &table(&TUNE, self.settings());
        }
        if self.minutes().next().is_some() {
            text += "\nsoak at 80 % of the throughput\n";
            text += &table(&SOAK, self.minutes());
        }
        text
    }

    fn notes(&self) -> Vec<String> {
        let ceiling = |at: &Ceiling| format!("{:.0} ({})", at.fps, at.size);
        let ceilings: Vec<String> = self.ceilings.iter().map(ceiling).collect();
        let ways =
            if self.both_ways { "both ways at once, frames of both together" } else { "one way" };
        let mut notes: Vec<String> = self.tuned().collect();
        notes.extend(self.doubts());
        notes.extend(self.ratios());
        notes.push(format!("{ways}; the sender's ceiling: {} frames/s.", ceilings.join(", ")));
        if self.cells.iter().any(|cell| cell.size == Size::Imix) {
            notes.push(format!("imix: frames of 64 (a), 512 (d) and 1518 bytes (g) in the order {GENOME} (RFC 6985)."));
        }
        if self.ipv6 {
            notes.push("IPv6 (RFC 5180): frames of 64 bytes have 84, which the headers and the stamp take.".into());
        }
        if self.cells.iter().any(|cell| cell.road == Road::Outside) {
            notes.push("The ceiling, and the tester's own times, are those of a veth pair, not of these interfaces.".into());
        }
        notes.push("The sender and the kernel's reception for programs have one processor, what forwards another.".into());
        notes.push(format!("Deviations from the RFCs ({}):", self.plan));
        notes.extend(self.deviations.iter().map(|deviation| format!("- {deviation}.")));
        notes.push(self.command.clone());
        notes
    }

    fn page(&self) -> Option<Page> {
        let mut page = Page::new("Forwarding", CONTEXT);
        let bars: Vec<Bar> = self
            .cells
            .iter()
            .filter_map(|cell| {
                let label = format!("{}, {}", cell.road, cell.size);
                Some(Bar {
                    label,
                    parts: vec![("throughput".into(), cell.fps()?)],
                    mark: cell.throughput?.upper,
                })
            })
            .collect();
        page.bars("Throughput", "frames/s", "upper bound", &bars);
        page.table(&THROUGHPUT.iter().collect::<Vec<_>>(), &self.cells);
        for Ceiling { size, .. } in &self.ceilings {
            let loss = self.loss_lines(*size);
            if !loss.is_empty() {
                page.lines(&format!("Frame loss, {size}"), ("frames/s offered", "% lost"), &loss);
            }
            let latency = self.latency_lines(*size);
            if !latency.is_empty() {
                let title = format!("Latency, {size}");
                page.lines(&title, ("% of the throughput", "microseconds"), &latency);
            }
        }
        for knob in Knob::ALL {
            let lines = self.tune_lines(knob);
            if !lines.is_empty() {
                page.lines(&format!("Throughput by {knob}"), (knob.name(), "frames/s"), &lines);
            }
        }
        page.table(&LATENCY.iter().collect::<Vec<_>>(), self.latencies());
        if self.minutes().next().is_some() {
            page.table(&SOAK.iter().collect::<Vec<_>>(), self.minutes());
        }
        Some(page)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::report::testing;

    fn figures() -> ForwardFigures {
        let times = |p50_us| Percentiles { p50_us, p99_us: 20.0, p999_us: 30.0, max_us: 40.0 };
        let cell = CellFigures {
            throughput: Some(Throughput {
                lower: Some(1e6),
                upper: Some(1.02e6),
                upper_loss_ratio: Some(0.001),
                fps: Some(1e6),
                generator_fell_short: true,
                near_ceiling: true,
                trials: 9,
                interrupted: 2,
            }),
            loss: vec![LossAt {
                load: 1.1e6,
                loss_ratio: 0.1,
                unsent_ratio: 0.0,
                reordered: 0,
                duplicates: 0,
            }],
            latency: vec![LatencyAt {
                percent: 50,
                load: 5e5,
                device: times(12.0),
                own: times(2.0),
                trials: vec![times(12.0)],
            }],
            back_to_back: Some(BackToBack {
                frames: Some(300.0),
                upper: None,
                unlimited: true,
                corrected_buffer_us: None,
            }),
            recovery: Some(Recovery {
                overload_ms: 1.0,
                overload_trials_ms: vec![1.0],
                killed_ms: None,
            }),
            ..CellFigures::new(Road::AfXdp, Size::Bytes(64), false)
        };
        let mut figures = ForwardFigures::new(&Plan::QUICK, true, false);
        let size = Size::Bytes(64);
        figures.set(size, 1.1e6, &CellFigures::new(Road::AfXdp, size, false));
        figures.set(size, 1.1e6, &cell);
        figures
    }

    #[test]
    fn tables_say_what_was_found_and_what_is_doubtful() {
        let (text, notes) = (figures().tables(), figures().notes().join("\n"));
        assert!(text.contains("1000000      1020000         0.100     512  > 300"), "{text}");
        assert!(text.contains("12.0 (2.0)") && text.contains("not measurable (20.0)"), "{text}");
        assert!(notes.contains("af_xdp, 64: the sender fell short"), "{notes}");
        assert!(notes.contains("in 2 of 9 trials the machine kept the sender"), "{notes}");
        assert!(!notes.contains("Loongson"), "nothing to compare: {notes}");
        let mut bridged = figures();
        let mut bridge = bridged.cells[0].clone();
        bridge.road = Road::LinuxBridge;
        bridge.throughput = bridge.throughput.map(|found| Throughput { fps: Some(4e5), ..found });
        bridged.set(bridge.size, 1.1e6, &bridge);
        let beside = bridged.notes().join("\n");
        assert!(beside.contains("af_xdp / linux-bridge, 64 bytes: 2.50."), "{beside}");
        assert!(beside.contains("3.56 times"), "{beside}");
        assert!(notes.contains("1100000 (64)") && notes.contains("- recovery:"), "{notes}");
    }

    #[test]
    fn json_and_page_have_what_was_found() {
        let report = testing::report("forward", figures(), Vec::new());
        let names = testing::names(&report);
        for name in ["cells.throughput.fps", "cells.latency.own.p99_us", "deviations", "command"] {
            assert!(names.split(' ').any(|known| known == name), "{name}: {names}");
        }
        let page = report.html().unwrap();
        assert!(page.matches("<svg").count() == 3 && page.contains("551.58"), "{page}");
    }
}
