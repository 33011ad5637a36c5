//! Receiving past the protocols: by a packet socket, by AF_XDP, and not at all: dropped by XDP.

use std::mem::MaybeUninit;
use std::os::fd::AsFd as _;
use std::sync::Arc;

use libbpf_rs::skel::{OpenSkel as _, SkelBuilder as _};
use libbpf_rs::{MapCore as _, MapFlags, OpenObject};
use ringway_engine::apps::Sink;
use ringway_engine::ports::{af_packet, af_xdp};
use ringway_engine::{AppFactory, Engine, EngineConfig, PortSpec, WorkerConfig};
use ringway_kernel::{XdpLink, XdpMode};
use ringway_testnet::Link;
use ringway_xsk::UmemConfig;

use super::Style;
use super::cost::Thread;
use crate::{Error, Result};

/// Generated from bpf/end.bpf.c.
#[allow(clippy::all, clippy::undocumented_unsafe_blocks, clippy::unwrap_used)]
mod skeleton {
    include!(concat!(env!("OUT_DIR"), "/end.skel.rs"));
}

/// The engine's first worker.
const WORKER: &str = "ringway-0";

/// Ringway's engine on an interface, by a packet socket or AF_XDP.
pub(super) struct ByEngine(Engine);

impl ByEngine {
    pub(super) fn start(style: Style, link: &Link, cpu: usize) -> Result<Self> {
        let port = match style {
            Style::AfPacket => PortSpec::AfPacket(af_packet::Config::new(&link.name)),
            _ => PortSpec::AfXdp(af_xdp::Config::new(&link.name, 0)),
        };
        let app: AppFactory = Arc::new(|| Box::new(Sink::default()));
        let umem = UmemConfig { frames: 8192, ..UmemConfig::default() };
        let config = EngineConfig { umem, ..EngineConfig::default() };
        let worker = WorkerConfig { cpu: Some(cpu), ports: vec![port], app };
        Ok(Self(link.namespace.run(move || Engine::start(&config, vec![worker]))??))
    }

    pub(super) fn thread(&self) -> Result<Thread> {
        let missing = || Error::NoFigure { who: WORKER.into(), what: "its thread is gone".into() };
        Thread::named(WORKER).ok_or_else(missing)
    }

    /// Packets that it took, in all.
    pub(super) fn stop(self) -> Result<u64> {
        let mut packets = 0;
        for report in self.0.stop() {
            let report = report?;
            if let Some(error) = report.error {
                return Err(error.into());
            }
            packets += report.status.packets.received_packets;
        }
        Ok(packets)
    }
}

/// A program that drops, until this is dropped.
pub(super) struct Ended<'s> {
    skeleton: skeleton::EndSkel<'s>,
    _attached: XdpLink,
}

impl<'s> Ended<'s> {
    pub(super) fn attach(storage: &'s mut MaybeUninit<OpenObject>, link: &Link) -> Result<Self> {
        let open = skeleton::EndSkelBuilder::default().open(storage).map_err(Error::Load)?;
        let skeleton = open.load().map_err(Error::Load)?;
        let program = skeleton.progs.end.as_fd();
        let attach = || XdpLink::attach(program, link.ifindex, XdpMode::Native);
        let _attached = link.namespace.run(attach)?.map_err(|error| Error::Load(error.into()))?;
        Ok(Self { skeleton, _attached })
    }

    pub(super) fn packets(&self) -> Result<u64> {
        let map = &self.skeleton.maps.packets;
        let values = map.lookup_percpu(&0_u32.to_ne_bytes(), MapFlags::ANY).map_err(Error::Load)?;
        let counts = values.into_iter().flatten();
        let counts =
            counts.filter_map(|bytes| Some(u64::from_ne_bytes(bytes.get(..8)?.try_into().ok()?)));
        Ok(counts.sum())
    }
}
