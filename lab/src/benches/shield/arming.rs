//! From the begin of an attack until its service is armed, as the packet path sees it.

use std::net::UdpSocket;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::Duration;

use serde::Serialize;

use super::Defence;
use super::begin::{Begin, await_calm};
use super::flood::Attack;
use super::scenarios::{Scene, TARGET};
use crate::Result;
use crate::harness::Harness;
use crate::harness::cpu::{Cpus, pin};
use crate::harness::median::{median, percentile};

/// What the service gets in peace, and ten times as much.
const USUAL: u64 = 2_000;
const ATTACK: u64 = 10 * USUAL;
const THRESHOLD: &str = "5kpps";
/// Datagrams in peace come so often.
const STEP: Duration = Duration::from_millis(10);
/// Nobody waits longer.
const PATIENCE: Duration = Duration::from_secs(10);
/// Attacks do not begin in step with the daemon's samples.
const SHIFT: Duration = Duration::from_millis(37);
const SHIFTS: u32 = 7;

/// Of attacks in a row.
#[derive(Debug, Serialize)]
pub struct Arming {
    pub attacks: u64,
    pub not_armed: u64,
    pub p50_ms: u64,
    pub p99_ms: Option<u64>,
    pub max_ms: Option<u64>,
    pub armed_after_ms: Vec<u64>,
}

/// So many attacks upon a service that is used, each after the end of the one before.
pub(super) fn measure(ringway: &Path, attacks: u32, harness: &mut Harness<'_>) -> Result<Arming> {
    let shield =
        format!("[shield]\n[shield.mitigation]\npackets = \"{THRESHOLD}\"\nfor = \"1s\"\n");
    let mut scene = Scene::with(Defence::Ringway, ringway, &shield)?;
    let peace = AtomicBool::new(true);
    let (mut after, mut not_armed) = (Vec::new(), 0);
    thread::scope(|scope| {
        let usual = scope.spawn(|| scene.client().run(|| usual(&peace))?);
        let attacked = harness.repeat(attacks, |harness, round| {
            thread::sleep(SHIFT * (round % SHIFTS));
            match attack(&scene)? {
                Some(time) => after.push(time.as_millis() as u64),
                None => not_armed += 1,
            }
            harness.say(format_args!("armed after {:?} ms", after.last()));
            Ok(())
        });
        peace.store(false, Relaxed);
        let usual = usual.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        attacked.and(usual)
    })?;
    scene.take_down()?;
    let mut sorted: Vec<(u64, u64)> = after.iter().map(|ms| (*ms, 1)).collect();
    sorted.sort_unstable();
    Ok(Arming {
        attacks: attacks.into(),
        not_armed,
        p50_ms: median(&after),
        p99_ms: percentile(&sorted, 99),
        max_ms: after.iter().copied().max(),
        armed_after_ms: after,
    })
}

/// One attack, and the end of its mitigation.
fn attack(scene: &Scene) -> Result<Option<Duration>> {
    let (begin, stop) = (Begin::default(), AtomicBool::new(false));
    let armed = thread::scope(|scope| {
        let flood = scope.spawn(|| {
            scene.flood(Attack::OneSource, Some(ATTACK), |elapsed| {
                begin.goes_on(elapsed);
                stop.load(Relaxed) || elapsed > PATIENCE
            })
        });
        let armed = begin.armed_after(scene.node(), PATIENCE);
        stop.store(true, Relaxed);
        let flood = flood.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        flood.and(armed)
    })?;
    await_calm(scene.node())?;
    Ok(armed)
}

/// Datagrams at the usual rate.
fn usual(peace: &AtomicBool) -> Result<()> {
    pin(Cpus::here()?.measured)?;
    let failed = |source| crate::Error::Socket { what: "datagrams in peace", source };
    let socket = UdpSocket::bind("0.0.0.0:0").map_err(failed)?;
    socket.connect((TARGET.address, TARGET.udp)).map_err(failed)?;
    while peace.load(Relaxed) {
        // The answers of a port that nobody has are errors of the next.
        (0..USUAL * STEP.as_millis() as u64 / 1000).for_each(|_| _ = socket.send(b"usual"));
        thread::sleep(STEP);
    }
    Ok(())
}
