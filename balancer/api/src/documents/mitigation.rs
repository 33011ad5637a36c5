//! Automatic mitigation: what is in force.

use std::net::IpAddr;
use std::time::{Duration, SystemTime};

use ringway_config::{Protocol, ShieldMode, Syn};
use ringway_kernel::HeavySource;
use ringway_plan::tables::ServiceKey;
use serde::{Deserialize, Serialize};

use crate::clock::Timestamp;
use crate::documents::measure::Measure;
use crate::documents::named;
use crate::problem_kind::Subject;
use crate::text::counted;

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
    /// When the last of it came, where nothing has since; null: it goes on.
    #[serde(default)]
    pub ended: Option<Timestamp>,
    /// What was above its threshold; null: a daemon before this one found it.
    #[serde(with = "named::optional")]
    pub measure: Option<Measure>,
    pub packets_per_second: u64,
    pub new_flows_per_second: u64,
    /// What is usual of `measure`, a second; null while that is not known.
    pub baseline: Option<u64>,
    /// How the service's SYNs are answered meanwhile: `off`, not at all.
    #[serde(default = "off")]
    pub syn: String,
    /// SYNs a second that are answered, or would be in mode `observe`.
    #[serde(default)]
    pub syns_answered_per_second: u64,
    /// It is above its threshold, and for long enough that its heavy sources are known: for the
    /// process that found it.
    #[serde(skip)]
    pub lasts: bool,
}

fn off() -> String {
    Syn::Off.name().to_owned()
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
    /// What is usual; null while that is not known.
    #[serde(default)]
    pub usual_packets_per_second: Option<u64>,
    #[serde(default)]
    pub usual_new_flows_per_second: Option<u64>,
}

impl AttackStatus {
    /// A second, of what was above its threshold.
    pub fn rate(&self) -> u64 {
        match self.measure {
            Some(Measure::NewFlows) => self.new_flows_per_second,
            _ => self.packets_per_second,
        }
    }

    /// Whether a source of its service has sent since it began. An attack is found some time after
    /// its first packets, and the packet path counts full seconds.
    pub fn has_met(&self, source: &HeavySource, wall: SystemTime) -> bool {
        const BEFORE: Duration = Duration::from_secs(1);
        // A clock that was set back tells nothing.
        let lasts = wall.duration_since(self.since.0).unwrap_or(Duration::MAX);
        Duration::from_secs(source.silent.into()) <= lasts.saturating_add(BEFORE)
    }

    /// That it goes on, or from when to when it lasted.
    pub fn attacked(&self) -> String {
        let AttackStatus { since, ended, .. } = self;
        match ended {
            None => format!("attacked since {since}"),
            Some(ended) => format!("attacked from {since} to {ended}"),
        }
    }

    /// Whether its limits drop.
    pub fn armed(&self) -> &'static str {
        match self.mode {
            ShieldMode::Enforce => "armed",
            _ => "would be armed",
        }
    }

    /// That SYNs are answered, how, and how many a second; none: they are not.
    pub fn answered(&self) -> Option<String> {
        let (syn, rate) = (&self.syn, self.syns_answered_per_second);
        let are = match self.mode {
            ShieldMode::Enforce => "are",
            _ => "would be",
        };
        (*syn != off()).then(|| format!("SYNs {are} answered (syn = {syn:?}), {rate} a second"))
    }

    /// What a finding about it is about.
    pub fn subject(&self) -> Subject {
        Subject::Service(format!("{} ({})", self.service, self.protocol))
    }

    /// What to do about it; `heavy`: how many sources are heavy, where they are counted.
    pub fn remedy(&self, heavy: Option<usize>) -> String {
        let holds = if self.answered().is_some() { "SYNs are answered" } else { "limits hold" };
        match heavy {
            None if self.answered().is_some() => {
                "`ringway shield status` shows how many SYNs are answered, and who replies".into()
            }
            None => "no source is counted without a limit `source`: write it in limits of \
                     [shield.mitigation]"
                .into(),
            Some(0) if self.lasts => format!(
                "no source was over its limit in the last minute: they are spread, and probably \
                 forged, so blocking helps little; {holds}, and your provider can relieve a full \
                 uplink: see \"FlowSpec and RTBH\" in the documents"
            ),
            Some(0) => "no source was over its limit in the last minute".into(),
            Some(heavy) => format!(
                "`ringway shield status` names {}, and `ringway block` blocks them",
                counted(heavy, "heavy source")
            ),
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

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub fn attack(syn: &str, mode: ShieldMode) -> AttackStatus {
        AttackStatus {
            service: "web".into(),
            address: [203, 0, 113, 9].into(),
            port: 80,
            last_port: 80,
            protocol: Protocol::Tcp,
            mode,
            since: Timestamp::default(),
            until: Timestamp::default(),
            ended: None,
            measure: Some(Measure::NewFlows),
            packets_per_second: 500,
            new_flows_per_second: 500,
            baseline: None,
            syn: syn.into(),
            syns_answered_per_second: 491,
            lasts: true,
        }
    }

    #[test]
    fn whoever_answers_syns_is_told_of_that_and_not_of_limits() {
        let off = attack("off", ShieldMode::Enforce);
        assert_eq!(off.answered(), None);
        assert!(off.remedy(None).contains("write it in limits"));
        assert!(off.remedy(Some(0)).contains("limits hold"));
        let proxy = attack("proxy", ShieldMode::Enforce);
        let want = "SYNs are answered (syn = \"proxy\"), 491 a second";
        assert_eq!(proxy.answered().as_deref(), Some(want));
        assert!(proxy.remedy(None).contains("how many SYNs are answered"));
        assert!(!proxy.remedy(Some(0)).contains("limits hold"));
        let observed = attack("proxy", ShieldMode::Observe).answered();
        assert!(observed.is_some_and(|it| it.starts_with("SYNs would be answered (")));
    }
}
