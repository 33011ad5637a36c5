//! Calls, tail calls and map look-ups of a packet, as the kernel makes them.
//!
//! The gateway's own code loads the programs, and on the way each gets a counter behind every call
//! ([`load_hook`]). Packets are fed as when their cost is measured. What the kernel made of each
//! call is read from the programs as it translated them.

mod instrument;
mod load_hook;

use libbpf_rs::query::{ProgInfoIter, ProgInfoQueryOptions};
use libbpf_rs::{MapCore as _, MapFlags, MapHandle, MapType};
use serde::Serialize;

use super::feeder::Feeder;
use super::path::{Ip, PacketPath};
use super::site::Site;
use crate::{CountError, Result};
use instrument::{COUNTER_BYTES, Event, Instruction, calls_left};

/// Counters of all programs together: the gateway's have some hundreds.
const MOST_COUNTERS: usize = 4096;

/// Flows and packets of a count, at least. More change the number of no call but by chance.
const FLOWS: u32 = 1000;
const PACKETS: u32 = 100_000;
const ROOM: u32 = 65_536;

/// Averages of packets.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct CallsPerPacket {
    /// Calls of helpers and subprograms; none where the kernel has put instructions in a call's
    /// place.
    pub calls: f64,
    /// Tail calls taken.
    pub tail_calls: f64,
    /// Look-ups of an element of a map, by a call or by instructions.
    pub lookups: f64,
}

/// Counts on a gateway of its own.
pub(super) fn count(path: PacketPath, ip: Ip, feeder: &mut Feeder<'_>) -> Result<CallsPerPacket> {
    let flows = path.least_flows().max(FLOWS);
    let packets = flows.max(PACKETS);
    let (mut site, counters) = Counters::within(|| Site::new(path, ip, flows.max(ROOM)))?;
    site.open_flows(feeder, flows)?;
    // The first packet of a flow may take another way.
    site.measure(feeder, flows, flows)?;
    counters.reset()?;
    site.measure(feeder, flows, packets)?;
    Ok(counters.per_packet(packets)?)
}

/// The counters of programs that are loaded.
pub(in crate::benches) struct Counters {
    map: MapHandle,
    /// What each counts.
    events: Vec<Event>,
    /// The calls that the kernel left before each; `None` where it left nothing at all.
    calls: Vec<Option<u64>>,
}

impl Counters {
    /// Loads programs with counters.
    pub(in crate::benches) fn within<T>(load: impl FnOnce() -> Result<T>) -> Result<(T, Self)> {
        let options = libbpf_rs::libbpf_sys::bpf_map_create_opts {
            sz: size_of::<libbpf_rs::libbpf_sys::bpf_map_create_opts>() as _,
            ..Default::default()
        };
        let bytes = (MOST_COUNTERS * COUNTER_BYTES) as u32;
        let map = MapHandle::create(MapType::Array, Some("calls"), 4, bytes, 1, &options)
            .map_err(CountError::Counters)?;
        let (loaded, events) = load_hook::with_counters(&map, load)?;
        let calls = translated_calls(&map, events.len())?;
        Ok((loaded, Self { map, events, calls }))
    }

    pub(in crate::benches) fn reset(&self) -> Result<(), CountError> {
        let zeros = [0; MOST_COUNTERS * COUNTER_BYTES];
        self.map.update(&[0; 4], &zeros, MapFlags::ANY).map_err(CountError::Counters)
    }

    pub(in crate::benches) fn per_packet(
        &self,
        packets: u32,
    ) -> Result<CallsPerPacket, CountError> {
        let value = self.map.lookup(&[0; 4], MapFlags::ANY).map_err(CountError::Counters)?;
        let value = value.unwrap_or_default();
        let (counts, _) = value.as_chunks::<COUNTER_BYTES>();
        let counts: Vec<u64> = counts.iter().copied().map(u64::from_ne_bytes).collect();
        per_packet(&self.events, &self.calls, &counts, packets)
    }
}

/// The calls that the kernel left before each counter, in all programs that use this map.
fn translated_calls(map: &MapHandle, events: usize) -> Result<Vec<Option<u64>>, CountError> {
    let id = map.info().map_err(CountError::Counters)?.info.id;
    let wanted =
        ProgInfoQueryOptions::default().include_xlated_prog_insns(true).include_map_ids(true);
    let mut calls = vec![None; events];
    let programs = ProgInfoIter::with_query_opts(wanted);
    for program in programs.filter(|program| program.map_ids.contains(&id)) {
        let (code, _) = program.xlated_prog_insns.as_chunks::<{ Instruction::BYTES }>();
        let code: Vec<_> = code.iter().copied().map(Instruction::from_bytes).collect();
        for (number, left) in calls_left(&code, id) {
            if let Some(calls) = calls.get_mut(number) {
                *calls = Some(left);
            }
        }
    }
    Ok(calls)
}

