//! What nearly every packet table uses.

pub use ringway_abi::{FlowState, Reason, Verdict};

pub use crate::audit;
pub use crate::cast::*;
pub use crate::frame::flags::*;
pub use crate::frame::{Frame, TCP, UDP};
pub use crate::run::pin;
pub use crate::table::{Row, check, row};
pub use crate::{Flow, World, mac_of, ports, wire};
