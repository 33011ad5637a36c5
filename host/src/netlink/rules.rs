//! Routing rules; among them Ringway's own, which lead marked packets into a table.

use crate::netlink::{Message, Netlink, Request, attributes, u32_of};
use crate::{Error, Result};

// linux/fib_rules.h
const FRA_PRIORITY: u16 = 6;
const FRA_FWMARK: u16 = 10;
const FRA_SUPPRESS_PREFIXLEN: u16 = 14;
const FRA_TABLE: u16 = 15;
const FRA_FWMASK: u16 = 16;
const FRA_PAD: u16 = 18;
const FRA_PROTOCOL: u16 = 21;
const FR_ACT_TO_TBL: u8 = 1;
/// Length of struct fib_rule_hdr: family, dst_len, src_len, tos, table, 2 reserved, action, flags.
const HEADER: usize = 12;
/// The protocol that made a rule, as for routes (linux/rtnetlink.h): Ringway's own number, "r".
const OURS: u8 = b'r';

/// `fwmark MARK/MASK lookup TABLE`, of one address family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MarkRule {
    /// IPv6, else IPv4.
    pub v6: bool,
    /// The order of rules: less is earlier.
    pub priority: u32,
    /// Value of the mark under `mask`.
    pub mark: u32,
    /// The bits of the mark that count.
    pub mask: u32,
    pub table: u32,
}

impl MarkRule {
    /// Whether some mark fits both.
    pub fn overlaps(&self, other: &Self) -> bool {
        let common = self.mask & other.mask;
        self.v6 == other.v6 && self.mark & common == other.mark & common
    }
}

/// Any rule of policy routing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RoutingRule {
    /// IPv6, else IPv4.
    pub v6: bool,
    pub priority: u32,
    /// 0: it leads to no table.
    pub table: u32,
    /// The kernel makes it in every network namespace: all packets, into one of the tables local,
    /// main and default.
    pub built_in: bool,
    /// [`add`] has made it.
    pub ours: bool,
}

/// The kernel's own: priority and table.
const BUILT_IN: [(u32, u32); 3] = [(0, 255), (32766, 254), (32767, 253)];

/// All rules of this network namespace.
pub fn all() -> Result<Vec<RoutingRule>> {
    dump(read_any)
}

/// Rules that [`add`] has made, by whichever process.
pub fn ours() -> Result<Vec<MarkRule>> {
    dump(read)
}

fn dump<T>(read: fn(Message) -> Option<T>) -> Result<Vec<T>> {
    let mut netlink = Netlink::open()?;
    let mut rules = Vec::new();
    for family in [libc::AF_INET, libc::AF_INET6] {
        let mut header = [0; HEADER];
        header[0] = family as u8;
        let flags = libc::NLM_F_REQUEST | libc::NLM_F_DUMP;
        let request = || Request::new(libc::RTM_GETRULE, flags, &header);
        match netlink.dump("listing routing rules", request, read) {
            // A kernel without IPv6, or without rules.
            Err(Error::Netlink { source, .. })
                if matches!(source.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EAFNOSUPPORT)) => {
            }
            found => rules.extend(found?),
        }
    }
    Ok(rules)
}

/// Adds a rule; one that is there already is fine.
pub fn add(rule: &MarkRule) -> Result<()> {
    let flags = libc::NLM_F_CREATE | libc::NLM_F_EXCL;
    match change(libc::RTM_NEWRULE, flags, rule) {
        Err(Error::Netlink { source, .. }) if source.raw_os_error() == Some(libc::EEXIST) => Ok(()),
        other => other,
    }
}

/// Removes a rule; one that is not there is fine.
pub fn remove(rule: &MarkRule) -> Result<()> {
    match change(libc::RTM_DELRULE, 0, rule) {
        Err(Error::Netlink { source, .. }) if source.raw_os_error() == Some(libc::ENOENT) => Ok(()),
        other => other,
    }
}

fn change(kind: u16, flags: i32, rule: &MarkRule) -> Result<()> {
    let mut header = [0; HEADER];
    header[0] = if rule.v6 { libc::AF_INET6 } else { libc::AF_INET } as u8;
    header[7] = FR_ACT_TO_TBL;
    let request = Request::new(kind, libc::NLM_F_REQUEST | libc::NLM_F_ACK | flags, &header)
        .attribute(FRA_PRIORITY, &rule.priority.to_ne_bytes())
        .attribute(FRA_FWMARK, &rule.mark.to_ne_bytes())
        .attribute(FRA_FWMASK, &rule.mask.to_ne_bytes())
        .attribute(FRA_TABLE, &rule.table.to_ne_bytes())
        .attribute(FRA_PROTOCOL, &[OURS]);
    let what = format!("the routing rule of mark {:#x}/{:#x}", rule.mark, rule.mask);
    Netlink::open()?.execute(&what, request)
}

