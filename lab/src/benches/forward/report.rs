//! What was found, as a table, JSON and a page.

use std::collections::BTreeMap;

use serde::Serialize;

use super::Road;
use super::latency::{Percentiles, measurable};
use super::measure::{BackToBack, LOADS, LatencyAt, LossAt, Minute, Rate, Recovery, Throughput};
use super::plan::Plan;
use super::size::{GENOME, Size};
use super::tune::{Knob, Setting};
use crate::harness::Figures;
use crate::harness::median::middle;
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
    /// Loads that are tried are so far apart.
    grid_percent: f64,
    /// Of the sender, by frame size.
    ceilings: Vec<Ceiling>,
    ratios: Vec<Ratio>,
    cells: Vec<CellFigures>,
}

#[derive(Clone, Copy, Debug, Serialize)]
struct Ceiling {
    size: Size,
    fps: f64,
}

/// A throughput, as many times that of the kernel's own road.
#[derive(Clone, Copy, Debug, Serialize)]
struct Ratio {
    road: Road,
    beside: Road,
    size: Size,
    /// The middle one of what each round found.
    ratio: f64,
    /// Of all rounds; of one, what its bounds allow.
    lower: f64,
    upper: f64,
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
    /// Of all rounds.
    throughput: Option<Rate>,
    pub rounds: Vec<Round>,
    pub soak: Vec<Minute>,
}

/// What one round found.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Round {
    pub throughput: Option<Throughput>,
    pub loss: Vec<LossAt>,
    pub latency: Vec<LatencyAt>,
    pub back_to_back: Option<BackToBack>,
    pub recovery: Option<Recovery>,
}

/// A setting, and how fast it is.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Point {
    pub knob: Knob,
    #[serde(flatten)]
    pub setting: Setting,
    pub throughput: Rate,
}

/// A line of the latency table, and the least and the greatest p99 of a round.
struct LatencyRow(Road, Size, LatencyAt, (f64, f64));

/// A line of the table of frame loss: percent, by tenths of the sender's ceiling.
struct LossRow(Road, Size, BTreeMap<u32, f64>);

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
            rounds: Vec::new(),
            soak: Vec::new(),
        }
    }

    /// What was swept, a line for each setting.
    pub(super) fn curve_csv(&self) -> String {
        let row = |point: &Point| {
            let Point { knob, setting: Setting { ring, burst, frames, busy_poll }, .. } = point;
            let Rate { fps, lower, upper, .. } = point.throughput;
            let (lower, upper) = (number(lower), number(upper));
            format!("{knob},{ring},{burst},{frames},{busy_poll},{fps:.0},{lower},{upper}\n")
        };
        let rows: String = self.curve.iter().map(row).collect();
        format!("swept,ring,burst,frames,busy_poll_us,fps,lower_fps,upper_fps\n{rows}")
    }

    /// Of all rounds so far.
    pub(super) fn throughput(&self) -> Option<Rate> {
        Rate::of(self.rounds.iter().filter_map(|round| round.throughput.as_ref()))
    }

    fn fps(&self) -> Option<f64> {
        Some(self.throughput()?.fps)
    }

    fn middle_of(&self, of: impl Fn(&Round) -> Option<f64>) -> Option<f64> {
        middle(self.rounds.iter().filter_map(of))
    }

    /// Frames; and whether no round found a longest burst.
    fn burst(&self) -> Option<(f64, bool)> {
        let found = || self.rounds.iter().filter_map(|round| round.back_to_back);
        let frames = middle(found().map(|one| one.frames.unwrap_or(0.0)))?;
        Some((frames, found().all(|one| one.unlimited)))
    }

    fn overload_ms(&self) -> Option<f64> {
        self.middle_of(|round| Some(round.recovery.as_ref()?.overload_ms))
    }

    fn killed_ms(&self) -> Option<f64> {
        self.middle_of(|round| round.recovery.as_ref()?.killed_ms)
    }

    /// At each load the middle of all rounds, and the least and the greatest p99.
    fn latency(&self) -> impl Iterator<Item = (LatencyAt, (f64, f64))> + '_ {
        LOADS.into_iter().filter_map(|percent| {
            let all = || {
                let all = self.rounds.iter().flat_map(|round| &round.latency);
                all.filter(move |at| at.percent == percent)
            };
            let p99 = || all().map(|at| at.device.p99_us);
            let spread = (p99().reduce(f64::min)?, p99().reduce(f64::max)?);
            Some((LatencyAt::middle(all())?, spread))
        })
    }

    /// "round 2", or "rounds 2, 5", whose throughput is so; none: none is.
    fn rounds_where(&self, is_so: impl Fn(&Throughput) -> bool) -> Option<String> {
        let is_one = |round: &&Round| round.throughput.as_ref().is_some_and(&is_so);
        let found = (1..).zip(&self.rounds).filter(|(_, round)| is_one(round));
        let numbers: Vec<String> = found.map(|(number, _): (u32, _)| number.to_string()).collect();
        let word = if numbers.len() == 1 { "round" } else { "rounds" };
        (!numbers.is_empty()).then(|| format!("{word} {}", numbers.join(", ")))
    }

    /// Percent lost at each load: the middle of all rounds, whose loads are the same.
    fn lost(&self) -> Vec<(f64, f64)> {
        let mut at: BTreeMap<u64, Vec<f64>> = BTreeMap::new();
        for found in self.rounds.iter().flat_map(|round| &round.loss) {
            at.entry(found.load as u64).or_default().push(found.loss_ratio * 100.0);
        }
        at.into_iter().filter_map(|(load, lost)| Some((load as f64, middle(lost)?))).collect()
    }

    /// Of frames with their checksums.
    fn mbit(&self) -> Option<f64> {
        self.fps().map(|fps| fps * self.mean_bytes * 8.0 / 1e6)
    }
}

