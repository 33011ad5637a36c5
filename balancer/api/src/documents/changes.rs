//! Changes that another configuration makes: told by `ringway reload`, before or after.

use std::fmt;
use std::net::IpAddr;

use ringway_kernel::shield::{ChallengeKey, FORMER_KEY_COUNTS, SynSecrets};
use serde::{Deserialize, Serialize};

use crate::clock::Timestamp;
use crate::documents::status::Problem;
use crate::overrides::OverriddenBackend;

/// Name and version of the schema.
pub const SCHEMA: &str = "ringway.reload/1";

/// Everything that changes. Flows are those of the moment of asking.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Changes {
    pub schema: String,
    /// `[node] name`.
    pub node: String,
    pub file: String,
    /// Nothing was changed, only told.
    pub dry_run: bool,
    /// Whether anything changes at all.
    pub changed: bool,
    /// Tables of the file that say something else: `nat`, `flows`, `tunnel`, `shield`.
    pub settings: Vec<String>,
    /// What changes of `[shield]`, in words: `rule dns added`.
    #[serde(default)]
    pub shield: Vec<String>,
    /// The secret of answers to SYNs becomes another: `secret`, or what its file has.
    #[serde(default)]
    pub syn_secret: Option<SecretChange>,
    /// Sorted by name.
    pub services: Vec<ServiceChange>,
    /// Backends of services that stay.
    pub backends: Vec<BackendChange>,
    /// Rings of services that stay, as if every new backend were up.
    pub rings: Vec<RingChange>,
    /// New backends that get no traffic yet; of a dry run all of them, since nobody has asked them.
    #[serde(default)]
    pub no_traffic_yet: Vec<NewBackend>,
    /// Warnings of `ringway check` on this machine that it does not give of the configuration in
    /// force.
    #[serde(default)]
    pub warnings: Vec<Problem>,
    pub flows: FlowChange,
    /// Addresses that nobody serves any more: `web 203.0.113.10:80 tcp`.
    #[serde(default)]
    pub lost_endpoints: Vec<String>,
    /// Services, by their old names, whose flows all end: address, ports or protocols are others,
    /// or packets get to backends in another way.
    #[serde(default)]
    pub ended_services: Vec<String>,
    /// The backend that an override is about, as it is now; absent after a reload.
    #[serde(default)]
    pub backend: Option<OverriddenBackend>,
    /// Overrides that were cleared; absent where nobody asked for that.
    #[serde(default)]
    pub cleared_overrides: Option<u64>,
    /// Overrides about backends that the configuration has not.
    pub orphaned_overrides: Vec<String>,
    /// The affected services that have no backend for new connections now.
    #[serde(default)]
    pub unserved_services: Vec<String>,
    pub took_ms: u64,
}

impl Changes {
    /// Whether something about this service, or one of its backends, was said or is another than
    /// before.
    pub fn concern(&self, service: &str) -> bool {
        let said = self.backend.iter().map(|told| &told.service);
        let backends = self.backends.iter().map(|backend| &backend.service);
        let services = self.services.iter().map(|service| &service.service);
        said.chain(backends).chain(services).any(|name| name == service)
    }
}

/// Another secret of answers to SYNs, by fingerprints as in `ringway shield status`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SecretChange {
    pub former_fingerprint: String,
    /// Null: a key of the node's own, which is yet to be made.
    pub fingerprint: Option<String>,
    /// Until then answers of the former one are taken; null where nothing was changed.
    pub former_until: Option<Timestamp>,
}

impl SecretChange {
    /// From those in force to a key; `None`: to one of the node's own. None where they stay.
    pub fn between(in_force: &SynSecrets, key: Option<ChallengeKey>) -> Option<SecretChange> {
        let fingerprint = key.map(ChallengeKey::fingerprint);
        let stays = match &fingerprint {
            Some(fingerprint) => in_force.is_shared && *fingerprint == in_force.present,
            None => !in_force.is_shared,
        };
        let former_fingerprint = in_force.present.clone();
        (!stays).then_some(SecretChange { former_fingerprint, fingerprint, former_until: None })
    }
}

