//! Forwarding between interfaces, in the status of a node.

use ringway_kernel::forward::ForwardState;
use serde::{Deserialize, Serialize};

/// `[forward]` as it stands. Without a daemon bridge, interfaces and stations are not known.
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

impl ForwardStatus {
    /// By the pins, without a daemon.
    pub fn of_pins(state: ForwardState) -> Self {
        let (mode, suspended) = (state.mode.name().to_owned(), !state.in_force);
        Self { mode, suspended, ..Self::default() }
    }

    /// What happens without Ringway: "the kernel bridges everything".
    pub fn kernel_does(&self) -> &'static str {
        match self.mode.as_str() {
            "route" => "the kernel routes everything",
            _ => "the kernel bridges everything",
        }
    }
}

/// An interface that is forwarded between.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForwardInterface {
    pub interface: String,
    pub forwards: bool,
    /// Why it does not; else empty.
    pub reason: String,
}
