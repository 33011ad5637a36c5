//! Kernel memory of a node's packet path: schema `ringway.memory/1`.

use ringway_api::client::node_selector::{self, NodeSelector};
use ringway_api::error::Error;
use ringway_kernel::{MapMemory, WhenFull};
use serde::{Serialize, Serializer};

/// Name and version of the schema.
pub const SCHEMA: &str = "ringway.memory/1";

/// All maps of a node.
#[derive(Clone, Debug, Serialize)]
pub struct KernelMemory {
    pub schema: &'static str,
    /// `[node] name`.
    pub node: String,
    /// Bytes of all maps whose bytes are known.
    pub sum_bytes: u64,
    /// The pinned ones first.
    pub maps: Vec<Map>,
}

/// One map, those inside it included.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Map {
    pub name: String,
    pub purpose: &'static str,
    /// It outlives the daemon; else it is one program's own.
    pub pinned: bool,
    /// Entries there is room for.
    pub max_entries: u64,
    /// Entries in use, where that can be known.
    pub used_entries: Option<u64>,
    /// Bytes that the kernel accounts for it; absent: it does not tell.
    pub bytes: Option<u64>,
    /// Behaviour when it is full.
    #[serde(serialize_with = "as_text")]
    pub when_full: WhenFull,
}

fn as_text<S: Serializer>(when_full: &WhenFull, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(when_full.text())
}

impl From<MapMemory> for Map {
    fn from(map: MapMemory) -> Map {
        let MapMemory { name, purpose, when_full, pinned, max_entries, used_entries, bytes } = map;
        Map { name, purpose, pinned, max_entries, used_entries, bytes, when_full }
    }
}

/// The maps of a node, read from its pins. Needs root, and no daemon.
///
/// # Errors
/// Nothing is loaded, or this user may not look.
pub fn memory(selector: &NodeSelector<'_>) -> Result<KernelMemory, Error> {
    let node = selector.find()?.node;
    let maps = node_selector::view(&node)?.memory();
    let maps = maps.map_err(|error| Error::failed(error.to_string(), ""))?;
    let maps: Vec<Map> = maps.into_iter().map(Map::from).collect();
    let sum_bytes = maps.iter().filter_map(|map| map.bytes).sum();
    Ok(KernelMemory { schema: SCHEMA, node, sum_bytes, maps })
}
