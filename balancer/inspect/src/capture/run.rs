//! A capture from its begin to its end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use ringway_api::client::node_selector::{self, NodeSelector};
use ringway_api::error::Error;
use ringway_filter::Filter;
use ringway_kernel::View;
use ringway_kernel::programs::capture::{CaptureRequest, Record, Session};
use serde::Serialize;
use tokio::signal::unix::{SignalKind, signal};

use super::names::{self, CaptureNames, Interface};
use super::options::CaptureOptions;
use super::pcapng::Totals;
use super::selection::Selected;
use super::sink::Sink;
use crate::capture::output::Stopped;

/// Name and version of the summary's schema.
pub const SCHEMA: &str = "ringway.capture/1";

/// How long packets may lie before they are shown.
const POLL: Duration = Duration::from_millis(20);
/// How often it is looked whether what is captured from is still there.
const CHECK_EVERY: Duration = Duration::from_millis(500);
/// How many looks in a row an interface may be missing: the daemon may be mending it.
const MISSING: u32 = 4;
/// Bytes that are written at once while a poll goes on.
const FULL: usize = 256 << 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ended {
    /// As many packets as were wanted.
    Count,
    /// As long as was wanted.
    Time,
    /// As many bytes as were wanted.
    Size,
    /// Ctrl-C or SIGTERM.
    Signal,
    /// The reader went away.
    Closed,
    /// It could not be written: a full disk.
    Full,
    /// The interface is gone.
    InterfaceGone,
    /// The node was detached.
    Detached,
}

/// Summary of a capture: schema `ringway.capture/1`.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    pub schema: &'static str,
    /// `[node] name`.
    pub node: String,
    pub filter: String,
    /// Packets written.
    pub captured_packets: u64,
    /// Packets for which there was no room, because they were read too slowly.
    pub lost_packets: u64,
    /// Packets that fitted from the capture's begin to its end, of which only the samples count:
    /// more than were captured where some were lost, or came after the last that was wanted.
    pub matched_packets: u64,
    /// One in so many packets that the filter matches was taken; 1: all.
    pub sample: u32,
    pub written_bytes: u64,
    pub duration_ms: u64,
    pub ended: Ended,
}

#[derive(Clone, Debug)]
pub struct CaptureOutcome {
    pub summary: Summary,
    /// Why it could not go on, if that was no wish.
    pub failure: Option<Error>,
}

/// Captures until it is enough, or a signal comes. `tell` is given lines for people.
///
/// # Errors
/// It cannot begin.
pub fn run(
    selector: &NodeSelector<'_>,
    options: &CaptureOptions,
    tell: impl Fn(&str),
) -> Result<CaptureOutcome, Error> {
    let filter = Filter::compile(&options.filter, options.snaplen).map_err(|error| {
        Error::configuration(error.to_string(), "`man pcap-filter` tells how filters are written")
    })?;
    let node = selector.find()?.node;
    let view = node_selector::view(&node)?;
    let interfaces = names::interfaces(&view).map_err(kernel)?;
    let services = view.services().map_err(kernel)?;
    let selected = options.selection.select(&interfaces, &services)?;
    let asked = asked_to_end()?;
    let session = start(&view, &filter, &selected, options, names::inner_bytes(&interfaces))?;
    let names = CaptureNames::new(&view, interfaces.clone(), &services, options.snaplen);
    let sinks = Sink::open(options, &interfaces, selected.slot)?;
    tell(&start_line(&node, options, &interfaces, selected.slot));
    let watched = interfaces.into_iter().filter(|one| selected.slot.is_none_or(|s| s == one.slot));
    let capture = Capture {
        session,
        view,
        names,
        sinks,
        watched: watched.map(|one| (one, 0)).collect(),
        options,
        asked,
        begun: (Instant::now(), now_unix_ns()),
        taken: 0,
        lost: 0,
    };
    capture.until_the_end(node, &tell)
}

fn kernel(error: ringway_kernel::Error) -> Error {
    Error::failed(error.to_string(), "")
}

fn now_unix_ns() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)
}

fn start(
    view: &View,
    filter: &Filter,
    selected: &Selected,
    options: &CaptureOptions,
    inner_bytes: u32,
) -> Result<Session, Error> {
    let wanted = CaptureRequest {
        filter: &|surroundings| filter.translate(surroundings),
        iface: selected.slot,
        verdicts: &selected.verdicts,
        reasons: &selected.reasons,
        service: selected.service,
        backend: selected.backend,
        sample: options.sample,
        snaplen: options.snaplen.saturating_add(inner_bytes),
        buffer_bytes: options.buffer_bytes,
    };
    Session::start(view, &wanted).map_err(kernel)
}

