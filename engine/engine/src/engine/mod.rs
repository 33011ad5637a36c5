//! Workers on threads of their own.

pub(crate) mod idle_poll;
mod memory_check;
pub(crate) mod port_opener;
pub mod spread;
pub(crate) mod worker;

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU8};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use ringway_host::Host;
use ringway_xsk::{Pool, Umem, UmemConfig};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::app::App;
use crate::buffer_pool::BufferPool;
use crate::error::EngineError;
use crate::port::{Obtained, Port};
use crate::port_context::PortContext;
use crate::ports::pcap::written_over;
use crate::programs::{AllPackets, Programs};
use crate::spec::PortSpec;
use crate::status::leak::{Detector, Leak};
use crate::status::{Status, WorkerStatus};
use crate::takeover::{LeftWorker, Predecessor, Successor, now_ns};

use memory_check::fits;
use port_opener::PortOpener;
use worker::{Ended, Worker, WorkerAudit, WorkerOptions};

/// Makes a worker's app, on its thread; anew when it is restarted.
pub type AppFactory<P = Pool> = Arc<dyn Fn() -> Box<dyn App<P>> + Send + Sync>;

/// The settings that all workers share.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// The memory of all workers. It gets a pool for each worker.
    pub umem: UmemConfig,
    pub options: WorkerOptions,
    /// Those of AF_XDP ports.
    pub programs: Arc<dyn Programs>,
}

impl Default for EngineConfig {
    fn default() -> Self {
        let (umem, options) = Default::default();
        Self { umem, options, programs: Arc::new(AllPackets) }
    }
}

/// The settings of a worker.
#[derive(Clone)]
pub struct WorkerConfig<R: PortOpener = PortContext> {
    /// The CPU that it is bound to; none: any.
    pub cpu: Option<usize>,
    /// Its ports, numbered from 0 for [`crate::Verdict::Forward`].
    pub ports: Vec<R::Port>,
    pub app: AppFactory<R::Pool>,
}

/// The last report of a worker.
#[derive(Debug)]
pub struct WorkerReport {
    pub worker: usize,
    pub status: WorkerStatus,
    pub audit: WorkerAudit,
    /// Frames that leaked: they were still held when it ended.
    pub leaks: Vec<Leak>,
    /// Why it ended, unless it was stopped or done.
    pub error: Option<EngineError>,
}

/// Running workers. They end when this is dropped.
pub struct Engine<R: PortOpener = PortContext> {
    workers: Vec<Running>,
    obtained: Vec<Obtained>,
    stop: Arc<AtomicBool>,
    opener: R,
    detector: Mutex<Detector>,
}

struct Running {
    thread: JoinHandle<Option<WorkerReport>>,
    shared: Arc<Shared>,
}

/// The queues that a worker's ports obtained, or why the ports could not be opened.
type ModesOrError = Result<Vec<Obtained>, EngineError>;

/// The state that a worker shares with other threads.
#[derive(Default)]
struct Shared {
    /// The worker must end its app and continue with a new one.
    restart: AtomicBool,
    /// The worker must stay awake, is awake, or must stop for a successor.
    pause: AtomicU8,
    paused: Mutex<Option<Pause>>,
    /// A request for the status.
    asked: AtomicBool,
    answer: Mutex<Option<WorkerStatus>>,
}

const AWAKE: u8 = 1;
const IS_AWAKE: u8 = 2;
const PAUSE: u8 = 3;

/// A worker says what it leaves, and hears whether it is taken.
struct Pause {
    left: Sender<LeftWorker>,
    taken: Receiver<bool>,
}

impl Shared {
    fn will_pause(&self, left: &Sender<LeftWorker>) -> Sender<bool> {
        let (verdict, taken) = channel();
        let pause = Pause { left: left.clone(), taken };
        *self.paused.lock().unwrap_or_else(|e| e.into_inner()) = Some(pause);
        verdict
    }

    /// Whether the worker is to stop for a successor.
    fn is_to_pause<P: BufferPool>(&self, worker: &mut Worker<Box<dyn App<P>>, P>) -> bool {
        match self.pause.load(Relaxed) {
            0 | IS_AWAKE => false,
            AWAKE => {
                worker.stay_awake();
                // Not if it was told to stop meanwhile.
                let _ = self.pause.compare_exchange(AWAKE, IS_AWAKE, AcqRel, Relaxed);
                false
            }
            _ => true,
        }
    }
}

