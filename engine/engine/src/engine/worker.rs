//! A worker: one thread's loop over its ports, run to completion.

use std::mem;
use std::time::Duration;

use ringway_xsk::{Audit, Batch, Buffer as _, Pool, Rings};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::app::{App, MADE, RECEIVED};
use crate::arch::{Cycles, prefetch};
use crate::buffer_pool::BufferPool;
use crate::burst::{Burst, TxQueues};
use crate::engine::idle_poll::PollBudget;
use crate::port::{Port, PortError};
use crate::status::{self, WorkerStatus};

/// The behaviour of a worker while there is nothing to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Idle {
    /// Polls for as long as that has paid lately, at most ten microseconds, then sleeps until a
    /// port has packets. If a port cannot wake it, it polls for 50 microseconds and sleeps for a
    /// millisecond.
    #[default]
    Adaptive,
    /// Polls always: no packet waits for a wake-up, and the CPU is never free.
    Latency,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerOptions {
    /// Packets requested from a port at once, 1 to 4 096.
    pub burst: usize,
    /// Packets that may wait to be sent by one port.
    pub waiting: usize,
    pub idle: Idle,
}

impl Default for WorkerOptions {
    fn default() -> Self {
        Self { burst: 64, waiting: 256, idle: Idle::default() }
    }
}

/// Time that a worker polls before it sleeps if a port cannot wake it.
const LOOKING: Duration = Duration::from_micros(50);
/// Time of a sleep if a port cannot wake it, and of any sleep: then it checks whether it must stop.
const NAP: Duration = Duration::from_millis(1);
const SLEEP: Duration = Duration::from_millis(100);

/// An app and its ports.
pub struct Worker<A, P: BufferPool = Pool> {
    app: A,
    incoming: Batch<P::Packet>,
    tx_queues: TxQueues<P>,
    options: WorkerOptions,
    reads_packets: bool,
    /// The begin of the last round; the time since then was busy or not.
    last: Cycles,
    was_busy: bool,
    per_millisecond: u64,
    poll_budget: PollBudget,
    sleep_after: u64,
    checked: Cycles,
}

/// Checks a second of whether ports can still be used.
const CHECKS: u64 = 4;

/// Reports of leaked frames use these names.
fn name_stages<P: BufferPool>(pool: &P, app: &impl App<P>) {
    let app_name = app.name();
    for (stage, name) in [(RECEIVED, "received"), (MADE, "made")] {
        pool.name_stage(stage, &format!("{app_name}: {name}"));
    }
}

/// A worker that has ended, with everything that it leaves behind.
pub struct Ended<A, P: BufferPool = Pool> {
    /// The app, with its counters.
    pub app: A,
    /// Its ports, still open: another worker may continue with them.
    pub ports: Vec<Box<dyn Port<P>>>,
    pub pool: P,
    pub status: WorkerStatus,
    pub audit: WorkerAudit,
}

/// An audit of a worker: the place of each frame and the end of each packet.
#[derive(Clone, Debug)]
pub struct WorkerAudit {
    pub frames: Audit,
    /// Frames that are held and unknown to the worker: leaks.
    pub lost_frames: i64,
    /// Packets that came less those that went; 0 if the ledger balances.
    pub difference_packets: i64,
}

impl WorkerAudit {
    /// Whether every frame and every packet is accounted for.
    pub fn balanced(&self) -> bool {
        self.frames.balanced() && self.lost_frames == 0 && self.difference_packets == 0
    }
}

impl std::fmt::Display for WorkerAudit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (lost, difference) = (self.lost_frames, self.difference_packets);
        write!(f, "{}; {lost} frames lost; {difference} packets unaccounted for", self.frames)
    }
}

impl<P: BufferPool, A: App<P>> Worker<A, P> {
    /// A worker whose ports were opened with this pool.
    pub fn new(pool: P, ports: Vec<Box<dyn Port<P>>>, app: A, options: WorkerOptions) -> Self {
        let burst = options.burst.clamp(1, 4096);
        name_stages(&pool, &app);
        Self {
            reads_packets: app.reads_packets(),
            app,
            incoming: Batch::new(burst),
            tx_queues: TxQueues::new(pool, ports, options.waiting.max(burst)),
            options,
            last: Cycles::now(),
            was_busy: false,
            per_millisecond: Cycles::per_millisecond(),
            checked: Cycles::now(),
            poll_budget: PollBudget::new(Cycles::per_second()),
            sleep_after: (LOOKING.as_secs_f64() * Cycles::per_second() as f64) as u64,
        }
    }

