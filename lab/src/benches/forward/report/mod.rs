//! What was found, as tables, JSON and a page.

mod notes;
mod ratio;
mod tables;

use std::collections::BTreeMap;

use serde::Serialize;

use self::ratio::{Compared, Ratio};
use super::Road;
use super::measure::{BackToBack, LOADS, LatencyAt, LossAt, Minute, Rate, Throughput};
use super::plan::Plan;
use super::recovery::Recovery;
use super::size::Size;
use super::tune::{Knob, Setting};
use crate::harness::Figures;
use crate::harness::median::middle;
use crate::harness::plot::{Bar, Line, Page};
use crate::harness::table::or_dash;

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

impl Round {
    /// Frames a second that come through, at each load that is too much.
    fn through(&self) -> impl Iterator<Item = f64> + Clone + '_ {
        self.loss.iter().filter_map(|at| at.through_fps)
    }
}

/// A setting, and how fast it is.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Point {
    pub knob: Knob,
    #[serde(flatten)]
    pub setting: Setting,
    pub throughput: Rate,
}

/// What was found, the least and the greatest of it.
#[derive(Clone, Copy)]
struct Spread {
    middle: f64,
    least: f64,
    most: f64,
}

impl Spread {
    /// None of none.
    fn of(found: impl Iterator<Item = f64> + Clone) -> Option<Self> {
        let least = found.clone().reduce(f64::min)?;
        let most = found.clone().reduce(f64::max)?;
        Some(Self { middle: middle(found)?, least, most })
    }
}

/// What is lost at a load: the middle one of all rounds, each by itself.
struct Lost {
    load: f64,
    /// Frames a second.
    sent: f64,
    percent: f64,
}

