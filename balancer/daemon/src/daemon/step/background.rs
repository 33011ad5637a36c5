//! Work on other threads that failed: it is told once, and done again while it is wanted.

use std::collections::{BTreeMap, BTreeSet};

use ringway_api::error::Error;
use ringway_kernel::Interface;
use tracing::Level;

use super::State;
use super::effect::{Effect, LogLine};
use crate::daemon::announce;
use crate::daemon::background::BackgroundWork;

/// Work that could not be done.
#[derive(Debug, PartialEq)]
pub(super) struct Failed {
    error: Error,
    /// It was ordered again, and has not come to its end.
    ordered: bool,
}

impl State {
    pub(super) fn done(&mut self, work: BackgroundWork, outcome: Result<(), Error>) {
        let known = self.failed.remove(&work);
        let Err(error) = outcome else { return };
        if known.is_none_or(|known| known.error != error) {
            self.effects.log(failure(work, &error));
        }
        self.failed.insert(work, Failed { error, ordered: false });
    }

    /// Once a second. What reads is ordered regularly anyway.
    pub(super) fn work_again(&mut self) {
        let (ours, kept) = (announce::ours(&self.reload.config), &self.tables.neighbours);
        let backends = self.tables.backend_set.addresses();
        let served = self.served_interfaces();
        let served: BTreeMap<u32, &Interface> = served.iter().map(|one| (one.slot, one)).collect();
        self.failed.retain(|work, _| match work {
            // An interface that our program comes back to is announced on then.
            BackgroundWork::Announce(slot, address) => {
                ours.contains(address) && served.contains_key(slot)
            }
            BackgroundWork::Release(ifindex, address) => !kept.contains(&(*ifindex, *address)),
            BackgroundWork::KeepNeighbour(ifindex, address) => kept.contains(&(*ifindex, *address)),
            BackgroundWork::Doubt(backend) => backends.contains(backend),
            _ => true,
        });
        let seldom = self.monitor.is_time_to_look_anyway();
        let mut unannounced: BTreeMap<u32, BTreeSet<_>> = BTreeMap::new();
        let mut unreleased = Vec::new();
        for (work, failed) in self.failed.iter_mut().filter(|(_, failed)| !failed.ordered) {
            failed.ordered = true;
            match *work {
                // Nothing can be sent there before it is back.
                BackgroundWork::Announce(slot, _)
                    if self.attachment.is_cut_off(&served[&slot].name) =>
                {
                    failed.ordered = false;
                }
                BackgroundWork::Announce(slot, address) => {
                    unannounced.entry(slot).or_default().insert(address);
                }
                // All groups are joined anew.
                BackgroundWork::ReceiveSolicitations if seldom => {
                    self.effects.push(Effect::ReceiveSolicitations);
                }
                BackgroundWork::ReceiveSolicitations => failed.ordered = false,
                BackgroundWork::Release(ifindex, address) => unreleased.push((ifindex, address)),
                BackgroundWork::KeepNeighbour(..)
                | BackgroundWork::LookUpWays
                | BackgroundWork::Doubt(_)
                | BackgroundWork::SweepCaptures
                | BackgroundWork::ReadTraffic
                | BackgroundWork::ReadCounters
                | BackgroundWork::ReadTables
                | BackgroundWork::ReadArrivals
                | BackgroundWork::Arm => {}
            }
        }
        if !unreleased.is_empty() {
            self.effects.push(Effect::Release(unreleased));
        }
        for (slot, addresses) in unannounced {
            self.effects.push(Effect::Announce(addresses, vec![served[&slot].clone()]));
        }
    }
}

fn failure(work: BackgroundWork, error: &Error) -> LogLine {
    let (level, text) = match work {
        BackgroundWork::Announce(..) => (Level::WARN, "not announced"),
        BackgroundWork::ReceiveSolicitations => (
            Level::WARN,
            "neighbour solicitations for announced IPv6 addresses may not be received",
        ),
        BackgroundWork::Release(..) => (Level::WARN, "neighbour not released"),
        BackgroundWork::KeepNeighbour(..) => (Level::WARN, "next hop not kept resolved"),
        BackgroundWork::LookUpWays => {
            (Level::WARN, "the ways to the backends could not be looked up: they stay as they were")
        }
        BackgroundWork::Doubt(_) => (Level::DEBUG, "next hop not asked again"),
        BackgroundWork::SweepCaptures => {
            (Level::WARN, "not cleaned up after captures, should any have been killed")
        }
        BackgroundWork::ReadTraffic => (Level::DEBUG, "traffic not read"),
        BackgroundWork::ReadCounters => (Level::DEBUG, "counters not read"),
        BackgroundWork::ReadTables => (Level::DEBUG, "flows not counted"),
        BackgroundWork::ReadArrivals => {
            (Level::WARN, "what arrives for services cannot be read: no attack is found")
        }
        BackgroundWork::Arm => (Level::ERROR, "a service that is attacked cannot be armed"),
    };
    let address = match work {
        BackgroundWork::Announce(_, address)
        | BackgroundWork::Release(_, address)
        | BackgroundWork::KeepNeighbour(_, address)
        | BackgroundWork::Doubt(address) => Some(address),
        _ => None,
    };
    LogLine { address, error: Some(error.to_string()), ..LogLine::new(level, text) }
}
