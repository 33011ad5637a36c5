//! The additional cost of a packet after a capture has ended. The programs are the same as before
//! it, so this should be nothing.

use std::path::PathBuf;
use std::thread;

use ringway_filter::Filter;
use ringway_kernel::GatewayOptions;
use ringway_kernel::programs::capture::{CaptureRequest, MOST_BYTES, Session};
use rustix::mount::{MountPropagationFlags, mount_change};
use rustix::thread::{UnshareFlags, unshare_unsafe};

use super::feeder::{Feeder, Storage};
use super::path::{Ip, PacketPath};
use super::site::Site;
use super::{PACKETS, settle};
use crate::{Error, Result};

const FLOWS: u32 = 1000;
const ROOM: u32 = 65_536;

/// Nanoseconds per packet of open nat flows, with the measuring's own.
pub(crate) struct Costs {
    /// Before anybody has captured.
    pub(crate) before: u64,
    /// While all packets are captured, and read by nobody.
    pub(crate) during: u64,
    pub(crate) after: u64,
}

/// Measures once, on a gateway of its own.
pub(crate) fn measure() -> Result<Costs> {
    // A thread can have a network namespace and mounts of its own, gone with it.
    thread::scope(|scope| {
        let thread = scope.spawn(|| {
            settle()?;
            let bpffs = own_mounts()?;
            on_own_gateway(bpffs)
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Where pins of nobody else are.
fn own_mounts() -> Result<PathBuf> {
    let failed = |errno: rustix::io::Errno| Error::Settle(errno.into());
    // SAFETY: of the flags that are unsafe (FILES), none is given.
    unsafe { unshare_unsafe(UnshareFlags::NEWNS) }.map_err(failed)?;
    let alone = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    mount_change("/", alone).map_err(failed)?;
    let bpffs = PathBuf::from("/sys/fs/bpf");
    rustix::mount::mount("bpf", &bpffs, "bpf", rustix::mount::MountFlags::empty(), None)
        .map_err(failed)?;
    Ok(bpffs)
}

fn on_own_gateway(bpffs: PathBuf) -> Result<Costs> {
    let options =
        GatewayOptions { node: "bench".into(), bpffs, flows: ROOM, ..GatewayOptions::default() };
    let mut storage = Storage::uninit();
    let mut feeder = Feeder::load(&mut storage)?;
    let mut site = Site::with(PacketPath::Nat, Ip::V4, &options)?;
    site.open_flows(&mut feeder, FLOWS)?;
    // Caches and the processor's clock.
    site.measure(&mut feeder, FLOWS, PACKETS / 8)?;
    let before = site.measure(&mut feeder, FLOWS, PACKETS)?;
    let all = Filter::compile("", MOST_BYTES).map_err(|error| Error::Tables(error.to_string()))?;
    let wanted = CaptureRequest {
        filter: &|surroundings| all.translate(surroundings),
        iface: None,
        verdicts: &[],
        reasons: &[],
        service: None,
        backend: None,
        sample: 1,
        snaplen: MOST_BYTES,
        buffer_bytes: 1 << 20,
    };
    let session = Session::start(site.view(), &wanted)?;
    let during = site.measure(&mut feeder, FLOWS, PACKETS / 8)?;
    drop(session);
    site.measure(&mut feeder, FLOWS, PACKETS / 8)?;
    let after = site.measure(&mut feeder, FLOWS, PACKETS)?;
    Ok(Costs { before, during, after })
}
