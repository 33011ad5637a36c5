//! Forwarding between interfaces: put in force once, with the first attachment.

use ringway_api::error::Error;
use ringway_kernel::Interface;

use super::{Worker, kernel};
use crate::forward::Keeper;

impl Worker {
    /// As the configuration says; a change of it needs a restart.
    pub(super) fn forward(&mut self, interfaces: &[Interface]) -> Result<(), Error> {
        let Some(forward) = &self.config.forward else {
            // Of a daemon before this one.
            return self.gateway.end_forwarding().map_err(kernel);
        };
        if self.keeper.is_some() {
            return Ok(());
        }
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
}
