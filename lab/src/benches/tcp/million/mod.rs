//! A million connections on one machine: `ringway-lab bench million`.
//!
//! The limit of open files is one of each process, so that many share the work: servers share their
//! listeners (SO_REUSEPORT), clients the numbers of the connections.

mod helper;
mod plan;
mod report;

use std::process::{Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};
use std::{io, thread};

use clap::ValueEnum as _;
use ringway_terminal::quantity::whole;
use ringway_terminal::text::counted;
use ringway_testnet::{Namespace, wait_until};
use serde_json::{Value, json};

use self::helper::Helper;
use self::plan::{Limits, Plan, Scheme};
use self::report::{MillionFigures, Round, Sample, bytes_in_words};
use super::counters::Counters;
use super::limits;
use super::slab::{Names, Slabs};
use crate::harness::{self, Case, Harness, Scenario};
use crate::{Error, Result};

/// Connections a second that a processor makes and accepts without letting queues grow.
const RATE_PER_CPU: u64 = 5000;
/// Of listeners. What the book of the lab's source has to be raised first; and what it is when
/// nobody did.
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

/// A million TCP connections on this machine, and what they take.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Needs root. A million take about 9 GB and four minutes, both schemes together; runs in network \
    namespaces of its own, by helper processes that end with it. Says how many are possible where there is too little \
    memory or too few files. Numbers may end in k, M, G or T. Exit code 1 when not all connections were there and carried data.\n\nExamples:\n  \
    ringway-lab bench million\n  ringway-lab bench million --connections 100k --scheme many-server-ports -o json\n  \
    ringway-lab bench million --connections 50k --no-pace"
)]
pub struct Million {
    /// Connections, established at the same time.
    #[arg(long, value_name = "N", default_value = "1M", value_parser = whole::<u64>(1..=100_000_000))]
    pub connections: u64,
    /// What there are many of [default: one after the other].
    #[arg(long, value_name = "SCHEME", value_delimiter = ',')]
    pub scheme: Vec<Scheme>,
    /// Connections a second [default: 5000 for each processor].
    #[arg(long, value_name = "N", value_parser = whole::<u64>(1..=10_000_000))]
    pub rate: Option<u64>,
    /// All at once and to queues of 128: shows what overflows.
    #[arg(long, conflicts_with = "rate")]
    pub no_pace: bool,
}

impl Case for Scheme {
    fn key(&self) -> Value {
        json!({ "scheme": self })
    }
}

impl Scenario for Million {
    const NAME: &'static str = "million";
    const PEERS: &'static [(&'static str, &'static str)] = &[("ss", "-V")];
    type Figures = MillionFigures;

    fn check(&self) -> Result<()> {
        // It is asked at the end, and its absence is to be known at the beginning.
        ringway_testnet::tools::find("ss")?;
        limits::open_files_at_least(plan::FEWEST_FILES, plan::ENOUGH_FILES)?;
        Plan::new(self.connections, &limits_here()).map(drop)
    }

    fn measure(&self, harness: &mut Harness<'_>) -> Result<MillionFigures> {
        let plan = Plan::new(self.connections, &limits_here())?;
        harness.say(format!(
            "{}: about {} of {} of memory, {} and {}",
            counted(plan.connections, "connection"),
            bytes_in_words(plan.bytes),
            bytes_in_words(limits::available()),
            counted(plan.servers, "server process"),
            counted(plan.clients, "client process")
        ));
        let mut rounds = Vec::new();
        let mut schemes = harness::chosen(&Scheme::ALL, &self.scheme);
        harness.each(&mut schemes, |harness, scheme| {
            rounds.push(self.round(&plan, *scheme, harness)?);
            Ok(())
        });
        Ok(MillionFigures {
            connections: plan.connections,
            paced: !self.no_pace,
            server_processes: plan.servers,
            client_processes: plan.clients,
            needed_bytes: plan.bytes,
            rounds,
        })
    }
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
            Some(helper::connect_all(&helper::Work {
                scheme: Scheme::from_str(scheme, false).ok()?,
                numbers,
            }))
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

impl Million {
    /// One scheme from the first connection to the last socket's end.
    fn round(&self, plan: &Plan, scheme: Scheme, harness: &mut Harness<'_>) -> Result<Round> {
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
        let mut crew = Crew::start(!self.no_pace, plan, scheme, &namespace)?;
        let baseline = SlabBaseline::read()?;
        let cpus = thread::available_parallelism().map_or(1, |n| n.get() as u64);
        let rate = (!self.no_pace).then(|| self.rate.unwrap_or(RATE_PER_CPU * cpus));
        let began = Instant::now();
        let mut samples = vec![start];
        let slowest = crew.connect(rate, cpus, || {
            samples.push(Sample::now(&namespace, began.elapsed())?);
            if let Some(line) = tell(scheme, plan, &samples) {
                harness.say(line);
            }
            Ok(())
        })?;
        let connect_s = began.elapsed().as_secs_f64();
        let accepted = crew.accepted(plan.connections)?;
        samples.push(Sample::now(&namespace, began.elapsed())?);
        let (bytes_per_connection, disturbed) = baseline.bytes_per_connection(accepted)?;
        let diag = count_by_diag(&namespace)?;
        let (sampled, echoed) = crew.sample(plan.connections)?;
        let counters = namespace.run(Counters::read)??.since(&before);
        harness.say(format!(
            "{scheme}: {accepted} accepted, {echoed} of {sampled} tokens came back; taking it down"
        ));
        let ending = Instant::now();
        crew.end();
        drop(namespace);
        let teardown_s = ending.elapsed().as_secs_f64();
        Slabs::wait_until_as(&baseline.before, 2 * accepted);
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
}

/// The kernel's caches before the first connection, when helpers are there already.
struct SlabBaseline {
    names: Names,
    before: Slabs,
}

impl SlabBaseline {
    fn read() -> Result<Self> {
        let names = Names::read();
        Ok(Self { before: Slabs::settled(&names)?, names })
    }

    /// Bytes of both ends of a connection; else the reason why they are unknown.
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

#[derive(Default)]
struct Connected {
    connected: u64,
    us: u64,
}

impl Crew {
    fn start(paced: bool, plan: &Plan, scheme: Scheme, namespace: &Namespace) -> Result<Self> {
        let ports = if scheme == Scheme::ManyServerPorts { plan.groups } else { 1 };
        let backlog = if paced { BACKLOG } else { SMALL_BACKLOG };
        let start = |job: String| Helper::start(namespace, &job);
        let servers = (0..plan.servers).map(|_| start(format!("million-server,{ports},{backlog}")));
        let servers = servers.collect::<Result<_>>()?;
        let clients = (0..plan.clients).map(|client| {
            let numbers = plan.of_client(client);
            start(format!("million-client,{scheme},{},{}", numbers.start, numbers.end))
        });
        Ok(Self { servers, clients: clients.collect::<Result<_>>()? })
    }

    /// Lets clients connect, as many at a time as there are processors when paced, else all;
    /// `watch` now and then.
    fn connect(
        &mut self,
        rate: Option<u64>,
        cpus: u64,
        mut watch: impl FnMut() -> Result<()>,
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
            let mut watched = Ok(());
            while is_done.recv_timeout(LOOK) == Err(RecvTimeoutError::Timeout) {
                if watched.is_ok() {
                    watched = watch();
                }
            }
            let all = driver.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            watched.map(|()| all)
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

    /// Tokens over a random sample of connections, there and back: how many were sent, how many
    /// came back.
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
