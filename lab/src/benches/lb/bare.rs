//! The fixed XDP rewriter of bpf/bare.bpf.c in the balancer's container.

use std::mem::MaybeUninit;
use std::os::fd::AsFd;

use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use ringway_kernel::{XdpLink, XdpMode};
use ringway_testnet::{Node, OneBridge, attach_pass};

use super::balancer::{Balancer, PORT, v4};
use crate::Result;

/// Generated from bpf/bare.bpf.c.
#[allow(clippy::all, clippy::undocumented_unsafe_blocks, clippy::unwrap_used)]
mod skeleton {
    include!(concat!(env!("OUT_DIR"), "/bare.skel.rs"));
}

/// Loads the program with this topology's addresses and attaches it to the balancer's eth0.
pub(super) fn attach(net: &OneBridge, mode: XdpMode) -> Result<Balancer> {
    let mut storage = MaybeUninit::uninit();
    let mut open = skeleton::BareSkelBuilder::default().open(&mut storage)?;
    let address = v4(net.balancer.v4);
    if let Some(data) = open.maps.rodata_data.as_mut() {
        data.port = PORT.to_be();
        data.this = host(&net.balancer);
        data.client = host(&net.client);
        for (to, backend) in data.backend.iter_mut().zip(&net.backends) {
            *to = host(backend);
        }
    }
    let loaded = open.load()?;
    if mode == XdpMode::Native {
        attach_pass(&net.host, &net.balancer.peer.name)?;
    }
    let (program, ifindex) = (loaded.progs.bare.as_fd(), net.balancer.eth0.ifindex);
    let link = net.balancer.ns.run(|| XdpLink::attach(program, ifindex, mode))?;
    let link = link.map_err(libbpf_rs::Error::from)?;
    let configuration = format!(
        "lab/bpf/bare.bpf.c on the balancer's eth0, {mode} XDP: {address}:{PORT} -> {}\n",
        net.backends.iter().map(|b| v4(b.v4).to_string()).collect::<Vec<_>>().join(", ")
    );
    Ok(Balancer { address, configuration, child: None, _xdp: Some(link) })
}

fn host(node: &Node) -> skeleton::types::host {
    skeleton::types::host { addr: u32::from_ne_bytes(v4(node.v4).octets()), mac: node.eth0.mac.0 }
}
