//! Forwarding between interfaces: put in force once, with the first attachment.

use ringway_api::error::Error;
use ringway_kernel::Interface;

use super::{Worker, kernel};
use crate::network::forward::Keeper;

impl Worker {
    /// As the configuration says; a change of it needs a restart.
    pub(super) fn forward(&mut self, interfaces: &[Interface]) -> Result<(), Error> {
        let Some(forward) = self.config.forward.as_ref().filter(|_| self.keeper.is_none()) else {
            return Ok(());
        };
        let slot = |name: &str| interfaces.iter().find(|i| i.name == name).map(|i| i.slot);
        let names = forward.interfaces.iter().map(|name| name.as_str());
        let slots: Vec<(u32, String)> =
            names.filter_map(|name| Some((slot(name)?, name.to_owned()))).collect();
        let numbers: Vec<u32> = slots.iter().map(|(slot, _)| *slot).collect();
        let tables = self.gateway.set_forwarding(forward.mode, &numbers).map_err(kernel)?;
        let keeper = Keeper::start(forward.clone(), slots, tables, self.board.clone())?;
        self.keeper = Some(keeper);
        Ok(())
    }

    /// # Errors
    /// The thread that keeps the tables has ended, which it has no reason to.
    pub(super) fn check_keeper(&self) -> Result<(), Error> {
        match self.keeper.as_ref().is_some_and(Keeper::has_ended) {
            true => Err(Error::failed(
                "nothing is forwarded past the kernel: the thread that keeps the tables has ended",
                "restart the daemon (no packet is lost), and report its log",
            )),
            false => Ok(()),
        }
    }
}
