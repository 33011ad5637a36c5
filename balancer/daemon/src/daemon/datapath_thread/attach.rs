//! Programs on interfaces: attached, confirmed, or taken off again.

use std::collections::BTreeSet;
use std::time::SystemTime;

use ringway_api::error::Error;
use ringway_kernel::{Attached, Interface, XdpMode};
use ringway_plan::Observed;

use super::{Attachments, Worker, below, kernel};
use crate::network::next_hop;

impl Worker {
    pub(super) fn attach(
        &mut self,
        interfaces: &[Interface],
        observed: Observed,
        needs_confirm: &BTreeSet<String>,
    ) -> Result<Attachments, Error> {
        self.attach_states.outdate();
        if self.keeper.is_none() {
            // Of a daemon before this one: slots are about to be other interfaces'.
            self.gateway.end_forwarding().map_err(kernel)?;
        }
        for interface in interfaces {
            self.gateway.set_iface(interface).map_err(kernel)?;
        }
        let stacked = next_hop::stacked(interfaces);
        for slot in stacked.keys() {
            self.gateway.set_generic(*slot, true).map_err(kernel)?;
        }
        self.apply(observed)?;
        // What could not be planned leaves the shield in force that a former daemon has left.
        if self.shield.is_some() || self.config.shield.is_none() {
            self.raise(self.shield.clone())?;
        }
        self.forward(interfaces)?;
        let mode = match *self.config.node.xdp_mode {
            // Faster than the kernel's forwarding, and needs none.
            None if next_hop::obstacle(interfaces, &stacked).is_some() => Some(XdpMode::Generic),
            asked => asked,
        };
        let mut all = Vec::new();
        let generic = Some(XdpMode::Generic);
        let devices: Vec<&Interface> = interfaces.iter().filter(|i| i.vlan.is_none()).collect();
        for interface in &devices {
            let mode = if stacked.contains_key(&interface.slot) { generic } else { mode };
            all.push(self.attach_one(interface, mode, needs_confirm)?);
        }
        // Native XDP cannot send to a device that has none, so `auto` does not mix. Into a layer-3
        // device generic XDP cannot either: that alone is no reason.
        let refused = |(interface, attached): (&Interface, &Attached)| {
            attached.mode == XdpMode::Generic && !stacked.contains_key(&interface.slot)
        };
        if devices.iter().copied().zip(&all).any(refused) {
            for (interface, attached) in devices.iter().zip(&mut all) {
                if attached.mode == XdpMode::Native {
                    *attached = self.attach_one(interface, generic, needs_confirm)?;
                }
            }
        }
        for name in self.gateway.release_others().map_err(kernel)? {
            tracing::warn!(interface = name, "detached: no longer in [node] interfaces");
        }
        self.gateway.heartbeat(SystemTime::now()).map_err(kernel)?;
        // A VLAN device is attached as the device below it is.
        let of = |interface: &Interface| {
            let slot = below(interface);
            let (_, found) = devices.iter().zip(&all).find(|(device, _)| device.slot == slot)?;
            let Attached { mode, taken_over, provisional, .. } = *found;
            Some(Attached { mode, refused: None, taken_over, provisional })
        };
        let vlans: Vec<Attached> =
            interfaces.iter().filter(|i| i.vlan.is_some()).filter_map(of).collect();
        let (mut all, mut vlans) = (all.into_iter(), vlans.into_iter());
        let mut each = Vec::new();
        for interface in interfaces {
            let attached = if interface.vlan.is_some() { vlans.next() } else { all.next() };
            if let Some(attached) = attached {
                if interface.vlan.is_some() {
                    let generic = attached.mode == XdpMode::Generic;
                    self.gateway.set_generic(interface.slot, generic).map_err(kernel)?;
                }
                each.push(attached);
            }
        }
        Ok(Attachments { each, stacked })
    }

    fn attach_one(
        &mut self,
        interface: &Interface,
        mode: Option<XdpMode>,
        needs_confirm: &BTreeSet<String>,
    ) -> Result<Attached, Error> {
        let Interface { slot, name, .. } = interface;
        let attached = match needs_confirm.contains(name) {
            true => self.gateway.attach_provisionally(*slot, mode),
            false => self.gateway.attach(*slot, mode),
        };
        // A refused one still waits for its confirmation: the next try must not pin it.
        let attached = attached.map_err(kernel)?;
        self.provisional.retain(|(provisional, _)| provisional != slot);
        if attached.provisional {
            self.provisional.push((*slot, name.clone()));
        }
        Ok(attached)
    }

    pub(super) fn confirm(&mut self) -> Result<Vec<String>, Error> {
        for (slot, _) in &self.provisional {
            self.gateway.confirm(*slot).map_err(kernel)?;
        }
        Ok(std::mem::take(&mut self.provisional).into_iter().map(|(_, name)| name).collect())
    }

    /// The first refusal keeps none of the others attached.
    pub(super) fn revert(&mut self) -> Result<(), Error> {
        let mut outcome = Ok(());
        for (slot, name) in std::mem::take(&mut self.provisional) {
            match self.gateway.revert(slot) {
                Ok(()) => tracing::warn!(interface = name, "detached"),
                Err(error) => {
                    tracing::error!(interface = name, %error, "not detached");
                    outcome = outcome.and(Err(kernel(error)));
                }
            }
        }
        outcome
    }

    /// All of them anew, so that they agree on a mode: where our program still is, it stays. The
    /// programs are loaded already, for which this process has no privilege any more. What was
    /// confirmed needs it no more.
    pub(super) fn reattach(&mut self, interfaces: &[Interface]) -> Result<Attachments, Error> {
        let needs_confirm = self.provisional.iter().map(|(_, name)| name.clone()).collect();
        self.attach(interfaces, self.observed.clone(), &needs_confirm)
    }
}
