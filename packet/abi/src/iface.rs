//! What an interface's row says.

use crate::raw::{RW_IFACE_LAYER3, rw_iface};

impl rw_iface {
    /// Its packets have no Ethernet header.
    pub fn is_layer3(&self) -> bool {
        u32::from(self.flags) & RW_IFACE_LAYER3 != 0
    }

    /// Tags of its frames, where it is a VLAN device: ethertype and VLAN id, outer first.
    pub fn tags(&self) -> impl Iterator<Item = (u16, u16)> + use<> {
        let set = self.tags.into_iter().filter(|tag| *tag != 0);
        set.map(|tag| ((tag >> 16) as u16, tag as u16 & 0xfff))
    }
}
