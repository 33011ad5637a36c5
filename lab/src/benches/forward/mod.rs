//! How fast frames are forwarded, by the book: `ringway-lab bench forward` (RFC 2544, 9004, 9971).
//!
//! Each cell is a road and a frame size, on a topology of its own. Before a size is measured, the
//! sender is: looped to itself it has a ceiling and an error of its own.

mod folder;
mod latency;
mod losses;
mod measure;
mod outside;
mod plan;
mod port;
mod program;
mod recovery;
mod report;
mod road;
mod site;
mod size;
mod tune;

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::value_parser;
use serde_json::{Value, json};

pub(crate) use self::latency::measurable;
pub use self::report::ForwardFigures;
pub use self::road::Road;

use crate::harness::cpu::Cpus;
use crate::harness::named_enum::named;
use crate::harness::{self, Case, Harness, Scenario};
use crate::{Error, Result, programs};
use folder::Folder;
use measure::{Minute, Rate, Record, Throughput};
use plan::Plan;
use port::Port;
use report::{CellFigures, Point, Round};
use site::{Between, Shape, Site, Storage};
use size::Size;
use tune::{Knob, Setting};

named! {
    /// A test of RFC 2544.
    pub enum Test {
        Tune = "tune",
        Throughput = "throughput",
        Loss = "loss",
        Latency = "latency",
        BackToBack = "back-to-back",
        Recovery = "recovery",
        Soak = "soak",
    }
}

/// Frame sizes of RFC 2544, section 9.1, checksum included.
const SIZES: [u16; 7] = [64, 128, 256, 512, 1024, 1280, 1518];
const USUAL_SIZES: [u16; 3] = [64, 256, 1280];

/// Frames a second, loss, latency, bursts and recovery of what forwards, by RFC 2544.
#[derive(Debug, clap::Args)]
#[command(after_help = format!("Needs root. Runs in network namespaces of its own. All roads and sizes are measured five times in turn, \
    in less than two minutes for a road and size: a quarter of an hour for three of each. \
    The folder has every trial as it is made (trials.csv), and the report as text, JSON and a page, written anew after each \
    test: an interrupt keeps what was measured.\n\n{}\n\nExamples:\n  \
    ringway-lab bench forward\n  ringway-lab bench forward --road linux-bridge,af_xdp --size 64 --folder before\n  \
    ringway-lab bench forward --rfc --all-sizes --only throughput\n  ringway-lab bench forward --interfaces eth1,eth2", programs::PEERS_HELP))]
pub struct Forward {
    /// Only these.
    #[arg(long, value_name = "ROAD", value_delimiter = ',')]
    pub road: Vec<Road>,
    /// Two interfaces of this machine in the place of a road: what joins them outside is measured. It
    /// has to bridge.
    #[arg(long, value_name = "A,B", value_delimiter = ',', conflicts_with = "road")]
    pub interfaces: Vec<String>,
    /// Frame sizes, with the checksum's four bytes [default: 64,256,1280].
    #[arg(long, value_name = "BYTES", value_delimiter = ',',
        value_parser = value_parser!(u16).range(64..=1518))]
    pub size: Vec<u16>,
    /// All sizes of RFC 2544: 64, 128, 256, 512, 1024, 1280, 1518.
    #[arg(long, conflicts_with = "size")]
    pub all_sizes: bool,
    /// A mix of sizes, too: seven frames of 64, four of 512, one of 1518 bytes (RFC 6985: aadaadaadadg).
    #[arg(long)]
    pub imix: bool,
    /// IPv6, not IPv4 (RFC 5180); frames of 64 bytes are of 84.
    #[arg(long)]
    pub ipv6: bool,
    /// Also send for so long at 80 % of the throughput, as in 30m: loss and memory by the minute.
    #[arg(long, value_name = "DURATION", value_parser = soak)]
    pub soak: Option<Duration>,
    /// First find the smallest rings, bursts, pool and busy polling with which the engine's ports, on
    /// roads af_xdp and dpdk, are as fast as with any, write them for `ringway engine --config`, and
    /// measure with them: a quarter of an hour for a road and size.
    #[arg(long, conflicts_with = "interfaces")]
    pub tune: bool,
    /// Only these tests, with commas between them; all but throughput need it, and measure it first.
    #[arg(long, value_name = "TEST", value_delimiter = ',')]
    pub only: Vec<Test>,
    /// Trials of seconds; the report lists what that leaves out. This is so unless --rfc is given.
    #[arg(long, conflicts_with = "rfc")]
    pub quick: bool,
    /// Trials of minutes, as RFC 2544 has them: hours for a road and size.
    #[arg(long)]
    pub rfc: bool,
    /// Frames one way alone, not both at once.
    #[arg(long)]
    pub one_way: bool,
    /// Where the results go; it must not be there yet [default: forward-DATE].
    #[arg(long, value_name = "DIR")]
    pub folder: Option<PathBuf>,
    /// The `ringway` binary to measure.
    #[arg(skip)]
    pub ringway: PathBuf,
}

