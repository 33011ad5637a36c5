//! Machines for tests of rules.

use std::collections::BTreeMap;

use ringway_host::netlink::counters::Stats;
use ringway_host::netlink::sockets::{Listener, PeerTuple, Sockets};
use ringway_host::{Interface, Network};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::gather::{PROCESSES, Process};
use crate::{Collection, Facts, Outcome, Profile, Report, ReversibleFix, Rule, Severity, judge};

/// A captured machine: one veth pair and a card with four queues, on which every rule is content.
const HEALTHY: &str = include_str!("../testdata/healthy.txt");

#[derive(Debug, Clone, Default)]
pub struct Machine {
    pub collection: Collection,
    pub profile: Option<Profile>,
}

impl Machine {
    pub fn unknown() -> Self {
        Self { collection: Collection { seconds: 2.0, ..Collection::default() }, profile: None }
    }

    /// The file in both samples.
    pub fn put(mut self, path: &str, text: &str) -> Self {
        self.collection.before.put(path, text);
        self.then(path, text)
    }

    /// The file in the second sample alone.
    pub fn then(mut self, path: &str, text: &str) -> Self {
        self.collection.after.put(path, text);
        self
    }

    pub fn remove(mut self, path: &str) -> Self {
        self.collection.before.remove(path);
        self.collection.after.remove(path);
        self
    }

    /// Says why it could not be read.
    pub fn miss(mut self, path: &str, why: &str) -> Self {
        self = self.remove(path);
        self.collection.after.miss(path, why);
        self
    }

    pub fn profile(mut self, profile: Profile) -> Self {
        self.profile = Some(profile);
        self
    }

    /// Something that netlink, ethtool or a tool said.
    pub fn json(self, path: &str, value: impl Serialize) -> Self {
        self.put(path, &serde_json::to_string(&value).unwrap())
    }

    /// Changes in the second sample what was said.
    pub fn edit<T: Serialize + DeserializeOwned>(
        self,
        path: &str,
        change: impl FnOnce(&mut T),
    ) -> Self {
        let mut value: T = serde_json::from_str(&self.collection.after.files()[path]).unwrap();
        change(&mut value);
        self.then(path, &serde_json::to_string(&value).unwrap())
    }

    pub fn network(self, change: impl FnOnce(&mut Network)) -> Self {
        self.edit(ringway_host::NETWORK, change)
    }

    /// One more interface, like `eth0` (1) or `veth0` (2) but for what is changed.
    pub fn interface(
        self,
        like: usize,
        ifindex: u32,
        name: &str,
        change: impl FnOnce(&mut Interface),
    ) -> Self {
        self.network(|network| {
            let mut one = network.interfaces[like].clone();
            (one.link.ifindex, one.link.name) = (ifindex, name.into());
            change(&mut one);
            network.interfaces.push(one);
        })
    }

    /// Processes of which names and numbers are known alone.
    pub fn process(self, name: &str, change: impl FnOnce(&mut Process)) -> Self {
        let (files, limit, cpus, arguments) = (None, None, None, None);
        let mut one = Process { pid: 9, name: name.into(), files, limit, cpus, arguments };
        change(&mut one);
        self.json(PROCESSES, [one])
    }

    pub fn stats(self, name: &str, change: impl FnOnce(&mut Stats)) -> Self {
        self.edit("/netlink/stats.json", |all: &mut BTreeMap<String, _>| {
            change(all.get_mut(name).unwrap());
        })
    }

    /// A device's counters in both samples, as another's are.
    pub fn both_stats(mut self, name: &str, like: &str) -> Self {
        for sample in [&mut self.collection.before, &mut self.collection.after] {
            let path = "/netlink/stats.json";
            let text = &sample.files()[path];
            let mut all: BTreeMap<String, Stats> = serde_json::from_str(text).unwrap();
            all.insert(name.into(), all[like]);
            sample.put(path, serde_json::to_string(&all).unwrap());
        }
        self
    }

