//! Source addresses of nat: which backend uses which range of the kernel's table.

use std::collections::HashSet;
use std::net::IpAddr;
use std::ops::Range;

use ringway_abi::raw::RW_MAX_NAT_ADDRS;

const LIMIT: usize = RW_MAX_NAT_ADDRS as usize;

/// The kernel's table of source addresses. Flows hold positions in it, so an address stays
/// where it is, also when no backend uses it any more; its place is given away only when
/// there is no other.
#[derive(Clone, Debug)]
pub(crate) struct Places {
    table: Vec<IpAddr>,
    /// Positions that the plan under way uses or may use.
    used: [bool; LIMIT],
}

impl Places {
    pub(crate) fn new(table: &[IpAddr]) -> Places {
        let table = table.iter().copied().take(LIMIT).collect();
        Places { table, used: [false; LIMIT] }
    }

    /// Begins a plan that may use the addresses `wanted`.
    pub(crate) fn begin(&mut self, wanted: &HashSet<IpAddr>) {
        self.used = [false; LIMIT];
        for (used, address) in self.used.iter_mut().zip(&self.table) {
            *used = wanted.contains(address);
        }
        while self.table.last().is_some_and(|address| address.is_unspecified()) {
            self.table.pop();
        }
    }

    pub(crate) fn table(&self) -> &[IpAddr] {
        &self.table
    }

    /// A run of places that holds these addresses (distinct, of one family) and no other:
    /// where they are, else right behind the table, else where nobody is any more. An address
    /// that has to move leaves its old place to the flows that know it.
    /// `None`: there is no such run.
    pub(crate) fn place(&mut self, addresses: &[IpAddr]) -> Option<Range<usize>> {
        let count = addresses.len();
        let run = self
            .present(addresses)
            .or_else(|| self.extended(addresses))
            .or_else(|| self.write(self.table.len()..self.table.len() + count, addresses))
            .or_else(|| {
                let mut starts = 0..=LIMIT.checked_sub(count)?;
                let start =
                    starts.find(|start| !self.used[*start..start + count].contains(&true))?;
                self.write(start..start + count, addresses)
            })?;
        self.used[run.clone()].fill(true);
        Some(run)
    }

    /// A run that holds them already, in whatever order.
    fn present(&self, addresses: &[IpAddr]) -> Option<Range<usize>> {
        let windows = self.table.windows(addresses.len());
        let start =
            windows.into_iter().position(|run| addresses.iter().all(|a| run.contains(a)))?;
        Some(start..start + addresses.len())
    }

    /// The end of the table, when it holds some of them, and the rest behind it.
    fn extended(&mut self, addresses: &[IpAddr]) -> Option<Range<usize>> {
        let there = self.table.iter().rev().take_while(|a| addresses.contains(a)).count();
        let start = self.table.len() - there;
        let rest: Vec<IpAddr> =
            addresses.iter().copied().filter(|a| !self.table[start..].contains(a)).collect();
        (there > 0 && there + rest.len() == addresses.len()).then_some(())?;
        self.write(self.table.len()..self.table.len() + rest.len(), &rest)?;
        Some(start..self.table.len())
    }

    fn write(&mut self, run: Range<usize>, addresses: &[IpAddr]) -> Option<Range<usize>> {
        if run.end > LIMIT {
            return None;
        }
        let unspecified = IpAddr::V6(std::net::Ipv6Addr::UNSPECIFIED);
        self.table.resize(self.table.len().max(run.end), unspecified);
        self.table[run.clone()].copy_from_slice(addresses);
        Some(run)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ips(numbers: &[u8]) -> Vec<IpAddr> {
        numbers.iter().map(|number| IpAddr::from([10, 0, 0, *number])).collect()
    }

    /// One plan that uses one group of addresses.
    fn plan(places: &mut Places, group: &[u8]) -> Option<Range<usize>> {
        let group = ips(group);
        places.begin(&group.iter().copied().collect());
        let run = places.place(&group)?;
        let mut held = places.table()[run.clone()].to_vec();
        held.sort();
        assert_eq!(held, group);
        Some(run)
    }

    #[test]
    fn addresses_stay_where_they_are() {
        let mut places = Places::new(&[]);
        assert_eq!(plan(&mut places, &[1, 2]), Some(0..2));
        assert_eq!(plan(&mut places, &[1, 2, 3]), Some(0..3), "extended");
        assert_eq!(plan(&mut places, &[2, 3]), Some(1..3), "part of what is there");
        assert_eq!(plan(&mut places, &[2, 3, 4]), Some(1..4));
        assert_eq!(plan(&mut places, &[1, 3]), Some(4..6), "apart: a new run");
        assert_eq!(places.table(), ips(&[1, 2, 3, 4, 1, 3]));
    }

    #[test]
    fn the_unused_make_room() {
        let all: Vec<u8> = (1..=64).collect();
        let mut places = Places::new(&ips(&all));
        assert_eq!(plan(&mut places, &[3]), Some(2..3));
        places.begin(&ips(&[1, 3]).into_iter().collect());
        assert_eq!(places.place(&ips(&[70, 71])), Some(3..5));
        assert_eq!(places.place(&ips(&[1])), Some(0..1));
        assert_eq!(places.place(&ips(&(100..=163).collect::<Vec<u8>>())), None);
    }

    #[test]
    fn empty_places_at_the_end_are_no_places() {
        let unspecified = IpAddr::from([0, 0, 0, 0]);
        let mut places = Places::new(&[ips(&[1])[0], unspecified, unspecified]);
        assert_eq!(plan(&mut places, &[2]), Some(1..2));
    }
}
