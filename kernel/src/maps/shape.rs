//! The shape of a table, pinned or wanted: whether one can stand in for the other.

use libbpf_rs::{MapCore, MapType, OpenMapMut};

/// The shape of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    pub kind: MapType,
    pub key: u32,
    /// Bytes of a value; 0 in an object: whatever the kernel makes of it.
    pub value: u32,
    pub entries: u32,
}

impl Shape {
    /// Why a table of this shape cannot stand in for a `wanted` one. Their sizes may differ.
    pub(crate) fn unfit(&self, wanted: &Shape) -> Option<String> {
        let of = |shape: &Shape| (shape.kind, shape.key, shape.value);
        // Maps of maps and of programs hold descriptors: the object leaves their sizes open.
        if of(self) == of(wanted) || (self.kind == wanted.kind && wanted.value == 0) {
            return None;
        }
        let (have, want) = (of(self), of(wanted));
        Some(format!("type, key and value size {have:?} instead of {want:?}"))
    }
}

/// The shape of a map.
pub(crate) fn shape_of(map: &impl MapCore) -> Shape {
    Shape {
        kind: map.map_type(),
        key: map.key_size(),
        value: map.value_size(),
        entries: map.max_entries(),
    }
}

/// The shape that an object gives a map.
pub(crate) fn wanted_shape(map: &OpenMapMut<'_>) -> Shape {
    Shape {
        kind: map.map_type(),
        key: map.key_size(),
        value: map.value_size(),
        entries: map.max_entries(),
    }
}
