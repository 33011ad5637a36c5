//! `generator`: where packets begin that are made to be counted. `checker`: where they end, and are
//! found to be lost, late or twice.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ringway_engine::stamp::{Clock, Stamp};
use ringway_engine::{App, Burst, Cycles, Reason, Verdict};

use super::pace::Pace;
use super::receive_counts::ReceiveCounts;
use super::recipe::template::{Flows, Template};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rate {
    Packets(u64),
    /// Bits of frames a second, without what Ethernet puts around them: preamble, checksum, gap.
    Bits(u64),
}

impl Rate {
    /// Units of a frame of this length.
    #[inline]
    pub fn units(self, len: usize) -> u64 {
        match self {
            Rate::Packets(_) => 1,
            Rate::Bits(_) => len as u64 * 8,
        }
    }

    pub fn per_second(self) -> u64 {
        match self {
            Rate::Packets(rate) | Rate::Bits(rate) => rate,
        }
    }
}

/// The traffic to be sent.
#[derive(Clone, Debug)]
pub struct Traffic {
    /// Frames that take turns, at least one.
    pub templates: Vec<Template>,
    /// Of a recipe's frames; none for such that are sent as they are.
    pub flows: Option<Flows>,
    pub stream: u16,
    /// As fast as the port takes them, if none.
    pub rate: Option<Rate>,
    /// No more packets than this.
    pub count: Option<u64>,
    /// No longer than this.
    pub duration: Option<Duration>,
}

/// The work of a generator so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendProgress {
    /// Packets that were made; their sequence numbers are below this.
    pub packets: u64,
    pub bytes: u64,
    /// Units of the rate that they took.
    pub units: u64,
    /// Units that the rate allowed until then.
    pub intended_units: u64,
    /// Nanoseconds from the beginning to the last packet or, where it is to go on, until now.
    pub ns: u64,
    pub finished: bool,
}

/// The state that a generator shares with its watcher.
#[derive(Debug, Default)]
pub struct GeneratorControl {
    made: Mutex<SendProgress>,
    stop: AtomicBool,
}

impl GeneratorControl {
    pub fn made(&self) -> SendProgress {
        *self.made.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The same, by whoever does it.
    pub fn set_made(&self, made: SendProgress) {
        *self.made.lock().unwrap_or_else(PoisonError::into_inner) = made;
    }

    pub fn stop(&self) {
        self.stop.store(true, Relaxed);
    }

    /// Whether it is to end.
    pub fn is_stopped(&self) -> bool {
        self.stop.load(Relaxed)
    }
}

/// Packets that may wait to be sent: more would only make them older.
const BURST: usize = 32;
/// After the last packet it stays, so that what lies in the port's ring is sent.
const LINGER: u64 = 100_000_000;
/// Where the next packet is further away than this, it sleeps for a while, if not until then.
const NEAR: Duration = Duration::from_micros(200);
const NAP: Duration = Duration::from_millis(1);

/// Sends packets by port 0; what comes in it consumes. A worker that sleeps where nothing arrives
/// would keep no rate: it wants [`ringway_engine::Idle::Latency`], and sleeps by itself where packets are
/// far apart.
pub struct Generator {
    generated: Traffic,
    clock: Clock,
    control: Arc<GeneratorControl>,
    pace: Option<Pace>,
    next: usize,
    start: Option<u64>,
    made: SendProgress,
    ended: Option<u64>,
}

impl Generator {
    /// Begins with its first round. The clock should be that of the receiver.
    pub fn new(generated: Traffic, clock: Clock, control: Arc<GeneratorControl>) -> Self {
        let most = generated.templates.iter().map(|t| t.frame().len()).max().unwrap_or(0);
        let pace = generated.rate.map(|rate| Pace::new(rate.per_second(), rate.units(most)));
        let made = SendProgress::default();
        Self { generated, clock, control, pace, next: 0, start: None, made, ended: None }
    }

    fn is_due(&self, elapsed: u64) -> bool {
        let late = |duration: Duration| u128::from(elapsed) >= duration.as_nanos();
        self.generated.count.is_some_and(|count| self.made.packets >= count)
            || self.generated.duration.is_some_and(late)
            || self.generated.templates.is_empty()
            || self.control.is_stopped()
    }

