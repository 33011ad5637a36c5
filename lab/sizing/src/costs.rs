//! Costs, each with the command that measured it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{Error, Work};

/// The first lines of a file of costs.
const HEADER: &str = "\
# What things cost: nanoseconds of processor time, bytes of kernel memory; spread: how far the rounds of a figure are apart, as a part of it.
# Written by `ringway-lab size --calibrate FILE`, used by `ringway-lab size --costs FILE`.
";
const REFERENCE: &str = include_str!("../reference.toml");

/// Rounds that are further apart make a figure doubtful.
pub const SPREAD: f64 = 0.25;
/// So much of a processor that others keep busy is not in the figures.
const OTHERS: f64 = 0.1;
/// No packet, and no socket, costs less or more: nanoseconds, bytes.
const LEAST_NS: f64 = 0.1;
const MOST_NS: f64 = 1e9;
const MOST_BYTES: f64 = 1e6;

/// A way through the machine, the simplest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum IoPath {
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

impl IoPath {
    /// All, the simplest first.
    pub const ALL: [IoPath; 5] =
        [IoPath::Kernel, IoPath::TunedKernel, IoPath::Xdp, IoPath::AfXdp, IoPath::Dpdk];

    /// As it is written.
    pub fn name(self) -> &'static str {
        match self {
            IoPath::Kernel => "kernel",
            IoPath::TunedKernel => "tuned-kernel",
            IoPath::Xdp => "xdp",
            IoPath::AfXdp => "af-xdp",
            IoPath::Dpdk => "dpdk",
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
    /// From the least to the most of the rounds that it is the middle of, by the figure itself;
    /// none: it is no figure of rounds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spread: Option<f64>,
    /// Whether that was another machine: such a path is taken only where no measured one is enough.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub elsewhere: bool,
    /// The command that measured it.
    pub from: String,
}

/// Memory of one thing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BytesCost {
    /// Bytes of kernel memory, one side.
    pub bytes: f64,
    /// As that of [`NsCost`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spread: Option<f64>,
    /// The command that measured it.
    pub from: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Costs {
    /// The machine, and the day.
    pub machine: String,
    /// Processors that other work kept busy meanwhile, on average; none: nobody looked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub others: Option<f64>,
    /// A message over TCP: read it, write the answer.
    pub connections: BTreeMap<IoPath, NsCost>,
    /// A datagram: receive it, send the answer.
    pub answer: BTreeMap<IoPath, NsCost>,
    /// A packet: look at it, send it on.
    pub forward: BTreeMap<IoPath, NsCost>,
    /// A packet that is unwanted.
    pub drop: BTreeMap<IoPath, NsCost>,
    /// A connection that was accepted and is idle: its socket and what hangs on it.
    pub established: BytesCost,
    /// The same of one that was made from here.
    pub connected: BytesCost,
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
        let spread = |spread: Option<f64>| spread.is_none_or(|s| (0.0..=MOST_BYTES).contains(&s));
        let right = |(_, _, cost): (&str, IoPath, &NsCost)| {
            (LEAST_NS..=MOST_NS).contains(&cost.ns)
                && (0.0..=cost.ns).contains(&cost.softirq_ns)
                && spread(cost.spread)
        };
        let right = costs.times().all(right)
            && costs
                .sizes()
                .iter()
                .all(|(_, cost)| (0.0..=MOST_BYTES).contains(&cost.bytes) && spread(cost.spread))
            && spread(costs.others)
            && costs.connections.contains_key(&IoPath::Kernel)
            && costs.answer.contains_key(&IoPath::Kernel)
            && costs.forward.contains_key(&IoPath::Kernel)
            && costs.drop.contains_key(&IoPath::Kernel);
        match right {
            true => Ok(costs),
            false => Err(Error::Costs("a figure is missing, not positive or absurd".to_owned())),
        }
    }

    /// Every cost in time: of which work, on which I/O path.
    pub fn times(&self) -> impl Iterator<Item = (&'static str, IoPath, &NsCost)> {
        let works = [
            ("connections", &self.connections),
            ("answer", &self.answer),
            ("forward", &self.forward),
            ("drop", &self.drop),
        ];
        works.into_iter().flat_map(|(work, costs)| {
            costs.iter().map(move |(io_path, cost)| (work, *io_path, cost))
        })
    }

    /// Every cost in memory, by its name.
    pub fn sizes(&self) -> [(&'static str, &BytesCost); 4] {
        [
            ("established", &self.established),
            ("connected", &self.connected),
            ("time_wait", &self.time_wait),
            ("flow", &self.flow),
        ]
    }

    /// Doubts about these costs: figures whose rounds differ much, and other load.
    pub fn doubts(&self) -> Vec<String> {
        let far = |spread: Option<f64>| spread.filter(|spread| *spread > SPREAD);
        let told = |what: String, spread: f64| {
            format!("the rounds of {what} are {:.0} % apart", spread * 100.0)
        };
        let times = self.times().filter_map(|(work, io_path, cost)| {
            Some(told(format!("{work} by {}", io_path.name()), far(cost.spread)?))
        });
        let sizes = self.sizes().map(|(name, cost)| Some(told(name.to_owned(), far(cost.spread)?)));
        let others = self
            .others
            .filter(|cores| *cores > OTHERS)
            .map(|cores| format!("other work kept {cores:.1} processors busy meanwhile"));
        times.chain(sizes.into_iter().flatten()).chain(others).collect()
    }

    /// As TOML that [`Costs::parse`] reads.
    ///
    /// # Errors
    ///
    /// None for costs that were read or measured.
    pub fn to_toml(&self) -> Result<String, Error> {
        let text = toml::to_string_pretty(self).map_err(|error| Error::Costs(error.to_string()))?;
        Ok(format!("{HEADER}{text}"))
    }

    /// The cost of one packet or message of such work on an I/O path; none if the path cannot do
    /// the work or nobody measured it.
    pub fn of(&self, work: Work, io_path: IoPath) -> Option<&NsCost> {
        match work {
            Work::Connections => &self.connections,
            Work::Answer => &self.answer,
            Work::Forward => &self.forward,
        }
        .get(&io_path)
    }
}