fn number(figure: Option<f64>) -> String {
    figure.map_or_else(|| "-".into(), |figure| format!("{figure:.0}"))
}

const THROUGHPUT: [Column<CellFigures>; 10] = [
    Column::text("road", |cell| cell.road.to_string()),
    Column::number("bytes", |cell| cell.size.to_string()),
    Column::number("frames/s", |cell| number(cell.fps())),
    Column::number("from", |cell| number(cell.throughput().and_then(|t| t.lower))),
    Column::number("to", |cell| number(cell.throughput().and_then(|t| t.upper))),
    Column::number("% lost there", |cell| {
        let lost = cell.throughput().and_then(|t| t.upper_loss_ratio);
        lost.map_or_else(|| "-".into(), |lost| format!("{:.3}", lost * 100.0))
    }),
    Column::number("Mbit/s", |cell| number(cell.mbit())),
    Column::number("burst", |cell| match cell.burst() {
        Some((frames, true)) => format!("> {frames:.0}"),
        found => number(found.map(|(frames, _)| frames)),
    }),
    Column::number("overload ms", |cell| {
        cell.overload_ms().map_or_else(|| "-".into(), |ms| format!("{ms:.1}"))
    }),
    Column::number("kill -9 ms", |cell| number(cell.killed_ms())),
];

/// A percentile, with the tester's own.
fn time(row: &LatencyRow, of: fn(&Percentiles) -> f64) -> String {
    let (device, own) = (of(&row.2.device), of(&row.2.own));
    let time = measurable(device, own).map_or("not measurable".into(), |time| format!("{time:.1}"));
    format!("{time} ({own:.1})")
}

/// Ratios that may be 1.
const NOT_SHOWN: &str = "no difference shown";

const RATIOS: [Column<Ratio>; 7] = [
    Column::text("road", |row| row.road.to_string()),
    Column::text("beside", |row| row.beside.to_string()),
    Column::number("bytes", |row| row.size.to_string()),
    Column::number("ratio", |row| format!("{:.2}", row.ratio)),
    Column::number("from", |row| format!("{:.2}", row.lower)),
    Column::number("to", |row| format!("{:.2}", row.upper)),
    Column::text("", |row| {
        if row.lower <= 1.0 && row.upper >= 1.0 { NOT_SHOWN.into() } else { String::new() }
    }),
];

