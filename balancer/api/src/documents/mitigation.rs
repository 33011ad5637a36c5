//! Automatic mitigation: what is in force.

use std::net::IpAddr;

use ringway_config::{Protocol, ShieldMode};
use ringway_plan::tables::ServiceKey;
use serde::{Deserialize, Serialize};

use crate::clock::Timestamp;
use crate::documents::measure::Measure;
use crate::documents::named;

/// An attack on a service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttackStatus {
    pub service: String,
    pub address: IpAddr,
    /// The first of a range.
    pub port: u16,
    /// The last of a range, else as `port`.
    pub last_port: u16,
    #[serde(with = "named")]
    pub protocol: Protocol,
    /// The shield's for its packets.
    #[serde(with = "named")]
    pub mode: ShieldMode,
    pub since: Timestamp,
    /// Unless it goes on.
    pub until: Timestamp,
    /// What was above its threshold; absent: a daemon before this one found it.
    #[serde(with = "named::optional")]
    pub measure: Option<Measure>,
    pub packets_per_second: u64,
    pub new_flows_per_second: u64,
    /// What is usual of `measure`, a second; absent while that is not known.
    pub baseline: Option<u64>,
}

/// A protocol of a service, where `[shield.mitigation]` is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MitigationStatus {
    pub service: String,
    #[serde(with = "named")]
    pub protocol: Protocol,
    /// Since the daemon began.
    pub attacks: u64,
    /// The one that lasts.
    #[serde(default)]
    pub attack: Option<AttackStatus>,
}

impl AttackStatus {
    /// A second, of what was above its threshold.
    pub fn rate(&self) -> u64 {
        match self.measure {
            Some(Measure::NewFlows) => self.new_flows_per_second,
            _ => self.packets_per_second,
        }
    }

    /// Address and ports, as in a URL.
    pub fn endpoint(&self) -> String {
        let key = ServiceKey {
            address: self.address,
            port: self.port,
            last_port: self.last_port,
            protocol: self.protocol,
        };
        key.endpoint()
    }
}
