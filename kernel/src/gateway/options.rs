//! How to open a gateway: which node, and how much it has room for.

use std::path::PathBuf;

use ringway_abi::raw::RW_MAX_BACKENDS;
use ringway_abi::{flow_buckets, index_buckets, track_buckets};

use crate::load::FlowSizes;
use crate::pins::DEFAULT_BPFFS;

/// A table of this size costs a megabyte, and its counters as much per CPU.
const LEAST_BACKENDS: u32 = 16_384;

/// How to open a gateway.
#[derive(Clone, Debug)]
pub struct GatewayOptions {
    /// Name of the node: the directory its pins live in.
    pub node: String,
    /// Where bpffs is, or is to be mounted.
    pub bpffs: PathBuf,
    /// Flows to make room for. Rounded up; ignored when pinned tables are taken over.
    pub flows: u32,
    /// Tracked flows of dsr services to make room for. The same.
    pub tracked: u32,
    /// Backends to make room for, all services together, at most `RW_MAX_BACKENDS`. The same.
    pub backends: u32,
    /// Pin everything, so that traffic outlives this process. Without, all of it ends with the
    /// [`crate::Gateway`] and nothing is taken over (tests).
    pub pin: bool,
}

impl GatewayOptions {
    pub(crate) fn sizes(&self) -> FlowSizes {
        FlowSizes {
            flow_buckets: flow_buckets(self.flows),
            index_buckets: index_buckets(self.flows),
            track_buckets: track_buckets(self.tracked.max(1)),
            backends: self.backends.next_power_of_two().clamp(LEAST_BACKENDS, RW_MAX_BACKENDS),
        }
    }
}

impl Default for GatewayOptions {
    fn default() -> Self {
        Self {
            node: String::new(),
            bpffs: DEFAULT_BPFFS.into(),
            flows: 1 << 20,
            tracked: 1 << 20,
            backends: 0,
            pin: true,
        }
    }
}