impl Engine {
    /// Starts the workers and waits until all have opened their ports.
    ///
    /// # Errors
    /// See [`EngineError`]. No worker runs then.
    pub fn start(config: &EngineConfig, workers: Vec<WorkerConfig>) -> Result<Self, EngineError> {
        all_have_ports(&workers)?;
        let pools = u8::try_from(workers.len()).map_err(|_| EngineError::TooMany(workers.len()))?;
        files_are_distinct(&workers)?;
        let umem = UmemConfig { pools, ..config.umem.clone() };
        fits(&Host::live(), &umem)?;
        let umem = Umem::new(&umem)?;
        let context = PortContext::new(&umem).with_programs(config.programs.clone());
        Self::start_with(context, config.options, workers)
    }

    /// Continues where another engine has stopped, with its memory (not that of `config`), sockets
    /// and programs; other ports are opened anew. Returns the time for which the rings were not
    /// read.
    ///
    /// # Errors
    /// See [`EngineError`]. The other engine continues then.
    pub fn take_over(
        config: &EngineConfig,
        workers: Vec<WorkerConfig>,
        predecessor: Predecessor,
    ) -> Result<(Self, Duration), EngineError> {
        let sockets = |worker: &WorkerConfig| {
            let af_xdp = worker.ports.iter().filter(|port| matches!(port, PortSpec::AfXdp(_)));
            af_xdp.map(ToString::to_string).collect()
        };
        predecessor.fits(&workers.iter().map(sockets).collect::<Vec<_>>())?;
        predecessor.is_kept_alike(config.programs.outlive())?;
        predecessor.chooses_alike(config.programs.choice())?;
        files_are_distinct(&workers)?;
        let predecessor = Arc::new(predecessor);
        // For ports that are opened again.
        let context = PortContext::succeeding(predecessor.clone());
        let context = context.with_programs(config.programs.clone());
        let engine = Self::start_with(context, config.options, workers)?;
        let gap = predecessor.claim()?;
        // Not before: the predecessor may have gone on.
        if config.programs.outlive() {
            predecessor.keep(&*config.programs);
        }
        Ok((engine, gap))
    }

    /// The memory of all workers.
    pub fn umem(&self) -> &Umem {
        self.opener.umem()
    }

    /// Offers everything to a successor that asks. True if it took over: the workers have ended,
    /// and only their reports are left ([`Engine::stop`]). Else they continue.
    ///
    /// # Errors
    /// A worker does not answer, or the successor went away before it was ready. The workers
    /// continue.
    pub fn offer(&self, successor: &Successor) -> Result<bool, EngineError> {
        successor.prepare(self.umem()).map_err(EngineError::Offer)?;
        let stage = |to| self.workers.iter().for_each(|w| w.shared.pause.store(to, Release));
        stage(AWAKE);
        let deadline = Instant::now() + Duration::from_secs(1);
        let awake = |w: &Running| w.shared.pause.load(Acquire) == IS_AWAKE;
        while !self.workers.iter().all(awake) && !self.is_over() && Instant::now() < deadline {
            thread::sleep(Duration::from_micros(200));
        }
        let (left, collected) = channel();
        let verdicts: Vec<_> = self.workers.iter().map(|w| w.shared.will_pause(&left)).collect();
        drop(left);
        let paused_ns = now_ns();
        stage(PAUSE);
        let mut workers: Vec<LeftWorker> = Vec::new();
        while let Ok(left) = collected.recv_timeout(Duration::from_secs(1)) {
            workers.push(left);
        }
        workers.sort_by_key(|left| left.worker);
        let all = workers.len() == self.workers.len();
        let sent = if all {
            // SAFETY: all workers have ended their rounds, and wait for the verdict below, after
            // the claim.
            unsafe { self.umem().offer() };
            successor.offer(&workers, paused_ns)
        } else {
            successor.refuse("a worker does not answer");
            Ok(())
        };
        let taken = all && !self.umem().claim();
        // One that has ended does not hear it.
        for verdict in &verdicts {
            let _ = verdict.send(taken);
        }
        match sent {
            Err(source) if !taken => Err(EngineError::Offer(source)),
            _ => Ok(taken),
        }
    }
}

