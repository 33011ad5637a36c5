//! Puts forwarding in force, and takes it away.

use std::collections::BTreeSet;
use std::os::fd::AsFd;

use ringway_abi::raw::RW_MAX_IFACES;
use ringway_abi::{ForwardMode, Slot};

use super::instance;
use super::tables::ForwardTables;
use crate::gateway::Gateway;
use crate::tables::rings::grace;
use crate::{Error, Result};

impl Gateway {
    /// Puts forwarding in force between these interface slots, with empty tables, which the caller
    /// keeps: until it does, every frame goes to the kernel. What was in force is replaced.
    ///
    /// # Errors
    /// A slot has no interface, or the kernel refuses the program.
    pub fn set_forwarding(&mut self, mode: ForwardMode, slots: &[u32]) -> Result<ForwardTables> {
        let (program, instance) = instance::make(self.maps(), mode)?;
        let tables = ForwardTables::of(&instance, self.maps(), slots)?;
        self.maps().slots.put_fd(Slot::Forward as u32, program.as_fd())?;
        self.forwarding.instance = Some(instance);
        self.set_devices(self.devices_of(slots)?)?;
        self.set_stages(|stages| stages | STAGE)?;
        self.replaced();
        Ok(tables)
    }

    /// Takes forwarding away, also that of a process before.
    pub fn end_forwarding(&mut self) -> Result<()> {
        self.set_stages(|stages| stages & !STAGE)?;
        self.set_devices(BTreeSet::new())?;
        self.maps().slots.remove(&(Slot::Forward as u32))?;
        self.forwarding.instance = None;
        self.replaced();
        Ok(())
    }

    /// Devices by which the frames of these slots come: of a VLAN's the one below it.
    fn devices_of(&self, slots: &[u32]) -> Result<BTreeSet<u32>> {
        slots
            .iter()
            .map(|slot| match self.slot(*slot)? {
                state if state.iface.layer3 => Err(Error::NoSlot { slot: *slot }),
                state => Ok(state.iface.vlan.as_ref().map_or(*slot, |vlan| vlan.device)),
            })
            .collect()
    }

    fn set_devices(&mut self, devices: BTreeSet<u32>) -> Result<()> {
        let former = std::mem::replace(&mut self.forwarding.devices, devices);
        let changed = former.symmetric_difference(&self.forwarding.devices);
        let known = changed.filter(|slot| **slot < RW_MAX_IFACES && self.slot(**slot).is_ok());
        known.copied().collect::<Vec<_>>().into_iter().try_for_each(|slot| self.write_iface(slot))
    }

    /// No packet is in what was in force before when this returns.
    fn replaced(&mut self) {
        grace();
        self.captures_are_stale();
    }
}

const STAGE: u32 = 1 << Slot::Forward as u32;