    /// Runs one round through all ports. Returns whether there was anything to do.
    ///
    /// # Errors
    /// A port cannot continue. The others can: the caller decides whether to call again.
    pub fn round(&mut self) -> Result<bool, PortError> {
        let now = self.begin_round();
        let mut busy = false;
        self.tx_queues.pool.set_stage(RECEIVED);
        for from in 0..self.tx_queues.queues.len() {
            if let Err(error) = self.tx_queues.queues[from].port.rx_burst(&mut self.incoming) {
                self.tx_queues.failed.get_or_insert(error);
            }
            // Every packet in the batch came in, is counted and gets a verdict, even if the port
            // reports an error.
            let received = self.incoming.len();
            if received == 0 {
                continue;
            }
            busy = true;
            self.tx_queues.tally.burst(received);
            if self.reads_packets {
                self.incoming.iter().for_each(|packet| prefetch(packet.data()));
            }
            self.app.on_burst(now, &mut Burst::new(from, &mut self.incoming, &mut self.tx_queues));
            if !self.incoming.is_empty() {
                self.tx_queues.undecided(&mut self.incoming);
            }
        }
        self.tx_queues.pool.set_stage(MADE);
        let before = self.tx_queues.tally.originated;
        self.app.on_round(now, &mut Burst::new(0, &mut self.incoming, &mut self.tx_queues));
        busy |= self.tx_queues.tally.originated != before;
        for to in 0..self.tx_queues.queues.len() {
            // With nothing to send, too: completions are taken back then.
            if !mem::take(&mut self.tx_queues.queues[to].has_sent) {
                busy |= self.tx_queues.transmit(to);
            }
        }
        if now.since(self.checked) > Cycles::per_second() / CHECKS {
            self.checked = now;
            self.tx_queues.queues.iter_mut().try_for_each(|queue| queue.port.check())?;
        }
        self.was_busy = busy;
        match self.tx_queues.failed.take() {
            Some(error) => Err(error),
            None => Ok(busy),
        }
    }

    fn begin_round(&mut self) -> Cycles {
        let now = Cycles::now();
        let tally = &mut self.tx_queues.tally;
        let passed = now.since(self.last);
        *if self.was_busy { &mut tally.busy_cycles } else { &mut tally.idle_cycles } += passed;
        tally.rounds += 1;
        self.last = now;
        self.tx_queues.pool.set_now(now.milliseconds(self.per_millisecond));
        now
    }

    /// Runs rounds until `until`, which is called before each, returns true or nothing is left to
    /// do.
    ///
    /// # Errors
    /// As [`Worker::round`].
    pub fn run(&mut self, mut until: impl FnMut(&mut Self) -> bool) -> Result<(), PortError> {
        let (mut busy_until, mut looks) = (Cycles::now(), false);
        while !until(self) && !self.is_finished() {
            if self.round()? {
                if mem::take(&mut looks) {
                    self.poll_budget.paid();
                }
                busy_until = self.last;
            } else if self.may_sleep(self.last.since(busy_until)) {
                looks = false;
                self.poll_budget.was_in_vain();
                self.sleep();
            } else {
                looks = true;
                std::hint::spin_loop();
            }
        }
        Ok(())
    }

    fn may_sleep(&self, polled_cycles: u64) -> bool {
        self.options.idle == Idle::Adaptive
            && self.poll_budget.is_over(polled_cycles)
            && (polled_cycles > self.sleep_after || self.wakes())
    }

    /// Whether a sleep ends as soon as there is something to do.
    fn wakes(&self) -> bool {
        self.tx_queues.waiting() == 0
            && self.tx_queues.queues.iter().all(|queue| queue.port.readable().is_some())
    }

    /// Sleeps no more: it will soon be asked to stop, and others wait for that.
    pub(crate) fn stay_awake(&mut self) {
        self.options.idle = Idle::Latency;
    }

    /// Whether nothing will arrive and nothing is left to be done.
    pub fn is_finished(&self) -> bool {
        let nothing_comes = || self.tx_queues.queues.iter().all(|queue| queue.port.is_finished());
        // More may come after a round that had something to do.
        let over =
            self.app.is_finished() || !self.was_busy && !self.app.is_source() && nothing_comes();
        over && self.tx_queues.waiting() == 0
    }

    /// Sleeps until a port has packets, at most for its time.
    fn sleep(&mut self) {
        self.tx_queues.tally.sleeps += 1;
        let time = if self.wakes() { SLEEP } else { NAP };
        let readable = self.tx_queues.queues.iter().filter_map(|queue| queue.port.readable());
        let mut fds: Vec<_> =
            readable.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        let time = Timespec { tv_sec: 0, tv_nsec: time.subsec_nanos().into() };
        // Woken by a signal or by anything else: it looks again in any case.
        let _ = poll(&mut fds, Some(&time));
    }

    pub fn status(&mut self) -> WorkerStatus {
        status::of(&mut self.tx_queues, &self.app)
    }

    /// Audits this worker. It looks at every frame, so do not call it in each round.
    pub fn audit(&self) -> WorkerAudit {
        let queues = self.tx_queues.queues.iter();
        let rings: Vec<&Rings> = queues.filter_map(|queue| queue.port.rings()).collect();
        let frames = self.tx_queues.pool.audit(&rings);
        let known = self.tx_queues.known_held();
        let lost_frames = frames.found.held as i64 - known as i64;
        WorkerAudit { lost_frames, difference_packets: status::difference(&self.tx_queues), frames }
    }

    pub fn pool(&self) -> &P {
        &self.tx_queues.pool
    }

    pub fn app(&self) -> &A {
        &self.app
    }

    /// Ends the worker: waiting packets are sent as far as the ports take them; the rest is freed
    /// and counted.
    pub fn finish(mut self) -> Ended<A, P> {
        for to in 0..self.tx_queues.queues.len() {
            self.tx_queues.transmit(to);
        }
        self.tx_queues.stop();
        let (audit, status) = (self.audit(), self.status());
        let TxQueues { pool, queues, .. } = self.tx_queues;
        let ports = queues.into_iter().map(|queue| queue.port).collect();
        Ended { app: self.app, ports, pool, status, audit }
    }
}
