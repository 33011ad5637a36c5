//! Nanoseconds of an answer, by test run.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;

use serde::Serialize;
use serde_json::{Value, json};

use super::super::Shield;
use super::Answerer;
use super::programs::{Programs, Storage};
use crate::Result;
use crate::benches::packet::feeder::{self, Feeder};
use crate::benches::packet::path::{Ip, PacketPath};
use crate::benches::packet::site::Site;
use crate::harness::median::median;
use crate::harness::{Case, Harness};

/// Who can be fed by test run.
const ANSWERERS: [Answerer; 4] =
    [Answerer::BareAnswer, Answerer::BareCookie, Answerer::Challenge, Answerer::Proxy];
/// Sources that take turns.
const SOURCES: u32 = 1_000_000;
/// Room for flows, of which there are none.
const ROOM: u32 = 65_536;

/// What the answer to a SYN costs.
#[derive(Clone, Debug, Serialize)]
pub struct AnswerCost {
    pub answerer: Answerer,
    pub ip: Ip,
    /// Median.
    pub ns: u64,
    pub ns_by_round: Vec<u64>,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Key(Ip, Answerer);

impl Case for Key {
    fn key(&self) -> Value {
        json!({ "answerer": self.1, "ip": self.0 })
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "answer to IPv{}, {}", self.0.number(), self.1)
    }
}

pub(super) fn measure(bench: &Shield, harness: &mut Harness<'_>) -> Result<Vec<AnswerCost>> {
    let (mut feeding, mut storage) = (feeder::Storage::uninit(), Storage::uninit());
    let (mut feeder, programs) = (Feeder::load(&mut feeding)?, Programs::load(&mut storage)?);
    let keys = Ip::ALL.into_iter().flat_map(|ip| ANSWERERS.map(|answerer| Key(ip, answerer)));
    let mut keys: Vec<Key> = keys.collect();
    let (mut sites, mut found) = (BTreeMap::new(), BTreeMap::<Key, Vec<u64>>::new());
    harness.each(&mut keys, |_, Key(ip, answerer)| {
        let path = answerer.path().unwrap_or(PacketPath::SynChallenge);
        if let Entry::Vacant(vacant) = sites.entry((path, *ip)) {
            vacant.insert(Site::new(path, *ip, ROOM)?);
        }
        Ok(())
    });
    let packets = bench.packets.max(SOURCES);
    harness.rounds(bench.repeated.rounds.count, &mut keys, |harness, _, key| {
        let Key(ip, answerer) = *key;
        let path = answerer.path().unwrap_or(PacketPath::SynChallenge);
        let Some(site) = sites.get_mut(&(path, ip)) else { return Ok(()) };
        let mut gross = |packets| match programs.of(answerer) {
            Some(program) => site.measure_peer(&mut feeder, program, SOURCES, packets),
            None => site.measure(&mut feeder, SOURCES, packets),
        };
        // Caches as they are when nothing else has been going on.
        gross(SOURCES / 8)?;
        let gross = gross(packets)?;
        let ns = gross.saturating_sub(site.measure_nothing(&mut feeder, SOURCES, packets)?);
        found.entry(*key).or_default().push(ns);
        harness.say(format!("{key}: {ns} ns"));
        Ok(())
    });
    found.retain(|key, _| keys.contains(key));
    let cost = |(Key(ip, answerer), ns): (Key, Vec<u64>)| AnswerCost {
        answerer,
        ip,
        ns: median(&ns),
        ns_by_round: ns,
    };
    Ok(found.into_iter().map(cost).collect())
}
