//! Nearly every packet table uses these.

pub use ringway_abi::{FlowState, Reason, Verdict};

pub use crate::cast::*;
pub use crate::frame::flags::*;
pub use crate::frame::{Arp, Frame, TCP, UDP, fragments, sum_ipv4, tunnel};
pub use crate::icmp::{self, Says};
pub use crate::run::{Program, foreign_program, pin};
pub use crate::services::{add_service, forward_across, new_backend, ring};
pub use crate::table::{Row, check, row};
pub use crate::{Flow, Summary, World, audit, capture, mac_of, ports, protocol, wire};
