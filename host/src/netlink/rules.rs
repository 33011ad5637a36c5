//! Routing rules that lead marked packets into a table of their own.

use crate::netlink::{Message, Netlink, Request, attributes, u32_of};
use crate::{Error, Result};

// linux/fib_rules.h
const FRA_PRIORITY: u16 = 6;
const FRA_FWMARK: u16 = 10;
const FRA_TABLE: u16 = 15;
const FRA_FWMASK: u16 = 16;
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

/// Rules that [`add`] has made, by whichever process.
pub fn ours() -> Result<Vec<MarkRule>> {
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

#[cfg(test)]
mod tests {
    use super::*;

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
