//! What becomes of packets in the calling thread's network namespace, counted at the kernel's own
//! tracepoints for a while (bpf/trace/drop_reasons.bpf.c). Nothing is pinned: it ends with the
//! value, or with the process.

use std::collections::BTreeMap;
use std::fs;
use std::mem::MaybeUninit;

use libbpf_rs::Link;
use libbpf_rs::btf::{Btf, types};
use ringway_abi::raw::{
    RW_SEEN_LOST, RW_SEEN_LOST_NEAR, RW_SEEN_PASSED_ON, RW_SEEN_QUEUED, RW_SEEN_RECEIVED,
    rw_seen_count, rw_seen_key,
};
use ringway_host::{Seen, SeenAt};

use crate::load::{self, log};
use crate::maps::{Map, map};
use crate::objects::drop_reasons::{self, DropReasonsSkelBuilder};
use crate::pins::netns;
use crate::{Error, Result, requirements};

const DROP_REASONS: &str = "ringway_seen_*";

/// Counts for as long as it lives.
#[derive(Debug)]
pub struct DropReasons {
    links: Vec<Link>,
    seen: Map<rw_seen_key, rw_seen_count>,
    unseen: Map<u32, u64>,
}

/// What was counted up to a moment.
#[derive(Debug, Default)]
pub struct Counted(BTreeMap<rw_seen_key, Vec<rw_seen_count>>);

impl DropReasons {
    /// Starts to count.
    ///
    /// # Errors
    /// Where the process may not, or the kernel does not describe its types or refuses.
    pub fn start() -> Result<Self> {
        log::install();
        requirements::probe()?.require()?;
        let mut storage = MaybeUninit::uninit();
        let mut open = load::open::<DropReasonsSkelBuilder>(DROP_REASONS, &mut storage)?;
        // The kernel's own is 32 bits (linux/ns_common.h).
        load::constants(&mut open.maps.rodata_data)?.netns = netns()? as u32;
        let loaded = load::load(DROP_REASONS, open)?;
        let programs = &loaded.progs;
        let programs = [
            &programs.ringway_seen_received,
            &programs.ringway_seen_queued,
            &programs.ringway_seen_lost,
        ];
        let links = programs.map(|program| {
            let name = program.name().to_string_lossy().into_owned();
            program.attach().map_err(|source| Error::Trace { program: name, source })
        });
        Ok(Self {
            links: links.into_iter().collect::<Result<_>>()?,
            seen: map!(drop_reasons, loaded.maps, seen)?,
            unseen: map!(drop_reasons, loaded.maps, unseen)?,
        })
    }

    /// What has been counted so far, for [`DropReasons::stop`].
    ///
    /// # Errors
    /// Where the kernel does not tell.
    pub fn counted(&self) -> Result<Counted> {
        let keys = self.seen.keys_there()?.into_iter();
        Ok(Counted(keys.map(|key| Ok((key, self.seen.percpu(&key)?))).collect::<Result<_>>()?))
    }

    /// Stops, and tells what was seen between two moments, and how many packets there was no room
    /// to count.
    ///
    /// # Errors
    /// Where the kernel does not tell.
    pub fn stop(mut self, first: &Counted, last: &Counted) -> Result<(Vec<Seen>, u64)> {
        self.links.clear();
        let counted = between(first, last);
        let reasons = reasons()?;
        let locations = counted.iter().map(|(key, ..)| key.location).filter(|at| *at != 0);
        let functions = functions(&locations.collect::<Vec<_>>());
        let one = |(key, packets, segments): (rw_seen_key, Vec<u64>, u64)| {
            let at = at(key.seen)?;
            let lost = matches!(at, SeenAt::Lost | SeenAt::LostNear);
            Some(Seen {
                at,
                ifindex: key.ifindex,
                protocol: key.protocol as u16,
                reason: if lost { reason(&reasons, key.reason) } else { String::new() },
                function: functions.get(&key.location).cloned().unwrap_or_default(),
                packets,
                segments,
            })
        };
        let unseen = self.unseen.percpu(&0)?.iter().sum();
        Ok((counted.into_iter().filter_map(one).collect(), unseen))
    }
}