    /// As many as are due, and wait for nothing.
    fn make(&mut self, now: u64, burst: &mut Burst<'_>) {
        let left = self.generated.count.map_or(u64::MAX, |count| count - self.made.packets);
        let room = (BURST.saturating_sub(burst.waiting(0)) as u64).min(left);
        for _ in 0..room {
            let template = &self.generated.templates[self.next];
            let len = template.frame().len();
            let units = self.generated.rate.map_or(0, |rate| rate.units(len));
            if self.pace.as_ref().is_some_and(|pace| !pace.allows(units)) {
                break;
            }
            let stamp = Stamp::new(self.generated.stream, self.made.packets, now);
            let flows = &mut self.generated.flows;
            let made = burst.originate(|packet| {
                if packet.append(template.frame()).is_err() {
                    return Verdict::Drop(Reason::NoRoom);
                }
                if let Some(flows) = flows {
                    template.write(packet.data_mut(), &flows.next(), &stamp);
                }
                Verdict::Forward(0)
            });
            if !made {
                break;
            }
            if let Some(pace) = &mut self.pace {
                pace.spend(units);
            }
            self.next = (self.next + 1) % self.generated.templates.len();
            self.made.packets += 1;
            self.made.bytes += len as u64;
            self.made.units += units;
        }
    }

    /// Where the next packet is far away. A generator has its CPU for itself, and nobody waits for
    /// its answer.
    fn nap(&self) {
        let Some(pace) = &self.pace else { return };
        let len = self.generated.templates[self.next].frame().len();
        let wait = pace.wait(self.generated.rate.map_or(0, |rate| rate.units(len)));
        if wait > NEAR {
            std::thread::sleep((wait - NEAR / 2).min(NAP));
        }
    }
}

impl App for Generator {
    fn name(&self) -> &'static str {
        "generator"
    }

    fn on_burst(&mut self, _now: Cycles, burst: &mut Burst<'_>) {
        burst.decide(|_| Verdict::Drop(Reason::Consumed));
    }

    fn on_round(&mut self, _now: Cycles, burst: &mut Burst<'_>) {
        if self.ended.is_some() {
            return;
        }
        let now = self.clock.now();
        let elapsed = now - *self.start.get_or_insert(now);
        if self.is_due(elapsed) {
            self.ended = Some(now);
            self.made.finished = true;
            return self.control.set_made(self.made);
        }
        if let Some(pace) = &mut self.pace {
            pace.advance(elapsed);
            self.made.intended_units = pace.intended();
        }
        let before = self.made.packets;
        self.make(now, burst);
        let made_some = self.made.packets > before;
        // All of them may be made at once: that takes time, too.
        self.made.ns =
            if made_some { self.clock.now() - self.start.unwrap_or(now) } else { elapsed };
        self.control.set_made(self.made);
        if !made_some {
            self.nap();
        }
    }

    fn is_finished(&self) -> bool {
        self.ended.is_some_and(|ended| self.clock.now() - ended > LINGER)
    }

    fn is_source(&self) -> bool {
        true
    }

    fn statistics(&self) -> Vec<(String, u64)> {
        vec![("packets made".into(), self.made.packets)]
    }
}

/// Takes all that comes, and counts it by what it is stamped with.
pub struct Checker {
    clock: Clock,
    checked: Arc<Mutex<ReceiveCounts>>,
}

impl Checker {
    /// Counts in `checked`, which others may look at meanwhile; it is locked once a burst. The
    /// clock should be that of the generator.
    pub fn new(clock: Clock, checked: Arc<Mutex<ReceiveCounts>>) -> Self {
        Self { clock, checked }
    }
}

impl App for Checker {
    fn name(&self) -> &'static str {
        "checker"
    }

    fn on_burst(&mut self, _now: Cycles, burst: &mut Burst<'_>) {
        // Counts that are whole, whoever panicked.
        let mut checked = self.checked.lock().unwrap_or_else(PoisonError::into_inner);
        // Came together, as far as anybody can tell.
        let now = self.clock.now();
        burst.decide(|packet| {
            checked.take(packet.data(), now);
            Verdict::Drop(Reason::Consumed)
        });
    }
}
