//! What a packet costs: one that is dropped over a bare XDP drop, one that is not over the same
//! gateway without a shield.

use std::collections::BTreeMap;
use std::fmt;

use ringway_abi::{Reason, Verdict};
use serde::Serialize;
use serde_json::{Value, json};

use super::lists::{MATCHES, MATCHES_NOT, Shield, neighbours, sources};
use super::peers::{Peers, Storage};
use super::{Defence, firewall};
use crate::Result;
use crate::benches::packet::feeder::Feeder;
use crate::benches::packet::path::{Clients, Ip, PacketPath};
use crate::benches::packet::site::Site;
use crate::harness::named_enum::named;
use crate::harness::{Case, Harness, in_turns};

/// Of a million prefixes that are dropped: half as many sources of calm packets, in a hundredth.
const SOURCES: u32 = 2;
const CALM: u32 = 100;
/// Room for flows: twice what is needed, at least this.
const ROOM: u32 = 65_536;

named! {
    /// What becomes of the packets.
    pub enum Fate {
        Drop = "drop",
        Calm = "calm",
    }
}

/// A packet, and who decides about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Key {
    pub(super) fate: Fate,
    pub(super) ip: Ip,
    pub(super) clients: Clients,
    /// Sources that take turns.
    pub(super) sources: u32,
    pub(super) prefixes: u32,
    pub(super) rules: u32,
    pub(super) defence: Defence,
}

impl Case for Key {
    fn key(&self) -> Value {
        json!(self)
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { fate, ip, sources, prefixes, rules, defence, .. } = self;
        write!(f, "{fate} IPv{}, {sources} sources", ip.number())?;
        if let Some(place) = self.place() {
            write!(f, " in {place}")?;
        }
        match (prefixes, rules) {
            (0, 0) => (),
            (0, rules) => write!(f, ", {rules} rules")?,
            (prefixes, _) => write!(f, ", {prefixes} prefixes")?,
        }
        write!(f, ", {defence}")
    }
}

impl Key {
    /// Where the sources, and the prefixes, are; none where there is but one.
    pub(super) fn place(&self) -> Option<&'static str> {
        match (self.ip, self.clients) {
            _ if self.prefixes == 0 => None,
            (Ip::V4, _) => Some("10/8"),
            (Ip::V6, Clients::Networks) => Some("/48s"),
            (Ip::V6, Clients::OneNetwork) => Some("one /64"),
        }
    }
}

/// What was measured, in nanoseconds, round by round.
pub(super) type Found = BTreeMap<Key, Vec<i64>>;

/// Families, and where the clients are.
const CLIENTS: [(Ip, Clients); 3] =
    [(Ip::V4, Clients::OneNetwork), (Ip::V6, Clients::Networks), (Ip::V6, Clients::OneNetwork)];

/// All, in the order of reports, with lists of so many prefixes.
fn keys(prefixes: u32) -> Vec<Key> {
    let key = |fate, (ip, clients), sources, prefixes, rules, defence| Key {
        fate,
        ip,
        clients,
        sources,
        prefixes,
        rules,
        defence,
    };
    let (ringway, trie) = (Defence::Ringway, Defence::KernelTrie);
    let v4 = CLIENTS[0];
    let (many, few) = ((prefixes / SOURCES).max(1), (prefixes / CALM).max(1));
    let mut keys = Vec::new();
    for clients in CLIENTS {
        keys.push(key(Fate::Drop, clients, prefixes, prefixes, 0, ringway));
        keys.push(key(Fate::Drop, clients, prefixes, prefixes, 0, trie));
    }
    keys.extend([v4, CLIENTS[1]].map(|clients| key(Fate::Drop, clients, 1, 0, 10, ringway)));
    for defence in [Defence::NftNetdev, Defence::NftPrerouting] {
        keys.push(key(Fate::Drop, v4, 1, 0, 1, defence));
    }
    keys.push(key(Fate::Drop, v4, 1, 0, 50, Defence::Iptables50));
    for clients in CLIENTS {
        keys.push(key(Fate::Calm, clients, 1, few, 0, ringway));
        keys.push(key(Fate::Calm, clients, many, few, 0, ringway));
    }
    keys.extend([v4, CLIENTS[1]].map(|clients| key(Fate::Calm, clients, 1, 0, 10, ringway)));
    keys
}

