//! The row of an interface.

use crate::raw::{RW_IFACE_BACKENDS, RW_IFACE_CLIENTS, RW_IFACE_LAYER3, rw_iface};

/// The hosts on an interface, by the configuration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Faces {
    /// Clients and backends, as far as is known.
    #[default]
    Both,
    /// Clients only.
    Clients,
    /// Backends only.
    Backends,
}

impl Faces {
    /// As the configuration has it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Both => "both",
            Self::Clients => "clients",
            Self::Backends => "backends",
        }
    }

    /// As the packet path has it.
    pub fn flag(self) -> u32 {
        match self {
            Self::Both => 0,
            Self::Clients => RW_IFACE_CLIENTS,
            Self::Backends => RW_IFACE_BACKENDS,
        }
    }
}

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
