//! Routes of the calling thread's network namespace, by RTM_GETROUTE.

use std::collections::BTreeSet;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::netlink::{Message, Netlink, Request, address, attributes, u32_of};
use crate::{Error, Result};

// linux/rtnetlink.h
const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const RTA_PRIORITY: u16 = 6;
const RTA_PREFSRC: u16 = 7;
const RTA_METRICS: u16 = 8;
const RTA_MULTIPATH: u16 = 9;
const RTA_TABLE: u16 = 15;
const RTA_VIA: u16 = 18;
const RTAX_MTU: u16 = 2;
/// Length of struct rtmsg: family, dst_len, src_len, tos, table, protocol, scope, type, flags.
const RTMSG: usize = 12;
/// Length of struct rtnexthop: len, flags, hops, ifindex.
const RTNEXTHOP: usize = 8;
/// Clones of routes in the cache are no routes.
const RTM_F_CLONED: u32 = 0x200;

/// A route's treatment of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RouteKind {
    Unicast,
    /// Takes it in: the address is this host's own.
    Local,
    /// A broadcast address of this host's networks.
    Broadcast,
    /// Multicast or anycast.
    Multicast,
    /// Drops it: blackhole, unreachable, prohibit.
    Refused,
    Other,
}

/// One next hop of one route in a table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Route {
    pub destination: IpAddr,
    /// Its prefix length in bits; 0 for a default route.
    pub prefix: u8,
    /// Table: 254 main, 255 local.
    pub table: u32,
    pub kind: RouteKind,
    /// The interface it leads out by.
    pub ifindex: Option<u32>,
    /// The router; absent for a directly connected network.
    pub gateway: Option<IpAddr>,
    /// The source address that the kernel prefers with it.
    pub source: Option<IpAddr>,
    /// An MTU set on the route, in bytes.
    pub mtu: Option<u32>,
    /// Metric: less is better.
    pub priority: u32,
}

/// Where the kernel would send a packet now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Path {
    pub destination: IpAddr,
    /// `Unicast`, or `Local` when the destination is this host.
    pub kind: RouteKind,
    /// The interface it leads out by.
    pub ifindex: u32,
    /// The router; absent when the destination is a neighbour.
    pub gateway: Option<IpAddr>,
    /// The source address that the kernel would use.
    pub source: Option<IpAddr>,
    /// An MTU set on the route, in bytes; absent: the interface's.
    pub mtu: Option<u32>,
}

impl Path {
    /// The address whose MAC frames must carry: the router's or the destination's own.
    pub fn next_hop(&self) -> IpAddr {
        self.gateway.unwrap_or(self.destination)
    }
}

/// Asks the kernel as `ip route get` does, rules and all. Without a route, or with one that
/// refuses, the error is [`Error::NoRoute`].
pub fn route_to(destination: IpAddr) -> Result<Path> {
    let mut header = [0; RTMSG];
    (header[0], header[1]) = match destination {
        IpAddr::V4(_) => (libc::AF_INET as u8, 32),
        IpAddr::V6(_) => (libc::AF_INET6 as u8, 128),
    };
    let request = Request::new(libc::RTM_GETROUTE, libc::NLM_F_REQUEST, &header)
        .address(RTA_DST, destination);
    let what = format!("asking for the route to {destination}");
    let route = match Netlink::open()?.get(&what, request, |m| read(m).into_iter().next()) {
        Err(Error::Netlink { source, .. }) if unreachable(&source) => {
            return Err(Error::NoRoute { destination, source });
        }
        other => other?,
    };
    match (route.kind, route.ifindex) {
        (RouteKind::Refused, _) | (_, None) => {
            let source = std::io::Error::from(std::io::ErrorKind::NetworkUnreachable);
            Err(Error::NoRoute { destination, source })
        }
        (kind, Some(ifindex)) => Ok(Path {
            destination,
            kind,
            ifindex,
            gateway: route.gateway,
            source: route.source,
            mtu: route.mtu,
        }),
    }
}

