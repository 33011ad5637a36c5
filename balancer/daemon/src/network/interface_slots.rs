//! Which interface has which slot. Flows remember slots, so an interface keeps its slot from one
//! daemon to the next, wherever in `[node] interfaces` it stands.

use ringway_config::{Faces, Node};
use ringway_kernel::InterfaceState;

/// Name and slot of each interface, and whom it faces, in the order of `[node] interfaces`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InterfaceSlots(Vec<(String, u32, Faces)>);

impl InterfaceSlots {
    /// Keeps the slots of `held`; others get free ones, if possible such as no interface had.
    pub fn assign(
        node: &Node,
        held: &[InterfaceState],
        index_of: impl Fn(&str) -> Option<u32>,
    ) -> InterfaceSlots {
        let held: Vec<(u32, u32)> = held.iter().map(|state| (state.ifindex, state.slot)).collect();
        let names: Vec<&str> = node.interfaces.iter().map(|name| name.as_str()).collect();
        let slots = assign(&names, &held, index_of).into_iter();
        let with_name = |(name, slot): (&str, u32)| (name.to_owned(), slot, node.faces(name));
        InterfaceSlots(names.iter().copied().zip(slots).map(with_name).collect())
    }

    /// Names, slots and whom they face.
    pub fn iter(&self) -> impl Iterator<Item = (&str, u32, Faces)> {
        self.0.iter().map(|(name, slot, faces)| (name.as_str(), *slot, *faces))
    }
}

/// `held`: interface index and slot.
fn assign(names: &[&str], held: &[(u32, u32)], index_of: impl Fn(&str) -> Option<u32>) -> Vec<u32> {
    let kept = |name: &str| {
        let ifindex = index_of(name)?;
        held.iter().find(|(index, _)| *index == ifindex).map(|(_, slot)| *slot)
    };
    let kept: Vec<Option<u32>> = names.iter().map(|name| kept(name)).collect();
    let mut used: Vec<u32> = kept.iter().flatten().copied().collect();
    let unheld = |slot: &u32| !held.iter().any(|(_, held)| held == slot);
    let slot = |kept: Option<u32>| {
        kept.unwrap_or_else(|| {
            // Validation allows no more interfaces than there are slots, so one is free.
            let free = |slot: &u32| !used.contains(slot);
            let all = || 0..ringway_abi::raw::RW_MAX_IFACES;
            let best = all().find(|slot| free(slot) && unheld(slot));
            let slot = best.or_else(|| all().find(free)).unwrap_or_default();
            used.push(slot);
            slot
        })
    };
    kept.into_iter().map(slot).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slots(names: &[&str], held: &[(u32, u32)]) -> Vec<u32> {
        let index_of = |name: &str| name.strip_prefix("eth")?.parse().ok();
        assign(names, held, index_of)
    }

    #[test]
    fn an_interface_keeps_its_slot_and_others_get_new_ones() {
        assert_eq!(slots(&["eth1", "eth2"], &[]), [0, 1]);
        let held = [(1, 0), (2, 1)];
        assert_eq!(slots(&["eth2", "eth1"], &held), [1, 0]);
        assert_eq!(slots(&["eth3", "eth2", "eth1", "gone"], &held), [2, 1, 0, 3]);
        // eth1's slot stays empty: its flows must not come out of eth3.
        assert_eq!(slots(&["eth3", "eth2"], &held), [2, 1]);
    }

    #[test]
    fn a_slot_is_used_again_when_there_is_no_other() {
        let held: Vec<(u32, u32)> = (0..64).map(|n| (n, n)).collect();
        assert_eq!(slots(&["eth5", "eth99", "eth98"], &held), [5, 0, 1]);
    }
}