const LEDE: &str = "Frames through a device, between a tester's two interfaces. What the columns \
    are, and what the figures \
    do not say, is below the plots.";

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
            let (lower, upper) = (or_dash(lower, 0), or_dash(upper, 0));
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

    /// Frames; and whether no round found a longest burst.
    fn burst(&self) -> Option<(f64, bool)> {
        let found = || self.rounds.iter().filter_map(|round| round.back_to_back);
        let frames = middle(found().map(|one| one.frames.unwrap_or(0.0)))?;
        Some((frames, found().all(|one| one.unlimited)))
    }

    /// Frames a second that come through in overload.
    fn in_overload(&self) -> Option<f64> {
        middle(self.rounds.iter().filter_map(|round| middle(round.through())))
    }

    fn recovered(&self) -> impl Iterator<Item = &Recovery> + Clone {
        self.rounds.iter().filter_map(|round| round.recovery.as_ref())
    }

    fn has_recovered(&self) -> bool {
        self.recovered().next().is_some()
    }

    fn overload_fps(&self) -> Option<f64> {
        middle(self.recovered().map(|found| found.overload_fps))
    }

    /// Trials that were overloads, of how many.
    fn overloads(&self) -> (usize, usize) {
        let overloads = self.recovered().map(|found| found.overload_trials_ms.len()).sum();
        (overloads, self.recovered().map(|found| found.overload_trials as usize).sum())
    }

    /// Milliseconds of losses after an overload, and those that say no more than that it took longer.
    fn after_overload(&self) -> Option<(Spread, f64)> {
        let spread = Spread::of(self.recovered().filter_map(|found| found.overload_ms))?;
        Some((spread, self.recovered().next()?.limit_ms))
    }

    /// Milliseconds without frames.
    fn killed(&self) -> Option<Spread> {
        Spread::of(self.recovered().filter_map(|found| found.killed_ms))
    }

    fn killed_lost(&self) -> Option<f64> {
        middle(self.recovered().filter_map(|found| found.killed_lost).map(|lost| lost as f64))
    }

    /// At each load the middle of all rounds, and p99 of all.
    fn latency(&self) -> impl Iterator<Item = (LatencyAt, Spread)> + '_ {
        LOADS.into_iter().filter_map(|percent| {
            let all = self.rounds.iter().flat_map(|round| &round.latency);
            let all = all.filter(move |at| at.percent == percent);
            let p99 = Spread::of(all.clone().map(|at| at.device.p99_us))?;
            Some((LatencyAt::middle(all)?, p99))
        })
    }

    /// At each load, the same of all rounds.
    fn lost(&self) -> Vec<Lost> {
        let mut at: BTreeMap<u64, Vec<&LossAt>> = BTreeMap::new();
        for found in self.rounds.iter().flat_map(|round| &round.loss) {
            at.entry(found.load as u64).or_default().push(found);
        }
        let of = |found: &[&LossAt]| {
            let load = found.first()?.load;
            let sent = found.iter().map(|at| at.load * (1.0 - at.unsent_ratio));
            let percent = middle(found.iter().map(|at| at.loss_ratio * 100.0))?;
            Some(Lost { load, sent: middle(sent)?, percent })
        };
        at.values().filter_map(|found| of(found)).collect()
    }

    /// Of frames with their checksums.
    fn mbit(&self) -> Option<f64> {
        self.fps().map(|fps| fps * self.mean_bytes * 8.0 / 1e6)
    }
}

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
        let known = &*self;
        let ratios = |of| known.cells.iter().filter_map(move |cell| known.ratio(of, cell));
        self.ratios = Compared::ALL.into_iter().flat_map(ratios).collect();
    }

    fn ratio(&self, of: Compared, cell: &CellFigures) -> Option<Ratio> {
        Ratio::new(of, cell, self.cell(cell.road.kernels()?, cell.size)?)
    }

    fn loss_lines(&self, size: Size) -> Vec<Line> {
        let cells = self.cells.iter().filter(|cell| cell.size == size);
        let line = |cell: &CellFigures| {
            let mut points: Vec<_> = cell.lost().iter().map(|at| (at.sent, at.percent)).collect();
            points.sort_by(|a, b| a.0.total_cmp(&b.0));
            Line { label: cell.road.to_string(), points }
        };
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
        let mut text = String::new();
        self.add_tables(&mut text);
        text
    }

    fn notes(&self) -> Vec<String> {
        self.all_notes()
    }

    fn is_virtual(&self) -> bool {
        self.cells.iter().all(|cell| cell.road != Road::Outside)
    }

    fn page(&self) -> Option<Page> {
        let mut page = Page::new("Forwarding", LEDE);
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
        self.add_tables(&mut page);
        for Ceiling { size, .. } in &self.ceilings {
            let loss = self.loss_lines(*size);
            if !loss.is_empty() {
                page.lines(
                    &format!("Frame loss, {size}"),
                    ("frames/s sent", "% lost of them"),
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
        Some(page)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::benches::forward::latency::Percentiles;
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
                through_fps: Some(9.9e5),
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
                overload_fps: 1.1e6,
                overload_ms: Some(1.25),
                overload_trials_ms: vec![1.25],
                overload_trials: 2,
                limit_ms: 400.0,
                killed_ms: Some(9.0),
                killed_lost: Some(7),
            }),
        };
        let quick = Throughput { upper_loss_ratio: Some(0.25), ..throughput(1.1e6) };
        let quick = Round { throughput: Some(quick), ..round.clone() };
        let slow = Throughput { sender_was_kept: true, ..throughput(5e5) };
        let mut slow = Round { throughput: Some(slow), ..round.clone() };
        slow.latency[0].device.p99_us = 90.0;
        slow.loss[0].through_fps = Some(5e5);
        if let Some(recovery) = &mut slow.recovery {
            recovery.overload_ms = Some(recovery.limit_ms);
        }
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
        for words in [
            "1000000  500000  1122000        25.000     512       990000  > 300",
            "1100000     3 of 6  1.2   1.2  > 400            9     9   9            7",
            "12.0 (2.0)",
            "not measurable (20.0)",
            "0.200",
            "20.0  90.0",
            "10.00     -     -",
        ] {
            assert!(text.contains(words), "no {words} in {text}");
        }
        for words in [
            "64: in rounds 1, 2 the sender fell short at",
            "64: in round 3 the machine kept the sender",
            "in rounds 1, 2, 3 the machine kept",
            "in 6 of all rounds' 27 trials",
            "loads are 2 % apart",
            "1100000 (64)",
            "- recovery:",
        ] {
            assert!(notes.contains(words), "no {words} in {notes}");
        }
        assert!(!text.contains("ratio"), "nothing to compare: {text}");
        assert!(!notes.contains("Loongson"), "nothing to compare: {notes}");
        let mut bridged = figures();
        let mut with_bridge = |fps: f64| {
            let mut bridge = CellFigures { road: Road::LinuxBridge, ..bridged.cells[0].clone() };
            let throughputs = bridge.rounds.iter_mut().flat_map(|round| &mut round.throughput);
            throughputs.for_each(|found| found.fps = Some(fps));
            bridged.set(bridge.size, 1.1e6, &bridge);
            (bridged.tables(), bridged.notes().join("\n"))
        };
        let (text, beside) = with_bridge(4e5);
        for words in [
            "throughput  af_xdp  linux-bridge     64   2.50  1.25  2.75\n",
            "overload    af_xdp  linux-bridge     64   1.00  1.00  1.00",
        ] {
            assert!(text.contains(words), "no {words} in {text}");
        }
        assert!(beside.contains("3.56 times"), "{beside}");
        assert!(with_bridge(7e5).0.contains("0.71  1.57  no difference shown"));
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
        assert!(page.matches("<svg").count() == 3 && page.contains("<p>recovery, after"), "{page}");
    }
}
