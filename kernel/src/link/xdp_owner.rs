//! Owner of an XDP program on its interface: decides how it can be taken off.

use std::os::fd::AsFd;
use std::path::Path;

use libbpf_rs::query::{LinkInfoIter, LinkTypeInfo};
use ringway_bpf_sys::{self as bpf, XdpLink};
use ringway_host::Fix;

use crate::pins::Pins;
use crate::{Result, requirements};

/// The owner of an attached XDP program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum XdpOwner {
    /// A Ringway node of this name; `ringway detach --node NAME` removes it.
    Node(String),
    /// `ringway decap`, pinned or running.
    Decap,
    /// A bpf_link of this id: `ip link set ... xdp off` is refused.
    Link(u32),
    /// Netlink: anybody may take it off.
    Netlink,
}

impl XdpOwner {
    /// The owner, as text to follow the program's name.
    pub fn owner(&self) -> String {
        match self {
            XdpOwner::Node(node) => format!("belongs to Ringway node {node}"),
            XdpOwner::Decap => "belongs to `ringway decap`".into(),
            XdpOwner::Link(_) | XdpOwner::Netlink => "is not Ringway's".into(),
        }
    }

    /// How to take the program off an interface.
    pub fn remedy(&self, iface: &str) -> Fix {
        match self {
            XdpOwner::Node(node) => Fix::command(["ringway", "detach", "--node", node])
                .after("use another interface, or end that node's daemon, then:"),
            XdpOwner::Decap => Fix::command(["ringway", "decap", "-i", iface, "--detach"])
                .after("use another interface, or stop the running `ringway decap`, or:"),
            XdpOwner::Link(id) => {
                Fix::command(["bpftool", "link", "detach", "id", &id.to_string()])
                    .before("(a link holds it, so `ip link set ... xdp off` is refused)")
                    .after("end the program that attached it, or:")
            }
            XdpOwner::Netlink => Fix::link(iface, "xdp off").after("stop what loaded it, or:"),
        }
    }
}

/// Name of the program that opens tunnels, as `ip link` and `bpftool` show it.
pub(crate) const DECAP: &str = "ringway_decap";

/// Finds out who holds a program by its id; `None` when this process may not look.
pub fn xdp_owner(bpffs: &Path, program: u32) -> Option<XdpOwner> {
    if let Some(node) = node_of(bpffs, program).ok()? {
        return Some(XdpOwner::Node(node));
    }
    if program_name(program).as_deref() == Some(DECAP) {
        return Some(XdpOwner::Decap);
    }
    if !requirements::may_list_links() {
        return None;
    }
    let mut links = LinkInfoIter::default();
    let held =
        links.find(|link| link.prog_id == program && matches!(link.info, LinkTypeInfo::Xdp(_)));
    Some(held.map_or(XdpOwner::Netlink, |link| XdpOwner::Link(link.id)))
}

/// Name of a loaded program; `None` when there is none with this id, or it may not be read.
pub fn program_name(id: u32) -> Option<String> {
    let program = bpf::by_id(id).ok()?;
    bpf::info(program.as_fd()).ok().map(|info| info.name())
}

/// The node that has pinned the program's attachment.
fn node_of(bpffs: &Path, program: u32) -> Result<Option<String>> {
    for node in Pins::new(bpffs, "any")?.known_nodes()? {
        let pins = Pins::new(bpffs, &node)?;
        for iface in pins.iface_names()? {
            // One that vanishes meanwhile is nobody's.
            let link = XdpLink::open(&pins.link(&iface)).ok();
            if link.and_then(|link| link.info().ok()).is_some_and(|info| info.program == program) {
                return Ok(Some(node));
            }
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_holder_has_its_own_remedy() {
        for (owner, want) in [
            (XdpOwner::Node("gw2".into()), "ringway detach --node gw2"),
            (XdpOwner::Link(7), "bpftool link detach id 7"),
            (XdpOwner::Netlink, "ip link set dev eth0 xdp off"),
        ] {
            assert!(owner.remedy("eth0").to_string().contains(want), "{owner:?}");
        }
    }
}
