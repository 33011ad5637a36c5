//! Protocol numbers of IPv4 and IPv6, and extension headers among them (IANA, "Assigned Internet
//! Protocol Numbers").

/// IPv6 hop-by-hop options.
pub const HOP_BY_HOP: u8 = 0;
/// ICMP for IPv4.
pub const ICMP: u8 = 1;
/// IPv4 in IP.
pub const IPV4: u8 = 4;
/// TCP.
pub const TCP: u8 = 6;
/// UDP.
pub const UDP: u8 = 17;
/// IPv6 in IP.
pub const IPV6: u8 = 41;
/// IPv6 routing header.
pub const ROUTING: u8 = 43;
/// IPv6 fragment header.
pub const FRAGMENT: u8 = 44;
/// GRE.
pub const GRE: u8 = 47;
/// ESP: what is behind is encrypted.
pub const ESP: u8 = 50;
/// Authentication header.
pub const AH: u8 = 51;
/// ICMP for IPv6.
pub const ICMPV6: u8 = 58;
/// Nothing follows, in IPv6.
pub const NO_NEXT_HEADER: u8 = 59;
/// IPv6 destination options.
pub const DESTINATION: u8 = 60;
/// Mobility header.
pub const MOBILITY: u8 = 135;
/// Host Identity Protocol.
pub const HIP: u8 = 139;
/// Shim6.
pub const SHIM6: u8 = 140;
