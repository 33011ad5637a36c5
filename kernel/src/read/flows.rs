//! The flow table of nat services, read where it lies while the packet path writes it.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::ops::Range;

use libbpf_rs::MapCore;
use ringway_abi::raw::{
    RW_BUCKET_FLOWS, RW_CONFIRMED, RW_FLOW_SHIFTED, RW_FLOW_TIMEOUTS, rw_flow, rw_flow_bucket,
};
use ringway_abi::{FlowKey, FlowState, FromBytes, IntoBytes, addr_from_words};

use crate::maps::table_view::TableView;
use crate::{Result, View};

/// 64-bit words of a bucket: the ports that clients talk to, then the records.
const BUCKET_WORDS: usize = size_of::<rw_flow_bucket>() / size_of::<u64>();
const STATES: usize = FlowState::Resting as usize + 1;
const FLOW_WORDS: usize = size_of::<rw_flow>() / size_of::<u64>();

/// A live flow of a nat service, as its record was at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NatFlow {
    /// Backend reference, translated port, and where it is in its life.
    pub key: FlowKey,
    pub client: SocketAddr,
    /// The port that its client talks to, host byte order.
    pub port: u16,
    pub service: u16,
    /// Interface slot of its client's last packet.
    pub iface: u8,
    /// Not on probation any more: no new flow can take its place.
    pub confirmed: bool,
    /// Seconds since it was last noted to be alive.
    pub idle_s: u32,
}

/// Content of one place of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    Free,
    /// A record whose idle timeout has passed: free to be taken over.
    Expired,
    /// A flow that is just being written.
    Claimed,
    /// It changed each time that it was read.
    Changing,
    Live(NatFlow),
}

/// The flow table, mapped. Flows come and go while it is read; each is seen whole or not at all.
pub struct NatFlows {
    table: TableView,
    life: Life,
}

/// How old a flow may become.
struct Life {
    timeout: [u32; RW_FLOW_TIMEOUTS as usize],
    now: u32,
}

impl NatFlows {
    pub fn buckets(&self) -> usize {
        self.table.words() / BUCKET_WORDS
    }

    /// Flows there is room for.
    pub fn capacity(&self) -> u64 {
        self.buckets() as u64 * u64::from(RW_BUCKET_FLOWS)
    }

    /// Visits every place of these buckets; those beyond the last are none.
    pub fn visit(&self, buckets: Range<usize>, mut visit: impl FnMut(Place)) {
        for bucket in buckets.start..buckets.end.min(self.buckets()) {
            for number in 0..RW_BUCKET_FLOWS as usize {
                visit(self.place(bucket, number));
            }
        }
    }

    fn place(&self, bucket: usize, number: usize) -> Place {
        let ports = bucket * BUCKET_WORDS;
        let at = ports + 1 + number * FLOW_WORDS;
        if self.table.word(at) == 0 {
            return Place::Free;
        }
        let read = |key: u64| {
            let mut words = [0; FLOW_WORDS];
            words[0] = key;
            for (n, word) in words.iter_mut().enumerate().skip(1) {
                *word = self.table.word(at + n);
            }
            (words, self.table.word(ports))
        };
        match self.table.consistent(at, read) {
            Some((words, ports)) => self.life.judge(&words, ports, number),
            None => Place::Changing,
        }
    }
}

impl Life {
    /// Seconds; as flow.bpf.h has it.
    fn timeout(&self, state: FlowState) -> u32 {
        let of = if state == FlowState::Reset { FlowState::Closed } else { state };
        self.timeout.get(of as usize).copied().unwrap_or(0)
    }

    /// `words`: of a record; `ports`: the word before the records of its bucket.
    fn judge(&self, words: &[u64; FLOW_WORDS], ports: u64, number: usize) -> Place {
        let Ok(flow) = rw_flow::read_from_bytes(words.as_bytes()) else { return Place::Free };
        // An unknown state is a record of another version: not ours to count as live.
        let Ok(key) = FlowKey::unpack(flow.key) else { return Place::Free };
        match key.state {
            FlowState::Free => return Place::Free,
            FlowState::Claimed => return Place::Claimed,
            FlowState::Resting => return Place::Expired,
            _ => {}
        }
        // Signed, as flow.bpf.h has it: another CPU's clock may be a tick ahead.
        let idle = self.now.wrapping_sub(flow.seen).cast_signed();
        if i64::from(idle) > i64::from(self.timeout(key.state)) {
            return Place::Expired;
        }
        let ports = ports.to_ne_bytes();
        let client = addr_from_words(flow.client);
        Place::Live(NatFlow {
            key,
            client: SocketAddr::new(client, u16::from_be(flow.client_port_be)),
            port: u16::from_be_bytes([ports[2 * number], ports[2 * number + 1]]),
            service: flow.service,
            iface: flow.iface & !(RW_FLOW_SHIFTED as u8),
            confirmed: u32::from(flow.confirmed) & RW_CONFIRMED != 0,
            idle_s: idle.max(0).cast_unsigned(),
        })
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FlowCounts {
    /// Flows there is room for.
    pub capacity: u64,
    /// Live flows by state, index by `FlowState as usize`.
    pub live: [u64; STATES],
    /// Records whose idle timeout has passed: free to be taken over.
    pub expired: u64,
    /// Live flows by their backends' references, but for those that are over: of a closed one the
    /// record only keeps the port from being used again at once.
    pub by_backend: HashMap<u32, BackendFlows>,
}

/// Live flows of one backend in the flow table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BackendFlows {
    pub tcp: u64,
    pub udp: u64,
}

impl FlowCounts {
    pub fn total(&self) -> u64 {
        self.live.iter().sum()
    }

