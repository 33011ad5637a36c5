//! `[forward]`: packets of no service, between interfaces.

use std::fmt;

use crate::reader::located::Located;

/// What Ringway forwards between interfaces, beside the kernel. Not to be confused with
/// [`Forward`](super::Forward), how a service's packets reach its backends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InterfaceForward {
    pub mode: ForwardMode,
    /// Interfaces of the node, each once; at least two in a bridge, at least one to route.
    pub interfaces: Vec<Located<String>>,
    /// Rules of the kernel that forwarded packets would no longer meet do not forbid a start.
    pub bypass_firewall: bool,
}

/// What decides where a packet goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ForwardMode {
    /// The MAC addresses that the kernel's bridge has learned.
    Bridge,
    /// The kernel's routes and neighbours.
    Route,
}

impl ForwardMode {
    /// Its name in configuration and output.
    pub const fn name(self) -> &'static str {
        match self {
            ForwardMode::Bridge => "bridge",
            ForwardMode::Route => "route",
        }
    }

    /// Interfaces that it needs.
    pub const fn fewest(self) -> usize {
        match self {
            ForwardMode::Bridge => 2,
            ForwardMode::Route => 1,
        }
    }
}

impl fmt::Display for ForwardMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
