//! A million connections on one machine: `ringway-lab bench million`.
//!
//! The limit of open files is one of each process, so that many share the work: servers share their listeners
//! (SO_REUSEPORT), clients the numbers of the connections.

mod fleet;
mod helper;
mod plan;
mod report;

use std::process::{Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};
use std::{io, thread};

use ringway_testnet::{Namespace, wait_until};

pub use plan::Scheme;
use report::bytes_in_words;
pub use report::{Report, Round, SCHEMA, Sample};

use self::fleet::Helper;
use self::plan::{Limits, Plan};
use super::counters::Counters;
use super::limits;
use super::slab::{Names, Slabs};
use crate::demo::clean::{Guard, end_on_signals};
use crate::harness::machine::Machine;
use crate::{Error, Result, needs_root};
use ringway_terminal::text::counted;

/// Connections a second that a processor makes and accepts without letting queues grow.
const RATE_PER_CPU: u64 = 5000;
/// Of listeners. What the book of the lab's source has to be raised first; and what it is when nobody did.
const BACKLOG: i32 = 4096;
const SMALL_BACKLOG: i32 = 128;
/// Connections that carry real data at the end.
const SAMPLE: u64 = 1000;
/// Between two looks at memory.
const LOOK: Duration = Duration::from_millis(250);
/// Between two lines of progress.
const TELL: Duration = Duration::from_secs(2);
/// For the last connections to be accepted.
const PATIENCE: Duration = Duration::from_secs(30);

/// What is to be reached.
#[derive(Debug, Clone)]
pub struct Options {
    /// Connections.
    pub connections: u64,
    /// Which schemes, one after the other.
    pub schemes: Vec<Scheme>,
    /// Connections a second; none: what processors can do.
    pub rate: Option<u64>,
    /// Whether connecting is paced. If not, all clients connect at once, to short queues.
    pub paced: bool,
}

impl Default for Options {
    /// A million, both schemes, paced.
    fn default() -> Self {
        Self { connections: 1_000_000, schemes: Scheme::ALL.to_vec(), rate: None, paced: true }
    }
}

/// Does it, as a command does: an interrupt takes everything down at once, and a guard process does so should this one
/// be killed. `progress` is told in words what goes on. Needs root.
///
/// # Errors
/// There cannot be so many here, or something failed on the way.
pub fn run_guarded(options: &Options, mut progress: impl FnMut(&str)) -> Result<Report> {
    needs_root("bench million")?;
    // It is asked at the end, and its absence is to be known at the beginning.
    ringway_testnet::tools::find("ss")?;
    limits::open_files_at_least(plan::FEWEST_FILES, plan::ENOUGH_FILES)?;
    let plan = Plan::new(options.connections, &limits_here())?;
    progress(&format!(
        "{}: about {} of {} of memory, {} and {}",
        counted(plan.connections, "connection"),
        bytes_in_words(plan.bytes),
        bytes_in_words(limits::available()),
        counted(plan.servers, "server process"),
        counted(plan.clients, "client process")
    ));
    let guard = Guard::start()?;
    end_on_signals()?;
    let rounds = options.schemes.iter().map(|scheme| round(options, &plan, *scheme, &mut progress));
    let rounds = rounds.collect::<Result<Vec<_>>>();
    guard.dismiss();
    Ok(Report {
        schema: SCHEMA,
        connections: plan.connections,
        paced: options.paced,
        server_processes: plan.servers,
        client_processes: plan.clients,
        needed_bytes: plan.bytes,
        rounds: rounds?,
        machine: Machine::with(&[("ss", "-V")]),
    })
}

/// A helper process's life, by its job.
///
/// # Errors
/// An unknown job, or it could not be done.
pub(super) fn inner(fields: &[&str]) -> Option<io::Result<()>> {
    match fields {
        ["million-server", ports, backlog] => {
            Some(helper::serve(ports.parse().ok()?, backlog.parse().ok()?))
        }
        ["million-client", scheme, from, to] => {
            let numbers = from.parse().ok()?..to.parse().ok()?;
            Some(helper::connect_all(&helper::Work { scheme: scheme.parse().ok()?, numbers }))
        }
        _ => None,
    }
}

fn limits_here() -> Limits {
    let number = |key| limits::sysctl(key).unwrap_or(u64::MAX);
    // Allocated, unused, most.
    let in_use = limits::first_of_sysctl("fs/file-nr").unwrap_or(0);
    Limits {
        files: limits::open_files(),
        all_files: number("fs/file-max").saturating_sub(in_use),
        processes: number("kernel/pid_max").min(number("kernel/threads-max")) / 2,
        memory: limits::available(),
    }
}

