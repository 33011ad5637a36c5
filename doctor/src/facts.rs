//! The facts that rules read: two samples of one machine.

mod counters;
mod devices;
mod missing;
mod processors;
mod program;

use std::collections::BTreeMap;

use ringway_host::netlink::xdp_features::XdpFeatures;
use ringway_host::{Host, Network, SysctlValue};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use missing::{missing, set_elsewhere};

pub use counters::{Counter, Softnet};
pub use processors::{Irq, cpu_list};
pub use program::{FarEnd, Program};

use crate::{Collection, Fix, Origin, ReversibleFix, Sample, Unknown};

/// The purpose of a machine. Without one, it is a host that ends connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Profile {
    /// Bytes per second.
    Throughput,
    /// Short and even delays.
    Latency,
    /// Passing on what others send.
    Balancer,
    /// Packets that programs fetch past the kernel.
    Bypass,
}

/// Two samples of one machine, and what it is to be good at.
#[derive(Debug, Clone)]
pub struct Facts {
    before: Sample,
    after: Sample,
    /// Between the two samples.
    pub seconds: f64,
    pub profile: Option<Profile>,
    program: Option<Program>,
    host: Host,
    network: Result<Network, Unknown>,
    /// Features of drivers, by the interface's index.
    features: Option<BTreeMap<u32, XdpFeatures>>,
    #[cfg(test)]
    asked: std::sync::Arc<std::sync::Mutex<std::collections::BTreeSet<String>>>,
}

impl Facts {
    /// Facts of a collection.
    pub fn new(collection: &Collection, profile: Option<Profile>) -> Self {
        let Collection { before, after, seconds, .. } = collection.clone();
        let host = after.host();
        let network = host
            .network()
            .map_err(|error| missing(&after, ringway_host::NETWORK, &error.to_string()));
        let features = json(&after, FEATURES).ok();
        Self {
            before,
            after,
            seconds,
            profile,
            program: None,
            host,
            network,
            features,
            #[cfg(test)]
            asked: std::sync::Arc::default(),
        }
    }

    /// Facts that the caller has already: a few files, and netlink's answers.
    pub fn known(files: Sample, network: Network, features: BTreeMap<u32, XdpFeatures>) -> Self {
        let collection = Collection { after: files, ..Collection::default() };
        let facts = Self::new(&collection, Some(Profile::Balancer));
        Self { network: Ok(network), features: Some(features), ..facts }
    }

    /// Where and when the second sample was taken.
    pub fn origin(&self) -> Origin {
        Origin::of(&self.after)
    }

    /// To ask what `host` reads of files.
    pub fn host(&self) -> &Host {
        &self.host
    }

    /// Interfaces, addresses, routes, neighbours.
    pub fn network(&self) -> Result<&Network, Unknown> {
        self.note(ringway_host::NETWORK);
        self.network.as_ref().map_err(Clone::clone)
    }

    pub fn text(&self, path: &str) -> Result<&str, Unknown> {
        self.note(path);
        text(&self.after, path)
    }

    /// A file that holds a number.
    pub fn number(&self, path: &str) -> Result<i64, Unknown> {
        number(path, self.text(path)?)
    }

    /// A file of so many numbers.
    pub fn numbers<const N: usize>(&self, path: &str) -> Result<[i64; N], Unknown> {
        let strange = |_| strange(path, self.text(path).unwrap_or_default());
        self.all_numbers(path)?.try_into().map_err(strange)
    }

    /// A file of numbers.
    pub fn all_numbers(&self, path: &str) -> Result<Vec<i64>, Unknown> {
        self.text(path)?.split_ascii_whitespace().map(|one| number(path, one)).collect()
    }

    /// A setting by its path below /proc/sys, as in `net/ipv4/ip_forward`.
    pub fn sysctl(&self, key: &str) -> Result<i64, Unknown> {
        self.number(&format!("/proc/sys/{key}"))
    }