impl<R: PortOpener> Engine<R> {
    /// Starts the workers on ports that this opens and waits until all have opened their ports.
    ///
    /// # Errors
    /// See [`EngineError`]. No worker runs then.
    pub fn start_with(
        opener: R,
        options: WorkerOptions,
        workers: Vec<WorkerConfig<R>>,
    ) -> Result<Self, EngineError> {
        all_have_ports(&workers)?;
        let (open, stop) = <(Arc<AtomicBool>, Arc<AtomicBool>)>::default();
        let (detector, obtained) = Default::default();
        let mut engine = Self { workers: Vec::new(), obtained, stop, opener, detector };
        for (n, worker) in workers.into_iter().enumerate() {
            let (ready, is_ready) = channel();
            let (opener, open) = (engine.opener.clone(), open.clone());
            engine.spawn(WorkerThread { n, opener, options, open }, worker, ready)?;
            // One after the other, so that names of cables are taken in order. Gone without a word,
            // it has panicked.
            engine.obtained.extend(is_ready.recv().map_err(|_| EngineError::Panicked(n))??);
        }
        engine.opener.opened()?;
        open.store(true, Release);
        Ok(engine)
    }

    fn spawn(
        &mut self,
        seat: WorkerThread<R>,
        worker: WorkerConfig<R>,
        ready: Sender<ModesOrError>,
    ) -> Result<(), EngineError> {
        let (n, stop) = (seat.n, self.stop.clone());
        let shared = Arc::<Shared>::default();
        let of_worker = shared.clone();
        let builder = thread::Builder::new().name(format!("ringway-{n}"));
        let thread = builder.spawn(move || seat.run(&worker, &stop, &of_worker, &ready));
        let thread = thread.map_err(|source| EngineError::Thread { worker: n, source })?;
        self.workers.push(Running { thread, shared });
        Ok(())
    }

    /// The queues of all workers, with the modes that were obtained.
    pub fn obtained(&self) -> &[Obtained] {
        &self.obtained
    }

    /// The status of the workers. Each answers at the end of its round. The second part names
    /// workers that have ended or do not answer within a second; the status lacks them. Leaks are
    /// found if this is called about once a second.
    pub fn status(&self) -> (Status, Vec<usize>) {
        for running in &self.workers {
            running.shared.asked.store(true, Release);
        }
        let deadline = Instant::now() + Duration::from_secs(1);
        let mut workers = Vec::new();
        let mut silent = Vec::new();
        for (n, running) in self.workers.iter().enumerate() {
            while running.shared.asked.load(Acquire)
                && !running.thread.is_finished()
                && Instant::now() < deadline
            {
                thread::sleep(Duration::from_millis(1));
            }
            let mut answer = running.shared.answer.lock().unwrap_or_else(|e| e.into_inner());
            match answer.take() {
                Some(status) => workers.push(status),
                None => silent.push(n),
            }
        }
        let mut detector = self.detector.lock().unwrap_or_else(|e| e.into_inner());
        let leaks = detector.sample(self.opener.watch(), &workers);
        (Status { schema: "ringway.engine/1", workers, leaks }, silent)
    }

    /// Has each worker end its app and begin with a new one. Its ports stay open, and packets in
    /// their rings stay there.
    pub fn restart(&self) {
        self.workers.iter().for_each(|running| running.shared.restart.store(true, Release));
    }

    /// Whether a worker has ended by itself.
    pub fn is_over(&self) -> bool {
        self.workers.iter().any(|running| running.thread.is_finished())
    }

    /// Ends all workers and returns their reports.
    pub fn stop(mut self) -> Vec<Result<WorkerReport, EngineError>> {
        self.stop.store(true, Relaxed);
        let joined = std::mem::take(&mut self.workers).into_iter().map(|w| w.thread.join());
        // Started, each has a report.
        let report = |(n, joined): (usize, thread::Result<Option<WorkerReport>>)| {
            joined.ok().flatten().ok_or(EngineError::Panicked(n))
        };
        joined.enumerate().map(report).collect()
    }
}

impl<R: PortOpener> Drop for Engine<R> {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        for running in self.workers.drain(..) {
            let _ = running.thread.join();
        }
    }
}

struct WorkerThread<R> {
    n: usize,
    opener: R,
    options: WorkerOptions,
    /// Every worker's ports are: what one asks may be answered at another's.
    open: Arc<AtomicBool>,
}

