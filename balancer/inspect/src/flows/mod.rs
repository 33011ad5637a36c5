//! The flows of a node as they are now: schema `ringway.flows/1`. Read from the packet path's own
//! tables while it writes them; nothing waits, and memory does not grow with the flows.
//!
//! Flows of nat services are all there. A dsr service has a record of a flow only where its ring
//! has changed lately, and that holds a hash instead of the client.

pub mod filter;
mod names;
pub mod order;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use ringway_abi::FlowState;
use ringway_api::error::Error;
use ringway_kernel::{NatFlow, Place, View, is_udp, tracked_state};
use serde::Serialize;

use filter::Filter;

pub use names::{FlowNames, Row};

/// Name and version of the schema.
pub const SCHEMA: &str = "ringway.flows/1";

/// Buckets between two looks at the clock: a millisecond or so.
const STRIDE: usize = 1 << 16;

/// A live flow, by numbers; [`FlowNames::row`] has it for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// Where it is in its life.
    pub state: FlowState,
    pub backend: u32,
    /// Seconds since it was last noted to be alive.
    pub idle_s: u32,
    /// A new flow may take its place.
    pub on_probation: bool,
    /// Fields that only a record of a nat service has.
    pub nat: Option<Nat>,
}

/// Fields that only a record of a nat service has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nat {
    pub client: SocketAddr,
    /// The port that its client talks to.
    pub port: u16,
    /// Place of the source address that its backend sees.
    pub source: u8,
    /// The source port that its backend sees.
    pub source_port: u16,
    pub service: u16,
    /// Interface slot of its client's last packet.
    pub iface: u8,
}

impl Flow {
    /// UDP, else TCP.
    pub fn udp(&self) -> bool {
        is_udp(self.state)
    }
}

impl From<NatFlow> for Flow {
    fn from(flow: NatFlow) -> Flow {
        Flow {
            state: flow.key.state,
            backend: flow.key.backend,
            idle_s: flow.idle_s,
            on_probation: !flow.confirmed,
            nat: Some(Nat {
                client: flow.client,
                port: flow.port,
                source: flow.key.nat_addr,
                source_port: flow.key.nat_port,
                service: flow.service,
                iface: flow.iface,
            }),
        }
    }
}

/// How a look through the tables went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Totals {
    pub total_flows: u64,
    /// Those of them that are records of dsr services.
    pub dsr_flows: u64,
    /// Those that the filter lets through.
    pub matched_flows: u64,
    /// Left out, because they changed faster than they could be read, or were just beginning.
    pub changing_flows: u64,
    /// How long it took, in milliseconds.
    pub elapsed_ms: u64,
}

/// How far a look is.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    pub elapsed: Duration,
    /// Part of the flow table that was read: 0 to 100.
    pub percent: u32,
    /// Live flows so far.
    pub flows: u64,
}

/// Visits each live flow that the filter lets through, in no order. `progress` is told every
/// millisecond or so how far it is. Ends at once when `visit` fails.
///
/// # Errors
/// A table cannot be read, or what `visit` says.
pub fn list<E: From<Error>>(
    view: &View,
    filter: &Filter,
    names: &FlowNames,
    mut progress: impl FnMut(Progress),
    mut visit: impl FnMut(&Flow) -> Result<(), E>,
) -> Result<Totals, E> {
    let begun = Instant::now();
    let failed = |error: ringway_kernel::Error| E::from(Error::failed(error.to_string(), ""));
    let mut totals = Totals::default();
    let mut outcome = Ok(());
    let mut take = |totals: &mut Totals, flow: Flow| {
        totals.total_flows += 1;
        if outcome.is_ok() && filter.lets_through(&flow, names) {
            totals.matched_flows += 1;
            outcome = visit(&flow);
        }
        outcome.is_ok()
    };
    let table = view.nat_flows().map_err(failed)?;
    let buckets = table.buckets();
    let mut going = true;
    for first in (0..buckets).step_by(STRIDE) {
        table.visit(first..first + STRIDE, |place| match place {
            Place::Free | Place::Expired => {}
            Place::Claimed | Place::Changing => totals.changing_flows += 1,
            Place::Live(flow) => going &= take(&mut totals, flow.into()),
        });
        if !going {
            break;
        }
        let percent = ((first + STRIDE).min(buckets) * 100 / buckets) as u32;
        progress(Progress { elapsed: begun.elapsed(), percent, flows: totals.total_flows });
    }
    if going {
        let now = view.now_seconds();
        let tracked = view.tracked(|record| {
            totals.dsr_flows += 1;
            take(
                &mut totals,
                Flow {
                    state: tracked_state(record),
                    backend: record.backend,
                    idle_s: record.age(now).max(0).cast_unsigned(),
                    on_probation: !record.promoted,
                    nat: None,
                },
            );
        });
        tracked.map_err(failed)?;
    }
    outcome?;
    totals.elapsed_ms = begun.elapsed().as_millis() as u64;
    Ok(totals)
}
