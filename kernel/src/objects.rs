//! The objects of the packet path: the skeletons that the build made of them, in which maps,
//! programs and constants are fields, and whether their maps hold what abi.h says.

use ringway_abi::raw::{
    rw_address, rw_backend, rw_capture, rw_capture_counts, rw_capture_state, rw_daemon,
    rw_flow_bucket, rw_iface, rw_label, rw_ledger, rw_pair, rw_probe, rw_ring, rw_scratch,
    rw_seen_count, rw_seen_key, rw_service, rw_service_info, rw_service_key, rw_settings, rw_steer,
    rw_trace, rw_track_bucket, rw_tracking, rw_traffic, rw_vlan_key,
};

/// A module for the skeleton of each object, and the list of them.
macro_rules! objects {
    ($($name:ident),*) => {
        $(
            #[allow(clippy::all, clippy::undocumented_unsafe_blocks, clippy::unwrap_used)]
            pub(crate) mod $name {
                use ringway_abi::raw::*;

                include!(concat!(env!("OUT_DIR"), "/", stringify!($name), ".skel.rs"));
            }
        )*

        /// Every object file of the packet path, by the name of its source in bpf: for checks
        /// that load them all, say on another kernel.
        pub fn objects() -> impl Iterator<Item = (&'static str, &'static [u8])> {
            [$((
                stringify!($name),
                &include_bytes!(concat!(env!("OUT_DIR"), "/", stringify!($name), ".o"))[..],
            )),*]
            .into_iter()
        }
    };
}
objects!(root, gateway, rings, capture, decap, probe, steer, redirect_errors, drop_reasons);

/// Fails to compile where a map has not keys and values of these types.
macro_rules! layouts {
    ($($object:ident { $($map:ident: $key:ty => $value:ty;)* })*) => {
        $($(const _: fn(&$object::types::maps) -> (*mut $key, *mut $value) =
            |maps| (maps.$map.key, maps.$map.value);)*)*
    };
}
layouts! {
    gateway {
        settings: u32 => rw_settings;
        slots: u32 => u32;
        ledger: u32 => rw_ledger;
        scratch: u32 => rw_scratch;
        ifaces: u32 => rw_iface;
        devices: u32 => u32;
        vlans: rw_vlan_key => u32;
        services: rw_service_key => rw_service;
        service_info: u32 => rw_service_info;
        backends: u32 => rw_backend;
        nat_addrs: u32 => rw_address;
        labels: u32 => rw_label;
        members: u32 => u32;
        tracked: u32 => rw_track_bucket;
        tracking: u32 => rw_tracking;
        flows: u32 => rw_flow_bucket;
        port_hands: u32 => u32;
        traffic: u32 => rw_traffic;
        daemon: u32 => rw_daemon;
    }
    redirect_errors {
        roots: u32 => u32;
    }
    rings {
        wanted: u32 => u32;
        ring_copy: u32 => rw_ring;
        pairs_copy: u32 => rw_pair;
    }
    capture {
        captures: u32 => rw_capture;
        capture_counts: u32 => rw_capture_counts;
        capture_linked: u32 => u32;
        capture_state: u32 => rw_capture_state;
    }
    decap {
        addresses: rw_address => u32;
        ledger: u32 => rw_ledger;
    }
    probe {
        probes: u32 => rw_probe;
        outcomes: u32 => u64;
    }
    steer {
        rules: u32 => rw_steer;
    }
    drop_reasons {
        seen: rw_seen_key => rw_seen_count;
        unseen: u32 => u64;
    }
}

// Inner maps have sizes and no types.
const _: fn(&gateway::types::maps) -> *mut [i32; size_of::<rw_ring>()] =
    |maps| maps.ring_template.value_size;
const _: fn(&gateway::types::maps) -> *mut [i32; size_of::<rw_pair>()] =
    |maps| maps.pairs_template.value_size;
const _: () = assert!(size_of::<gateway::types::data_trace>() == size_of::<rw_trace>());

#[cfg(test)]
mod tests {
    #[test]
    fn every_object_is_listed() {
        let programs = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../bpf");
        let mut sources: Vec<String> = std::fs::read_dir(programs)
            .unwrap()
            .flat_map(|folder| std::fs::read_dir(folder.unwrap().path()).unwrap())
            .filter_map(|entry| entry.unwrap().file_name().into_string().ok())
            .filter_map(|name| name.strip_suffix(".bpf.c").map(str::to_owned))
            .collect();
        let mut listed: Vec<String> = super::objects().map(|(name, _)| name.to_owned()).collect();
        sources.sort();
        listed.sort();
        assert_eq!(listed, sources);
    }
}