    /// One socket that listens, with this backlog as it is in force.
    pub fn listener(self, limit: u32) -> Self {
        self.edit("/netlink/sockets.json", |sockets: &mut Sockets| {
            let (address, port, waiting) = ([10, 0, 0, 1].into(), 80, 0);
            sockets.listeners = vec![Listener { address, port, waiting, limit }];
        })
    }

    /// Connections from one address to port 80 of another.
    pub fn connections(self, connections: u64) -> Self {
        self.edit("/netlink/sockets.json", |sockets: &mut Sockets| {
            let (source, destination) = ([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
            sockets.peers = vec![PeerTuple { source, destination, port: 80, connections }];
        })
    }

    /// Counts between the samples: `counts("TcpExt", "ListenOverflows", 7)`.
    pub fn counts(self, group: &str, name: &str, by: u64) -> Self {
        let ext = ["TcpExt", "IpExt"].contains(&group);
        let path = if ext { "/proc/net/netstat" } else { "/proc/net/snmp" };
        let text = self.collection.after.files()[path].clone();
        let prefix = format!("{group}:");
        let names = text.lines().find(|line| line.starts_with(&prefix)).unwrap();
        let at = names.split(' ').position(|one| one == name).unwrap();
        let mut seen = false;
        let line = |line: &str| {
            if !line.starts_with(&prefix)
                || !std::mem::replace(&mut seen, line.starts_with(&prefix))
            {
                return line.to_owned();
            }
            let mut words: Vec<String> = line.split(' ').map(str::to_owned).collect();
            words[at] = (words[at].parse::<u64>().unwrap() + by).to_string();
            words.join(" ")
        };
        let lines: Vec<String> = text.lines().map(line).collect();
        self.then(path, &lines.join("\n"))
    }

    pub fn facts(&self) -> Facts {
        Facts::new(&self.collection, self.profile)
    }

    pub fn report<'a>(&self, checks: impl IntoIterator<Item = &'a Rule>) -> Report {
        judge(checks, &self.facts())
    }

    pub fn outcomes(&self, check: &Rule) -> Vec<Outcome> {
        check.ask(&self.facts())
    }

    pub fn worst(&self, check: &Rule) -> Severity {
        self.outcomes(check).iter().map(|outcome| outcome.severity).max().unwrap_or(Severity::Ok)
    }

    fn changes(&self, check: &Rule) -> impl Iterator<Item = ReversibleFix> {
        self.outcomes(check).into_iter().flat_map(|one| one.changes)
    }

    pub fn fixes(&self, check: &Rule) -> Vec<String> {
        agree(&self.report(crate::rules::ALL));
        self.changes(check).map(|change| change.fix.to_string()).collect()
    }

    pub fn undos(&self, check: &Rule) -> Vec<String> {
        self.changes(check).map(|change| change.undo.to_string()).collect()
    }
}

pub fn healthy() -> Machine {
    let mut machine = Machine::unknown();
    for file in HEALTHY.split("==> ").skip(1) {
        let (path, text) = file.split_once(" <==\n").unwrap();
        machine = match path.strip_prefix("after ") {
            Some(path) => machine.then(path, text),
            None => machine.put(path, text),
        };
    }
    machine
}

/// Each machine comes out so; a healthy one is well, and one of which nothing is known is unknown.
pub fn table(check: &Rule, rows: impl IntoIterator<Item = (Machine, Severity)>) {
    let own = [(healthy(), Severity::Ok), (Machine::unknown(), Severity::Unknown)];
    for (row, (machine, wanted)) in own.into_iter().chain(rows).enumerate() {
        let outcomes = machine.outcomes(check);
        assert_eq!(machine.worst(check), wanted, "row {row}: {outcomes:#?}");
        agree(&machine.report(crate::rules::ALL));
    }
}

/// No two findings set the same to different values.
pub fn agree(report: &Report) {
    let mut set = BTreeMap::new();
    for finding in &report.findings {
        for (key, value) in finding.outcome.changes.iter().filter_map(|change| change.fix.setting())
        {
            let (by, first) = *set.entry(key).or_insert((finding.check, value));
            assert_eq!(value, first, "{key}: {} against {by}", finding.check);
        }
    }
}