fn soak(text: &str) -> Result<Duration, String> {
    ringway_config::duration(text, Duration::from_secs(1)..=Duration::from_secs(30 * 86_400))
}

/// A road and a frame size.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Cell {
    road: Road,
    size: Size,
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{}, {}", self.road, self.size))
    }
}

impl Case for Cell {
    fn key(&self) -> Value {
        json!({ "road": self.road, "size": self.size })
    }
}

impl Forward {
    /// Whether a road's program is Ringway.
    pub fn needs_ringway(&self) -> bool {
        self.roads().iter().any(|road| road.arguments().is_some())
    }

    fn roads(&self) -> Vec<Road> {
        match self.interfaces.is_empty() {
            true => harness::chosen(&Road::own(), &self.road),
            false => vec![Road::Outside],
        }
    }

    /// None: the road's own.
    fn ports(&self) -> Result<Option<[Port; 2]>> {
        (!self.interfaces.is_empty()).then(|| outside::ports(&self.interfaces)).transpose()
    }

    fn plan(&self) -> &'static Plan {
        if self.rfc { &Plan::RFC } else { &Plan::QUICK }
    }

    /// That a test of a road takes in a round, about.
    fn seconds(&self, road: Road, test: Test) -> f64 {
        match test {
            Test::Tune => {
                let searches = tune::settings(road) as f64 * f64::from(self.plan().rounds);
                searches * self.plan().seconds(Test::Throughput)
            }
            Test::Soak => self.soak.unwrap_or_default().as_secs_f64(),
            Test::Recovery if road.has_program() => {
                self.plan().seconds(test) + self.plan().killed.as_secs_f64()
            }
            _ => self.plan().seconds(test),
        }
    }

    fn tests(&self) -> Vec<Test> {
        let asked = |test: &Test| match test {
            Test::Tune => self.tune,
            Test::Throughput => true,
            Test::Soak => self.soak.is_some(),
            _ => self.only.is_empty() || self.only.contains(test),
        };
        Test::ALL.into_iter().filter(asked).collect()
    }

    /// Those of a round: settings come first, and a soak last.
    fn tests_of(&self, round: u32) -> impl Iterator<Item = Test> {
        let last = self.plan().rounds;
        self.tests().into_iter().filter(move |test| match test {
            Test::Tune => round == 1,
            Test::Soak => round == last,
            _ => true,
        })
    }

    fn cell_seconds(&self, cell: &Cell) -> f64 {
        let tests = (1..=self.plan().rounds).flat_map(|round| self.tests_of(round));
        tests.map(|test| self.seconds(cell.road, test)).sum()
    }

    /// Size by size, so that a size's calibration is near in time.
    fn cells(&self) -> Vec<Cell> {
        let sizes = match (self.all_sizes, self.size.is_empty()) {
            (true, _) => SIZES.to_vec(),
            (false, true) if self.imix => Vec::new(),
            (false, true) => USUAL_SIZES.to_vec(),
            (false, false) => self.size.clone(),
        };
        let mut sizes: Vec<Size> = sizes.into_iter().map(Size::Bytes).collect();
        sizes.extend(self.imix.then_some(Size::Imix));
        let roads = self.roads();
        sizes.iter().flat_map(|&size| roads.iter().map(move |&road| Cell { road, size })).collect()
    }
}

impl Scenario for Forward {
    const NAME: &'static str = "forward";
    type Figures = ForwardFigures;

    fn check(&self) -> Result<()> {
        if self.road.contains(&Road::Outside) {
            return Err(Error::Unavailable("road outside needs `--interfaces A,B` alone".into()));
        }
        if self.only.contains(&Test::Soak) && self.soak.is_none() {
            return Err(Error::Unavailable("a soak needs its length; write `--soak 30m`".into()));
        }
        if self.only.contains(&Test::Tune) && !self.tune {
            return Err(Error::Unavailable("`--only tune` needs `--tune`".into()));
        }
        if self.tune && self.roads().iter().all(|road| Knob::of(*road).is_empty()) {
            return Err(Error::Unavailable(
                "none of these roads can be tuned; write `--tune --road af_xdp`".into(),
            ));
        }
        self.ports().map(drop)
    }