/// All routes of all tables, both families; a multipath route once per next hop.
pub fn all() -> Result<Vec<Route>> {
    let mut netlink = Netlink::open()?;
    let mut routes = Vec::new();
    for family in [libc::AF_INET, libc::AF_INET6] {
        let mut header = [0; RTMSG];
        header[0] = family as u8;
        let flags = libc::NLM_F_REQUEST | libc::NLM_F_DUMP;
        let request = || Request::new(libc::RTM_GETROUTE, flags, &header);
        let found = netlink.dump("listing routes", request, |m| Some(read(m)));
        match found {
            // A kernel without IPv6.
            Err(Error::Netlink { source, .. })
                if family == libc::AF_INET6 && source.raw_os_error() == Some(libc::EOPNOTSUPP) => {}
            found => routes.extend(found?.into_iter().flatten()),
        }
    }
    Ok(routes)
}

/// IPv4 destinations that this host takes packets to as its own, of table local: a route for each
/// address, and for each network that was made local by hand.
pub fn local_v4() -> Result<Vec<Route>> {
    let mut header = [0; RTMSG];
    (header[0], header[4], header[7]) =
        (libc::AF_INET as u8, libc::RT_TABLE_LOCAL, libc::RTN_LOCAL);
    let flags = libc::NLM_F_REQUEST | libc::NLM_F_DUMP;
    let request = || Request::new(libc::RTM_GETROUTE, flags, &header);
    let found = Netlink::open()?.dump("listing local routes", request, |m| Some(read(m)));
    match found {
        // No address was ever there.
        Err(Error::Netlink { source, .. }) if source.raw_os_error() == Some(libc::ENOENT) => {
            Ok(Vec::new())
        }
        found => Ok(found?.into_iter().flatten().collect()),
    }
}

/// Indexes of the interfaces that carry a default route, of either family and in any table.
pub fn default_interfaces(routes: &[Route]) -> BTreeSet<u32> {
    routes
        .iter()
        .filter(|r| r.prefix == 0 && r.kind == RouteKind::Unicast)
        .filter_map(|r| r.ifindex)
        .collect()
}

fn unreachable(source: &std::io::Error) -> bool {
    let refusals = [
        libc::ENETUNREACH,
        libc::EHOSTUNREACH,
        libc::EACCES, // prohibit
        libc::EINVAL, // blackhole
        libc::ESRCH,
    ];
    source.raw_os_error().is_some_and(|e| refusals.contains(&e))
}

/// RTM_NEWROUTE into its next hops.
fn read(message: Message) -> Vec<Route> {
    read_route(message).unwrap_or_default()
}

fn read_route(message: Message) -> Option<Vec<Route>> {
    if message.kind != libc::RTM_NEWROUTE {
        return None;
    }
    let header = message.body.get(..RTMSG)?;
    let any =
        if header[0] == libc::AF_INET as u8 { IpAddr::from([0; 4]) } else { IpAddr::from([0; 16]) };
    // A reply to "route get" has this flag in IPv6, but carries no list of others.
    let cloned = u32_of(&header[8..])? & RTM_F_CLONED != 0;
    let mut route = Route {
        destination: any,
        prefix: header[1],
        table: u32::from(header[4]),
        kind: kind(header[7]),
        ifindex: None,
        gateway: None,
        source: None,
        mtu: None,
        priority: 0,
    };
    if cloned && message.flags & libc::NLM_F_MULTI as u16 != 0 {
        return None;
    }
    let mut hops = Vec::new();
    for attribute in attributes(&message.body[RTMSG..]) {
        let data = attribute.data;
        match attribute.kind {
            RTA_DST => route.destination = address(data)?,
            RTA_OIF => route.ifindex = u32_of(data),
            RTA_GATEWAY => route.gateway = address(data),
            RTA_VIA => route.gateway = via(data),
            RTA_PREFSRC => route.source = address(data),
            RTA_PRIORITY => route.priority = u32_of(data)?,
            RTA_TABLE => route.table = u32_of(data)?,
            RTA_METRICS => {
                let mtu = attributes(data).find(|a| a.kind == RTAX_MTU);
                route.mtu = mtu.and_then(|a| u32_of(a.data));
            }
            RTA_MULTIPATH => hops = next_hops(data),
            _ => {}
        }
    }
    if hops.is_empty() {
        return Some(vec![route]);
    }
    let with = |(ifindex, gateway)| Route { ifindex: Some(ifindex), gateway, ..route.clone() };
    Some(hops.into_iter().map(with).collect())
}

