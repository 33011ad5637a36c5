//! Limits of services, and what meets them: part of `ringway.shield/1`.

use ringway_abi::Limit;
use ringway_config::{Limits, Protocol, RateLimit, Service, Shield, Syn};
use ringway_kernel::Arrivals;
use serde::{Deserialize, Serialize};

use crate::clock::Timestamp;
use crate::documents::named;
use crate::documents::tcp_offer::TcpOffer;

/// Packets a second that a service may get, and what it has met.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LimitsStatus {
    pub service: String,
    #[serde(with = "named")]
    pub protocol: Protocol,
    /// Of the configuration, while no mitigation is armed.
    pub packets_pps: Option<u32>,
    /// Of its address.
    pub destination_pps: Option<u32>,
    pub new_flows_pps: Option<u32>,
    /// Of one source.
    pub source_pps: Option<u32>,
    /// That met the limits.
    pub arrived_packets: u64,
    pub arrived_new_flows: u64,
    /// Over a limit: dropped, unless the mode, their flow or their source lets them pass.
    pub over_limit_packets: u64,
    /// That arrive; absent while it is not known, as all rates.
    #[serde(default)]
    pub arrived_packets_per_second: Option<f64>,
    #[serde(default)]
    pub arrived_new_flows_per_second: Option<f64>,
    /// Over a limit, and passed: their flow is established.
    #[serde(default)]
    pub established: PacketCount,
    /// The same: their source was learnt.
    #[serde(default)]
    pub learnt: PacketCount,
    /// Who answers SYNs of strangers: `off`, the backends.
    #[serde(default = "off")]
    pub syn: String,
    /// Who answers them now: another one where not every backend takes cookies; absent: not known.
    #[serde(default)]
    pub syn_in_force: Option<String>,
    /// What answers with a cookie promise clients now; absent: such are not made, or not known.
    #[serde(default)]
    pub promises: Option<TcpOffer>,
    /// SYNs that the gateway has answered, or would have in mode `observe`.
    #[serde(default)]
    pub syns_answered: PacketCount,
    /// Replies to these answers: their senders are there. Null where backends have the replies.
    #[serde(default)]
    pub answers_met: Option<PacketCount>,
    /// What looks like such a reply, and fits no answer. The same.
    #[serde(default)]
    pub answers_failed: Option<PacketCount>,
    /// Each limit.
    #[serde(default)]
    pub by_limit: Vec<LimitStatus>,
}

/// One limit of a service.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LimitStatus {
    #[serde(with = "named")]
    pub limit: Limit,
    /// In force now; null: there is none.
    pub pps: Option<u32>,
    /// It is of `[shield.mitigation]`, until then; null: of the configuration.
    pub mitigation_until: Option<Timestamp>,
    /// Over it: dropped, or with the mode `observe` passed.
    pub over: PacketCount,
}

/// A counter, and by how much it rises.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PacketCount {
    pub packets: u64,
    /// Null while it is not known.
    pub packets_per_second: Option<f64>,
}

/// A counter of a service with limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LimitCounter {
    Packets,
    NewFlows,
    Established,
    Learnt,
    SynsAnswered,
    AnswersMet,
    AnswersFailed,
    Over(Limit),
}

fn off() -> String {
    Syn::Off.name().to_owned()
}

impl LimitsStatus {
    /// Of each protocol of a service, if it has limits, may get some by a mitigation, or its SYNs are
    /// answered.
    pub fn of(shield: Option<&Shield>, service: &Service) -> Vec<LimitsStatus> {
        let Some(shield) = shield else { return Vec::new() };
        let limits = shield.limits_of(service);
        let answers = |protocol| *service.syn != Syn::Off && protocol == Protocol::Tcp;
        let one = |protocol: &Protocol| LimitsStatus {
            syn: if answers(*protocol) { service.syn.name().to_owned() } else { off() },
            ..LimitsStatus::new(&service.name, *protocol, limits)
        };
        let has_none = limits.is_empty() && shield.mitigation.is_none();
        match has_none && *service.syn == Syn::Off {
            true => Vec::new(),
            false => service.protocols.iter().map(one).collect(),
        }
    }