impl fmt::Display for SecretChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SecretChange { former_fingerprint, fingerprint, former_until } = self;
        let now = fingerprint.as_deref().unwrap_or("a key of the node's own");
        write!(f, "secret of answers to SYNs: {former_fingerprint} becomes {now}; ")?;
        match former_until {
            Some(until) => write!(f, "answers of {former_fingerprint} are taken until {until}"),
            None => {
                let seconds = FORMER_KEY_COUNTS.as_secs();
                write!(f, "answers of {former_fingerprint} are taken for {seconds} s more")
            }
        }
    }
}

/// Change of a service or a backend.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum What {
    /// It was not there.
    Added,
    /// It will be gone.
    Removed,
    /// It says something else.
    #[default]
    Changed,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceChange {
    pub service: String,
    pub change: What,
    /// Which keys change, and how.
    pub keys: Vec<String>,
    /// The names of these keys alone, for the process that compared them.
    #[serde(skip)]
    pub names: Vec<&'static str>,
    /// How many backends come or go with it; 0 where it stays.
    #[serde(default)]
    pub backends: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackendChange {
    pub service: String,
    pub address: IpAddr,
    pub port: u16,
    pub change: What,
    /// Its weight until now.
    pub weight_before: Option<u16>,
    /// Its weight from now on.
    pub weight_after: Option<u16>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RingChange {
    pub service: String,
    /// `tcp` or `udp`.
    pub protocol: String,
    /// Slots whose new flows go to another backend.
    pub moved_slots: u64,
    /// Slots of the ring.
    pub slots: u64,
    /// They, or some of them, move only when new backends of the service are up.
    #[serde(default)]
    pub once_up: bool,
}

/// A backend that was not there, or was asked in another way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewBackend {
    pub service: String,
    pub address: IpAddr,
    pub port: u16,
    /// Why it gets no traffic.
    pub reason: String,
}

/// Flows that do not stay as they are. Those of other backends do, whatever becomes of the ring.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowChange {
    /// TCP flows of nat whose backend goes: their clients get a reset.
    pub reset_flows: u64,
    /// UDP flows of nat whose backend goes: they get another one.
    pub moved_flows: u64,
    /// Flows of dsr services with a record, whose backend goes: they get another one.
    pub moved_tracked_flows: u64,
    /// Of `reset_flows`, those of services whose flows all end.
    #[serde(default)]
    pub ended_reset_flows: u64,
    /// Other flows of services whose flows all end: UDP, and dsr with a record.
    #[serde(default)]
    pub ended_flows: u64,
    /// Backends of dsr services go: flows without a record are not counted anywhere.
    pub some_are_not_counted: bool,
}

impl Changes {
    /// Takes note of what is known of new backends.
    pub fn note(&mut self, no_traffic_yet: Vec<NewBackend>) {
        for ring in &mut self.rings {
            ring.once_up = no_traffic_yet.iter().any(|new| new.service == ring.service);
        }
        self.no_traffic_yet = no_traffic_yet;
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;

    #[test]
    fn another_secret_is_told_by_its_fingerprint() {
        let (one, other) = (ChallengeKey([1, 2]), ChallengeKey([2, 1]));
        let in_force = |is_shared| SynSecrets {
            present: one.fingerprint(),
            former: None,
            is_shared,
            since: SystemTime::UNIX_EPOCH,
        };
        assert_eq!(SecretChange::between(&in_force(true), Some(one)), None);
        assert_eq!(SecretChange::between(&in_force(false), None), None);
        let change = |is_shared, key| {
            SecretChange::between(&in_force(is_shared), key).expect("another").to_string()
        };
        let (was, is) = (one.fingerprint(), other.fingerprint());
        assert_eq!(
            change(true, Some(other)),
            format!(
                "secret of answers to SYNs: {was} becomes {is}; answers of {was} are taken for 128 s \
                 more"
            )
        );
        assert!(change(false, Some(other)).contains(&is), "back to the file");
        assert!(change(true, None).contains("becomes a key of the node's own; "));
    }
}