    fn measure(&self, harness: &mut Harness<'_>) -> Result<ForwardFigures> {
        let (plan, mut cells) = (self.plan(), self.cells());
        let mut figures = ForwardFigures::new(plan, !self.one_way, self.ipv6);
        let mut folder = Folder::new(self.folder.as_deref(), &harness.machine.date)?;
        harness.say(format!("results in {}", folder.path().display()));
        let mut bench = Bench {
            forward: self,
            plan,
            ports: self.ports()?,
            cpus: Cpus::here()?,
            ceilings: BTreeMap::new(),
            left: TimeLeft::new(cells.iter().map(|cell| self.cell_seconds(cell)).sum()),
        };
        harness.rounds(plan.rounds, &mut cells, |harness, round, cell| {
            bench.cell((*cell, round), harness, &mut figures, &mut folder)
        });
        folder.write(&harness.report(Self::NAME, figures.clone()))?;
        Ok(figures)
    }
}

struct Bench<'f> {
    forward: &'f Forward,
    plan: &'static Plan,
    /// The machine's, where it is outside.
    ports: Option<[Port; 2]>,
    cpus: Cpus,
    /// Of the sender, by frame size.
    ceilings: BTreeMap<String, f64>,
    left: TimeLeft,
}

impl Bench<'_> {
    fn cell(
        &mut self,
        (cell, round): (Cell, u32),
        harness: &mut Harness<'_>,
        all: &mut ForwardFigures,
        folder: &mut Folder,
    ) -> Result<()> {
        let (plan, Cell { road, size }) = (self.plan, cell);
        let ways = if self.forward.one_way { 1 } else { 2 };
        let (ipv6, Plan { stragglers, settle, .. }) = (self.forward.ipv6, *plan);
        let shape = Shape { size, ipv6, ways, stragglers, settle };
        let (mut storage, mut looped) = (Storage::uninit(), Storage::uninit());
        let ringway = &self.forward.ringway;
        let mut looped = Site::new(&mut looped, Between::Nothing, shape, self.cpus, ringway)?;
        let ceiling = match self.ceilings.get(&size.to_string()) {
            Some(ceiling) => *ceiling,
            None => {
                let ceiling = looped.most(Duration::from_secs(1))?.trial.load;
                harness.say(format!("{size}: the sender has a ceiling of {ceiling:.0} frames/s"));
                self.ceilings.insert(size.to_string(), ceiling);
                ceiling
            }
        };
        let known = all.cell(road, size).cloned();
        let mut figures = known.unwrap_or_else(|| CellFigures::new(road, size, ipv6));
        if self.forward.tests_of(round).any(|test| test == Test::Tune) && !Knob::of(road).is_empty()
        {
            self.tune((&mut figures, shape, ceiling), harness, all, folder)?;
        }
        let between = Between::Road(road, figures.tuned);
        let between = self.ports.as_ref().map_or(between, Between::Outside);
        let mut site = Site::new(&mut storage, between, shape, self.cpus, ringway)?;
        figures.rounds.push(Round::default());
        for test in self.forward.tests_of(round) {
            let mut record = |seen: &site::Observed| folder.trial((road, size, round), test, seen);
            let Some(found) = figures.rounds.last_mut() else { break };
            let proved = found.throughput.and_then(|found| found.fps);
            let needed = || {
                proved.ok_or_else(|| Error::NoFigure {
                    who: cell.to_string(),
                    what: "it forwards nothing without loss".into(),
                })
            };
            let record = &mut record;
            let said = match test {
                Test::Tune => continue,
                Test::Throughput => {
                    let throughput = measure::throughput(&mut site, plan, ceiling, record)?;
                    found.throughput = Some(throughput);
                    let doubt = match throughput.generator_fell_short {
                        true => ", the sender fell short",
                        false => "",
                    };
                    format!("{:.0} frames/s{doubt}", throughput.fps.unwrap_or(0.0))
                }
                Test::Loss => {
                    found.loss = measure::loss(&mut site, plan, ceiling, record)?;
                    let most = found.loss.first().map_or(0.0, |at| at.loss_ratio);
                    format!("{:.2} % at the ceiling", most * 100.0)
                }
                Test::Latency => {
                    found.latency =
                        measure::latency(&mut site, &mut looped, plan, needed()?, record)?;
                    let half = found.latency.iter().find(|at| at.percent == 50);
                    format!("p99 {:.0} us at half of it", half.map_or(0.0, |at| at.device.p99_us))
                }
                Test::BackToBack => {
                    let burst = measure::back_to_back(&mut site, plan, (ceiling, proved), record)?;
                    found.back_to_back = Some(burst);
                    format!("{:.0} frames", burst.frames.unwrap_or(0.0))
                }
                Test::Recovery => {
                    let loads = (ceiling, needed()?);
                    let recovery = recovery::recovery(&mut site, plan, loads, record)?;
                    let said = match recovery.overload_ms {
                        Some(ms) if ms >= recovery.limit_ms => "losses go on after overload".into(),
                        Some(ms) => format!("{ms:.1} ms after overload"),
                        None => "no overload: it lost 1 % at most".into(),
                    };
                    found.recovery = Some(recovery);
                    said
                }
                Test::Soak => {
                    let time = self.forward.soak.unwrap_or_default();
                    let load = measure::SOAK * needed()?;
                    measure::soak(&mut site, (load, time), |minute, seen| {
                        folder.trial((road, size, round), test, seen)?;
                        let left = self.left.after(minute.seconds);
                        let Minute { number, lost, .. } = minute;
                        harness.say(format!("{cell}  minute {number}: {lost} lost  {left} left"));
                        figures.soak.push(minute);
                        all.set(size, ceiling, &figures);
                        folder.write(&harness.report(Forward::NAME, all.clone()))
                    })?;
                    let lost: u64 = figures.soak.iter().map(|minute| minute.lost).sum();
                    format!("{lost} frames lost")
                }
            };
            // A soak has said so by the minute.
            let took = if test == Test::Soak { 0.0 } else { self.forward.seconds(road, test) };
            let left = self.left.after(took);
            harness.say(format!("{cell:<22} {test:<13} {said:<40} {left} left"));
            all.set(size, ceiling, &figures);
            folder.write(&harness.report(Forward::NAME, all.clone()))?;
        }
        Ok(())
    }
}

