//! Inputs that would change the answer: the same calculation with one input doubled or halved.

use serde::Serialize;

use crate::answer::choose;
use crate::costs::{Costs, IoPath};
use crate::demand::demand;
use crate::workload::Workload;

/// An input that changes I/O path or machines.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct InputChange {
    /// The input and its change.
    pub what: String,
    #[serde(rename = "road")]
    pub io_path: IoPath,
    /// Machines then, with one to spare.
    pub machines: u64,
}

type Input = (&'static str, fn(&mut Workload, f64));

const INPUTS: [Input; 8] = [
    ("packets", |workload, by| {
        workload.packets_pps = workload.packets_pps.map(|packets| packets * by);
    }),
    ("requests", |workload, by| workload.requests_per_s *= by),
    ("messages of a connection", |workload, by| workload.messages_per_hour *= by),
    ("connections", |workload, by| workload.connections = times(workload.connections, by)),
    ("state of a connection", |workload, by| {
        workload.state_bytes = times(workload.state_bytes, by)
    }),
    ("attack", |workload, by| workload.attack_pps *= by),
    ("cores of a machine", |workload, by| {
        workload.machine.cores =
            u32::try_from(times(workload.machine.cores.into(), by)).unwrap_or(u32::MAX).max(1);
    }),
    ("memory of a machine", |workload, by| {
        workload.machine.memory_bytes = times(workload.machine.memory_bytes, by);
    }),
];

fn times(value: u64, by: f64) -> u64 {
    (value as f64 * by) as u64
}

/// Those of the inputs that matter, at twice and at half of what they are.
pub(crate) fn changes(
    workload: &Workload,
    costs: &Costs,
    io_path: IoPath,
    machines: u64,
) -> Vec<InputChange> {
    let mut changes = Vec::new();
    for (name, change) in INPUTS {
        for (word, by) in [("twice the", 2.0), ("half the", 0.5)] {
            let mut other = workload.clone();
            change(&mut other, by);
            if other == *workload || other.validate().is_err() {
                continue;
            }
            let Ok((then, _)) = choose(&other, costs) else { continue };
            let Some(demand) = demand(&other, costs, then) else { continue };
            if (then, demand.machines) != (io_path, machines) {
                let what = format!("{word} {name}");
                changes.push(InputChange { what, io_path: then, machines: demand.machines + 1 });
            }
        }
    }
    changes
}
