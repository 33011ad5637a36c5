//! How our programs stand on their interfaces, as the kernel has it now.

use std::sync::Arc;

use ringway_bpf_sys::{XdpLink, XdpMode};

use crate::gateway::{Gateway, SlotState};
use crate::link::OnInterface;
use crate::link::attach::foreign;
use crate::programs::redirect_errors;
use crate::{Error, Result};

/// How the program of one slot stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AttachState {
    /// Ours is there, and no other.
    Attached {
        mode: XdpMode,
        /// The kernel's numbers, as bpftool shows them: of its attachment, and of the program.
        link: u32,
        program: u32,
    },
    /// The device is not in this network namespace any more.
    Gone,
    /// The device is there without any program: somebody took ours off, or it is another device of
    /// that name.
    Detached,
    /// A program that is not ours is there.
    Foreign {
        /// What is in the way; where it is not in our own attachment, whose it is and how it is
        /// taken off.
        what: String,
        /// It was put into our own attachment, which stays ours: a daemon that starts puts its own
        /// back.
        swapped: bool,
    },
}

/// What tells how the program of one slot stands.
#[derive(Debug)]
pub struct AttachStateQuery {
    slot: u32,
    name: String,
    ifindex: u32,
    link: Option<Arc<XdpLink>>,
    /// Id of the program that belongs there; `None` without a link.
    root: Option<u32>,
}

impl AttachStateQuery {
    /// Reads it from the kernel, which waits for RTNL: others may hold that for seconds.
    pub fn ask(&self) -> Result<(u32, AttachState)> {
        Ok((self.slot, self.read()?))
    }

    fn read(&self) -> Result<AttachState> {
        let on = match OnInterface::query(self.ifindex) {
            Ok(on) => on,
            Err(ringway_host::Error::NoInterface { .. }) => return Ok(AttachState::Gone),
            Err(error) => {
                let source = std::io::Error::other(error);
                return Err(Error::System { action: "read what runs on an interface", source });
            }
        };
        let held = self.link.as_ref().and_then(|link| link.info().ok());
        let held = held.filter(|info| info.ifindex == self.ifindex && on.has(info.program));
        match (held, on.first()) {
            (Some(info), _) if self.root == Some(info.program) => {
                Ok(AttachState::Attached { mode: on.mode(), link: info.id, program: info.program })
            }
            (Some(info), _) => {
                let name = crate::program_name(info.program).unwrap_or_default();
                let what = format!("{name} (id {}) was put into its attachment", info.program);
                Ok(AttachState::Foreign { what, swapped: true })
            }
            (None, Some(other)) => {
                let what = foreign(&self.name, other.program).to_string();
                Ok(AttachState::Foreign { what, swapped: false })
            }
            (None, None) => Ok(AttachState::Detached),
        }
    }
}

impl Gateway {
    /// What tells how the program of each slot stands that one is, or is to be, attached to.
    pub fn attach_state_queries(&self) -> Result<Vec<AttachStateQuery>> {
        let attachable = self.states().filter(|state| state.iface.vlan.is_none());
        let query = |state: &SlotState| {
            let root = || redirect_errors::root_id(state.root()?);
            let root = state.link.as_ref().map(|_| root()).transpose()?;
            let (slot, name, ifindex) =
                (state.iface.slot, state.iface.name.clone(), state.iface.ifindex);
            Ok(AttachStateQuery { slot, name, ifindex, link: state.link.clone(), root })
        };
        attachable.map(query).collect()
    }

    /// Pins attachments again whose pins somebody has removed: without, they would end with this
    /// process. Returns the names of their interfaces. `provisional`: slots that are not pinned on
    /// purpose.
    pub fn pin_again(&mut self, provisional: &[u32]) -> Result<Vec<String>> {
        let Some(pins) = self.pins().cloned() else { return Ok(Vec::new()) };
        let lacking: Vec<(u32, String)> = self
            .states()
            .filter(|state| state.link.is_some() && !provisional.contains(&state.iface.slot))
            .filter(|state| !pins.link(&state.iface.name).exists())
            .map(|state| (state.iface.slot, state.iface.name.clone()))
            .collect();
        for (slot, _) in &lacking {
            self.confirm(*slot)?;
        }
        Ok(lacking.into_iter().map(|(_, name)| name).collect())
    }
}