/// Averages from the counters, to a hundredth.
fn per_packet(
    events: &[Event],
    calls: &[Option<u64>],
    counts: &[u64],
    packets: u32,
) -> Result<CallsPerPacket, CountError> {
    let (mut made, mut lookups, mut tail_calls, mut not_taken) = (0, 0, 0, 0);
    for ((event, calls), count) in events.iter().zip(calls).zip(counts) {
        if *count == 0 {
            continue;
        }
        let calls = count * calls.ok_or(CountError::Unseen)?;
        match event {
            Event::Call => made += calls,
            Event::LookUp => (made, lookups) = (made + calls, lookups + count),
            Event::TailCall => tail_calls += count,
            Event::NotTaken => not_taken += count,
        }
    }
    let average = |total: u64| (total as f64 * 100.0 / f64::from(packets)).round() / 100.0;
    Ok(CallsPerPacket {
        calls: average(made),
        tail_calls: average(tail_calls.saturating_sub(not_taken)),
        lookups: average(lookups),
    })
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;
    use crate::benches::packet::feeder::Storage;
    use crate::benches::packet::{calls_are_known, settle};

    const ZERO: CallsPerPacket = CallsPerPacket { calls: 0.0, tail_calls: 0.0, lookups: 0.0 };

    #[test]
    fn only_calls_that_the_kernel_left_count() {
        use Event::{Call, LookUp, NotTaken, TailCall};
        let events = [Call, LookUp, LookUp, TailCall, NotTaken, Call];
        let calls = [Some(1), Some(0), Some(1), Some(0), Some(1), None];
        let of = |counts: [u64; 6]| per_packet(&events, &calls, &counts, 200);
        assert_eq!(of([0; 6]).unwrap(), ZERO);
        let found = of([100, 200, 1, 400, 200, 0]).unwrap();
        // 101 and 201 of 200, to a hundredth.
        assert_eq!(found, CallsPerPacket { calls: 0.51, tail_calls: 1.0, lookups: 1.01 });
        let error = of([0, 0, 0, 0, 0, 1]).unwrap_err();
        assert!(error.to_string().contains("bpf_jit_harden"), "{error}");
    }

    /// Calls, tail calls and look-ups of a packet, at most: IPv4, IPv6. How long a new flow looks
    /// for its place is a matter of chance.
    const MOST: [(PacketPath, [[f64; 3]; 2]); PacketPath::ALL.len()] = [
        (PacketPath::Pass, [[0.0, 1.0, 10.0]; 2]),
        (PacketPath::Drop, [[0.0, 1.0, 17.0]; 2]),
        (PacketPath::DsrL2, [[0.0, 1.0, 15.0]; 2]),
        (PacketPath::DsrIpip, [[1.0, 1.0, 15.0], [2.0, 1.0, 16.0]]),
        (PacketPath::DsrChanging, [[3.0, 1.0, 22.5], [4.0, 1.0, 23.5]]),
        (PacketPath::DsrGue, [[2.0, 1.0, 16.0]; 2]),
        (PacketPath::Nat, [[0.0, 1.0, 16.0]; 2]),
        (PacketPath::NatReply, [[0.0, 1.0, 19.0]; 2]),
        (PacketPath::NewFlow, [[6.1, 1.0, 44.0]; 2]),
        (PacketPath::FullPool, [[6.1, 1.0, 44.0]; 2]),
        (PacketPath::SynChallenge, [[4.0, 1.0, 27.0]; 2]),
        (PacketPath::SynProxy, [[11.0, 1.0, 33.0]; 2]),
    ];

    #[test]
    fn no_path_calls_more_than_it_did() {
        if !calls_are_known("packet::no_path_calls_more_than_it_did") {
            return;
        }
        let count_all = || {
            settle().unwrap();
            let mut storage = Storage::uninit();
            let mut feeder = Feeder::load(&mut storage).unwrap();
            let mut more = Vec::new();
            for (path, most) in MOST {
                for (ip, most) in Ip::ALL.into_iter().zip(most) {
                    let CallsPerPacket { calls, tail_calls, lookups } =
                        count(path, ip, &mut feeder).unwrap();
                    let found = [calls, tail_calls, lookups];
                    assert!(tail_calls >= 1.0, "{path}: the first program is not counted");
                    if found.iter().zip(most).any(|(found, most)| *found > most) {
                        more.push((path, ip, found, most));
                    }
                }
            }
            more
        };
        let more = thread::scope(|scope| scope.spawn(count_all).join()).unwrap();
        assert!(more.is_empty(), "calls, tail calls and look-ups, and the most: {more:#?}");
    }
}