struct Crew {
    servers: Vec<Helper>,
    clients: Vec<Helper>,
}

/// One scheme from the first connection to the last socket's end.
fn round(
    options: &Options,
    plan: &Plan,
    scheme: Scheme,
    progress: &mut impl FnMut(&str),
) -> Result<Round> {
    let namespace = Namespace::new("million")?;
    // A SYN is sent again for 15 seconds at most, so that nothing hangs.
    for (key, value) in [
        ("net/core/somaxconn", BACKLOG.to_string()),
        ("net/ipv4/tcp_max_syn_backlog", BACKLOG.to_string()),
        ("net/ipv4/tcp_syn_retries", "3".into()),
        ("net/ipv4/ip_local_port_range", "1024 9999".into()),
    ] {
        namespace.sysctl(key, &value)?;
    }
    let before = namespace.run(Counters::read)??;
    let start = Sample::now(&namespace, Duration::ZERO)?;
    let mut crew = Crew::start(options, plan, scheme, &namespace)?;
    let books = Books::open()?;
    let cpus = thread::available_parallelism().map_or(1, |n| n.get() as u64);
    let rate = options.paced.then(|| options.rate.unwrap_or(RATE_PER_CPU * cpus));
    let began = Instant::now();
    let mut samples = vec![start];
    let slowest = crew.connect(rate, cpus, || {
        samples.push(Sample::now(&namespace, began.elapsed())?);
        if let Some(line) = tell(scheme, plan, &samples) {
            progress(&line);
        }
        Ok(())
    })?;
    let connect_s = began.elapsed().as_secs_f64();
    let accepted = crew.accepted(plan.connections)?;
    samples.push(Sample::now(&namespace, began.elapsed())?);
    let (bytes_per_connection, disturbed) = books.bytes_per_connection(accepted)?;
    let diag = count_by_diag(&namespace)?;
    let (sampled, echoed) = crew.sample(plan.connections)?;
    let counters = namespace.run(Counters::read)??.since(&before);
    progress(&format!(
        "{scheme}: {accepted} accepted, {echoed} of {sampled} tokens came back; taking it down"
    ));
    let ending = Instant::now();
    crew.end();
    drop(namespace);
    let teardown_s = ending.elapsed().as_secs_f64();
    Slabs::wait_until_as(&books.before, 2 * accepted);
    Ok(Round {
        scheme,
        groups: plan.groups,
        rate_per_s: rate,
        connected: slowest.connected,
        accepted,
        sockets_by_diag: diag,
        sampled,
        echoed,
        connect_s,
        slowest_connect_ms: slowest.us as f64 / 1000.0,
        teardown_s,
        counters,
        bytes_per_connection,
        disturbed,
        samples,
    })
}

/// The kernel's caches before the first connection, when helpers are there already.
struct Books {
    names: Names,
    before: Slabs,
}

impl Books {
    fn open() -> Result<Self> {
        let names = Names::read();
        Ok(Self { before: Slabs::settled(&names)?, names })
    }

    /// What both ends of a connection take; else why that cannot be said.
    fn bytes_per_connection(&self, accepted: u64) -> Result<(Option<u64>, Option<String>)> {
        let now = Slabs::settled(&self.names)?;
        let sockets = now.of_sockets_since(&self.before, &self.names, 2 * accepted);
        Ok(report::judge(sockets, accepted))
    }
}

/// A line of progress now and then.
fn tell(scheme: Scheme, plan: &Plan, samples: &[Sample]) -> Option<String> {
    let now = samples.last()?;
    let every = (TELL.as_millis() / LOOK.as_millis()) as usize;
    samples.len().is_multiple_of(every).then(|| {
        format!(
            "{scheme}: {:>8} of {} connections, slabs {}",
            now.established / 2,
            plan.connections,
            bytes_in_words(now.slab_bytes)
        )
    })
}

/// Of all clients.
#[derive(Default)]
struct Connected {
    connected: u64,
    us: u64,
}

