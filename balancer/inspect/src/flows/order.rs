//! The first few of many flows, in an order: as many are kept as are shown, whatever their number.

use std::collections::BinaryHeap;
use std::net::SocketAddr;

use super::{Flow, FlowNames};

/// Sort key of flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    /// The client's address, then its port.
    Client,
    Service,
    /// The backend's address, then its port.
    Backend,
    /// The state's place in a flow's life.
    State,
    /// Seconds without a packet.
    Idle,
}

/// More than these are never kept for an order.
pub const MOST: usize = 1_000_000;

type Rank = (u128, u64);

impl Key {
    fn rank(self, flow: &Flow, names: &FlowNames) -> Rank {
        let number = |address: SocketAddr| match address.ip() {
            std::net::IpAddr::V4(ip) => (u128::from(ip.to_bits()), u64::from(address.port())),
            // All of IPv6 after all of IPv4.
            std::net::IpAddr::V6(ip) => (ip.to_bits().max(1 << 32), u64::from(address.port())),
        };
        match self {
            Key::Client => flow.nat.map_or((u128::MAX, 0), |nat| number(nat.client)),
            Key::Backend => names.backend_of(flow).map_or((u128::MAX, 0), number),
            Key::State => (flow.state as u128, 0),
            Key::Idle => (flow.idle_s.into(), 0),
            Key::Service => {
                let service = names.service_of(flow).and_then(|id| names.services.get(&id));
                let known = service.map_or(usize::MAX, |service| {
                    let all = &names.service_names;
                    all.binary_search(&service.name).unwrap_or(usize::MAX)
                });
                (known as u128, 0)
            }
        }
    }
}

struct Ranked {
    rank: (Rank, u64),
    flow: Flow,
}

impl PartialEq for Ranked {
    fn eq(&self, other: &Ranked) -> bool {
        self.rank == other.rank
    }
}
impl Eq for Ranked {}
impl PartialOrd for Ranked {
    fn partial_cmp(&self, other: &Ranked) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Ranked {
    fn cmp(&self, other: &Ranked) -> std::cmp::Ordering {
        self.rank.cmp(&other.rank)
    }
}

/// The first `limit` of all flows that it is given.
pub struct First {
    key: Key,
    reverse: bool,
    limit: usize,
    seen: u64,
    /// The last of them on top.
    kept: BinaryHeap<Ranked>,
}

impl First {
    pub fn new(key: Key, reverse: bool, limit: usize) -> First {
        First { key, reverse, limit, seen: 0, kept: BinaryHeap::new() }
    }

    pub fn take(&mut self, flow: &Flow, names: &FlowNames) {
        let (a, b) = self.key.rank(flow, names);
        let rank = if self.reverse { (!a, !b) } else { (a, b) };
        // What is alike stays in the order in which it came.
        let rank = (rank, self.seen);
        self.seen += 1;
        if self.kept.len() >= self.limit {
            if self.kept.peek().is_none_or(|last| last.rank <= rank) {
                return;
            }
            self.kept.pop();
        }
        self.kept.push(Ranked { rank, flow: *flow });
    }

    /// Those that were first, in order.
    pub fn flows(self) -> Vec<Flow> {
        self.kept.into_sorted_vec().into_iter().map(|ranked| ranked.flow).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ringway_abi::FlowState;

    fn flow(idle_s: u32) -> Flow {
        let state = FlowState::Udp;
        Flow { state, backend: idle_s % 7, idle_s, on_probation: false, nat: None }
    }

    #[test]
    fn the_first_of_many_in_both_directions() {
        let names = FlowNames::default();
        for (reverse, want) in [(false, [0, 1, 2]), (true, [999, 998, 997])] {
            let mut first = First::new(Key::Idle, reverse, 3);
            (0..1000).for_each(|n| first.take(&flow(n * 7919 % 1000), &names));
            assert_eq!(first.kept.len(), 3);
            let idle: Vec<u32> = first.flows().iter().map(|flow| flow.idle_s).collect();
            assert_eq!(idle, want);
        }
        let mut none = First::new(Key::Backend, false, 0);
        none.take(&flow(1), &names);
        assert!(none.flows().is_empty());
    }
}
