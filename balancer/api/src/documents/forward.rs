//! Forwarding between interfaces, in the status of a node.

use serde::{Deserialize, Serialize};

/// `[forward]` as it stands.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForwardStatus {
    /// `bridge` or `route`.
    pub mode: String,
    /// Name of the bridge whose ports the interfaces are.
    pub bridge: Option<String>,
    /// Nothing is forwarded past the kernel now, which forwards all of it: `problems` says why.
    pub suspended: bool,
    /// In the order of the configuration.
    pub interfaces: Vec<ForwardInterface>,
    /// Stations of the bridge that are known; absent in route mode.
    pub stations: Option<u64>,
    /// Those without room: their frames are the kernel's.
    pub stations_left_out: Option<u64>,
}

/// An interface that is forwarded between.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForwardInterface {
    pub interface: String,
    pub forwards: bool,
    /// Why it does not; else empty.
    pub reason: String,
}