fn start_line(
    node: &str,
    options: &CaptureOptions,
    interfaces: &[Interface],
    slot: Option<u32>,
) -> String {
    let own = || interfaces.iter().filter(|one| slot.is_none_or(|slot| slot == one.slot));
    let list: Vec<&str> = own().map(|one| one.name.as_str()).collect();
    let mut text = format!("capturing from {} of node {node}", list.join(", "));
    if !options.filter.is_empty() {
        text += &format!(", packets that match {:?}", options.filter);
    }
    text += "; Ctrl-C ends it";
    for one in own().filter(|one| !one.attached) {
        text += &format!(
            "\n{}: our program is not attached, or not visible from this network namespace; \
             `ringway status` there tells",
            one.name
        );
    }
    text
}

struct Capture<'o> {
    session: Session,
    view: View,
    names: CaptureNames,
    sinks: Vec<Sink>,
    /// Interfaces captured from, and for how many looks they have been missing.
    watched: Vec<(Interface, u32)>,
    options: &'o CaptureOptions,
    asked: Arc<AtomicBool>,
    begun: (Instant, u64),
    taken: u64,
    lost: u64,
}

/// Why it ends, with what is to be said about it if that was no wish.
type End = (Ended, Option<Error>);

impl Capture<'_> {
    fn until_the_end(
        mut self,
        node: String,
        tell: &impl Fn(&str),
    ) -> Result<CaptureOutcome, Error> {
        let mut next_check = Instant::now() + CHECK_EVERY;
        let (ended, failure) = loop {
            if let Some(end) = self.round(tell) {
                break end;
            }
            if Instant::now() >= next_check {
                next_check = Instant::now() + CHECK_EVERY;
                if let Some(end) = self.check_sources(tell) {
                    break end;
                }
            }
        };
        let (ended, failure) = self.finish(ended, failure);
        let first = self.sinks.first();
        let summary = Summary {
            schema: SCHEMA,
            node,
            filter: self.options.filter.clone(),
            captured_packets: first.map_or(self.taken, Sink::packets_written),
            lost_packets: self.totals().lost,
            matched_packets: self.totals().matched,
            sample: self.options.sample.max(1),
            written_bytes: first.map_or(0, Sink::bytes_written),
            duration_ms: self.begun.0.elapsed().as_millis() as u64,
            ended,
        };
        Ok(CaptureOutcome { summary, failure })
    }

    /// Takes and writes what there is, and sees whether that is enough.
    fn round(&mut self, tell: &impl Fn(&str)) -> Option<End> {
        if let Some(end) = self.take(POLL) {
            return Some(end);
        }
        let missing = self.totals().lost.saturating_sub(self.lost);
        if missing > 0 && self.lost == 0 {
            tell(
                "packets are lost: they come faster than they are read; keep less of each with -s, \
                 filter more, take one in N with --sample, or give more room with --buffer",
            );
        }
        self.lost += missing;
        self.sinks.iter_mut().for_each(|sink| sink.missing += missing);
        if self.asked.load(Ordering::Relaxed) {
            return Some((Ended::Signal, None));
        }
        let duration = self.options.limits.duration;
        if duration.is_some_and(|duration| self.begun.0.elapsed() >= duration) {
            return Some((Ended::Time, None));
        }
        self.sinks.iter().any(Sink::is_closed).then_some((Ended::Closed, None))
    }

    fn take(&mut self, timeout: Duration) -> Option<End> {
        let Capture { session, names, sinks, taken, options, asked, .. } = self;
        let limits = &options.limits;
        let mut end = None;
        let polled = session.poll(timeout, |record: Record<'_>| {
            if end.is_some() {
                return;
            }
            let packet = names.packet(&record);
            *taken += 1;
            for sink in sinks.iter_mut() {
                sink.packet(&packet);
                if sink.waiting_bytes() > FULL
                    && let Err(stopped) = sink.write(asked)
                {
                    end = Some(because(stopped, sink));
                }
            }
            let bytes = |sink: &Sink| sink.bytes_written() + sink.waiting_bytes() as u64;
            if limits.packets.is_some_and(|most| *taken >= most) {
                end = end.take().or(Some((Ended::Count, None)));
            } else if limits.bytes.is_some_and(|most| sinks.iter().any(|s| bytes(s) >= most)) {
                end = end.take().or(Some((Ended::Size, None)));
            }
        });
        for sink in sinks.iter_mut() {
            if let Err(stopped) = sink.write(asked) {
                end = Some(because(stopped, sink));
            }
        }
        end.or_else(|| polled.err().map(|error| (Ended::Detached, Some(kernel(error)))))
    }

    /// Whether the node and its interfaces still exist.
    fn check_sources(&mut self, tell: &impl Fn(&str)) -> Option<End> {
        let loaded = self.view.pins().is_some_and(|pins| pins.exist().unwrap_or(true));
        if !loaded {
            let what = "the node was detached, or is being loaded anew";
            let remedy = "capture again when it is loaded: `ringway status` tells";
            return Some((Ended::Detached, Some(Error::failed(what, remedy))));
        }
        let now = names::interfaces(&self.view).ok()?;
        for (interface, missing) in &mut self.watched {
            let there =
                now.iter().any(|one| one.slot == interface.slot && one.name == interface.name);
            *missing = if there { 0 } else { *missing + 1 };
            if *missing == MISSING {
                tell(&format!("{}: {GONE}", interface.name));
            }
        }
        let gone = self.watched.iter().all(|(_, missing)| *missing >= MISSING);
        let names: Vec<&str> = self.watched.iter().map(|(one, _)| one.name.as_str()).collect();
        gone.then(|| {
            let what = format!("nothing to capture from is left: {}: {GONE}", names.join(", "));
            let remedy = "`ringway status` tells what became of it; capture again when it is back";
            (Ended::InterfaceGone, Some(Error::failed(what, remedy)))
        })
    }

    fn totals(&self) -> Totals {
        let counts = self.session.counts().unwrap_or_default();
        Totals {
            matched: counts.matched,
            captured: self.taken,
            lost: counts.lost,
            span_unix_ns: (self.begun.1, now_unix_ns()),
        }
    }

    /// Writes what is still there, and the statistics, where that has a point.
    fn finish(&mut self, ended: Ended, failure: Option<Error>) -> End {
        // What it has taken away by itself need not be left.
        let _ = self.session.leave();
        if matches!(ended, Ended::Signal | Ended::Time | Ended::InterfaceGone) {
            // As much as the ring held: nothing is added to it any more.
            let mut before = None;
            while before != Some(self.taken) {
                before = Some(self.taken);
                if let Some(end) = self.take(Duration::ZERO) {
                    return end;
                }
            }
        }
        if matches!(ended, Ended::Closed | Ended::Full) {
            return (ended, failure);
        }
        let totals = self.totals();
        let now = names::interfaces(&self.view).unwrap_or_default();
        let received = |slot| {
            let (before, _) = self.watched.iter().find(|(one, _)| one.slot == slot)?;
            now.iter().find(|one| one.slot == slot)?.seen.checked_sub(before.seen)
        };
        for sink in &mut self.sinks {
            sink.statistics(received, &totals);
            if let Err(stopped) = sink.write(&self.asked)
                && failure.is_none()
            {
                return because(stopped, sink);
            }
        }
        (ended, failure)
    }
}