/// struct rtvia: a gateway of another family (IPv4 by way of IPv6, RFC 5549).
fn via(data: &[u8]) -> Option<IpAddr> {
    address(data.get(2..)?)
}

/// The struct rtnexthops of RTA_MULTIPATH: (interface, gateway) each.
fn next_hops(mut data: &[u8]) -> Vec<(u32, Option<IpAddr>)> {
    let mut hops = Vec::new();
    while let Some(header) = data.get(..RTNEXTHOP) {
        let length = usize::from(u16::from_ne_bytes([header[0], header[1]]));
        let (Some(ifindex), Some(inner)) = (u32_of(&header[4..]), data.get(RTNEXTHOP..length))
        else {
            break;
        };
        let gateway = attributes(inner).find_map(|a| match a.kind {
            RTA_GATEWAY => address(a.data),
            RTA_VIA => via(a.data),
            _ => None,
        });
        hops.push((ifindex, gateway));
        data = data.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    hops
}

fn kind(rtm_type: u8) -> RouteKind {
    match rtm_type {
        libc::RTN_UNICAST => RouteKind::Unicast,
        libc::RTN_LOCAL => RouteKind::Local,
        libc::RTN_BROADCAST => RouteKind::Broadcast,
        libc::RTN_MULTICAST | libc::RTN_ANYCAST => RouteKind::Multicast,
        libc::RTN_BLACKHOLE | libc::RTN_UNREACHABLE | libc::RTN_PROHIBIT => RouteKind::Refused,
        _ => RouteKind::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::messages;

    fn header(prefix: u8) -> [u8; RTMSG] {
        [libc::AF_INET as u8, prefix, 0, 0, 254, 0, 0, libc::RTN_UNICAST, 0, 0, 0, 0]
    }

    #[test]
    fn gateway_of_the_other_family_and_mtu() {
        let mut via = vec![libc::AF_INET6 as u8, 0];
        via.extend_from_slice(&[0xfe; 16]);
        let metrics = Request::nested().attribute(RTAX_MTU, &1400u32.to_ne_bytes());
        let bytes = Request::new(libc::RTM_NEWROUTE, 0, &header(32))
            .attribute(RTA_DST, &[10, 0, 0, 9])
            .attribute(RTA_OIF, &3u32.to_ne_bytes())
            .attribute(RTA_VIA, &via)
            .nest(RTA_METRICS, metrics)
            .finish(1);
        let route = read(messages(&bytes).next().unwrap()).remove(0);
        assert_eq!((route.ifindex, route.mtu), (Some(3), Some(1400)));
        assert_eq!(route.gateway, Some(IpAddr::from([0xfe; 16])));
    }

    #[test]
    fn multipath_gives_each_hop() {
        let hop =
            |ifindex: u8, last: u8| [16, 0, 0, 0, ifindex, 0, 0, 0, 8, 0, 5, 0, 10, 0, 0, last];
        let hops = [hop(3, 1), hop(4, 2)].concat();
        let bytes = Request::new(libc::RTM_NEWROUTE, 0, &header(0))
            .attribute(RTA_MULTIPATH, &hops)
            .finish(1);
        let routes = read(messages(&bytes).next().unwrap());
        let hops: Vec<_> = routes.iter().map(|r| (r.ifindex, r.gateway)).collect();
        let gateway = |last| Some(IpAddr::from([10, 0, 0, last]));
        assert_eq!(hops, [(Some(3), gateway(1)), (Some(4), gateway(2))]);
        assert_eq!(default_interfaces(&routes), BTreeSet::from([3, 4]));
        assert!(next_hops(&hops_with_a_lie()).is_empty());
    }

    fn hops_with_a_lie() -> [u8; 8] {
        [0, 0, 0, 0, 3, 0, 0, 0]
    }
}
