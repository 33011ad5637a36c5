//! What the shield has counted.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::ops::Range;
use std::time::SystemTime;

use libbpf_rs::MapCore;
use ringway_abi::raw::{
    RW_HEAVY_SECONDS, RW_SHIELD_COUNT_LISTS, RW_SHIELD_COUNT_RUNTIME_ALLOW,
    RW_SHIELD_COUNT_RUNTIME_BLOCK, rw_arrivals, rw_heavy_bucket, rw_heavy_source, rw_shield_count,
    rw_shield_observed, rw_shield_policy, rw_syn_secrets,
};
use ringway_abi::{Exemption, Limit, Reason, ShieldMode, Slot, addr_from_words};

use ringway_plan::tables::SynPolicy;

use super::View;
use crate::Result;
use crate::maps::{MapName, Maps};
use crate::shield::SynSecrets;
use crate::shield::runtime::{RuntimePrefix, runtime_prefix};
use crate::tables::policies;
use crate::tables::rows::label_text;

/// Counts of the shield.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ShieldCounts {
    /// By name: packets that the rule matched, and those over its rate.
    pub rules: BTreeMap<String, rw_shield_count>,
    /// By name: packets from sources in the list.
    pub lists: BTreeMap<String, rw_shield_count>,
    /// Packets from sources that were allowed at run time.
    pub runtime_allow: rw_shield_count,
    pub runtime_block: rw_shield_count,
    /// Packets that would have been dropped; only what occurred.
    pub observed: BTreeMap<Reason, u64>,
}

/// What a service with limits has met since the packet path was loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Arrivals {
    /// Packets that were held against limits.
    pub packets: u64,
    /// Of these, those that open a flow.
    pub new_flows: u64,
    /// Of these packets, those over the service's limit of packets, with none of the exemptions
    /// below: dropped, or observed.
    pub over_packets: u64,
    /// The same, over the limit of its address.
    pub over_destination: u64,
    /// The same, over the limit of new flows.
    pub over_new_flows: u64,
    /// The same, over the limit of their source.
    pub over_source: u64,
    /// Of these packets, those over a limit that passed because their flow is established.
    pub established: u64,
    /// The same because their source was learnt.
    pub learnt: u64,
    /// SYNs that the gateway has answered itself, or would have.
    pub syns_answered: u64,
    /// Replies to these answers: their senders are there.
    pub answers_met: u64,
    /// What looks like such a reply, and fits no answer.
    pub answers_failed: u64,
}

impl Arrivals {
    /// Of a service that has a policy; its id is below `RW_MAX_SERVICES`.
    pub(crate) fn read(maps: &Maps, id: u32) -> Result<Arrivals> {
        let sum = maps.arrivals.sum(&id, |sum: &mut rw_arrivals, cpu| {
            sum.packets += cpu.packets;
            sum.new_flows += cpu.new_flows;
            sum.over.iter_mut().zip(cpu.over).for_each(|(sum, over)| *sum += over);
            sum.exempt.iter_mut().zip(cpu.exempt).for_each(|(sum, exempt)| *sum += exempt);
            sum.syns_answered += cpu.syns_answered;
            sum.answers_met += cpu.answers_met;
            sum.answers_failed += cpu.answers_failed;
        })?;
        Ok(Arrivals {
            packets: sum.packets,
            new_flows: sum.new_flows,
            over_packets: sum.over[Limit::Packets as usize],
            over_destination: sum.over[Limit::Destination as usize],
            over_new_flows: sum.over[Limit::NewFlows as usize],
            over_source: sum.over[Limit::Source as usize],
            established: sum.exempt[Exemption::Established as usize],
            learnt: sum.exempt[Exemption::Learnt as usize],
            syns_answered: sum.syns_answered,
            answers_met: sum.answers_met,
            answers_failed: sum.answers_failed,
        })
    }