fn read(message: Message) -> Option<MarkRule> {
    let header = message.body.get(..HEADER)?;
    if message.kind != libc::RTM_NEWRULE || header[7] != FR_ACT_TO_TBL {
        return None;
    }
    let v6 = header[0] == libc::AF_INET6 as u8;
    let mut rule = MarkRule { v6, priority: 0, mark: 0, mask: 0, table: u32::from(header[4]) };
    let mut ours = false;
    for attribute in attributes(&message.body[HEADER..]) {
        let value = u32_of(attribute.data);
        match attribute.kind {
            FRA_PRIORITY => rule.priority = value?,
            FRA_FWMARK => rule.mark = value?,
            FRA_FWMASK => rule.mask = value?,
            FRA_TABLE => rule.table = value?,
            FRA_PROTOCOL => ours = attribute.data.first() == Some(&OURS),
            _ => {}
        }
    }
    ours.then_some(rule)
}

fn read_any(message: Message) -> Option<RoutingRule> {
    let header = message.body.get(..HEADER)?;
    if message.kind != libc::RTM_NEWRULE {
        return None;
    }
    let v6 = header[0] == libc::AF_INET6 as u8;
    let table = u32::from(header[4]);
    let mut rule = RoutingRule { v6, priority: 0, table, built_in: false, ours: false };
    // Lengths of prefixes, TOS; flags, which say `not`.
    let mut for_all = header[1..4] == [0; 3] && header[8..] == [0; 4];
    for attribute in attributes(&message.body[HEADER..]) {
        match attribute.kind {
            FRA_PRIORITY => rule.priority = u32_of(attribute.data)?,
            FRA_TABLE => rule.table = u32_of(attribute.data)?,
            FRA_PROTOCOL => rule.ours = attribute.data.first() == Some(&OURS),
            FRA_SUPPRESS_PREFIXLEN => for_all &= u32_of(attribute.data) == Some(u32::MAX),
            FRA_PAD => {}
            _ => for_all = false,
        }
    }
    let built_in = BUILT_IN.contains(&(rule.priority, rule.table));
    rule.built_in = built_in && for_all && header[7] == FR_ACT_TO_TBL;
    Some(rule)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::messages;

    #[test]
    fn rules_beside_those_of_the_kernel() {
        let read = |header: [u8; HEADER], priority: u32, extra: Option<u16>| {
            let mut request = Request::new(libc::RTM_NEWRULE, 0, &header)
                .attribute(FRA_PRIORITY, &priority.to_ne_bytes())
                .attribute(FRA_SUPPRESS_PREFIXLEN, &u32::MAX.to_ne_bytes())
                .attribute(FRA_PROTOCOL, &[2]);
            if let Some(kind) = extra {
                request = request.attribute(kind, &[1, 0, 0, 0]);
            }
            let bytes = request.finish(1);
            read_any(messages(&bytes).next().unwrap()).unwrap()
        };
        let main = [2, 0, 0, 0, 254, 0, 0, FR_ACT_TO_TBL, 0, 0, 0, 0];
        assert!(read(main, 32766, None).built_in);
        assert!(!read(main, 100, None).built_in);
        assert!(!read(main, 32766, Some(FRA_FWMARK)).built_in);
        let mut of_source = main;
        of_source[2] = 24;
        assert!(!read(of_source, 32766, None).built_in);
        let all = all().unwrap();
        assert!(all.iter().filter(|rule| rule.built_in).count() >= 3, "{all:?}");
    }

    #[test]
    fn marks_overlap_where_both_masks_agree() {
        let rule = |mark, mask| MarkRule { v6: false, priority: 1, mark, mask, table: 1 };
        let ours = rule(0x7277_0000, 0xffff_0000);
        assert!(ours.overlaps(&rule(0x7277_0000, 0xffff_8000)));
        assert!(ours.overlaps(&rule(0, 0xffff)));
        assert!(!ours.overlaps(&rule(0x7278_0000, 0xffff_0000)));
        assert!(!ours.overlaps(&MarkRule { v6: true, ..ours }));
    }
}
