//! Why a socket could not be opened or a program not be attached: what failed, on what, why, and
//! what to do.

use std::{fmt, io};

/// The step that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Step {
    /// socket(2).
    Open,
    /// Registering the UMEM.
    Register,
    /// Making or mapping a ring.
    Ring,
    /// bind(2) to a queue.
    Bind,
    /// Setting an option of the socket.
    Option,
    /// Making or filling the map of sockets.
    Map,
    /// Loading the program.
    Load,
    /// Attaching the program.
    Attach,
    /// Having it outlive this process.
    Keep,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Step::Open => "opening an AF_XDP socket",
            Step::Register => "registering the UMEM",
            Step::Ring => "making the rings",
            Step::Bind => "binding",
            Step::Option => "setting an option of the socket",
            Step::Map => "putting the socket into the program's map",
            Step::Load => "loading the XDP program",
            Step::Attach => "attaching the XDP program",
            Step::Keep => "keeping the XDP program beyond this process",
        })
    }
}

/// Why; its text says what to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cause {
    /// There is no such interface in this network namespace.
    NoInterface,
    /// The interface has no such queue.
    NoQueue,
    /// Another socket has the queue.
    QueueTaken,
    /// Another program is attached.
    ProgramThere,
    /// A capability is missing.
    NoPermission(&'static str),
    /// More memory than may be locked.
    MemoryLocked,
    /// The driver has no zero-copy.
    NoZeroCopy,
    /// The driver has zero-copy, and not for this queue as it is set up now.
    ZeroCopyRefused,
    /// The driver has no native XDP.
    NoNative,
    /// The driver has too few queues for native XDP.
    FewQueues,
    /// The kernel was built without.
    NoKernelSupport,
    /// A number of slots that cannot be.
    RingSize,
    /// The interface is down.
    Down,
    /// 64 queues of the pool are open.
    TooManyQueues,
    /// The socket is bound already, and the kernel maps its rings no more.
    Bound,
    /// The kernel granted something else than it was asked for.
    NotGranted,
    /// Any other answer of the kernel.
    Other,
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Cause::NoInterface => "there is no such interface in this network namespace; `ip link` lists those there are",
            Cause::NoQueue => "it has no such queue; `ethtool -l` shows how many it has",
            Cause::QueueTaken => {
                "another AF_XDP socket has this queue, of another program or the same; `ss --xdp --processes` shows whose, where this kernel tells: end that program, or take another queue"
            }
            Cause::ProgramThere => {
                "another XDP program is attached; `ip link` shows its id: `ip link set dev IFACE xdp off` takes it off, if nobody needs it and no link holds it (`bpftool link`), or have it redirect into a map of yours"
            }
            Cause::NoPermission(capability) => {
                return write!(f, "not permitted; it takes {capability}");
            }
            Cause::MemoryLocked => {
                "more memory than may be locked; grant CAP_IPC_LOCK, raise RLIMIT_MEMLOCK (`ulimit -l`), or ask for fewer frames"
            }
            Cause::NoZeroCopy => "its driver has no zero-copy for this queue; leave the choice to the kernel, or ask for copies",
            Cause::ZeroCopyRefused => {
                "its driver refuses zero-copy for this queue; ask for copies, or leave the choice to the kernel. virtio_net has it from Linux 6.13 on, for devices that use the platform's DMA (QEMU: iommu_platform=on) with mergeable buffers"
            }
            Cause::NoNative => "its driver has no native XDP, or not as the interface is set up now (MTU, queues, offloads); use generic mode",
            Cause::FewQueues => {
                "its driver has too few queues for native XDP; use fewer, so that some are left for it (`ethtool -L IFACE combined N`); on a veth the far end sends by more queues than arrive here: use fewer there (`ethtool -L IFACE tx N`)"
            }
            Cause::NoKernelSupport => "this kernel was built without AF_XDP (CONFIG_XDP_SOCKETS)",
            Cause::RingSize => "a ring has a power of two slots, at least one and no more than 2^20",
            Cause::Down => "the interface is down; `ip link set IFACE up`",
            Cause::TooManyQueues => "64 queues of this pool are open already; close one, or use another pool",
            Cause::Bound => "the socket is bound, and this kernel maps its rings only before (it takes Linux 6.4): end the other program, and start anew",
            Cause::NotGranted => "the kernel granted another mode than was asked for: another socket of this UMEM is open already; open those that ask first",
            Cause::Other => "see the error of the kernel",
        })
    }
}

/// A failed step: on which queue, and why.
#[derive(Debug, thiserror::Error)]
#[error("{on}: {step}: {cause} ({source})")]
pub struct SetupError {
    /// The step that failed.
    pub step: Step,
    /// "eth0", "eth0, queue 3".
    pub on: String,
    /// The meaning of the answer, as far as it is known.
    pub cause: Cause,
    /// The kernel's answer.
    pub source: io::Error,
}

impl SetupError {
    pub(crate) fn new(step: Step, on: impl Into<String>, source: io::Error) -> Self {
        let cause = cause(step, source.raw_os_error().unwrap_or(0));
        Self { step, on: on.into(), cause, source }
    }

    pub(crate) fn of(step: Step, on: impl Into<String>, cause: Cause) -> Self {
        Self { step, on: on.into(), cause, source: io::ErrorKind::InvalidInput.into() }
    }
}

/// The cause of an error number (net/xdp/xsk.c, xdp_umem.c, xsk_buff_pool.c, net/core/dev.c).
fn cause(step: Step, error: i32) -> Cause {
    match (step, error) {
        (Step::Open, libc::EPERM) => Cause::NoPermission("CAP_NET_RAW"),
        (Step::Open, libc::EAFNOSUPPORT) => Cause::NoKernelSupport,
        (Step::Register, libc::ENOBUFS) => Cause::MemoryLocked,
        (Step::Ring, libc::EBUSY) => Cause::Bound,
        (Step::Bind, libc::EBUSY) => Cause::QueueTaken,
        (Step::Bind, libc::EINVAL) => Cause::NoQueue,
        (Step::Bind | Step::Attach, libc::ENODEV) => Cause::NoInterface,
        (Step::Bind, libc::EOPNOTSUPP | ENOTSUPP) => Cause::NoZeroCopy,
        (Step::Option, libc::EPERM) => Cause::NoPermission("CAP_NET_ADMIN"),
        (Step::Map | Step::Load | Step::Attach | Step::Keep, libc::EPERM | libc::EACCES) => {
            Cause::NoPermission("CAP_BPF and CAP_NET_ADMIN")
        }
        (Step::Attach, libc::EBUSY | libc::EEXIST) => Cause::ProgramThere,
        (Step::Attach, libc::EOPNOTSUPP | ENOTSUPP | libc::EINVAL | libc::ERANGE) => {
            Cause::NoNative
        }
        (Step::Attach, libc::ENOSPC) => Cause::FewQueues,
        (_, libc::ENETDOWN) => Cause::Down,
        _ => Cause::Other,
    }
}

/// The kernel's ENOTSUPP is not meant for user space, but reaches it.
const ENOTSUPP: i32 = 524;