    /// Packets over a limit: dropped, observed, or passed all the same.
    pub fn over(&self) -> u64 {
        self.refused() + self.established + self.learnt
    }

    /// Packets over a limit that were dropped or observed.
    pub fn refused(&self) -> u64 {
        self.over_packets + self.over_destination + self.over_new_flows + self.over_source
    }
}

/// A source prefix that sends much to a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeavySource {
    /// The prefix' first address; its length is the service's.
    pub prefix: IpAddr,
    /// Id of the service.
    pub service: u16,
    /// It was learnt, and is over the rate of those, too: others may send in its name.
    pub learnt: bool,
    /// Packets over the rate of a source, without a pause of a minute; of more than a minute the
    /// latter half or more.
    pub over: u32,
    /// Seconds from the first of them to the last.
    pub lasting: u32,
    /// Seconds since the last of them.
    pub silent: u32,
}

impl View {
    /// Whether packets meet a shield.
    pub fn is_shielded(&self) -> Result<bool> {
        Ok(self.maps.slots.find(&(Slot::Shield as u32))?.is_some())
    }

    /// The mode that stands in place of the configuration's now, and for how many seconds more.
    pub fn shield_override(&self) -> Result<Option<(ShieldMode, u32)>> {
        if !self.has_shield_maps() {
            return Ok(None);
        }
        let control = self.maps.shield_control.get(0)?;
        let left = control.until.saturating_sub(self.now_seconds());
        let mode = ShieldMode::try_from(control.mode).ok();
        Ok(mode.filter(|_| left > 0).map(|mode| (mode, left)))
    }

    /// When the tables were made that [`View::shield_counts`] reads; `None`: that is not known.
    pub fn counting_since(&self) -> Option<SystemTime> {
        let pin = self.pins.as_ref()?.map(MapName::shield_counts.name());
        std::fs::metadata(pin).and_then(|pin| pin.modified()).ok()
    }

    /// Prefixes that are allowed and blocked at run time now. One within another may be told to last
    /// as long as that does.
    pub fn runtime_prefixes(&self) -> Result<Vec<RuntimePrefix>> {
        let mut prefixes = Vec::new();
        if !self.has_shield_maps() {
            return Ok(prefixes);
        }
        let now = self.now_seconds();
        for (map, allow) in [(&self.maps.runtime_allow, true), (&self.maps.runtime_block, false)] {
            let rows = map.entries()?.into_iter().filter(|(_, row)| row.until > now);
            prefixes.extend(rows.filter_map(|(key, row)| runtime_prefix(&key, &row, allow)));
        }
        Ok(prefixes)
    }

    /// Counts up to now. All zero where an earlier version made the tables.
    pub fn shield_counts(&self) -> Result<ShieldCounts> {
        if !self.has_shield_maps() {
            return Ok(ShieldCounts::default());
        }
        Ok(ShieldCounts {
            rules: self.named_counts(0..RW_SHIELD_COUNT_LISTS)?,
            lists: self.named_counts(RW_SHIELD_COUNT_LISTS..RW_SHIELD_COUNT_RUNTIME_ALLOW)?,
            runtime_allow: self.shield_count(RW_SHIELD_COUNT_RUNTIME_ALLOW)?,
            runtime_block: self.shield_count(RW_SHIELD_COUNT_RUNTIME_BLOCK)?,
            observed: self.shield_observed()?,
        })
    }

    /// Packets that would have been dropped, by reason; only what occurred.
    pub fn shield_observed(&self) -> Result<BTreeMap<Reason, u64>> {
        if !self.has_shield_maps() {
            return Ok(BTreeMap::new());
        }
        let observed = self.maps.shield_observed.sum(&0, rw_shield_observed::add)?;
        let observed = Reason::all().map(|reason| (reason, observed.packets[reason as usize]));
        Ok(observed.filter(|(_, packets)| *packets > 0).collect())
    }