impl LossRow {
    fn at(&self, tenths: u32) -> String {
        self.2.get(&tenths).map_or_else(|| "-".into(), |lost| format!("{lost:.2}"))
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

const LATENCY: [Column<LatencyRow>; 11] = [
    Column::text("road", |row| row.0.to_string()),
    Column::number("bytes", |row| row.1.to_string()),
    Column::number("% load", |row| row.2.percent.to_string()),
    Column::number("frames/s", |row| format!("{:.0}", row.2.load)),
    Column::number("% lost", |row| format!("{:.3}", row.2.loss_ratio * 100.0)),
    Column::number("p50 us", |row| time(row, |times| times.p50_us)),
    Column::number("p99 us", |row| time(row, |times| times.p99_us)),
    Column::number("from", |row| format!("{:.1}", row.3.0)),
    Column::number("to", |row| format!("{:.1}", row.3.1)),
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
    Column::number("from", |row| number(row.2.throughput.lower)),
    Column::number("to", |row| number(row.2.throughput.upper)),
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
            grid_percent: plan.throughput.width * 100.0,
            command: crate::typed(std::env::args_os()),
            ceilings: Vec::new(),
            ratios: Vec::new(),
            cells: Vec::new(),
        }
    }

    /// What is known of a cell by now; none: nothing.
    pub(super) fn cell(&self, road: Road, size: Size) -> Option<&CellFigures> {
        self.cells.iter().find(|cell| (cell.road, cell.size) == (road, size))
    }

    pub(super) fn set(&mut self, size: Size, fps: f64, cell: &CellFigures) {
        let cell = &CellFigures { throughput: cell.throughput(), ..cell.clone() };
        if self.ceilings.iter().all(|known| known.size != size) {
            self.ceilings.push(Ceiling { size, fps });
        }
        let is_known =
            |known: &&mut CellFigures| (known.road, known.size) == (cell.road, cell.size);
        match self.cells.iter_mut().find(is_known) {
            Some(known) => known.clone_from(cell),
            None => self.cells.push(cell.clone()),
        }
        self.ratios = self.cells.iter().filter_map(|cell| self.ratio(cell)).collect();
    }

