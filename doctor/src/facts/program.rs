//! Interfaces that get an XDP program, and what is at the far end of their pairs.

use ringway_host::Interface;
use ringway_host::netlink::links::XdpMode;
use ringway_host::netlink::xdp_features::XdpFeatures;

use super::{FEATURES, Facts};
use crate::Unknown;

/// Interfaces that are to get Ringway's program. What is attached already is seen without.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Program {
    /// All of them, by name.
    pub interfaces: Vec<String>,
    /// Those where it goes into the driver.
    pub native: Vec<String>,
}

/// The other end of a veth pair, as far as it is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FarEnd {
    /// Its name; `None`: it is in another network namespace.
    pub name: Option<String>,
    /// Whether it takes packets by itself (NAPI): with GRO, or native XDP of its own.
    pub polls: Option<bool>,
    /// Whether it has native XDP.
    pub native: Option<bool>,
    /// Whether packets of its own stack leave it with their checksums unfinished.
    pub unfinished: Option<bool>,
}

impl Facts {
    /// Rules about interfaces are asked about those of the program alone.
    pub fn with_program(mut self, program: Program) -> Self {
        self.program = Some(program);
        self
    }

    /// Whether rules are asked about this interface: it is one of the program's, a part of one, or
    /// lies below one.
    pub(super) fn concerns(&self, one: &Interface) -> bool {
        let Some(program) = &self.program else { return true };
        let ours = |name: &String| program.interfaces.contains(name);
        let Ok(network) = self.network() else { return ours(&one.link.name) };
        let master = one.link.master.and_then(|master| network.interface_by_index(master));
        let upon = |upper: &Interface| {
            ours(&upper.link.name)
                && upper.link.vlan.is_some()
                && !upper.link.lower_elsewhere
                && upper.link.lower == Some(one.link.ifindex)
        };
        ours(&one.link.name)
            || master.is_some_and(|master| ours(&master.link.name))
            || network.interfaces.iter().any(upon)
    }

    /// Whether a program is in its driver, or is to be.
    pub fn native(&self, one: &Interface) -> bool {
        match &self.program {
            Some(program) => program.native.contains(&one.link.name),
            None => has_native(one),
        }
    }

    /// Whether the program finishes the checksums of what it sends on: Ringway's does, of others
    /// that is not known.
    pub fn finishes_checksums(&self) -> bool {
        self.program.is_some()
    }

    /// Whether a program is still to be put into its driver, as far as it is known.
    pub fn gets_native(&self, one: &Interface) -> bool {
        match &self.program {
            Some(program) => program.native.contains(&one.link.name) && one.link.xdp.is_empty(),
            None => true,
        }
    }

    /// Whether its driver has native XDP; `None` where this kernel does not tell (before 6.3).
    pub fn native_xdp(&self, one: &Interface) -> Option<bool> {
        self.xdp_features(one).map(XdpFeatures::native)
    }

    /// The XDP features of its driver.
    pub(crate) fn xdp_features(&self, one: &Interface) -> Option<XdpFeatures> {
        self.note(FEATURES);
        self.features.as_ref()?.get(&one.link.ifindex).copied()
    }

    /// The other end of a veth pair.
    pub fn far_end(&self, one: &Interface) -> Result<FarEnd, Unknown> {
        let Some(peer) = self.network()?.peer(one) else {
            // drivers/net/veth.c, veth_set_xdp_features: what is redirected into it arrives while
            // the far end polls.
            let polls = self.xdp_features(one).map(XdpFeatures::is_target);
            return Ok(FarEnd { name: None, polls, native: None, unfinished: None });
        };
        let native = has_native(peer);
        Ok(FarEnd {
            name: Some(peer.link.name.clone()),
            polls: Some(native || peer.offloads.gro),
            native: Some(native),
            unfinished: Some(peer.offloads.tx_checksum),
        })
    }
}

fn has_native(one: &Interface) -> bool {
    one.link.xdp.iter().any(|xdp| xdp.mode == XdpMode::Native)
}

#[cfg(test)]
mod tests {
    use ringway_host::netlink::links::VlanTag;

    use super::*;
    use crate::testing::healthy;

    #[test]
    fn rules_are_asked_about_the_programs_interfaces() {
        let machine = healthy().interface(2, 9, "eth0.5", |vlan| {
            vlan.link.vlan = Some(VlanTag { id: 5, protocol: 0x8100 });
            (vlan.link.lower, vlan.link.lower_elsewhere) = (Some(2), false);
        });
        let names = |interfaces: &[&str]| {
            let interfaces: Vec<String> = interfaces.iter().map(|name| (*name).into()).collect();
            let facts = machine.facts().with_program(Program { interfaces, native: vec![] });
            let found = facts.interfaces().unwrap();
            found.iter().map(|one| one.link.name.clone()).collect::<Vec<_>>()
        };
        assert_eq!(machine.facts().interfaces().unwrap().len(), 3);
        assert_eq!(names(&["veth0"]), ["veth0"]);
        // Packets sent by a VLAN device leave by the card below it.
        assert_eq!(names(&["eth0.5"]), ["eth0", "eth0.5"]);
        assert!(names(&["eth9"]).is_empty());
    }
}
