//! Netfilter of the calling thread's network namespace: chains that packets traverse, and IPsec
//! policies.
//!
//! Chains of nf_tables are read by netlink, also those that iptables-nft makes. Of the older
//! ip_tables and ebtables the kernel says only which tables there are.

use std::fmt::{self, Display, Formatter};

use libc::{EINVAL, EOPNOTSUPP, EPROTONOSUPPORT};

use crate::netlink::{Attribute, Message, Netlink, Request, attributes, string};
use crate::{Error, Result, Source};

const NETLINK_XFRM: isize = 6;
const NETLINK_NETFILTER: isize = 12;
// linux/netfilter/nfnetlink.h, nf_tables.h
const NFNL_SUBSYS_NFTABLES: u16 = 10 << 8;
const NFT_MSG_NEWCHAIN: u16 = NFNL_SUBSYS_NFTABLES | 3;
const NFT_MSG_GETCHAIN: u16 = NFNL_SUBSYS_NFTABLES | 4;
/// Length of struct nfgenmsg: family, version, resource.
const NFGENMSG: usize = 4;
const NFTA_CHAIN_TABLE: u16 = 1;
const NFTA_CHAIN_NAME: u16 = 3;
const NFTA_CHAIN_HOOK: u16 = 4;
const NFTA_CHAIN_POLICY: u16 = 5;
const NFTA_CHAIN_USE: u16 = 6;
const NFTA_CHAIN_TYPE: u16 = 7;
const NFTA_HOOK_HOOKNUM: u16 = 1;
const NFTA_HOOK_DEV: u16 = 3;
const NFTA_HOOK_DEVS: u16 = 4;
const NFTA_DEVICE_NAME: u16 = 1;
const NFTA_DEVICE_PREFIX: u16 = 2;
const NF_DROP: u32 = 0;
// linux/xfrm.h
const XFRM_MSG_NEWPOLICY: u16 = 0x13;
const XFRM_MSG_GETPOLICY: u16 = 0x15;
/// Length of struct xfrm_userpolicy_id.
const POLICY_ID: usize = 64;
/// Where struct xfrm_userpolicy_info has the direction.
const POLICY_DIRECTION: usize = 160;
const XFRM_POLICY_MAX: u8 = 3;

/// NFPROTO_* of linux/netfilter.h.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum HookFamily {
    Ip,
    Ip6,
    /// Both of these.
    Inet,
    Arp,
    Bridge,
    /// Before and after all others, at one interface.
    Netdev,
    Other(u8),
}

/// Where packets meet a chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum HookPoint {
    Ingress,
    Prerouting,
    Input,
    Forward,
    Output,
    Postrouting,
    Egress,
    Other(u32),
}

/// What says what a chain is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HookOwner {
    /// nft and iptables-nft.
    Nftables,
    /// iptables-legacy, ip6tables-legacy and arptables-legacy.
    LegacyIptables,
    /// ebtables-legacy. Whether the table is this namespace's is not known.
    LegacyEbtables,
}

/// A chain that packets traverse.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetfilterHook {
    pub owner: HookOwner,
    pub family: HookFamily,
    pub table: String,
    /// Its name; of older tables that of the hook, as in `FORWARD`.
    pub chain: String,
    pub hook: HookPoint,
    /// `filter`, `nat` or `route`; of older tables empty.
    pub kind: String,
    /// Interfaces whose packets traverse it, where these are named; one that ends with `*` stands
    /// for all that begin so.
    pub devices: Vec<String>,
    /// What no rule decides is dropped.
    pub drops: bool,
    /// `None`: not known.
    pub rules: Option<u32>,
}

impl NetfilterHook {
    /// Whether it may do anything to a packet.
    pub fn acts(&self) -> bool {
        self.drops || self.rules != Some(0)
    }

    /// Whether packets of this interface traverse it, as far as it names interfaces.
    pub fn is_at(&self, device: &str) -> bool {
        self.devices.iter().any(|name| match name.strip_suffix('*') {
            Some(prefix) => device.starts_with(prefix),
            None => name == device,
        })
    }
}

