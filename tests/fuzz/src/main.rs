//! Feeds mutated frames to the packet path by BPF_PROG_TEST_RUN for as long as told, two kinds of
//! mutation (bytes, and shapes that keep their lengths right) guided by what becomes of each frame:
//! one that ends as none before it joins those that are mutated.
//!
//! Every frame must be counted once, under the verdict it got, by the kernel's count too; and
//! what leaves must obey the rules of `ringway_bpf_tests::judge`. The kernel must not complain.
//!
//! A run is cut into episodes, each with a gateway of its own, repeated by seed and number. Each
//! also reads mutated prefix lists.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use clap::Parser;
use ringway_abi::{Reason, Verdict};
use ringway_bpf_tests::run::count_runs;
use ringway_bpf_tests::seeds::Seed;

use crate::episode::{Failure, Outcome, Tally};
use crate::kernel_log::KernelLog;
use crate::list_files::BrokenList;

mod corpus;
mod episode;
mod kernel_log;
mod list_files;
mod path;
mod scene;
mod shape;

/// Mutated frames through the packet path, guided by what becomes of them. Needs root.
#[derive(Parser)]
struct Args {
    /// How long
    #[arg(long, default_value_t = 10.0)]
    minutes: f64,
    /// So many episodes, however long they take
    #[arg(long, conflicts_with_all = ["minutes", "episode"])]
    episodes: Option<u64>,
    /// What decides every mutation; printed, so that a run can be repeated [default: the time]
    #[arg(long)]
    seed: Option<u64>,
    /// This episode of the seed alone
    #[arg(long)]
    episode: Option<u64>,
    /// Frames to begin with, in .hex files
    #[arg(long, default_value = "tests/fuzz/corpus")]
    corpus: PathBuf,
    /// Write a frame for every outcome that was reached to this file
    #[arg(long)]
    save: Option<PathBuf>,
}

/// What all threads have found.
#[derive(Default)]
struct Findings {
    episodes: u64,
    frames: u64,
    sent_in_order: u64,
    counts: BTreeMap<(u8, u8), u64>,
    outcomes: HashMap<Outcome, Seed>,
    failure: Option<(u64, Failure)>,
    list_files: u64,
    broken_list: Option<(u64, BrokenList)>,
}

impl Findings {
    fn failed(&self) -> bool {
        self.failure.is_some() || self.broken_list.is_some()
    }

    fn add(&mut self, tally: Tally) {
        self.frames += tally.frames;
        self.sent_in_order += tally.sent_in_order;
        for (verdict, reason, n) in tally.counts {
            *self.counts.entry((verdict as u8, reason as u8)).or_default() += n;
        }
        for (outcome, seed) in tally.found {
            self.outcomes.entry(outcome).or_insert(seed);
        }
    }
}

fn main() -> ExitCode {
    let args = Args::parse();
    let saved = match corpus::load(&args.corpus) {
        Ok(saved) => saved,
        Err(error) => {
            eprintln!("Cannot read the corpus in {}: {error}", args.corpus.display());
            return ExitCode::from(2);
        }
    };
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let seed = args.seed.unwrap_or(now.as_secs());
    println!("seed {seed}, {} frames in {}", saved.len(), args.corpus.display());
    let mut log = KernelLog::open();
    let _counting = count_runs();
    let start = Instant::now();
    let findings = play(&args, seed, &saved);
    report(&findings, start.elapsed());
    if let Some(file) = &args.save {
        save(file, &findings);
    }
    let complaints = log.complaints();
    for complaint in &complaints {
        println!("The kernel complained: {complaint}");
    }
    if let Some((number, failure)) = &findings.failure {
        explain(seed, *number, failure);
    }
    if let Some((number, BrokenList { text, why })) = &findings.broken_list {
        println!("FAILED: a list file: {why}");
        println!("text  \"{}\"", text.escape_ascii());
        println!("again: make fuzz SEED={seed} EPISODE={number}");
    }
    ExitCode::from(u8::from(findings.failed() || !complaints.is_empty()))
}

