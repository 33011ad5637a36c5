//! The tunnel that health checks of dsr backends take (bpf/probe/probe.bpf.c): a program at the
//! egress of a device of the daemon's own. Device, attachment and maps all end with the process:
//! without it there are no checks, so nothing is pinned.

use std::collections::BTreeMap;
use std::mem::MaybeUninit;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use libbpf_rs::{TC_EGRESS, TcHookBuilder};
use ringway_abi::raw::{RW_PROBE_FAILED, RW_PROBE_SENT, RW_PROBE_UNMARKED, rw_probe};
use ringway_abi::{Forward, addr_to_words};
use ringway_bpf_sys::attach_egress;

use crate::load::{self, log};
use crate::maps::{Map, map};
use crate::objects::probe::{self, ProbeSkelBuilder};
use crate::{Error, Result};

const NAME: &str = "ringway_probe";

/// Where the checks of one backend go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProbeTarget {
    /// One of the dsr modes.
    pub forward: Forward,
    /// Index of the device they leave by.
    pub ifindex: u32,
    /// MAC address of that device.
    pub mac: [u8; 6],
    /// MAC address of the next hop.
    pub next_hop: [u8; 6],
    /// Outer source and destination, of one family; not used by dsr-l2.
    pub outer: (IpAddr, IpAddr),
    /// UDP destination of dsr-gue, host byte order.
    pub gue_port: u16,
}

/// Packets of health checks since the tunnel was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProbeCounts {
    /// Packets that were sent on.
    pub sent: u64,
    /// Dropped: they were no check's, or their backend had no way.
    pub unmarked: u64,
    /// Dropped: no memory, or the way out was gone.
    pub failed: u64,
}

/// The program at the egress of a device. Dropping it takes it off.
#[derive(Debug)]
pub struct ProbeProgram {
    probes: Map<u32, rw_probe>,
    outcomes: Map<u32, u64>,
    known: BTreeMap<u32, ProbeTarget>,
    program: OwnedFd,
    /// tcx; older kernels have a filter instead, which ends with the device.
    _link: Option<OwnedFd>,
}

impl ProbeProgram {
    /// Attaches the program to a device that the caller has made for it: by tcx, which Linux has
    /// since 6.6, else as a clsact filter. There are no ways yet: everything is dropped.
    pub fn attach(mut self, ifindex: u32) -> Result<Self> {
        self._link = match attach_egress(self.program(), ifindex) {
            Ok(link) => Some(link),
            Err(error) => {
                tracing::debug!(%error, "no tcx; clsact instead");
                clsact(self.program(), ifindex)?;
                None
            }
        };
        Ok(self)
    }

    /// The program, not attached. Linux 6.1 verifies it only for CAP_PERFMON.
    pub fn load() -> Result<Self> {
        log::install();
        let mut storage = MaybeUninit::uninit();
        let loaded = load::load(NAME, load::open::<ProbeSkelBuilder>(NAME, &mut storage)?)?;
        Ok(Self {
            probes: map!(probe, loaded.maps, probes)?,
            outcomes: map!(probe, loaded.maps, outcomes)?,
            known: BTreeMap::new(),
            program: load::program(&loaded.progs.ringway_probe)?,
            _link: None,
        })
    }

    /// Gives it the ways, each for the mark that the backend's checks carry; those given before and
    /// not now are forgotten.
    pub fn set(&mut self, targets: &BTreeMap<u32, ProbeTarget>) -> Result<()> {
        for mark in self.known.keys().filter(|mark| !targets.contains_key(mark)) {
            self.probes.remove(mark)?;
        }
        for (mark, target) in
            targets.iter().filter(|(mark, target)| self.known.get(mark) != Some(target))
        {
            self.probes.put(mark, &row(target))?;
        }
        self.known.clone_from(targets);
        Ok(())
    }

    /// What became of the checks' packets.
    pub fn counts(&self) -> Result<ProbeCounts> {
        let sum =
            |outcome: u32| -> Result<u64> { Ok(self.outcomes.percpu(&outcome)?.iter().sum()) };
        Ok(ProbeCounts {
            sent: sum(RW_PROBE_SENT)?,
            unmarked: sum(RW_PROBE_UNMARKED)?,
            failed: sum(RW_PROBE_FAILED)?,
        })
    }

    /// The program, for those who run it themselves.
    pub fn program(&self) -> BorrowedFd<'_> {
        self.program.as_fd()
    }
}

fn row(target: &ProbeTarget) -> rw_probe {
    rw_probe {
        forward: target.forward as u32,
        ifindex: target.ifindex,
        saddr: addr_to_words(target.outer.0),
        daddr: addr_to_words(target.outer.1),
        smac: target.mac,
        dmac: target.next_hop,
        port_be: target.gue_port.to_be(),
        pad: 0,
    }
}

/// The filter belongs to the device and goes with it.
fn clsact(program: BorrowedFd<'_>, ifindex: u32) -> Result<()> {
    let failed = |source| Error::AttachProbe { source };
    let target = i32::try_from(ifindex)
        .map_err(|_| Error::NoInterface { name: ifindex.to_string(), ifindex })?;
    let mut hook = TcHookBuilder::new(program)
        .ifindex(target)
        .replace(true)
        .handle(1)
        .priority(1)
        .hook(TC_EGRESS);
    hook.create().map_err(failed)?;
    hook.attach().map(drop).map_err(failed)
}