    /// Without counts.
    pub fn new(service: &str, protocol: Protocol, limits: Limits) -> LimitsStatus {
        let [packets_pps, destination_pps, new_flows_pps, source_pps] = each(limits).map(pps);
        let by_limit = each(limits).map(|(limit, rate)| LimitStatus {
            limit,
            pps: pps((limit, rate)),
            mitigation_until: None,
            over: PacketCount::default(),
        });
        LimitsStatus {
            service: service.to_owned(),
            protocol,
            packets_pps,
            destination_pps,
            new_flows_pps,
            source_pps,
            arrived_packets: 0,
            arrived_new_flows: 0,
            over_limit_packets: 0,
            arrived_packets_per_second: None,
            arrived_new_flows_per_second: None,
            established: PacketCount::default(),
            learnt: PacketCount::default(),
            syn: off(),
            syn_in_force: None,
            promises: None,
            syns_answered: PacketCount::default(),
            answers_met: None,
            answers_failed: None,
            by_limit: by_limit.into(),
        }
    }

    /// A mitigation has put these in force until then.
    pub fn arm(&mut self, limits: Limits, until: Timestamp) {
        for (own, armed) in self.by_limit.iter_mut().zip(each(limits).map(pps)) {
            if armed != own.pps {
                (own.pps, own.mitigation_until) = (armed, Some(until));
            }
        }
    }

    /// Who answers SYNs now, as far as that is known.
    fn syn_now(&self) -> &str {
        self.syn_in_force.as_deref().unwrap_or(&self.syn)
    }

    /// Enters what it has met; who answers its SYNs is known before.
    pub fn count(&mut self, found: Arrivals) {
        (self.arrived_packets, self.arrived_new_flows) = (found.packets, found.new_flows);
        self.over_limit_packets = found.over();
        (self.established.packets, self.learnt.packets) = (found.established, found.learnt);
        self.syns_answered.packets = found.syns_answered;
        let replies = |packets| {
            let sees_them = self.syn_now() != Syn::Backend.name();
            sees_them.then_some(PacketCount { packets, packets_per_second: None })
        };
        let (met, failed) = (replies(found.answers_met), replies(found.answers_failed));
        (self.answers_met, self.answers_failed) = (met, failed);
        for one in &mut self.by_limit {
            one.over.packets = match one.limit {
                Limit::None => 0,
                Limit::Packets => found.over_packets,
                Limit::Destination => found.over_destination,
                Limit::NewFlows => found.over_new_flows,
                Limit::Source => found.over_source,
            };
        }
    }

    /// Its counters, with the places of their rates.
    pub fn counters(&mut self) -> impl Iterator<Item = (LimitCounter, u64, &mut Option<f64>)> {
        let (flows, packets) =
            (&mut self.arrived_new_flows_per_second, &mut self.arrived_packets_per_second);
        let arrived = [
            (LimitCounter::Packets, self.arrived_packets, packets),
            (LimitCounter::NewFlows, self.arrived_new_flows, flows),
        ];
        let passed = [
            (LimitCounter::Established, &mut self.established),
            (LimitCounter::Learnt, &mut self.learnt),
            (LimitCounter::SynsAnswered, &mut self.syns_answered),
        ];
        let replies = [
            (LimitCounter::AnswersMet, &mut self.answers_met),
            (LimitCounter::AnswersFailed, &mut self.answers_failed),
        ];
        let replies = replies.into_iter().filter_map(|(name, it)| Some((name, it.as_mut()?)));
        let over =
            self.by_limit.iter_mut().map(|one| (LimitCounter::Over(one.limit), &mut one.over));
        let counted = passed.into_iter().chain(replies).chain(over);
        let counted = counted.map(|(name, it)| (name, it.packets, &mut it.packets_per_second));
        arrived.into_iter().chain(counted)
    }

    /// Those of the configuration.
    pub fn limits(&self) -> Limits {
        Limits {
            packets: self.packets_pps.map(RateLimit::new),
            destination: self.destination_pps.map(RateLimit::new),
            new_flows: self.new_flows_pps.map(RateLimit::new),
            source: self.source_pps.map(RateLimit::new),
        }
    }

    /// Packets a second over any limit that do not pass as known; none: not known.
    pub fn over_per_second(&self) -> Option<f64> {
        self.by_limit.iter().map(|one| one.over.packets_per_second).sum()
    }
}

fn each(limits: Limits) -> [(Limit, Option<RateLimit>); 4] {
    [
        (Limit::Packets, limits.packets),
        (Limit::Destination, limits.destination),
        (Limit::NewFlows, limits.new_flows),
        (Limit::Source, limits.source),
    ]
}

fn pps((_, rate): (Limit, Option<RateLimit>)) -> Option<u32> {
    rate.map(|rate| rate.packets_per_second)
}
