//! How documents write enumerations: by name.

use std::collections::BTreeMap;

use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use ringway_abi::{Accept, Faces, FlowState, Forward, Limit, Loss, Reason, Verdict};
use ringway_config::{Announce, ListAction, Protect, Protocol, ShieldMode, SourceMode};
use ringway_kernel::XdpMode;

use crate::documents::health::Lack;
use crate::documents::measure::Measure;

/// An enumeration whose values have names.
pub trait Named: Copy + 'static {
    fn name(self) -> &'static str;

    fn all() -> impl Iterator<Item = Self>;

    /// The value of this name.
    fn by_name(name: &str) -> Option<Self> {
        Self::all().find(|one| one.name() == name)
    }
}

macro_rules! named {
    ($($name:ty: $all:expr;)+) => {
        $(impl Named for $name {
            fn name(self) -> &'static str {
                <$name>::name(self)
            }

            fn all() -> impl Iterator<Item = Self> {
                $all
            }
        })+
    };
}

named! {
    Accept: Accept::all();
    Faces: [Faces::Both, Faces::Clients, Faces::Backends].into_iter();
    FlowState: FlowState::all();
    Forward: Forward::all();
    Measure: Measure::ALL.into_iter();
    Lack: Lack::ALL.into_iter();
    Limit: Limit::all();
    Loss: Loss::all();
    Reason: Reason::all();
    Verdict: Verdict::all();
    XdpMode: [XdpMode::Native, XdpMode::Generic, XdpMode::Hardware].into_iter();
    Announce: [Announce::Kernel, Announce::Arp, Announce::Routed].into_iter();
    Protocol: [Protocol::Tcp, Protocol::Udp].into_iter();
    SourceMode: [SourceMode::Node, SourceMode::Client].into_iter();
    ListAction: [ListAction::Block, ListAction::Allow].into_iter();
    Protect: [Protect::Services, Protect::Host].into_iter();
    ShieldMode: ShieldMode::all();
}

/// For `#[serde(with = "named")]`.
pub fn serialize<T: Named, S: Serializer>(value: &T, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(value.name())
}

/// For `#[serde(with = "named")]`.
pub fn deserialize<'de, T: Named, D: Deserializer<'de>>(deserializer: D) -> Result<T, D::Error> {
    let name = String::deserialize(deserializer)?;
    T::by_name(&name).ok_or_else(|| D::Error::custom(format!("{name:?} is of another version")))
}

/// Counts by name, in the order of the names.
pub mod counts {
    use super::*;

    /// For `#[serde(with = "named::counts")]`.
    pub fn serialize<T: Named + Ord, S: Serializer>(
        counts: &BTreeMap<T, u64>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let counts: BTreeMap<_, _> = counts.iter().map(|(of, n)| (of.name(), n)).collect();
        counts.serialize(serializer)
    }

    /// For `#[serde(with = "named::counts")]`. Names of another version are left out.
    pub fn deserialize<'de, T: Named + Ord, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<BTreeMap<T, u64>, D::Error> {
        let counts = BTreeMap::<String, u64>::deserialize(deserializer)?;
        Ok(counts.into_iter().filter_map(|(name, n)| Some((T::by_name(&name)?, n))).collect())
    }
}

/// One that may not be known: then it has no letter.
pub mod optional {
    use super::*;

    /// For `#[serde(with = "named::optional")]`.
    pub fn serialize<T: Named, S: Serializer>(
        value: &Option<T>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(value.map_or("", T::name))
    }

    /// For `#[serde(with = "named::optional")]`.
    pub fn deserialize<'de, T: Named, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<T>, D::Error> {
        Ok(T::by_name(&String::deserialize(deserializer)?))
    }
}

/// For `#[serde(deserialize_with = "named::known")]`: rows without those that have names of another
/// version.
pub fn known<'de, T, D>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    T: DeserializeOwned,
    D: Deserializer<'de>,
{
    let rows = Vec::<serde_json::Value>::deserialize(deserializer)?;
    Ok(rows.into_iter().filter_map(|row| serde_json::from_value(row).ok()).collect())
}