    /// Live flows in one state.
    pub fn in_state(&self, state: FlowState) -> u64 {
        self.live[state as usize]
    }

    fn count(&mut self, place: Place) {
        match place {
            Place::Free => {}
            Place::Expired => self.expired += 1,
            // Somebody's, whoever that is in a moment.
            Place::Claimed | Place::Changing => self.live[FlowState::Claimed as usize] += 1,
            Place::Live(flow) => {
                self.live[flow.key.state as usize] += 1;
                if matches!(flow.key.state, FlowState::Closed | FlowState::Reset) {
                    return;
                }
                let flows = self.by_backend.entry(flow.key.backend).or_default();
                match is_udp(flow.key.state) {
                    true => flows.udp += 1,
                    false => flows.tcp += 1,
                }
            }
        }
    }
}

/// Whether flows in this state are UDP's.
pub fn is_udp(state: FlowState) -> bool {
    matches!(state, FlowState::UdpNew | FlowState::Udp)
}

impl View {
    /// The flow table, to be read where it lies.
    pub fn nat_flows(&self) -> Result<NatFlows> {
        let table = TableView::of(&self.maps().flows, "map the flow table")?;
        let life = Life { timeout: self.settings()?.timeout, now: self.now_seconds() };
        Ok(NatFlows { table, life })
    }

    /// Counts flows. Reads the whole table: some tens of milliseconds per million.
    pub fn flows(&self) -> Result<FlowCounts> {
        let flows = self.nat_flows()?;
        let mut counts = FlowCounts { capacity: flows.capacity(), ..FlowCounts::default() };
        flows.visit(0..flows.buckets(), |place| counts.count(place));
        Ok(counts)
    }

    /// Source addresses of nat by their place, as flows' keys have it.
    pub fn nat_addresses(&self) -> Result<Vec<std::net::IpAddr>> {
        let mut all = vec![];
        self.maps().nat_addrs.for_each(|_, address| all.push(addr_from_words(address.addr)))?;
        Ok(all)
    }

    /// Backends there is room for.
    pub fn backend_capacity(&self) -> u32 {
        self.maps().backends.max_entries()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ringway_abi::addr_to_words;

    const PORTS: u64 = u64::from_ne_bytes([0, 80, 0, 81, 1, 187, 0, 0]);

    fn words(state: FlowState, seen: u32) -> [u64; FLOW_WORDS] {
        let key = FlowKey { backend: 1, nat_port: 2, nat_addr: 0, state };
        let flow = rw_flow {
            key: key.pack(),
            seen,
            client: addr_to_words("192.0.2.7".parse().unwrap()),
            client_port_be: 4711u16.to_be(),
            service: 3,
            iface: 1,
            confirmed: 1,
            ..Default::default()
        };
        <[u64; FLOW_WORDS]>::read_from_bytes(flow.as_bytes()).unwrap()
    }

    fn life() -> Life {
        let mut life = Life { timeout: Default::default(), now: 1000 };
        life.timeout[FlowState::Udp as usize] = 120;
        life
    }

    #[test]
    fn a_record_is_read_whole() {
        let Place::Live(flow) = life().judge(&words(FlowState::Udp, 990), PORTS, 2) else {
            panic!("not live")
        };
        assert_eq!((flow.client.to_string(), flow.port), ("192.0.2.7:4711".to_owned(), 443));
        assert_eq!((flow.service, flow.iface, flow.confirmed, flow.idle_s), (3, 1, true, 10));
        assert_eq!((flow.key.nat_port, flow.key.state), (2, FlowState::Udp));
    }

    #[test]
    fn idle_records_are_not_live() {
        let life = life();
        let mut counts = FlowCounts::default();
        // The last one: another CPU's clock is a tick ahead.
        for seen in [880, 879, 1000, 1001] {
            counts.count(life.judge(&words(FlowState::Udp, seen), PORTS, 0));
        }
        counts.count(life.judge(&words(FlowState::Claimed, 0), PORTS, 0));
        counts.count(life.judge(&[0xee << 56, 0, 0, 0, 0], PORTS, 0));
        assert_eq!((counts.in_state(FlowState::Udp), counts.expired, counts.total()), (3, 1, 4));
        assert_eq!(counts.by_backend[&1], BackendFlows { tcp: 0, udp: 3 });
        // Nobody waits for what is over.
        let mut closed = Life { timeout: Default::default(), now: 1000 };
        closed.timeout[FlowState::Closed as usize] = 10;
        counts.count(closed.judge(&words(FlowState::Closed, 995), PORTS, 0));
        assert_eq!((counts.in_state(FlowState::Closed), counts.by_backend[&1].tcp), (1, 0));
    }
}
