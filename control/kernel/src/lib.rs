//! The packet path, from user space: loads it, attaches it, pins it, fills its tables and reads
//! its books. Nothing else in Ringway calls libbpf.
//!
//! [`Gateway`] is for the one process that looks after a node; [`View`] reads the same pins from
//! any process, with or without a daemon. [`detach`] takes everything away again. Dropping a
//! pinned [`Gateway`] takes nothing away: traffic keeps flowing.
//!
//! Interfaces are looked up in the network namespace of the calling thread.

mod attach;
pub mod capture;
mod covered;
mod decap;
mod delta;
mod detach;
mod drops;
mod error;
mod explain;
mod flows;
mod gateway;
mod holder;
mod kept;
mod link;
mod load;
mod log;
mod losses;
mod machine;
mod map;
mod mapped;
mod members;
mod memory;
mod on_pass;
mod only;
mod open;
mod options;
mod pins;
mod probe;
mod program;
mod read;
mod rings;
mod road;
mod rows;
mod shape;
mod standing;
mod steer;
mod switch;
mod tables;
mod testrun;
mod tracked;
mod upgrade;

pub use attach::{Attached, Mode, NativeRefused, XdpMode, program_name};
pub use covered::{bpffs_is_covered, give_nodes, hold_nodes, require_reachable};
pub use decap::{Decap, DecapPin, DecapState, Uses, decap_state};
pub use delta::Applied;
pub use detach::{Detached, detach};
pub use drops::{At, Counted, Drops, Seen};
pub use error::{Error, Result};
pub use explain::{Entry, Explained, Explainer, FlowFound, RingAsked};
pub use flows::{BackendFlows, FlowCounts, NatFlow, NatFlows, Place, is_udp};
pub use gateway::{Gateway, Interface, Vlan};
pub use holder::{Holder, holder};
pub use kept::{DeadEngine, Kept, dead_engines, keep};
pub use load::objects;
pub use machine::{XdpFeatures, compiles_programs, xdp_features};
pub use memory::{MapMemory, ProgramInfo};
pub use on_pass::check_on_pass;
pub use only::{Only, OnlyError};
pub use open::{Opened, Orphan, OrphanCause, TakenOver};
pub use options::Options;
pub use pins::{DEFAULT_BPFFS, Pins};
pub use probe::{Bpffs, Probe, bpffs_is_hidden, bpffs_is_overmounted, ensure_bpffs, probe};
pub use read::{BackendState, Daemon, InterfaceState, ServiceState, View};
pub use road::{ProbeCounts, ProbeRoad, ProbeWay};
pub use rows::Existing;
pub use shape::Shape;
pub use standing::{Standing, StandingQuery};
pub use steer::Steer;
pub use testrun::{Frame, TestRun};
pub use tracked::{TrackedCounts, now_seconds, tracked_state};
pub use upgrade::{Fate, TableFate, Upgrade, upgrade};
