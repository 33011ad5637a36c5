//! What things cost, each figure with the command that measured it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{Error, Work};

const REFERENCE: &str = include_str!("../reference.toml");

/// A way through the machine, the simplest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Road {
    /// Sockets or forwarding as they come.
    Kernel,
    /// The same with batches, merging and steering set up for it.
    TunedKernel,
    /// A program in the driver.
    Xdp,
    /// A program in user space that shares rings with the kernel.
    AfXdp,
    /// A driver in user space.
    Dpdk,
}

impl Road {
    /// All, the simplest first.
    pub const ALL: [Road; 5] =
        [Road::Kernel, Road::TunedKernel, Road::Xdp, Road::AfXdp, Road::Dpdk];

    /// As it is written.
    pub fn name(self) -> &'static str {
        match self {
            Road::Kernel => "kernel",
            Road::TunedKernel => "tuned-kernel",
            Road::Xdp => "xdp",
            Road::AfXdp => "af-xdp",
            Road::Dpdk => "dpdk",
        }
    }
}

/// Processor time of one packet or message.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NsCost {
    /// Nanoseconds in all modes: user, system, softirq.
    pub ns: f64,
    /// Those of them in softirq, which the load average does not count.
    #[serde(default)]
    pub softirq_ns: f64,
    /// Whether that was another machine: such a road is taken only where no measured one is enough.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub elsewhere: bool,
    /// What measured it.
    pub from: String,
}

/// Memory of one thing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BytesCost {
    /// Bytes of kernel memory, one side.
    pub bytes: f64,
    /// What measured it.
    pub from: String,
}

/// Costs of one machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Costs {
    /// Which machine, and when.
    pub machine: String,
    /// A message over TCP: read it, write the answer.
    pub connections: BTreeMap<Road, NsCost>,
    /// A datagram: receive it, send the answer.
    pub answer: BTreeMap<Road, NsCost>,
    /// A packet: look at it, send it on.
    pub forward: BTreeMap<Road, NsCost>,
    /// A packet that is unwanted.
    pub drop: BTreeMap<Road, NsCost>,
    /// A connection that is established and idle, its socket and what hangs on it.
    pub established: BytesCost,
    /// A socket in TIME_WAIT.
    pub time_wait: BytesCost,
    /// A flow of a balancer under nat.
    pub flow: BytesCost,
}

impl Costs {
    /// Of the reference run, shipped with every binary.
    ///
    /// # Errors
    ///
    /// None in a build whose tests pass.
    pub fn reference() -> Result<Costs, Error> {
        Costs::parse(REFERENCE)
    }

    /// From TOML.
    ///
    /// # Errors
    ///
    /// Where it is not such a file, or a figure is not positive.
    pub fn parse(text: &str) -> Result<Costs, Error> {
        let costs: Costs = toml::from_str(text)
            .map_err(|error| Error::Costs(error.message().replace('\n', " ")))?;
        let times = [&costs.connections, &costs.answer, &costs.forward, &costs.drop];
        let times = times.into_iter().flat_map(BTreeMap::values);
        let right = |cost: &NsCost| {
            cost.ns.is_finite() && cost.ns > 0.0 && (0.0..=cost.ns).contains(&cost.softirq_ns)
        };
        let sizes = [&costs.established, &costs.time_wait, &costs.flow];
        let right = times.into_iter().all(right)
            && sizes.iter().all(|cost| cost.bytes.is_finite() && cost.bytes >= 0.0)
            && costs.connections.contains_key(&Road::Kernel)
            && costs.answer.contains_key(&Road::Kernel)
            && costs.forward.contains_key(&Road::Kernel)
            && costs.drop.contains_key(&Road::Kernel);
        match right {
            true => Ok(costs),
            false => Err(Error::Costs("a figure is missing or not positive".to_owned())),
        }
    }

    /// As TOML that [`Costs::parse`] reads.
    ///
    /// # Errors
    ///
    /// None for costs that were read or measured.
    pub fn to_toml(&self) -> Result<String, Error> {
        toml::to_string_pretty(self).map_err(|error| Error::Costs(error.to_string()))
    }

    /// What one packet or message of such work costs on a road; none where it cannot go there or nobody measured it.
    pub fn of(&self, work: Work, road: Road) -> Option<&NsCost> {
        match work {
            Work::Connections => &self.connections,
            Work::Answer => &self.answer,
            Work::Forward => &self.forward,
        }
        .get(&road)
    }
}
