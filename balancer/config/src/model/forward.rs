//! `[forward]`: packets of no service, between interfaces.

use ringway_abi::ForwardMode;

use crate::reader::located::Located;

/// What Ringway forwards between interfaces, beside the kernel. Not to be confused with
/// [`Forward`](super::Forward), how a service's packets reach its backends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InterfaceForward {
    /// What decides where a packet goes.
    pub mode: ForwardMode,
    /// Interfaces of the node, each once; at least two in a bridge, at least one to route.
    pub interfaces: Vec<Located<String>>,
    /// Rules of the kernel that forwarded packets would no longer meet do not forbid a start.
    pub bypass_firewall: bool,
    /// Options gave it, not a file: remedies name these.
    pub by_options: bool,
}

impl InterfaceForward {
    /// How to have it route, for remedies.
    pub fn to_route(&self) -> &'static str {
        if self.by_options { "add --route" } else { "write mode = \"route\" in [forward]" }
    }

    /// How to have it bridge.
    pub fn to_bridge(&self) -> &'static str {
        if self.by_options { "leave out --route" } else { "write mode = \"bridge\" in [forward]" }
    }

    /// How to start in spite of rules.
    pub fn to_bypass(&self) -> &'static str {
        match self.by_options {
            true => "add --bypass-firewall",
            false => "write bypass_firewall = true in [forward]",
        }
    }
}

/// Interfaces that a mode needs.
pub(crate) const fn fewest(mode: ForwardMode) -> usize {
    match mode {
        ForwardMode::Bridge => 2,
        ForwardMode::Route => 1,
    }
}
