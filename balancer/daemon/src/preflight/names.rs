//! Names of those checks that the daemon knows apart.

pub const ANSWERS: &str = "answers";
pub const FOREIGN_XDP: &str = "foreign-xdp";
pub const FORWARDING: &str = "forwarding";
pub const INTERFACE: &str = "interface";
pub const NAT_ADDRESS: &str = "nat-address";
pub const NAT_PORTS: &str = "nat-ports";
pub const NEIGHBOUR: &str = "neighbour";
pub const ROUTE: &str = "route";