/// Measures all, the drops with lists of so many prefixes.
pub(super) fn measure(bench: &super::Shield, harness: &mut Harness<'_>) -> Result<Found> {
    let mut keys = keys(bench.prefixes);
    let mut storages: Vec<Storage> = keys.iter().map(|_| Storage::uninit()).collect();
    let (mut feeding, mut bare) =
        (crate::benches::packet::feeder::Storage::uninit(), Storage::uninit());
    let mut costs = Costs {
        feeder: Feeder::load(&mut feeding)?,
        bare: Peers::load(&mut bare, &[])?,
        packets: bench.packets,
        prepared: BTreeMap::new(),
        found: Found::new(),
    };
    let mut storages = storages.iter_mut();
    harness.each(&mut keys, |_, key| match storages.next() {
        Some(storage) => costs.prepare(*key, storage),
        None => Ok(()),
    });
    harness.rounds(bench.repeated.rounds.count, &mut keys, |harness, round, key| {
        let ns = costs.round(round, *key)?;
        costs.found.entry(*key).or_default().push(ns);
        harness.say(format!("{key}: {ns} ns"));
        Ok(())
    });
    costs.found.retain(|key, _| keys.contains(key));
    Ok(costs.found)
}

/// A gateway, what shields it, and the kernel's trie where it is that.
struct Prepared<'s> {
    site: Site,
    shield: Shield,
    peer: Option<Peers<'s>>,
    /// Flows that take turns, where every one has a listed source.
    flows: u32,
}

struct Costs<'s> {
    feeder: Feeder<'s>,
    bare: Peers<'s>,
    /// Of a cost, at least.
    packets: u32,
    prepared: BTreeMap<Key, Prepared<'s>>,
    found: Found,
}

impl<'s> Costs<'s> {
    fn prepare(&mut self, key: Key, storage: &'s mut Storage) -> Result<()> {
        let Key { ip, clients, prefixes, .. } = key;
        if !matches!(key.defence, Defence::Ringway | Defence::KernelTrie) {
            return Ok(());
        }
        let (mut peer, mut flows) = (None, key.sources);
        let path = if key.fate == Fate::Drop { PacketPath::DsrL2 } else { PacketPath::Nat };
        let room = if key.fate == Fate::Drop { ROOM } else { ROOM.max(2 * flows) };
        let mut site = Site::new(path, ip, room)?.clients(clients);
        let shield = match key.fate {
            _ if key.rules > 0 && key.fate == Fate::Drop => Shield::of_rules(MATCHES)?,
            _ if key.rules > 0 => Shield::of_rules(MATCHES_NOT)?,
            Fate::Drop => {
                let (list, all) = sources(ip, clients, prefixes as usize)?;
                flows = all;
                if key.defence == Defence::KernelTrie {
                    peer = Some(Peers::load(storage, &list)?);
                }
                Shield::of_list(&list)?
            }
            Fate::Calm => Shield::of_list(&neighbours(
                ip,
                clients,
                prefixes * CALM / SOURCES,
                prefixes as usize,
            )?)?,
        };
        if key.fate == Fate::Calm {
            site.open_flows(&mut self.feeder, flows)?;
        } else if peer.is_none() {
            let reason = if key.rules > 0 { Reason::Rule } else { Reason::Blocked };
            site.set_shield(Some(&shield.generation()), Some((Verdict::Drop, reason)))?;
        }
        self.prepared.insert(key, Prepared { site, shield, peer, flows });
        Ok(())
    }

    /// Nanoseconds more than without.
    fn round(&mut self, round: u32, key: Key) -> Result<i64> {
        let Some(prepared) = self.prepared.get_mut(&key) else {
            return Ok(firewall::cost(key.defence, self.bare.bare())?.round() as i64);
        };
        let Prepared { site, shield, peer, flows } = prepared;
        let (flows, feeder) = (*flows, &mut self.feeder);
        let packets = self.packets.max(flows);
        // Caches as they are when nothing else has been going on.
        let warm = flows.max(self.packets / 8);
        let (with, without) = match (key.fate, peer) {
            (Fate::Drop, Some(peer)) => {
                site.measure_peer(feeder, peer.trie(), flows, warm)?;
                let bare = site.measure_peer(feeder, peer.bare(), flows, packets)?;
                let dropped = site.measure_peer(feeder, peer.trie(), flows, packets)?;
                super::none_missed(peer.not_listed()?)?;
                (dropped, bare)
            }
            (Fate::Drop, None) => {
                site.measure(feeder, flows, warm)?;
                let bare = site.measure_peer(feeder, self.bare.bare(), flows, packets)?;
                (site.measure(feeder, flows, packets)?, bare)
            }
            (Fate::Calm, _) => {
                let mut ns = [0; 2];
                for shielded in in_turns(round, vec![false, true]) {
                    let generation = shielded.then(|| shield.generation());
                    site.set_shield(generation.as_ref(), None)?;
                    site.measure(feeder, flows, warm)?;
                    ns[usize::from(shielded)] = site.measure(feeder, flows, packets)?;
                }
                (ns[1], ns[0])
            }
        };
        Ok(with as i64 - without as i64)
    }
}
