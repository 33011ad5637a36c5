//! What is wanted of memory, sockets and programs, from the command line; and what was obtained of
//! it.

use std::path::Path;

use anyhow::{anyhow, bail};
use ringway_api::error::Error;
use ringway_engine::ports::af_xdp;
use ringway_engine::spread::Spread;
use ringway_engine::{Engine, EngineError, control_of, engine_on};
use ringway_kernel::{DEFAULT_BPFFS, Steer, bpffs_is_hidden};
use ringway_xsk::{
    BusyPoll, Chunk, Mode, PageSize, UmemConfig, UmemError, XdpMode, node_of_interface,
};

use crate::cli::{FrameSize, HugePages, OnLoss, WhenDead, WorkArgs, ZeroCopy};
use crate::exit;

/// Packets that the driver takes at once where it is polled busily: as many as NAPI does.
const BUDGET: u32 = 64;

/// Ports, with what is said of all of them.
pub fn ports(work: &WorkArgs) -> anyhow::Result<Vec<Spread>> {
    let mut ports = work.port.clone();
    let mut any = false;
    for port in &mut ports {
        let name = port.to_string();
        let Some(config) = port.af_xdp() else { continue };
        any = true;
        config.on_loss = match work.on_loss {
            OnLoss::Exit => af_xdp::OnLoss::Exit,
            OnLoss::Reopen => af_xdp::OnLoss::Reopen,
        };
        config.ring = work.ring.map_or(config.ring, Into::into);
        config.busy_poll = work.busy_poll.map(|micros| BusyPoll { micros, budget: BUDGET });
        config.mode = match (work.zero_copy, config.mode) {
            (ZeroCopy::Require, Mode::Copy) | (ZeroCopy::Never, Mode::ZeroCopy) => {
                bail!(usage(format!(
                    "--zero-copy and the option of {name} contradict each other; leave one out"
                )))
            }
            (ZeroCopy::Require, _) if config.xdp_mode == Some(XdpMode::Generic) => {
                bail!(usage(format!(
                    "{name}: zero-copy needs native mode; leave out `generic` or --zero-copy"
                )))
            }
            (ZeroCopy::Require, _) => Mode::ZeroCopy,
            (ZeroCopy::Never, _) => Mode::Copy,
            (ZeroCopy::Prefer, mode) => mode,
        };
    }
    let of_af_xdp = [
        ("--only", !work.only.is_empty()),
        ("--when-dead drop", work.when_dead == WhenDead::Drop),
        ("--zero-copy", work.zero_copy != ZeroCopy::Prefer),
        ("--ring", work.ring.is_some()),
        ("--busy-poll", work.busy_poll.is_some()),
    ];
    Steer::check(&work.only).map_err(|error| usage(error.to_string()))?;
    match of_af_xdp.iter().find(|(_, wanted)| *wanted && !any) {
        Some((flag, _)) => {
            bail!(usage(format!("{flag} is for af_xdp ports, and there is none; leave it out")))
        }
        None => Ok(ports),
    }
}

/// Memory for so many workers.
pub fn umem(work: &WorkArgs, workers: usize) -> anyhow::Result<UmemConfig> {
    Ok(UmemConfig {
        // The memory of all workers counts together.
        frames: work.frames.saturating_mul(u32::try_from(workers)?),
        chunk: match work.frame_size {
            FrameSize::Bytes2048 => Chunk::Bytes2048,
            FrameSize::Bytes4096 => Chunk::Bytes4096,
        },
        headroom: work.headroom,
        pages: match work.huge_pages {
            HugePages::None => PageSize::Base,
            HugePages::Mib2 => PageSize::Huge2M,
            HugePages::Gib1 => PageSize::Huge1G,
        },
        node: work.port.iter().find_map(Spread::interface).and_then(node_of_interface),
        ..UmemConfig::default()
    })
}

/// Something that was asked for and can never be, wherever it is asked.
pub fn usage(what: impl Into<String>) -> Error {
    Error::configuration(what, "")
}

/// Why there is no engine. Its text has that of its causes in it.
pub fn refused(error: &EngineError) -> anyhow::Error {
    let never = matches!(
        error,
        EngineError::Umem(UmemError::Frames { .. } | UmemError::Headroom { .. })
            | EngineError::Loose(_)
            | EngineError::NoPort(_)
            | EngineError::TooMany(_)
            | EngineError::Cpu { .. }
    );
    if let Some(running) = running(error) {
        return anyhow!(running);
    }
    let mut text = error.to_string();
    if error.taken_interface().is_some() && bpffs_is_hidden(Path::new(DEFAULT_BPFFS)) {
        text += "; if an engine was killed here (`--when-dead drop`), its program can be removed only where /sys/fs/bpf is that of the system: \
                 start with `nsenter --net=/run/netns/NAME` instead of `ip netns exec`";
    }
    if never { usage(text).into() } else { anyhow!(text) }
}

/// That a running engine has the interface, if that is why there is no other.
fn running(error: &EngineError) -> Option<String> {
    let interface = error.taken_interface()?;
    let pid = engine_on(interface)?;
    let what = format!("{interface}: process {pid} is a running engine and has this interface");
    Some(match control_of(pid) {
        Ok(_) => format!("{what}; take over from it with `--take-over {pid}`, or end it"),
        Err(_) => {
            format!("{what}; end it first: `--take-over` takes engines with `--control PATH`")
        }
    })
}

/// Prints what the engine obtained of the request.
pub fn say(work: &WorkArgs, engine: &Engine) {
    let (umem, obtained) = (engine.umem(), engine.umem().obtained());
    let state = if obtained.as_asked() { "ok" } else { "warn" };
    let (frames, bytes, room) = (umem.frames(), umem.chunk().bytes(), umem.room());
    exit::say(format_args!(
        "{state}: memory: {frames} frames of {bytes} bytes, of which a received packet can use {room}: {obtained}"
    ));
    if let Some(micros) = work.busy_poll {
        exit::say(format_args!("ok: polling: up to {micros} µs and {BUDGET} packets a call"));
    }
    if work.when_dead == WhenDead::Drop {
        exit::say(
            "ok: when-dead: if this engine is killed, its packets are dropped until another is started",
        );
    }
}
