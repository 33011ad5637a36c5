//! A flood of SYNs, as fast as it can be, then beside good traffic.

use std::fmt;
use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use serde::Serialize;
use serde_json::{Value, json};

use super::super::Shield;
use super::super::scenarios::TARGET;
use super::Answerer;
use super::programs::{Programs, Storage};
use super::scene::{Outcome, Scene};
use crate::demo::load::{Load, Plan};
use crate::harness::cpu::{Cpus, pin};
use crate::harness::median::{median, middle};
use crate::harness::{Case, Harness, chosen};
use crate::{Error, Result};

/// Of the answerer's own rate, beside good traffic: at a higher one a queue overflows, whoever answers.
const FLOOD_PERCENT: u64 = 70;
const UNPACED: Duration = Duration::from_secs(1);
/// The flood is under way when new connections begin.
const BEFORE: Duration = Duration::from_millis(200);

/// A flood upon one answerer.
#[derive(Clone, Debug, Serialize)]
pub struct Flooded {
    pub answerer: Answerer,
    /// As fast as it can be: answers a second, and those of the bare program just before. Medians.
    pub answered_pps: u64,
    pub bare_answered_pps: u64,
    pub of_bare: f64,
    pub of_bare_by_round: Vec<f64>,
    /// The same time: SYNs at the backend, and flows of the gateway.
    pub backend_syns: u64,
    pub flows_opened: Option<u64>,
    /// Beside good traffic.
    pub flood_pps: u64,
    pub flood_wanted_pps: u64,
    pub good: Good,
    pub good_in_peace: Good,
}

/// Requests on connections that stay, and new connections with a request each.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Good {
    pub established_requests: u64,
    pub established_failed: u64,
    pub new_connections: u64,
    pub new_failed: u64,
    /// From connecting to the answer.
    pub new_p99_ns: Option<u64>,
}

struct FloodUpon(Answerer);

impl Case for FloodUpon {
    fn key(&self) -> Value {
        json!({ "answerer": self.0 })
    }
}

impl fmt::Display for FloodUpon {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SYNs upon {}", self.0)
    }
}

pub(super) fn measure(bench: &Shield, harness: &mut Harness<'_>) -> Result<Vec<Flooded>> {
    thread::scope(|scope| {
        let thread = scope.spawn(|| {
            // The first processor is the flood's.
            pin(Cpus::here()?.measured)?;
            let mut storage = Storage::uninit();
            let programs = Programs::load(&mut storage)?;
            let mut bare = Scene::new(Answerer::BareAnswer, &bench.ringway, &programs)?;
            let mut rows = Vec::new();
            let wanted = chosen(&Answerer::ALL, &bench.answerer);
            let mut cases: Vec<FloodUpon> = wanted.into_iter().map(FloodUpon).collect();
            harness.each(&mut cases, |harness, case| {
                let row = if case.0 == Answerer::BareAnswer {
                    upon(case.0, &bare, &bare, bench)?
                } else {
                    let mut scene = Scene::new(case.0, &bench.ringway, &programs)?;
                    let row = upon(case.0, &scene, &bare, bench)?;
                    scene.take_down()?;
                    row
                };
                harness.say(format!(
                    "{case}: {} answers/s, {:.2} of bare-answer; {:?}",
                    row.answered_pps, row.of_bare, row.good
                ));
                rows.push(row);
                Ok(())
            });
            bare.take_down()?;
            Ok(rows)
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

fn upon(
    answerer: Answerer,
    scene: &Scene<'_>,
    bare: &Scene<'_>,
    bench: &Shield,
) -> Result<Flooded> {
    let time = Duration::from_secs(bench.repeated.seconds);
    let good_in_peace = Established::begin(scene)?.end(time)?;
    let (mut bares, mut own) = (Vec::new(), Vec::new());
    for _ in 0..bench.repeated.rounds.count {
        bares.push(unpaced(bare)?);
        own.push(unpaced(scene)?);
    }
    let rate =
        |all: &[Outcome]| -> Vec<u64> { all.iter().map(|one| one.answered_pps as u64).collect() };
    let of_bare =
        own.iter().zip(&bares).map(|(own, bare)| own.answered_pps / bare.answered_pps.max(1.0));
    let of_bare: Vec<f64> = of_bare.collect();
    let bare_answered_pps = median(&rate(&bares));
    let answered_pps = median(&rate(&own));
    let flood_wanted_pps = answered_pps * FLOOD_PERCENT / 100;
    let (outcome, good) = beside(scene, flood_wanted_pps, time)?;
    Ok(Flooded {
        answerer,
        answered_pps,
        bare_answered_pps,
        of_bare: middle(of_bare.iter().copied()).unwrap_or(0.0),
        of_bare_by_round: of_bare,
        backend_syns: own.iter().map(|one| one.syns).sum(),
        flows_opened: own.iter().map(|one| one.flows).sum(),
        flood_pps: outcome.arrived_pps as u64,
        flood_wanted_pps,
        good,
        good_in_peace,
    })
}

fn unpaced(scene: &Scene<'_>) -> Result<Outcome> {
    scene.flood(None, |elapsed| elapsed >= UNPACED)
}

/// A flood at this rate, for so long, beside good traffic.
fn beside(scene: &Scene<'_>, rate: u64, time: Duration) -> Result<(Outcome, Good)> {
    let established = Established::begin(scene)?;
    let all = BEFORE + time;
    thread::scope(|scope| {
        let flood = scope.spawn(|| scene.flood(Some(rate), |elapsed| elapsed >= all));
        thread::sleep(BEFORE);
        let good = established.end(time);
        let flood = flood.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        Ok::<_, Error>((flood?, good?))
    })
}

/// Connections that are there when a flood begins.
struct Established<'s> {
    load: Load,
    scene: &'s Scene<'s>,
}

impl<'s> Established<'s> {
    fn begin(scene: &'s Scene<'s>) -> Result<Self> {
        let plan = Plan { kept_alive: 8, new_per_s: 0, ..Plan::new(web()) };
        let load = Load::start(scene.client(), plan)?;
        ringway_testnet::wait_until("answers on connections that stay", BEFORE * 50, || {
            load.answers() > 100
        })?;
        Ok(Self { load, scene })
    }

    /// Opens others for so long.
    fn end(self, time: Duration) -> Result<Good> {
        let plan = Plan { kept_alive: 0, new_per_s: 50, ..Plan::new(web()) };
        let opened = Load::start(self.scene.client(), plan)?;
        thread::sleep(time);
        let (new, kept) = (opened.stop()?, self.load.stop()?);
        Ok(Good {
            established_requests: kept.requests(),
            established_failed: kept.failures.len() as u64,
            new_connections: new.requests(),
            new_failed: new.failures.len() as u64,
            new_p99_ns: (new.answers() > 0).then(|| new.latency.value_at_quantile(0.99)),
        })
    }
}

fn web() -> SocketAddr {
    (TARGET.address, TARGET.tcp).into()
}
