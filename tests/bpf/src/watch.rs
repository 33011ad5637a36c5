//! Captures beside the packet path: what they have seen of each frame. A world that is watched
//! holds the records against what it fed and what came of it; with RINGWAY_WATCHED=1 every world
//! is.

use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, UNIX_EPOCH};

use ringway_abi::{BackendRef, Reason, Verdict};
use ringway_filter::Filter;
use ringway_kernel::programs::capture::{CaptureRequest, MOST_BYTES, Record, Session};
use ringway_kernel::{DEFAULT_BPFFS, Detached, Error, Pins, View, detach};
use ringway_testnet::wait_for;

use crate::Summary;

const SOON: Duration = Duration::from_secs(30);
/// No record is older, on the slowest machine.
const A_WHILE: Duration = Duration::from_secs(600);

/// A record, to keep.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// When: nanoseconds since 1970.
    pub unix_ns: u64,
    pub iface: u32,
    pub pair: (Verdict, Reason),
    pub service: Option<u16>,
    pub backend: Option<BackendRef>,
    /// Bytes before, and how many there were.
    pub before: (Vec<u8>, u32),
    /// The same after, where it was rewritten.
    pub after: Option<(Vec<u8>, u32)>,
}

impl Seen {
    fn new(record: &Record<'_>) -> Self {
        Self {
            unix_ns: record.unix_ns,
            iface: record.iface,
            pair: (record.verdict, record.reason),
            service: record.service,
            backend: record.backend,
            before: (record.before.to_vec(), record.before_len),
            after: record.after.map(|(bytes, len)| (bytes.to_vec(), len)),
        }
    }
}

/// Begins a capture of what this expression says, changed as you like.
pub fn start(
    view: &View,
    expression: &str,
    change: impl FnOnce(&mut CaptureRequest<'_>),
) -> ringway_kernel::Result<Session> {
    let filter = Filter::compile(expression, MOST_BYTES).unwrap();
    let translate = |here: &ringway_filter::Surroundings<'_>| filter.translate(here);
    let mut wanted = CaptureRequest {
        filter: &translate,
        iface: None,
        verdicts: &[],
        reasons: &[],
        service: None,
        backend: None,
        sample: 1,
        snaplen: MOST_BYTES,
        buffer_bytes: 1 << 20,
    };
    change(&mut wanted);
    Session::start(view, &wanted)
}

/// The records so far.
pub fn seen(session: &mut Session) -> Vec<Seen> {
    let mut all = Vec::new();
    while session.poll(Duration::ZERO, |record| all.push(Seen::new(&record))).unwrap() > 0 {}
    all
}

/// The one record of a frame: what came and what became of it, to the byte. `layer3`: the header
/// that a frame of such a device has within Ringway.
pub(crate) fn hold(seen: &[Seen], came: &[u8], live: &Summary, layer3: Option<[u8; 14]>) {
    let [seen] = seen else { panic!("{} records of {came:02x?}, {live:?}", seen.len()) };
    let whole = |bytes: &[u8], framed: bool| {
        let header: &[u8] = layer3.as_ref().filter(|_| framed).map_or(&[], |header| header);
        let bytes = [header, bytes].concat();
        let len = bytes.len() as u32;
        (bytes, len)
    };
    let rewritten = matches!(live.verdict, Verdict::Tx | Verdict::Redirect)
        || live.reason == Reason::PassRewritten;
    let after = rewritten.then(|| whole(&live.frame, live.verdict != Verdict::Redirect));
    assert_eq!(seen.pair, live.pair(), "{seen:?}");
    let moment = UNIX_EPOCH + Duration::from_nanos(seen.unix_ns);
    assert!(moment.elapsed().is_ok_and(|since| since < A_WHILE), "{seen:?}");
    assert_eq!(seen.before, whole(came, true), "{seen:?}");
    // The addresses in a header that never leaves are those of the way it took.
    let from = if layer3.is_some() && live.verdict != Verdict::Redirect { 12 } else { 0 };
    let told = |after: &Option<(Vec<u8>, u32)>| {
        after.as_ref().map(|(bytes, len)| (bytes[from..].to_vec(), *len))
    };
    assert_eq!(told(&seen.after), told(&after), "{seen:?}");
}

/// A node of its own under the machine's bpffs, detached when dropped, also by a failing test. What
/// a killed test left behind goes when the next one starts.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) name: String,
}

const PREFIX: &str = "rwtables";

impl Node {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        sweep();
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        Self { name: format!("{PREFIX}-{}-{number}", std::process::id()) }
    }

    pub(crate) fn detach(&self) -> Detached {
        self.try_detach().unwrap().unwrap()
    }

    /// Waits while it is locked: a process that another test is starting has inherited the lock.
    fn try_detach(&self) -> ringway_testnet::Result<ringway_kernel::Result<Detached>> {
        wait_for("the lock of the node", SOON, || {
            match detach(Path::new(DEFAULT_BPFFS), &self.name) {
                Err(busy @ (Error::Busy { .. } | Error::CaptureBusy { .. })) => Err(busy),
                other => Ok(other),
            }
        })
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.try_detach();
    }
}

fn sweep() {
    let Ok(pins) = Pins::new(DEFAULT_BPFFS, PREFIX) else { return };
    for name in pins.known_nodes().unwrap_or_default() {
        let mut parts = name.split('-');
        let owner = (parts.next() == Some(PREFIX)).then(|| parts.next()).flatten();
        if owner.is_some_and(|owner| !Path::new("/proc").join(owner).exists()) {
            let _ = detach(Path::new(DEFAULT_BPFFS), &name);
        }
    }
}