impl Crew {
    fn start(
        options: &Options,
        plan: &Plan,
        scheme: Scheme,
        namespace: &Namespace,
    ) -> Result<Self> {
        let ports = if scheme == Scheme::ManyServerPorts { plan.groups } else { 1 };
        let backlog = if options.paced { BACKLOG } else { SMALL_BACKLOG };
        let start = |job: String| Helper::start(namespace, &job);
        let servers = (0..plan.servers).map(|_| start(format!("million-server,{ports},{backlog}")));
        let servers = servers.collect::<Result<_>>()?;
        let clients = (0..plan.clients).map(|client| {
            let numbers = plan.of_client(client);
            start(format!("million-client,{scheme},{},{}", numbers.start, numbers.end))
        });
        Ok(Self { servers, clients: clients.collect::<Result<_>>()? })
    }

    /// Lets clients connect, as many at a time as there are processors when paced, else all; `look` now and then.
    fn connect(
        &mut self,
        rate: Option<u64>,
        cpus: u64,
        mut look: impl FnMut() -> Result<()>,
    ) -> Result<Connected> {
        let all = self.clients.len().max(1);
        let at_once = rate.map_or(all, |_| all.min(cpus.max(1) as usize));
        let each = rate.map_or(0, |rate| (rate / at_once as u64).max(1));
        let clients = &mut self.clients;
        thread::scope(|scope| {
            let (done, is_done) = channel();
            let driver = scope.spawn(move || {
                let all = drive(clients, at_once, each);
                let _ = done.send(());
                all
            });
            let mut looked = Ok(());
            while is_done.recv_timeout(LOOK) == Err(RecvTimeoutError::Timeout) {
                if looked.is_ok() {
                    looked = look();
                }
            }
            let all = driver.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            looked.map(|()| all)
        })
    }

    /// How many connections servers have, once they have all or no more come.
    fn accepted(&mut self, connections: u64) -> Result<u64> {
        let mut count = Ok(0);
        let mut ask = || {
            count = self.servers.iter_mut().try_fold(0, |sum, server| {
                server.order("count")?;
                let [held] = server.numbers()?;
                Ok(sum + held)
            });
            count.as_ref().map_or(true, |held| *held >= connections)
        };
        // Fewer is a result, too.
        let _ = wait_until("the last to be accepted", PATIENCE, &mut ask);
        count
    }

    /// Tokens over a random sample of connections, there and back: how many were sent, how many came back.
    fn sample(&mut self, connections: u64) -> Result<(u64, u64)> {
        let seed = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let seed = seed.map_or(1, |time| u64::from(time.subsec_nanos()));
        let each = (connections / SAMPLE).max(1);
        let mut sampled = 0;
        for client in &mut self.clients {
            client.order(&format!("sample {each} {seed}"))?;
            sampled += client.numbers::<1>()?[0];
        }
        for server in &mut self.servers {
            server.order("echo")?;
        }
        for server in &mut self.servers {
            server.numbers::<1>()?;
        }
        let mut echoed = 0;
        for client in &mut self.clients {
            client.order(&format!("check {seed}"))?;
            echoed += client.numbers::<1>()?[0];
        }
        Ok((sampled, echoed))
    }

    /// All at once.
    fn end(mut self) {
        self.clients.iter_mut().chain(&mut self.servers).for_each(Helper::dismiss);
        self.clients.into_iter().chain(self.servers).for_each(Helper::wait);
    }
}

fn drive(clients: &mut [Helper], at_once: usize, rate: u64) -> Result<Connected> {
    let mut all = Connected::default();
    for wave in clients.chunks_mut(at_once) {
        for client in wave.iter_mut() {
            client.order(&format!("go {rate}"))?;
        }
        for client in wave {
            let [connected, us] = client.numbers()?;
            all = Connected { connected: all.connected + connected, us: all.us.max(us) };
        }
    }
    Ok(all)
}

/// Established sockets, both ends of each connection, as inet_diag lists them.
fn count_by_diag(namespace: &Namespace) -> Result<u64> {
    let mut command: Command = namespace.tool("ss")?;
    command.args(["-Htn", "state", "established"]).stdout(Stdio::piped());
    let failed = |source| Error::Run { program: "ss".into(), source };
    let mut child = command.spawn().map_err(failed)?;
    let out = child.stdout.take().ok_or_else(|| failed(io::ErrorKind::BrokenPipe.into()))?;
    let lines = lines_of(out).map_err(failed)?;
    child.wait().map_err(failed)?;
    Ok(lines)
}

fn lines_of(mut text: impl io::Read) -> io::Result<u64> {
    let mut buffer = vec![0; 1 << 16];
    let mut lines = 0;
    loop {
        match text.read(&mut buffer)? {
            0 => return Ok(lines),
            got => lines += buffer[..got].iter().filter(|byte| **byte == b'\n').count() as u64,
        }
    }
}