    /// Rounds of the two roads are near in time.
    fn ratio(&self, cell: &CellFigures) -> Option<Ratio> {
        let CellFigures { road, size, .. } = *cell;
        let beside = road.kernels()?;
        let kernels = self.cell(beside, size)?;
        let fps = |cell: &'_ CellFigures| {
            let found = cell.rounds.iter().map(|round| round.throughput?.fps);
            found.map(Option::unwrap_or_default).collect::<Vec<_>>()
        };
        let pairs = fps(cell).into_iter().zip(fps(kernels)).filter(|(_, kernels)| *kernels > 0.0);
        let ratios: Vec<f64> = pairs.map(|(fps, kernels)| fps / kernels).collect();
        let (lower, upper) = match ratios[..] {
            [_] => {
                let (own, kernels) = (cell.throughput()?, kernels.throughput()?);
                let least = own.lower.unwrap_or(0.0) / kernels.upper.unwrap_or(f64::INFINITY);
                (least, own.upper.unwrap_or(f64::INFINITY) / kernels.lower?)
            }
            _ => {
                let all = || ratios.iter().copied();
                (all().reduce(f64::min)?, all().reduce(f64::max)?)
            }
        };
        Some(Ratio { road, beside, size, ratio: middle(ratios)?, lower, upper })
    }

    fn latencies(&self) -> impl Iterator<Item = LatencyRow> + '_ {
        self.cells.iter().flat_map(|cell| {
            cell.latency().map(move |(at, p99)| LatencyRow(cell.road, cell.size, at, p99))
        })
    }

    fn losses(&self) -> impl Iterator<Item = LossRow> + '_ {
        self.cells.iter().filter_map(|cell| {
            let ceiling = self.ceilings.iter().find(|ceiling| ceiling.size == cell.size)?.fps;
            let tenths = |load: f64| (10.0 * load / ceiling).round() as u32;
            let lost = cell.lost().into_iter().map(|(load, lost)| (tenths(load), lost));
            let lost: BTreeMap<u32, f64> = lost.collect();
            (!lost.is_empty()).then_some(LossRow(cell.road, cell.size, lost))
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
            let kept = |found: &Throughput| found.sender_was_kept;
            if let Some(rounds) = cell.rounds_where(kept) {
                doubts.push(format!("in {rounds} the machine kept the sender from its processor, however often it was tried: the rate is the sender's, not the device's"));
            }
            let short = |found: &Throughput| found.generator_fell_short && !found.sender_was_kept;
            if let Some(rounds) = cell.rounds_where(short) {
                doubts.push(format!("in {rounds} the sender fell short at the upper bound, and the device lost nothing: it may be faster"));
            }
            let near = |found: &Throughput| found.near_ceiling && !found.generator_fell_short;
            if let Some(rounds) = cell.rounds_where(near) {
                doubts.push(format!("in {rounds} above nine tenths of the sender's ceiling"));
            }
            if let Some(rounds) = cell.rounds_where(|found| found.interrupted > 0) {
                let found = || cell.rounds.iter().filter_map(|round| round.throughput);
                let interrupted: usize = found().map(|found| found.interrupted).sum();
                let trials: usize = found().map(|found| found.trials).sum();
                doubts.push(format!("in {rounds} the machine kept the sender from its processor in {interrupted} of {trials} trials, which were made again or count for what was sent"));
            }
            let of = |why: String| format!("{}, {}: {why}.", cell.road, cell.size);
            doubts.into_iter().map(of).collect::<Vec<_>>()
        };
        self.cells.iter().flat_map(doubts).collect()
    }

    /// What the columns are.
    fn columns(&self) -> Vec<String> {
        let of_rounds = match self.rounds() {
            0 | 1 => "",
            _ => "; figures are the middle one's of all rounds, from and to the outermost of all",
        };
        let mut columns = vec![format!(
            "frames/s: of all ways together; each round finds it between a load that the goal of its deviations allows and one that it does not, neighbours on a grid of {} %, on which equal figures are the same step{of_rounds}. \
             Mbit/s: of the frames with their checksums, without preambles and gaps. burst: frames of the longest burst of which none is lost, > where the longest that was sent loses none. \
             overload ms: from the end of an overload until nothing is lost. kill -9 ms: without frames while the program that forwards is killed and started again.",
            self.grid_percent
        )];
        if self.losses().next().is_some() {
            columns.push("frame loss: the sender may have sent less than it was to; JSON has the share, unsent_ratio.".into());
        }
        if !self.ratios.is_empty() {
            columns.push("ratio: of the throughputs of one round, which are near in time; the middle one, from the least to the greatest.".into());
        }
        if self.latencies().next().is_some() {
            columns.push("latency: % load is of each round's own throughput; from and to are the rounds' p99.".into());
        }
        columns
    }

    /// So many were begun.
    fn rounds(&self) -> usize {
        self.cells.iter().map(|cell| cell.rounds.len()).max().unwrap_or(0)
    }

    fn loss_lines(&self, size: Size) -> Vec<Line> {
        let cells = self.cells.iter().filter(|cell| cell.size == size);
        let line = |cell: &CellFigures| Line { label: cell.road.to_string(), points: cell.lost() };
        cells.map(line).filter(|line| !line.points.is_empty()).collect()
    }

    fn tune_lines(&self, knob: Knob) -> Vec<Line> {
        let line = |cell: &CellFigures| Line {
            label: format!("{}, {}", cell.road, cell.size),
            points: cell
                .curve
                .iter()
                .filter(|point| point.knob == knob)
                .map(|point| (knob.value(&point.setting).into(), point.throughput.fps))
                .collect(),
        };
        self.cells.iter().map(line).filter(|line| !line.points.is_empty()).collect()
    }

    fn latency_lines(&self, size: Size) -> Vec<Line> {
        let cells = self.cells.iter().filter(|cell| cell.size == size);
        let line = |cell: &CellFigures| Line {
            label: format!("{} p99", cell.road),
            points: cell
                .latency()
                .map(|(at, _)| (f64::from(at.percent), at.device.p99_us))
                .collect(),
        };
        cells.map(line).filter(|line| !line.points.is_empty()).collect()
    }
}