const GONE: &str = "the interface is gone or renamed, or our program was taken off it";

/// The end of a capture whose output failed.
fn because(stopped: Stopped, sink: &Sink) -> End {
    match stopped {
        Stopped::Closed => (Ended::Closed, None),
        Stopped::Waiting => (Ended::Signal, None),
        Stopped::Refused(error) => {
            let (name, packets) = (sink.name(), sink.packets_written());
            let what = match sink.bytes_written() {
                0 => format!("{name}: {error}; nothing was written"),
                _ => format!("{name}: {error}; it holds the first {packets} packets, whole"),
            };
            let remedy = "free some space, or keep less: -s, --sample, --size, or a filter";
            (Ended::Full, Some(Error::failed(what, remedy)))
        }
    }
}

/// Set once a signal has come that asks for the end. From now on such signals do not kill.
///
/// # Errors
/// Signals cannot be heard.
fn asked_to_end() -> Result<Arc<AtomicBool>, Error> {
    let failed =
        |error: std::io::Error| Error::failed(format!("signals cannot be heard: {error}"), "");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(failed)?;
    let hear = |kind| signal(kind).map_err(failed);
    let (mut interrupt, mut terminate, mut hangup) = {
        let _inside = runtime.enter();
        (
            hear(SignalKind::interrupt())?,
            hear(SignalKind::terminate())?,
            hear(SignalKind::hangup())?,
        )
    };
    let asked = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&asked);
    std::thread::spawn(move || {
        runtime.block_on(async {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
                _ = hangup.recv() => {}
            }
            told.store(true, Ordering::Relaxed);
        });
    });
    Ok(asked)
}