/// One thread a CPU, each taking the next episode until enough are played or one fails.
fn play(args: &Args, seed: u64, saved: &[Seed]) -> Findings {
    let findings = Mutex::new(Findings::default());
    let end = Instant::now() + Duration::from_secs_f64(args.minutes * 60.0);
    let is_over = || args.episodes.is_none() && Instant::now() >= end;
    let next = AtomicU64::new(args.episode.unwrap_or(0));
    let behind = args.episode.map(|only| only + 1).or(args.episodes).unwrap_or(u64::MAX);
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    let work = || {
        while !is_over() && !lock(&findings).failed() {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= behind {
                return;
            }
            lock(&findings).episodes += 1;
            match episode::play(seed, number, saved) {
                Ok(tally) => lock(&findings).add(tally),
                Err(failure) => lock(&findings).failure = Some((number, failure)),
            }
            match list_files::play(seed, number) {
                Ok(files) => lock(&findings).list_files += files,
                Err(broken) => lock(&findings).broken_list = Some((number, broken)),
            }
        }
    };
    std::thread::scope(|scope| {
        (0..threads).for_each(|_| drop(scope.spawn(work)));
    });
    findings.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner())
}

fn lock(findings: &Mutex<Findings>) -> std::sync::MutexGuard<'_, Findings> {
    findings.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

fn report(findings: &Findings, took: Duration) {
    for ((verdict, reason), n) in &findings.counts {
        let verdict = Verdict::all().find(|v| *v as u8 == *verdict);
        let reason = Reason::all().find(|r| *r as u8 == *reason);
        if let (Some(verdict), Some(reason)) = (verdict, reason) {
            println!("{n:>12}  {:<8}  {}", verdict.to_string(), reason.name());
        }
    }
    let missed: Vec<&str> = Reason::all()
        .filter(|reason| findings.counts.keys().all(|(_, found)| *found != *reason as u8))
        .map(Reason::name)
        .collect();
    println!("not reached: {}", missed.join(", "));
    println!(
        "{} episodes: {} frames in {:.0} s, {} of them in order and sent; {} outcomes",
        findings.episodes,
        findings.frames,
        took.as_secs_f64(),
        findings.sent_in_order,
        findings.outcomes.len()
    );
    println!("{} list files", findings.list_files);
}

/// Of each verdict, reason and kind of packet the shortest frame; long ones say no more.
fn save(file: &Path, findings: &Findings) {
    let mut kept: BTreeMap<_, &Seed> = BTreeMap::new();
    for ((_, _, verdict, reason, kind, _), seed) in &findings.outcomes {
        let best = kept.entry((verdict, reason, kind)).or_insert(seed);
        if (seed.1.len(), seed) < (best.1.len(), best) {
            *best = seed;
        }
    }
    let mut lines: Vec<_> = kept.values().filter(|seed| seed.1.len() <= 200).copied().collect();
    lines.sort();
    lines.dedup();
    let text: String = lines.iter().map(|seed| corpus::line(seed) + "\n").collect();
    match std::fs::write(file, text) {
        Ok(()) => println!("{} frames written to {}", lines.len(), file.display()),
        Err(error) => println!("Cannot write {}: {error}", file.display()),
    }
}

fn explain(seed: u64, number: u64, failure: &Failure) {
    let scene = episode::scene(number);
    println!("FAILED: {}", failure.why);
    println!("episode {number} ({}), after {} frames", scene.name, failure.after);
    println!("came  {}", corpus::line(&failure.came));
    println!("left  {}", corpus::line(&(failure.came.0, failure.left.clone())));
    println!("again: make fuzz SEED={seed} EPISODE={number}");
    println!("Mended, add the line behind \"came\" to tests/fuzz/corpus/broken.hex.");
}
