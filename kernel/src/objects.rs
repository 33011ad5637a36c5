//! The objects of the packet path: the skeletons that the build made of them, in which maps,
//! programs and constants are fields.

use ringway_abi::raw::{rw_pair, rw_ring, rw_trace};

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
objects!(
    accept,
    root,
    gateway,
    rings,
    shield,
    capture,
    capture_forward,
    capture_shield,
    decap,
    forward,
    probe,
    steer,
    redirect_errors,
    drop_reasons
);

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
