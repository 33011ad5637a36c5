//! `ringway engine --steer_rules` and `--when-dead`: the program that brings some packets into
//! AF_XDP sockets and leaves all others to the kernel. It has an object and maps of its own and
//! nothing to do with a gateway's.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

use ringway_abi::raw::{RW_MAX_STEER_RULES, rw_steer, rw_steer_rule};

use crate::load::{self, log};
use crate::maps::map;
use crate::objects::steer::{self, SteerSkelBuilder};
use crate::{Error, Result, SteerRule, requirements};

/// Name of the program, as `ip link` and `bpftool` show it.
const NAME: &str = "ringway_steer";

/// The program, loaded for one interface and not attached.
#[derive(Debug)]
pub struct Steer {
    pub program: OwnedFd,
    /// The map from queues to sockets (BPF_MAP_TYPE_XSKMAP); queues are below
    /// [`ringway_abi::raw::RW_STEER_QUEUES`].
    pub sockets: OwnedFd,
}

impl Steer {
    /// Whether it takes so many rules: to be asked before anything is opened.
    ///
    /// # Errors
    /// [`Error::TooManyRules`].
    pub fn check(steer_rules: &[SteerRule]) -> Result<()> {
        table(steer_rules, &[]).map(drop)
    }

    /// Loads it. No rule: all packets come to user space. `drop`: queues whose packets are dropped
    /// and counted once their socket is gone; those of others go to the kernel then. `frags`:
    /// packets of several buffers, too.
    ///
    /// # Errors
    /// Where there are more rules than it takes, or the kernel refuses.
    pub fn load(steer_rules: &[SteerRule], drop: &[u32], frags: bool) -> Result<Self> {
        log::install();
        requirements::probe()?.require()?;
        let mut storage = MaybeUninit::uninit();
        let mut open = load::open::<SteerSkelBuilder>(NAME, &mut storage)?;
        if !frags {
            open.progs.ringway_steer.set_flags(0);
        }
        let loaded = load::load(NAME, open)?;
        map!(steer, loaded.maps, rules)?.put(&0, &table(steer_rules, drop)?)?;
        let sockets = loaded.maps.sockets.as_fd().try_clone_to_owned();
        let sockets = sockets
            .map_err(|source| Error::System { action: "duplicate a map's descriptor", source })?;
        Ok(Self { program: load::program(&loaded.progs.ringway_steer)?, sockets })
    }
}

fn table(steer_rules: &[SteerRule], drop: &[u32]) -> Result<rw_steer> {
    let rules: Vec<rw_steer_rule> = steer_rules.iter().flat_map(SteerRule::rules).collect();
    let limit = RW_MAX_STEER_RULES as usize;
    if rules.len() > limit {
        return Err(Error::TooManyRules { found: rules.len(), limit });
    }
    let mut table = rw_steer { rules: rules.len() as u32, ..rw_steer::default() };
    table.rule[..rules.len()].copy_from_slice(&rules);
    for queue in drop {
        // Those beyond are the kernel's in any case.
        if let Some(word) = table.drop.get_mut(*queue as usize / 32) {
            *word |= 1 << (queue % 32);
        }
    }
    Ok(table)
}