/// Packets by processor, and segments.
fn between(first: &Counted, last: &Counted) -> Vec<(rw_seen_key, Vec<u64>, u64)> {
    let mut all = Vec::new();
    for (key, now) in &last.0 {
        let before = first.0.get(key);
        let was = |cpu: usize| before.and_then(|before| before.get(cpu)).copied();
        let by_cpu = now.iter().enumerate().map(|(cpu, now)| {
            let was = was(cpu).unwrap_or_default();
            (now.packets.saturating_sub(was.packets), now.segments.saturating_sub(was.segments))
        });
        let (packets, segments): (Vec<u64>, Vec<u64>) = by_cpu.unzip();
        if packets.iter().any(|packets| *packets > 0) {
            all.push((*key, packets, segments.iter().sum()));
        }
    }
    all
}

fn at(seen: u32) -> Option<SeenAt> {
    Some(match seen {
        RW_SEEN_RECEIVED => SeenAt::Received,
        RW_SEEN_PASSED_ON => SeenAt::PassedOn,
        RW_SEEN_QUEUED => SeenAt::Queued,
        RW_SEEN_LOST => SeenAt::Lost,
        RW_SEEN_LOST_NEAR => SeenAt::LostNear,
        _ => return None,
    })
}

/// Reasons by number, as this kernel has them: they have no fixed numbers.
fn reasons() -> Result<BTreeMap<u32, String>> {
    let failed = |source| Error::Trace { program: "reasons of kfree_skb".into(), source };
    let btf = Btf::from_vmlinux().map_err(failed)?;
    let Some(names) = btf.type_by_name::<types::Enum<'_>>("skb_drop_reason") else {
        return Ok(BTreeMap::new());
    };
    let name = |member: types::EnumMember<'_>| {
        let name = member.name?.to_string_lossy().into_owned();
        Some((member.value as u32, name.trim_start_matches("SKB_DROP_REASON_").to_owned()))
    };
    Ok(names.iter().filter_map(name).collect())
}

/// Those of subsystems have the subsystem's number in their upper half (net/dropreason.h).
fn reason(names: &BTreeMap<u32, String>, number: u32) -> String {
    names.get(&number).cloned().unwrap_or_else(|| match number >> 16 {
        0 => format!("REASON_{number}"),
        subsystem => format!("SUBSYSTEM_{subsystem}_{}", number & 0xffff),
    })
}

/// Names of the functions that these addresses lie in; none where the kernel hides its addresses.
fn functions(locations: &[u64]) -> BTreeMap<u64, String> {
    let Ok(symbols) = fs::read_to_string("/proc/kallsyms") else { return BTreeMap::new() };
    let symbol = |line: &str| {
        let mut words = line.split_ascii_whitespace();
        let address = u64::from_str_radix(words.next()?, 16).ok().filter(|at| *at != 0)?;
        let is_text = words.next()?.eq_ignore_ascii_case("t");
        words.next().filter(|_| is_text).map(|name| (address, name.to_owned()))
    };
    let mut best: BTreeMap<u64, (u64, String)> = BTreeMap::new();
    for (address, name) in symbols.lines().filter_map(symbol) {
        for location in locations.iter().filter(|location| **location >= address) {
            let found = best.entry(*location).or_default();
            if address > found.0 {
                *found = (address, name.clone());
            }
        }
    }
    best.into_iter().map(|(at, (_, name))| (at, plain(&name))).collect()
}

/// Without what the compiler adds: `tcp_v4_rcv.isra.0`, `ip_rcv.cold`.
fn plain(name: &str) -> String {
    name.split('.').next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_reasons_and_functions() {
        let names = BTreeMap::from([(3, "NO_SOCKET".to_owned())]);
        assert_eq!(reason(&names, 3), "NO_SOCKET");
        assert_eq!(reason(&names, 4), "REASON_4");
        assert_eq!(reason(&names, 0x0002_0005), "SUBSYSTEM_2_5");
        assert_eq!(plain("tcp_v4_rcv.isra.0"), "tcp_v4_rcv");
        assert_eq!(at(99), None);
    }
}