    /// What services with limits have met since the packet path was loaded, by their ids.
    pub fn arrivals(&self) -> Result<BTreeMap<u16, Arrivals>> {
        let mut arrivals = BTreeMap::new();
        for id in self.limited_services()? {
            arrivals.insert(id, Arrivals::read(&self.maps, id.into())?);
        }
        Ok(arrivals)
    }

    /// Ids of services whose armed limits are in force, and for how many seconds more.
    pub fn armed(&self) -> Result<BTreeMap<u16, u32>> {
        let mut armed = BTreeMap::new();
        for id in self.limited_services()? {
            let left = self.maps.shield_armed.get(id.into())?.saturating_sub(self.now_seconds());
            if left > 0 {
                armed.insert(id, left);
            }
        }
        Ok(armed)
    }

    /// How SYNs of the services that have a policy are answered, while that is armed; by their ids.
    pub fn syn_answers(&self) -> Result<BTreeMap<u16, SynPolicy>> {
        let policies = &self.maps.shield_policies;
        let answer = |id: u16| Ok((id, policies::syn_policy(&policies.get(id.into())?)));
        self.limited_services()?.into_iter().map(answer).collect()
    }

    fn limited_services(&self) -> Result<Vec<u16>> {
        let mut ids = Vec::new();
        if self.maps.shield_policies.value_size() as usize == size_of::<rw_shield_policy>() {
            self.maps.shield_policies.for_each(|id, policy| {
                if policy != rw_shield_policy::default() {
                    ids.push(id as u16);
                }
            })?;
        }
        Ok(ids)
    }

    /// Sources that have sent more than their rate in the last minute, those with the most packets
    /// first.
    pub fn heavy_sources(&self) -> Result<Vec<HeavySource>> {
        let mut heavy = Vec::new();
        if self.maps.heavy_sources.value_size() as usize != size_of::<rw_heavy_bucket>() {
            return Ok(heavy);
        }
        let now = self.now_seconds();
        self.maps.heavy_sources.for_each(|_, bucket| {
            // A packet may have come since the clock was read.
            let silent = |source: &rw_heavy_source| now.saturating_sub(source.seen);
            let heavy_now =
                |source: &&rw_heavy_source| source.over > 0 && silent(source) <= RW_HEAVY_SECONDS;
            let sources = bucket.sources.iter().filter(heavy_now);
            heavy.extend(sources.map(|source| HeavySource {
                prefix: addr_from_words(source.prefix),
                service: source.service,
                learnt: source.learnt != 0,
                over: source.over,
                lasting: source.seen.saturating_sub(source.since),
                silent: silent(source),
            }));
        })?;
        heavy.sort_by_key(|source| (Reverse(source.over), source.prefix));
        Ok(heavy)
    }

    /// What answers to SYNs are made of. None: an earlier version made the tables.
    pub fn syn_secrets(&self) -> Result<Option<SynSecrets>> {
        if self.maps.syn_secrets.value_size() as usize != size_of::<rw_syn_secrets>() {
            return Ok(None);
        }
        Ok(Some(SynSecrets::of(&self.maps.syn_secrets.get(0)?)))
    }

    fn has_shield_maps(&self) -> bool {
        self.maps.shield_observed.value_size() as usize == size_of::<rw_shield_observed>()
            && self.maps.shield_counts.value_size() as usize == size_of::<rw_shield_count>()
    }

    fn named_counts(&self, places: Range<u32>) -> Result<BTreeMap<String, rw_shield_count>> {
        let mut named = BTreeMap::new();
        for place in places {
            let name = label_text(&self.maps.shield_labels.get(place)?);
            if !name.is_empty() {
                named.insert(name, self.shield_count(place)?);
            }
        }
        Ok(named)
    }

    fn shield_count(&self, place: u32) -> Result<rw_shield_count> {
        self.maps.shield_counts.sum(&place, rw_shield_count::add)
    }
}
