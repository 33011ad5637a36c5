//! Queueing disciplines and filters of the calling thread's network namespace.

use serde::{Deserialize, Serialize};

use crate::netlink::{Message, Netlink, Request, attributes, string, u32_of};
use crate::{Error, Result};

// linux/rtnetlink.h, linux/gen_stats.h
const TCA_KIND: u16 = 1;
const TCA_STATS2: u16 = 7;
const TCA_STATS_QUEUE: u16 = 3;
// linux/pkt_sched.h: parents of filters, TC_H_CLSACT with TC_H_MIN_INGRESS or TC_H_MIN_EGRESS.
const TC_INGRESS: u32 = 0xffff_fff2;
const TC_EGRESS: u32 = 0xffff_fff3;
/// Length of struct tcmsg: family, 3 bytes of padding, ifindex, handle, parent, info.
const TCMSG: usize = 20;

/// A queueing discipline: it holds packets back before an interface sends them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Qdisc {
    pub ifindex: u32,
    /// Such as `fq_codel`.
    pub kind: String,
    pub queued: u32,
    /// Packets dropped since it was made.
    pub drops: u32,
    /// Packets that the driver did not take at first.
    pub requeues: u32,
}

pub fn all() -> Result<Vec<Qdisc>> {
    let flags = libc::NLM_F_REQUEST | libc::NLM_F_DUMP;
    let request = || Request::new(libc::RTM_GETQDISC, flags, &[0; TCMSG]);
    Netlink::open()?.dump("listing queueing disciplines", request, read)
}

/// Whether tc classifies packets that this interface receives (`ingress`) or sends: filters of
/// clsact or ingress, or BPF programs (tcx).
pub fn classifies(ifindex: u32, ingress: bool) -> Result<bool> {
    let mut header = [0; TCMSG];
    header[4..8].copy_from_slice(&ifindex.to_ne_bytes());
    let parent = if ingress { TC_INGRESS } else { TC_EGRESS };
    header[12..16].copy_from_slice(&parent.to_ne_bytes());
    let flags = libc::NLM_F_REQUEST | libc::NLM_F_DUMP;
    let request = || Request::new(libc::RTM_GETTFILTER, flags, &header);
    let filter = |message: Message| (message.kind == libc::RTM_NEWTFILTER).then_some(());
    let what = format!("listing the filters of interface {ifindex}");
    if !Netlink::open()?.dump(&what, request, filter)?.is_empty() {
        return Ok(true);
    }
    let programs = match ingress {
        true => ringway_bpf_sys::ingress_programs(ifindex),
        false => ringway_bpf_sys::egress_programs(ifindex),
    };
    match programs {
        Ok(programs) => Ok(!programs.is_empty()),
        // Before Linux 6.6 there are none.
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(false),
        Err(source) => Err(Error::Netlink {
            what: format!("listing the BPF programs (tcx) of interface {ifindex}"),
            source,
            detail: String::new(),
        }),
    }
}

fn read(message: Message) -> Option<Qdisc> {
    let header = message.body.get(..TCMSG)?;
    let mut qdisc = Qdisc {
        ifindex: u32_of(&header[4..])?,
        kind: String::new(),
        queued: 0,
        drops: 0,
        requeues: 0,
    };
    for attribute in attributes(&message.body[TCMSG..]) {
        match attribute.kind {
            TCA_KIND => qdisc.kind = string(attribute.data),
            TCA_STATS2 => {
                // struct gnet_stats_queue: qlen, backlog, drops, requeues, overlimits.
                let queue = attributes(attribute.data).find(|a| a.kind == TCA_STATS_QUEUE);
                let at = |place: usize| queue.and_then(|q| u32_of(q.data.get(place * 4..)?));
                qdisc.queued = at(0)?;
                qdisc.drops = at(2)?;
                qdisc.requeues = at(3)?;
            }
            _ => {}
        }
    }
    Some(qdisc)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::messages;

    #[test]
    fn reads_what_was_dropped() {
        let queue: Vec<u8> = [1u32, 100, 7, 9, 0].iter().flat_map(|n| n.to_ne_bytes()).collect();
        let stats = Request::nested().attribute(TCA_STATS_QUEUE, &queue);
        let mut header = [0; TCMSG];
        header[4] = 3;
        let bytes = Request::new(libc::RTM_NEWQDISC, 0, &header)
            .attribute(TCA_KIND, b"fq_codel\0")
            .nest(TCA_STATS2, stats)
            .finish(1);
        let qdisc = read(messages(&bytes).next().unwrap()).unwrap();
        assert_eq!((qdisc.ifindex, qdisc.kind.as_str()), (3, "fq_codel"));
        assert_eq!((qdisc.queued, qdisc.drops, qdisc.requeues), (1, 7, 9));
        assert!(all().is_ok());
    }
}