impl Figures for ForwardFigures {
    fn tables(&self) -> String {
        let mut text = table(&THROUGHPUT, &self.cells);
        if !self.ratios.is_empty() {
            text += "\nthroughput beside the kernel's own road\n";
            text += &table(&RATIOS, &self.ratios);
        }
        if self.losses().next().is_some() {
            text += "\n% lost of the frames that were sent, where this share of the sender's ceiling was to be sent\n";
            text += &table(&LOSS, self.losses());
        }
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
        notes.extend(self.columns());
        if self.ratios.iter().any(|ratio| ratio.size == Size::Bytes(64)) {
            notes.push(CONTEXT.into());
        }
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

    fn is_virtual(&self) -> bool {
        self.cells.iter().all(|cell| cell.road != Road::Outside)
    }

    fn page(&self) -> Option<Page> {
        let mut page = Page::new("Forwarding", CONTEXT);
        let bars: Vec<Bar> = self
            .cells
            .iter()
            .filter_map(|cell| {
                let label = format!("{}, {}", cell.road, cell.size);
                let Rate { fps, lower, upper, .. } = cell.throughput()?;
                let marks = [lower, upper].into_iter().flatten().collect();
                Some(Bar { label, parts: vec![("throughput".into(), fps)], marks })
            })
            .collect();
        page.bars("Throughput", "frames/s", "from and to", &bars);
        page.table(&THROUGHPUT.iter().collect::<Vec<_>>(), &self.cells);
        if !self.ratios.is_empty() {
            page.table(&RATIOS.iter().collect::<Vec<_>>(), &self.ratios);
        }
        for Ceiling { size, .. } in &self.ceilings {
            let loss = self.loss_lines(*size);
            if !loss.is_empty() {
                page.lines(
                    &format!("Frame loss, {size}"),
                    ("frames/s that were to be sent", "% lost of what was sent"),
                    &loss,
                );
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
        let throughput = |fps: f64| Throughput {
            lower: Some(fps),
            upper: Some(fps * 1.02),
            upper_loss_ratio: Some(0.001),
            fps: Some(fps),
            generator_fell_short: true,
            sender_was_kept: false,
            near_ceiling: true,
            trials: 9,
            interrupted: 2,
        };
        let round = Round {
            throughput: Some(throughput(1e6)),
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
                loss_ratio: 0.002,
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
        };
        let quick = Throughput { upper_loss_ratio: Some(0.25), ..throughput(1.1e6) };
        let quick = Round { throughput: Some(quick), ..round.clone() };
        let slow = Throughput { sender_was_kept: true, ..throughput(5e5) };
        let mut slow = Round { throughput: Some(slow), ..round.clone() };
        slow.latency[0].device.p99_us = 90.0;
        let cell = CellFigures {
            rounds: vec![quick, round, slow],
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
        assert!(text.contains("1000000  500000  1122000        25.000     512  > 300"), "{text}");
        assert!(text.contains("12.0 (2.0)") && text.contains("not measurable (20.0)"), "{text}");
        assert!(text.contains("0.200") && text.contains("20.0  90.0"), "{text}");
        assert!(text.contains("10.00     -     -"), "{text}");
        assert!(notes.contains("64: in rounds 1, 2 the sender fell short at"), "{notes}");
        assert!(notes.contains("64: in round 3 the machine kept the sender"), "{notes}");
        assert!(notes.contains("in rounds 1, 2, 3 the machine kept"), "{notes}");
        assert!(notes.contains("in 6 of 27 trials") && notes.contains("a grid of 2 %"), "{notes}");
        assert!(
            !text.contains("ratio") && !notes.contains("Loongson"),
            "nothing to compare: {notes}"
        );
        let mut bridged = figures();
        let mut bridge = bridged.cells[0].clone();
        bridge.road = Road::LinuxBridge;
        for found in bridge.rounds.iter_mut().filter_map(|round| round.throughput.as_mut()) {
            found.fps = Some(4e5);
        }
        bridged.set(bridge.size, 1.1e6, &bridge);
        let (text, beside) = (bridged.tables(), bridged.notes().join("\n"));
        assert!(text.contains("af_xdp  linux-bridge     64   2.50  1.25  2.75\n"), "{text}");
        for found in bridge.rounds.iter_mut().filter_map(|round| round.throughput.as_mut()) {
            found.fps = Some(7e5);
        }
        bridged.set(bridge.size, 1.1e6, &bridge);
        assert!(bridged.tables().contains("0.71  1.57  no difference shown"));
        assert!(beside.contains("3.56 times"), "{beside}");
        assert!(notes.contains("1100000 (64)") && notes.contains("- recovery:"), "{notes}");
    }

    #[test]
    fn json_and_page_have_what_was_found() {
        let report = testing::report("forward", figures(), Vec::new());
        let names = testing::names(&report);
        for name in
            ["cells.throughput.fps", "cells.rounds.latency.own.p99_us", "deviations", "command"]
        {
            assert!(names.split(' ').any(|known| known == name), "{name}: {names}");
        }
        let page = report.html().unwrap();
        assert!(page.matches("<svg").count() == 3 && page.contains("551.58"), "{page}");
    }
}
