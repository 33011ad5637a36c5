//! How our programs stand on their interfaces, as the kernel has it now.

use rustix::io::Errno;

use crate::attach::{XdpMode, foreign, mode_of};
use crate::gateway::Gateway;
use crate::link::OnInterface;
use crate::{Error, Result, losses};

/// How the program of one slot stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Ours is there, and no other.
    Attached(XdpMode),
    /// The device is not in this network namespace any more.
    Gone,
    /// The device is there without any program: somebody took ours off, or it is another device of that name.
    Detached,
    /// A program that is not ours is there.
    Foreign {
        /// What is in the way; where it is not in our own attachment, whose it is and how it is taken off.
        what: String,
        /// It was put into our own attachment, which stays ours: a daemon that starts puts its own back.
        swapped: bool,
    },
}

impl Gateway {
    /// How the program of each slot stands that one is, or is to be, attached to. Reads from the kernel.
    pub fn standings(&self) -> Result<Vec<(u32, Standing)>> {
        let attachable = self.states().filter(|state| state.iface.vlan.is_none());
        attachable.map(|state| Ok((state.iface.slot, self.standing(state.iface.slot)?))).collect()
    }

    fn standing(&self, slot: u32) -> Result<Standing> {
        let state = self.slot(slot)?;
        let iface = &state.iface;
        let on = match OnInterface::query(iface.ifindex) {
            Ok(on) => on,
            Err(error) if Errno::from_io_error(&error) == Some(Errno::NODEV) => {
                return Ok(Standing::Gone);
            }
            Err(source) => {
                return Err(Error::System { action: "read what runs on an interface", source });
            }
        };
        let held = state.link.as_ref().and_then(|link| link.info().ok());
        let held = held.filter(|(at, program)| *at == iface.ifindex && on.has(*program));
        match (held, on.any()) {
            (Some((_, program)), _) if program == losses::root_id(state.root()?)? => {
                Ok(Standing::Attached(mode_of(on)))
            }
            (Some((_, program)), _) => {
                let name = crate::program_name(program).unwrap_or_default();
                let what = format!("{name} (id {program}) was put into its attachment");
                Ok(Standing::Foreign { what, swapped: true })
            }
            (None, Some(program)) => {
                let what = foreign(&iface.name, program).to_string();
                Ok(Standing::Foreign { what, swapped: false })
            }
            (None, None) => Ok(Standing::Detached),
        }
    }

    /// Pins attachments again whose pins somebody has removed: without, they would end with this process.
    /// Returns the names of their interfaces. `provisional`: slots that are not pinned on purpose.
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