impl Display for HookFamily {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ip => "ip",
            Self::Ip6 => "ip6",
            Self::Inet => "inet",
            Self::Arp => "arp",
            Self::Bridge => "bridge",
            Self::Netdev => "netdev",
            Self::Other(number) => return write!(f, "family {number}"),
        })
    }
}

impl Display for HookPoint {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ingress => "ingress",
            Self::Prerouting => "prerouting",
            Self::Input => "input",
            Self::Forward => "forward",
            Self::Output => "output",
            Self::Postrouting => "postrouting",
            Self::Egress => "egress",
            Self::Other(number) => return write!(f, "hook {number}"),
        })
    }
}

/// All chains that packets traverse, also those without rules. A kernel without netfilter has none.
/// Needs CAP_NET_ADMIN.
pub fn hooks() -> Result<Vec<NetfilterHook>> {
    let mut hooks = nftables()?;
    hooks.extend(legacy(&Source::Live)?);
    Ok(hooks)
}

fn nftables() -> Result<Vec<NetfilterHook>> {
    let flags = libc::NLM_F_REQUEST | libc::NLM_F_DUMP;
    let request = || Request::new(NFT_MSG_GETCHAIN, flags, &[0; NFGENMSG]);
    let found = Netlink::of(NETLINK_NETFILTER, &[])
        .and_then(|mut netlink| netlink.dump("listing chains of nf_tables", request, read));
    // nfnetlink answers EINVAL where it has no nf_tables.
    Ok(if_there(found, &[EPROTONOSUPPORT, EOPNOTSUPP, EINVAL])?.unwrap_or_default())
}

/// `None`: the kernel has no such thing.
fn if_there<T>(found: Result<T>, absent: &[i32]) -> Result<Option<T>> {
    match found {
        Err(Error::Netlink { source, .. })
            if source.raw_os_error().is_some_and(|errno| absent.contains(&errno)) =>
        {
            Ok(None)
        }
        found => found.map(Some),
    }
}

