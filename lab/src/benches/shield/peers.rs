//! bpf/shield.bpf.c: the kernel's trie of prefixes, and a look at the clock in front of each packet.

use std::mem::MaybeUninit;
use std::net::IpAddr;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd};

use libbpf_rs::skel::{OpenSkel as _, SkelBuilder as _};
use libbpf_rs::{Map, MapCore as _, MapFlags, OpenObject};
use ringway_plan::prefix_list::Prefix;

use crate::{Error, Result};

/// Generated from bpf/shield.bpf.c.
#[allow(clippy::all, clippy::undocumented_unsafe_blocks, clippy::unwrap_used)]
pub(super) mod skeleton {
    include!(concat!(env!("OUT_DIR"), "/shield.skel.rs"));
}

/// Where the programs' object is kept.
pub(super) type Storage = MaybeUninit<OpenObject>;

/// Elements of a call.
const BATCH: usize = 10_000;

pub(super) struct Peers<'s> {
    skel: skeleton::ShieldSkel<'s>,
    /// Keys of the tries, by family.
    keys: [Vec<u8>; 2],
}

impl<'s> Peers<'s> {
    /// Loads the programs, with these prefixes in tries.
    pub(super) fn load(storage: &'s mut Storage, prefixes: &[Prefix]) -> Result<Self> {
        let mut keys = [Vec::new(), Vec::new()];
        for prefix in prefixes {
            let keys = &mut keys[usize::from(prefix.addr().is_ipv6())];
            keys.extend(u32::from(prefix.length()).to_ne_bytes());
            match prefix.addr() {
                IpAddr::V4(address) => keys.extend(address.octets()),
                IpAddr::V6(address) => keys.extend(address.octets()),
            }
        }
        let open = skeleton::ShieldSkelBuilder::default().open(storage);
        let mut open = open.map_err(Error::Feeder)?;
        let most = u32::try_from(prefixes.len()).unwrap_or(u32::MAX).max(1);
        for trie in [&mut open.maps.trie4, &mut open.maps.trie6] {
            trie.set_max_entries(most).map_err(Error::Feeder)?;
        }
        let peers = Self { skel: open.load().map_err(Error::Feeder)?, keys };
        peers.each_batch(|map, keys, count| {
            let values = vec![0; count as usize * size_of::<u32>()];
            map.update_batch(keys, &values, count, MapFlags::ANY, MapFlags::ANY)
        })?;
        Ok(peers)
    }

    fn each_batch(
        &self,
        call: impl Fn(&Map<'_>, &[u8], u32) -> libbpf_rs::Result<()>,
    ) -> Result<()> {
        let maps = &self.skel.maps;
        for (map, keys) in [&maps.trie4, &maps.trie6].into_iter().zip(&self.keys) {
            let size = map.key_size() as usize;
            for keys in keys.chunks(BATCH * size) {
                call(map, keys, (keys.len() / size) as u32).map_err(Error::Feeder)?;
            }
        }
        Ok(())
    }

    /// Drops each packet.
    pub(super) fn bare(&self) -> BorrowedFd<'_> {
        self.skel.progs.bare.as_fd()
    }

    /// Drops packets from the prefixes.
    pub(super) fn trie(&self) -> BorrowedFd<'_> {
        self.skel.progs.trie.as_fd()
    }

    /// Packets that the trie has not dropped.
    pub(super) fn not_listed(&self) -> Result<u64> {
        Ok(self.skel.maps.bss_data.as_ref().ok_or(Error::NoVariables)?.not_listed)
    }

    /// A program that looks at the clock, and goes on to this one.
    pub(super) fn watch(&self, program: BorrowedFd<'_>) -> Result<BorrowedFd<'_>> {
        let program = program.as_raw_fd().to_ne_bytes();
        let watched = &self.skel.maps.watched;
        watched.update(&0_u32.to_ne_bytes(), &program, MapFlags::ANY).map_err(Error::Feeder)?;
        Ok(self.skel.progs.watch.as_fd())
    }

    /// The next packet is the first one.
    pub(super) fn begin(&mut self) -> Result<()> {
        self.skel.maps.bss_data.as_mut().ok_or(Error::NoVariables)?.last_ns = 0;
        Ok(())
    }

    /// Nanoseconds between two packets, at most.
    pub(super) fn longest_ns(&self) -> Result<u64> {
        Ok(self.skel.maps.bss_data.as_ref().ok_or(Error::NoVariables)?.longest_ns)
    }
}

impl Drop for Peers<'_> {
    /// The kernel frees a trie at one go, and for seconds lets nobody else have the processor.
    fn drop(&mut self) {
        let any = MapFlags::ANY;
        let _ = self.each_batch(|map, keys, count| map.delete_batch(keys, count, any, any));
    }
}