impl<R: PortOpener> WorkerThread<R> {
    fn run(
        self,
        config: &WorkerConfig<R>,
        stop: &AtomicBool,
        shared: &Shared,
        ready: &Sender<ModesOrError>,
    ) -> Option<WorkerReport> {
        let opened = self.pin(config.cpu).and_then(|()| self.opener.open(self.n, &config.ports));
        let (pool, ports) = match opened {
            Ok(opened) => opened,
            Err(error) => {
                // The starter waits for this and then ends.
                let _ = ready.send(Err(error));
                return None;
            }
        };
        let _ = ready.send(Ok(ports.iter().filter_map(|port| port.obtained()).collect()));
        while !self.open.load(Acquire) || !self.opener.may_begin() {
            if stop.load(Relaxed) {
                return None;
            }
            thread::sleep(Duration::from_micros(50));
        }
        let mut worker = Worker::new(pool, ports, (config.app)(), self.options);
        loop {
            let ran = worker.run(|worker| {
                self.answer(config, worker, shared);
                stop.load(Relaxed) || shared.restart.load(Acquire) || shared.is_to_pause(worker)
            });
            let error = ran.err().map(|source| EngineError::Port { worker: self.n, source });
            let again = shared.restart.swap(false, AcqRel) && !stop.load(Relaxed);
            let Ended { app, mut ports, pool, mut status, audit } = worker.finish();
            let pause = shared.paused.lock().unwrap_or_else(|e| e.into_inner()).take();
            let mut taken = false;
            if let Some(pause) = pause.filter(|_| error.is_none() && audit.balanced()) {
                shared.pause.store(0, Relaxed);
                taken = self.leave(pause, &mut ports, &pool);
                if !taken && !stop.load(Relaxed) {
                    worker = Worker::new(pool, ports, app, self.options);
                    continue;
                }
            }
            if error.is_some() || taken || !again || !audit.balanced() {
                (status.worker, status.cpu) = (self.n, config.cpu);
                let lost = audit.lost_frames > 0;
                let leaks = if lost { self.opener.left_behind(&pool) } else { Vec::new() };
                return Some(WorkerReport { worker: self.n, status, audit, leaks, error });
            }
            worker = Worker::new(pool, ports, (config.app)(), self.options);
        }
    }

    /// Says what it leaves, and waits whether it is taken.
    fn leave(&self, pause: Pause, ports: &mut [Box<dyn Port<R::Pool>>], pool: &R::Pool) -> bool {
        let ports = ports.iter_mut().filter_map(|port| port.leave()).collect();
        let left = LeftWorker { worker: self.n, free: pool.free(), ports };
        let Pause { left: to, taken } = pause;
        let said = to.send(left).is_ok();
        // So that who collects sees that there are no more.
        drop(to);
        said && taken.recv().unwrap_or(false)
    }

    fn pin(&self, cpu: Option<usize>) -> Result<(), EngineError> {
        let Some(cpu) = cpu else { return Ok(()) };
        let mut set = CpuSet::new();
        let pinned = cpu < CpuSet::MAX_CPU && {
            set.set(cpu);
            sched_setaffinity(None, &set).is_ok()
        };
        if pinned {
            return Ok(());
        }
        Err(EngineError::Cpu { worker: self.n, cpu, allowed: format!("{:?}", allowed_cpus()) })
    }

    fn answer(
        &self,
        config: &WorkerConfig<R>,
        worker: &mut Worker<Box<dyn App<R::Pool>>, R::Pool>,
        shared: &Shared,
    ) {
        if shared.asked.load(Relaxed) {
            let status = WorkerStatus { worker: self.n, cpu: config.cpu, ..worker.status() };
            *shared.answer.lock().unwrap_or_else(|e| e.into_inner()) = Some(status);
            shared.asked.store(false, Release);
        }
    }
}

fn all_have_ports<R: PortOpener>(workers: &[WorkerConfig<R>]) -> Result<(), EngineError> {
    if workers.is_empty() {
        return Err(EngineError::NoPort("the engine".into()));
    }
    match workers.iter().position(|worker| worker.ports.is_empty()) {
        Some(n) => Err(EngineError::NoPort(format!("worker {n}"))),
        None => Ok(()),
    }
}

/// Refuses to write a capture that another port reads or writes, before any is opened: opening it
/// would destroy it.
fn files_are_distinct(workers: &[WorkerConfig]) -> Result<(), EngineError> {
    let captures = || {
        workers.iter().flat_map(|worker| &worker.ports).filter_map(|port| match port {
            PortSpec::Pcap { input, output } => Some((input.as_deref(), output.as_deref())),
            _ => None,
        })
    };
    let (read, written) = (captures().filter_map(|c| c.0), captures().filter_map(|c| c.1));
    match written_over(read, written) {
        None => Ok(()),
        Some((written, other)) => Err(EngineError::SameFile {
            written: written.display().to_string(),
            other: other.display().to_string(),
        }),
    }
}

/// Numbers of the CPUs that the calling thread may use.
pub fn allowed_cpus() -> Vec<usize> {
    let allowed = sched_getaffinity(None).unwrap_or_default();
    (0..CpuSet::MAX_CPU).filter(|n| allowed.is_set(*n)).collect()
}