/// A chain with a hook; others are reached from these.
fn read(message: Message) -> Option<NetfilterHook> {
    let family = family(*message.body.first()?);
    if message.kind != NFT_MSG_NEWCHAIN {
        return None;
    }
    let mut hook = NetfilterHook {
        owner: HookOwner::Nftables,
        family,
        table: String::new(),
        chain: String::new(),
        hook: HookPoint::Other(0),
        kind: String::new(),
        devices: Vec::new(),
        drops: false,
        rules: None,
    };
    let mut is_base = false;
    for Attribute { kind, data } in attributes(message.body.get(NFGENMSG..)?) {
        match kind {
            NFTA_CHAIN_TABLE => hook.table = string(data),
            NFTA_CHAIN_NAME => hook.chain = string(data),
            NFTA_CHAIN_TYPE => hook.kind = string(data),
            NFTA_CHAIN_POLICY => hook.drops = big_endian(data)? == NF_DROP,
            // No chain leads to one with a hook, so that these are its rules.
            NFTA_CHAIN_USE => hook.rules = big_endian(data),
            NFTA_CHAIN_HOOK => {
                is_base = true;
                for Attribute { kind, data } in attributes(data) {
                    match kind {
                        NFTA_HOOK_HOOKNUM => hook.hook = point(family, big_endian(data)?),
                        NFTA_HOOK_DEV => hook.devices.push(string(data)),
                        NFTA_HOOK_DEVS => hook.devices.extend(attributes(data).filter_map(device)),
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    hook.devices.sort();
    hook.devices.dedup();
    is_base.then_some(hook)
}

fn device(attribute: Attribute) -> Option<String> {
    match attribute.kind {
        NFTA_DEVICE_NAME => Some(string(attribute.data)),
        NFTA_DEVICE_PREFIX => Some(string(attribute.data) + "*"),
        _ => None,
    }
}

fn big_endian(data: &[u8]) -> Option<u32> {
    Some(u32::from_be_bytes(*data.first_chunk()?))
}

fn family(number: u8) -> HookFamily {
    match number {
        1 => HookFamily::Inet,
        2 => HookFamily::Ip,
        3 => HookFamily::Arp,
        5 => HookFamily::Netdev,
        7 => HookFamily::Bridge,
        10 => HookFamily::Ip6,
        other => HookFamily::Other(other),
    }
}

fn point(family: HookFamily, number: u32) -> HookPoint {
    match (family, number) {
        (HookFamily::Netdev, 0) => HookPoint::Ingress,
        (HookFamily::Netdev, 1) => HookPoint::Egress,
        (HookFamily::Arp, 0) => HookPoint::Input,
        (HookFamily::Arp, 1) => HookPoint::Output,
        (HookFamily::Arp, 2) => HookPoint::Forward,
        (HookFamily::Netdev | HookFamily::Arp, other) => HookPoint::Other(other),
        (_, 0) => HookPoint::Prerouting,
        (_, 1) => HookPoint::Input,
        (_, 2) => HookPoint::Forward,
        (_, 3) => HookPoint::Output,
        (_, 4) => HookPoint::Postrouting,
        (HookFamily::Inet, 5) => HookPoint::Ingress,
        (_, other) => HookPoint::Other(other),
    }
}

/// The hooks of older tables that forwarded packets meet, as iptables and ebtables name them.
const LEGACY: [(&str, &[HookPoint]); 5] = [
    ("filter", &[HookPoint::Forward]),
    ("nat", &[HookPoint::Prerouting, HookPoint::Postrouting]),
    ("mangle", &[HookPoint::Prerouting, HookPoint::Forward, HookPoint::Postrouting]),
    ("raw", &[HookPoint::Prerouting]),
    ("security", &[HookPoint::Forward]),
];

fn legacy(source: &Source) -> Result<Vec<NetfilterHook>> {
    let mut hooks = Vec::new();
    let ip = [
        ("/proc/net/ip_tables_names", HookFamily::Ip),
        ("/proc/net/ip6_tables_names", HookFamily::Ip6),
        ("/proc/net/arp_tables_names", HookFamily::Arp),
    ];
    for (path, family) in ip {
        for table in source.read_if_there(path)?.unwrap_or_default().lines() {
            hooks.extend(legacy_table(HookOwner::LegacyIptables, family, table));
        }
    }
    for table in ["broute", "filter", "nat"] {
        // The table comes with its module, in all namespaces or in those that ask for it.
        if source.exists(&format!("/sys/module/ebtable_{table}")) {
            hooks.extend(legacy_table(HookOwner::LegacyEbtables, HookFamily::Bridge, table));
        }
    }
    Ok(hooks)
}

fn legacy_table(owner: HookOwner, family: HookFamily, table: &str) -> Vec<NetfilterHook> {
    let known = LEGACY.iter().find(|(name, _)| *name == table);
    let points = known.map_or(&[HookPoint::Prerouting][..], |(_, points)| points);
    let hook = |point: &HookPoint| NetfilterHook {
        owner,
        family,
        table: table.to_owned(),
        chain: point.to_string().to_uppercase(),
        hook: *point,
        kind: String::new(),
        devices: Vec::new(),
        drops: false,
        rules: None,
    };
    points.iter().map(hook).collect()
}

/// The number of IPsec policies (`ip xfrm policy`), without those of single sockets.
pub fn xfrm_policies() -> Result<usize> {
    let flags = libc::NLM_F_REQUEST | libc::NLM_F_DUMP;
    let request = || Request::new(XFRM_MSG_GETPOLICY, flags, &[0; POLICY_ID]);
    let found = Netlink::of(NETLINK_XFRM, &[])
        .and_then(|mut netlink| netlink.dump("listing IPsec policies", request, policy));
    Ok(if_there(found, &[EPROTONOSUPPORT, EOPNOTSUPP])?.map_or(0, |policies| policies.len()))
}

fn policy(message: Message) -> Option<()> {
    let direction = *message.body.get(POLICY_DIRECTION)?;
    (message.kind == XFRM_MSG_NEWPOLICY && direction < XFRM_POLICY_MAX).then_some(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::netlink::messages;

    fn chain(family: u8, hook: Request, policy: u32, rules: u32) -> NetfilterHook {
        let bytes = Request::new(NFT_MSG_NEWCHAIN, 0, &[family, 0, 0, 0])
            .attribute(NFTA_CHAIN_TABLE, b"t\0")
            .attribute(NFTA_CHAIN_NAME, b"c\0")
            .attribute(NFTA_CHAIN_POLICY, &policy.to_be_bytes())
            .attribute(NFTA_CHAIN_USE, &rules.to_be_bytes())
            .attribute(NFTA_CHAIN_TYPE, b"filter\0")
            .nest(NFTA_CHAIN_HOOK, hook)
            .finish(1);
        read(messages(&bytes).next().unwrap()).unwrap()
    }

    fn at(number: u32) -> Request {
        Request::nested().attribute(NFTA_HOOK_HOOKNUM, &number.to_be_bytes())
    }

    #[test]
    fn chains_with_a_hook() {
        let forward = chain(7, at(2), 1, 3);
        assert_eq!((forward.family, forward.hook), (HookFamily::Bridge, HookPoint::Forward));
        assert_eq!((forward.table.as_str(), forward.chain.as_str()), ("t", "c"));
        assert_eq!((forward.rules, forward.drops, forward.acts()), (Some(3), false, true));
        assert!(!chain(2, at(4), 1, 0).acts());
        assert!(chain(2, at(4), NF_DROP, 0).acts());
        let devices = Request::nested()
            .attribute(NFTA_DEVICE_NAME, b"eth1\0")
            .attribute(NFTA_DEVICE_PREFIX, b"veth\0");
        let ingress = chain(5, at(0).nest(NFTA_HOOK_DEVS, devices), 1, 1);
        assert_eq!((ingress.family, ingress.hook), (HookFamily::Netdev, HookPoint::Ingress));
        assert!(ingress.is_at("eth1") && ingress.is_at("veth7") && !ingress.is_at("eth10"));
        assert_eq!(chain(1, at(5), 1, 1).hook, HookPoint::Ingress);
        // One that is reached from others.
        let bytes = Request::new(NFT_MSG_NEWCHAIN, 0, &[7, 0, 0, 0])
            .attribute(NFTA_CHAIN_NAME, b"c\0")
            .finish(1);
        assert_eq!(read(messages(&bytes).next().unwrap()), None);
    }

    #[test]
    fn older_tables_may_do_anything() {
        let files = [
            ("/proc/net/ip_tables_names", "nat\nfilter"),
            ("/proc/net/ip6_tables_names", ""),
            ("/sys/module/ebtable_broute/refcnt", "1"),
        ];
        let files = files.map(|(path, text)| (path.to_owned(), text.to_owned()));
        let hooks = legacy(&Source::Captured(Arc::new(files.into()))).unwrap();
        assert!(hooks.iter().all(NetfilterHook::acts));
        let read: Vec<String> = hooks
            .iter()
            .map(|hook| format!("{} {} {}", hook.family, hook.table, hook.chain))
            .collect();
        let expected = [
            "ip nat PREROUTING",
            "ip nat POSTROUTING",
            "ip filter FORWARD",
            "bridge broute PREROUTING",
        ];
        assert_eq!(read, expected);
    }

    #[test]
    fn policies_of_single_sockets_do_not_count() {
        let read = |direction: u8| {
            // struct xfrm_userpolicy_info: behind the direction action, flags and share.
            let mut info = [9; 168];
            info[POLICY_DIRECTION] = direction;
            let bytes = Request::new(XFRM_MSG_NEWPOLICY, 0, &info).finish(1);
            policy(messages(&bytes).next().unwrap())
        };
        // In, out, forwarded; and in and out of a socket.
        let wanted = [true, true, true, false, false];
        assert_eq!([0, 1, 2, 3, 4].map(|direction| read(direction).is_some()), wanted);
    }
}
