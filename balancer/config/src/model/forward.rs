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
}

/// Interfaces that a mode needs.
pub(crate) const fn fewest(mode: ForwardMode) -> usize {
    match mode {
        ForwardMode::Bridge => 2,
        ForwardMode::Route => 1,
    }
}
