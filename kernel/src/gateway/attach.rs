//! The gateway's own attachments: taken over from pins, or made.

use std::sync::Arc;

use ringway_bpf_sys::{XdpLink, XdpMode};

use crate::Result;
use crate::gateway::Gateway;
use crate::link::attach::{Attached, attach, attach_error};
use crate::link::{OnInterface, info_of, open_link};
use crate::pins::{Pins, pin_error};
use crate::programs::redirect_errors;

impl Gateway {
    /// Puts the root program of this slot on its interface.
    ///
    /// `mode`: `None` for native where the driver can, else generic. An attachment that is pinned
    /// from before keeps its mode then and loses no packet; another explicit mode detaches and
    /// attaches again. Fails when somebody else's XDP program is on the interface.
    pub fn attach(&mut self, slot: u32, mode: Option<XdpMode>) -> Result<Attached> {
        let mut attached = self.put(slot, mode)?;
        if !attached.taken_over {
            self.confirm(slot)?;
        }
        attached.provisional = false;
        Ok(attached)
    }

    /// The same, but a new attachment is not pinned: it ends with this process unless
    /// [`Self::confirm`] follows. For interfaces on which a mistake would lock everybody out.
    pub fn attach_provisionally(&mut self, slot: u32, mode: Option<XdpMode>) -> Result<Attached> {
        self.put(slot, mode)
    }

    /// Pins an attachment, so that it outlives this process. One that is pinned stays so.
    pub fn confirm(&mut self, slot: u32) -> Result<()> {
        let Some(pins) = &self.pins().cloned() else { return Ok(()) };
        let state = self.slot(slot)?;
        let path = pins.link(&state.iface.name);
        let Some(link) = state.link.as_ref().filter(|_| !path.exists()) else { return Ok(()) };
        pins.create_iface(&state.iface.name)?;
        link.pin(&path).map_err(pin_error("pin", &path))
    }

    /// Ends an attachment that is not pinned, now.
    pub fn revert(&mut self, slot: u32) -> Result<()> {
        let state = self.slot_mut(slot)?;
        let name = state.iface.name.clone();
        match state.link.take() {
            Some(link) => link.detach().map_err(attach_error(&name, XdpMode::Native)),
            None => Ok(()),
        }
    }

    fn put(&mut self, slot: u32, mode: Option<XdpMode>) -> Result<Attached> {
        self.load_root(slot)?;
        // One of this process's own that is not pinned gives way.
        let pinned = |pins: &Pins, name: &str| pins.link(name).exists();
        let iface = &self.slot(slot)?.iface;
        if self.pins().is_some_and(|pins| !pinned(pins, &iface.name)) {
            self.revert(slot)?;
        }
        let pins = self.pins().cloned();
        let state = self.slot(slot)?;
        let root = state.root()?;
        let iface = &state.iface;
        redirect_errors::know_root(self.maps(), root, slot)?;

        let held = match &pins {
            Some(pins) => open_own(pins, &iface.name, iface.ifindex)?,
            None => None,
        };
        let unpin = || pins.as_ref().map_or(Ok(()), |pins| pins.remove_iface(&iface.name));
        let (link, attached) = attach(root, (&iface.name, iface.ifindex), mode, held, unpin)?;
        redirect_errors::forget_earlier(self.maps(), root, slot)?;
        self.slot_mut(slot)?.link = Some(Arc::new(link));
        self.set_generic(slot, attached.mode == XdpMode::Generic)?;
        Ok(attached)
    }
}

/// The pinned attachment of this interface; a dead one is removed.
fn open_own(pins: &Pins, iface: &str, ifindex: u32) -> Result<Option<XdpLink>> {
    let path = pins.link(iface);
    if !path.exists() {
        return Ok(None);
    }
    let link = open_link(&path)?;
    let info = info_of(&link, &path)?;
    // A device that was moved to another namespace may have the same index there.
    if info.ifindex == ifindex && OnInterface::query(ifindex).is_ok_and(|on| on.has(info.program)) {
        return Ok(Some(link));
    }
    pins.remove_iface(iface)?;
    Ok(None)
}