/// A cell's figures, its trials' shape, and the sender's ceiling.
type Tuning<'f> = (&'f mut CellFigures, Shape, f64);

impl Bench<'_> {
    /// Sweeps what the engine's ports can be set to.
    fn tune(
        &mut self,
        (figures, shape, ceiling): Tuning<'_>,
        harness: &mut Harness<'_>,
        all: &mut ForwardFigures,
        folder: &mut Folder,
    ) -> Result<()> {
        let (road, size, rounds) = (figures.road, figures.size, self.plan.rounds);
        let found = tune::tune(road, self.plan.throughput.width, |knob, settings| {
            let before = figures.curve.len();
            let mut searched = vec![Vec::new(); settings.len()];
            let places = 0..settings.len();
            for (round, place) in
                (1..=rounds).flat_map(|round| places.clone().map(move |at| (round, at)))
            {
                let setting = settings[place];
                let found = self.search((road, setting), (shape, ceiling), &mut |seen| {
                    folder.trial((road, size, round), Test::Tune, seen)
                })?;
                searched[place].push(found);
                figures.curve.truncate(before);
                figures.curve.extend(points(knob, settings, &searched));
                all.set(size, ceiling, figures);
                folder.curve(figures)?;
                folder.write(&harness.report(Forward::NAME, all.clone()))?;
                let fps = found.fps.unwrap_or(0.0);
                let left = self.left.after(self.forward.seconds(road, Test::Throughput));
                harness.say(format!(
                    "{road}, {size}  search {round}/{rounds}  {setting:<58} {fps:>8.0} frames/s  {left} left"
                ));
            }
            Ok(figures.curve[before..].iter().map(|point| point.throughput.fps).collect())
        })?;
        figures.tuned = Some(found);
        folder.curve(figures)?;
        let file = folder.path().join(format!("engine-{road}-{size}.toml"));
        harness.say(format!("{road}, {size}  tuned: {found}, in {}", file.display()));
        Ok(())
    }

    /// On a topology of its own.
    fn search(
        &self,
        (road, setting): (Road, Setting),
        (shape, ceiling): (Shape, f64),
        record: Record<'_>,
    ) -> Result<Throughput> {
        let mut storage = Storage::uninit();
        let between = Between::Road(road, Some(setting));
        let mut site = Site::new(&mut storage, between, shape, self.cpus, &self.forward.ringway)?;
        measure::throughput(&mut site, self.plan, ceiling, record)
    }
}

/// Of settings that were searched.
fn points<'s>(
    knob: Knob,
    settings: &'s [Setting],
    searched: &'s [Vec<Throughput>],
) -> impl Iterator<Item = Point> + 's {
    settings.iter().zip(searched).filter_map(move |(&setting, found)| {
        Some(Point { knob, setting, throughput: Rate::of(found)? })
    })
}

/// So many seconds of what was expected count, so that the first tests are not all that is known.
const PRIOR_S: f64 = 60.0;

/// How long the rest takes, as what was expected to take so long took until now.
struct TimeLeft {
    began: Instant,
    expected_s: f64,
    done_s: f64,
}

impl TimeLeft {
    fn new(expected_s: f64) -> Self {
        Self { began: Instant::now(), expected_s, done_s: 0.0 }
    }

    /// What was expected to take so long is done.
    fn after(&mut self, seconds: f64) -> String {
        self.done_s += seconds;
        let pace = (self.began.elapsed().as_secs_f64() + PRIOR_S) / (self.done_s + PRIOR_S);
        let left = (self.expected_s - self.done_s).max(0.0) * pace;
        match left {
            left if left < 90.0 => format!("about {left:.0} s"),
            left => format!("about {:.0} min", left / 60.0),
        }
    }
}