    /// One of several numbers.
    pub fn sysctls<const N: usize>(&self, key: &str) -> Result<[i64; N], Unknown> {
        self.numbers(&format!("/proc/sys/{key}"))
    }

    /// The command that sets it, and the one that sets the present value again.
    pub fn set(&self, key: &str, to: impl Into<SysctlValue>) -> Result<ReversibleFix, Unknown> {
        let path = format!("/proc/sys/{key}");
        let now = self.text(&path)?.into();
        let in_first_namespace = set_elsewhere(&self.host, &path);
        let set = |value| Fix::Sysctl { key: key.to_owned(), value, in_first_namespace };
        Ok(ReversibleFix { fix: set(to.into()), undo: set(now) })
    }

    /// Names in a directory; none if there is no such directory, for no known reason.
    pub fn list(&self, path: &str) -> Result<Vec<String>, Unknown> {
        self.note(path);
        match self.after.why_not(path) {
            Some(why) => Err(missing(&self.after, path, why)),
            None => Ok(self.host.source().list(path).unwrap_or_default()),
        }
    }

    /// Why a path is not there, where that is known.
    pub fn why_not(&self, path: &str) -> Option<&str> {
        self.after.why_not(path)
    }

    /// The answer of netlink, ethtool or a tool.
    pub fn json<T: DeserializeOwned>(&self, path: &str) -> Result<T, Unknown> {
        self.note(path);
        json(&self.after, path)
    }

    /// The same of both samples.
    pub fn pair<T: DeserializeOwned>(&self, path: &str) -> Result<(T, T), Unknown> {
        self.note(path);
        // The second sample knows why something is not there.
        let after = json(&self.after, path)?;
        Ok((json(&self.before, path)?, after))
    }

    /// A number of both samples.
    pub fn counted(&self, path: &str) -> Result<Counter, Unknown> {
        let (before, after) = self.texts(path)?;
        let counter = |text| Ok::<u64, Unknown>(number(path, text)?.max(0) as u64);
        let (before, total) = (counter(before)?, counter(after)?);
        Ok(Counter { total, delta: total.saturating_sub(before) })
    }

    /// A whole file of both samples.
    pub fn texts(&self, path: &str) -> Result<(&str, &str), Unknown> {
        self.note(path);
        let after = text(&self.after, path)?;
        Ok((text(&self.before, path)?, after))
    }

    /// For the test that takes away whatever a rule asks for.
    #[cfg(test)]
    fn note(&self, path: &str) {
        self.asked.lock().unwrap().insert(path.to_owned());
    }

    #[cfg(not(test))]
    fn note(&self, _path: &str) {}

    /// Paths that were asked for so far.
    #[cfg(test)]
    pub fn asked(&self) -> std::collections::BTreeSet<String> {
        self.asked.lock().unwrap().clone()
    }
}

fn text<'a>(sample: &'a Sample, path: &str) -> Result<&'a str, Unknown> {
    let absent =
        || missing(sample, path, "not there: this kernel lacks it, or it was not collected");
    sample.files().get(path).map(|text| text.trim_end()).ok_or_else(absent)
}

fn json<T: DeserializeOwned>(sample: &Sample, path: &str) -> Result<T, Unknown> {
    let text = text(sample, path)?;
    serde_json::from_str(text)
        .map_err(|error| Unknown(format!("{path} is not understood: {error}")))
}

const FEATURES: &str = "/netlink/xdp_features.json";

/// Rules may calculate with it. What is larger is a word for "without limit" (fs.file-max), or no
/// kernel's.
const MOST: i64 = 1 << 52;

fn number(path: &str, text: &str) -> Result<i64, Unknown> {
    let number: i64 = text.trim().parse().map_err(|_| strange(path, text))?;
    Ok(number.clamp(-MOST, MOST))
}

/// A file holds something unexpected.
pub(crate) fn strange(path: &str, text: &str) -> Unknown {
    let shown: String = text.chars().take(60).collect();
    Unknown(format!("{path} holds {shown:?}, which is not understood"))
}
