//! The packet path, from user space: loads it, attaches it, pins it, fills its tables and reads
//! its ledger. Nothing else in Ringway calls libbpf.
//!
//! [`Gateway`] is for the one process that looks after a node; [`View`] reads the same pins from
//! any process, with or without a daemon. [`detach`] takes everything away again. Dropping a
//! pinned [`Gateway`] takes nothing away: traffic keeps flowing.
//!
//! Interfaces are looked up in the network namespace of the calling thread.

mod error;
pub mod forward;
mod gateway;
mod link;
mod load;
mod maps;
mod objects;
mod pins;
pub mod programs;
mod read;
mod requirements;
pub mod shield;
mod sources;
mod tables;
mod testrun;

pub use error::{Error, Result};
pub use gateway::detach::{Detached, detach};
pub use gateway::open::{GatewayOptions, Opened, Orphan, OrphanCause, TakenOver};
pub use gateway::upgrade::{Fate, TableFate, Upgrade, upgrade};
pub use gateway::{Gateway, Interface, Vlan};
pub use link::attach::{Attached, NativeRefused};
pub use link::attach_state::{AttachState, AttachStateQuery};
pub use link::xdp_owner::{XdpOwner, program_name, xdp_owner};
pub use maps::WhenFull;
pub use maps::shape::Shape;
pub use objects::objects;
pub use pins::overmount::{bpffs_is_covered, give_nodes, hold_nodes, require_reachable};
pub use pins::{DEFAULT_BPFFS, Pins, is_node_name};
pub use programs::accept::{Accept, AcceptState, accept_state, require_accept};
pub use programs::decap::{Decap, DecapPin, DecapState, Uses, decap_state};
pub use programs::drop_reasons::{Counted, DropReasons};
pub use programs::explain::{
    Entry, Explained, Explainer, FlowFound, Limited, ListedBy, RingAsked, ShieldFinding,
};
pub use programs::pass_program::check_on_pass;
pub use programs::pinned_link::{DeadEngine, PinnedLink, dead_engines, pin_link};
pub use programs::probe::{ProbeCounts, ProbeProgram, ProbeTarget};
pub use programs::steer::Steer;
pub use programs::steer_rule::{SteerRule, SteerRuleError};
pub use read::flows::{BackendFlows, FlowCounts, NatFlow, NatFlows, Place, is_udp};
pub use read::memory::{MapMemory, ProgramInfo};
pub use read::shield::{Arrivals, HeavySource, ShieldCounts};
pub use read::tracked::{TrackedCounts, tracked_state};
pub use read::{BackendState, Daemon, InterfaceState, ServiceState, View};
pub use requirements::{
    Bpffs, Probe, bpffs_is_hidden, bpffs_is_overmounted, compiles_programs, ensure_bpffs, probe,
};
pub use ringway_bpf_sys::{XdpLink, XdpMode};
pub use sources::{Clock, ManualClock, Randomness, Sources, now_seconds};
pub use tables::delta::Applied;
pub use tables::rows::Existing;
pub use testrun::{Frame, TestRun};
