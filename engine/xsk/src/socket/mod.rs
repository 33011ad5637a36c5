//! An AF_XDP socket: a queue whose other side is the kernel.
//!
//! Opening it requires CAP_NET_RAW. A process without it may get a socket from a helper that has it
//! ([`Socket::open_on`]): registering memory, making rings and binding require no capability.
//! Memory beyond RLIMIT_MEMLOCK requires CAP_IPC_LOCK, busy polling CAP_NET_ADMIN.

pub(crate) mod ring_mapping;
pub(crate) mod setup;

use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use std::{fs, io, thread};

use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use serde::{Deserialize, Serialize};

use crate::packet::pool::Pool;
use crate::queue::{Error, Kernel, Left, Queue, Use, Wake};
use crate::sys;

use setup::{Cause, SetupError, Step};

/// Whether the driver puts packets into the UMEM itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Mode {
    /// As the driver can.
    #[default]
    Auto,
    /// The kernel copies; with any driver.
    Copy,
    /// The driver must, or opening fails.
    ZeroCopy,
}

/// Preferred busy polling (Documentation/networking/napi.rst): the driver runs within the program's
/// calls, not in interrupts. The interface needs `napi_defer_hard_irqs` and `gro_flush_timeout`
/// beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BusyPoll {
    /// Longest poll of a call, in microseconds.
    pub micros: u32,
    /// Most packets of a call.
    pub budget: u32,
}

/// The settings of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketConfig {
    /// Slots of FILL, and frames that the kernel has for reception. Twice RX is good, and no fewer
    /// than the driver's own ring (`ethtool -g`), which takes them at once in zero-copy. The pool
    /// needs as many for each of its queues, and beside them those that are sent or held.
    pub fill: u32,
    /// Slots of COMPLETION.
    pub completion: u32,
    /// Slots of RX.
    pub rx: u32,
    /// Slots of TX.
    pub tx: u32,
    /// See [`Mode`].
    pub mode: Mode,
    /// The kernel says when it must be woken, which saves system calls.
    pub need_wakeup: bool,
    /// Packets longer than a frame, if the kernel supports them (6.6).
    pub several_frames: bool,
    /// See [`BusyPoll`].
    pub busy_poll: Option<BusyPoll>,
    /// Packets that one system call sends in copy mode, if the kernel can set it (6.17); otherwise
    /// 32.
    pub tx_budget: Option<u32>,
}

impl Default for SocketConfig {
    fn default() -> Self {
        Self {
            fill: 2048,
            completion: 2048,
            rx: 1024,
            tx: 2048,
            mode: Mode::Auto,
            need_wakeup: true,
            several_frames: true,
            busy_poll: None,
            tx_budget: None,
        }
    }
}

/// The settings that the kernel granted; they may be less than those that were asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Granted {
    /// Whether the driver puts packets into the UMEM itself, as the kernel says (`XDP_OPTIONS`).
    pub zero_copy: bool,
    /// Whether packets may be longer than a frame.
    pub several_frames: bool,
    /// Whether another socket's registration of the UMEM is used (`XDP_SHARED_UMEM`).
    pub shared_umem: bool,
    /// A sentence for each wish that was not granted.
    pub refusals: Vec<String>,
}

/// The kernel's counters of a socket (struct xdp_statistics).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KernelCounts {
    /// Packets dropped on reception for other reasons than those below.
    pub rx_dropped: u64,
    /// Addresses in FILL that the kernel did not take.
    pub rx_invalid_descs: u64,
    /// Descriptors in TX that it did not take.
    pub tx_invalid_descs: u64,
    /// Packets dropped because RX was full.
    pub rx_ring_full: u64,
    /// Packets that found no frame in FILL.
    pub rx_fill_ring_empty_descs: u64,
    /// Times that it read TX and found nothing.
    pub tx_ring_empty_descs: u64,
}

/// The kernel's side of a [`Socket`].
#[derive(Debug)]
pub struct Handle {
    fd: Arc<OwnedFd>,
    /// For messages: "eth0, queue 3".
    on: String,
    granted: Granted,
    places: ring_mapping::Places,
}

impl Handle {
    /// The address range of each ring, with its name.
    pub(crate) fn rings(&self) -> &ring_mapping::Places {
        &self.places
    }
}

/// The state in which a process left a socket that it offers to its successor ([`Socket::leave`]).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftSocket {
    on: String,
    /// Slots of FILL, COMPLETION, RX and TX.
    slots: [u32; 4],
    usage: Use,
    granted: Granted,
    left: Left,
}

/// A queue of an interface.
pub type Socket = Queue<Handle>;

impl Kernel for Handle {
    fn wake_rx(&mut self) -> io::Result<()> {
        match rustix::net::recv(&self.fd, &mut [0_u8; 0], RecvFlags::DONTWAIT) {
            Ok(_) | Err(Errno::AGAIN | Errno::BUSY | Errno::NOBUFS) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }

    fn wake_tx(&mut self) -> io::Result<Wake> {
        match rustix::net::send(&self.fd, &[], SendFlags::DONTWAIT) {
            Ok(_) => Ok(Wake::Done),
            Err(Errno::AGAIN | Errno::BUSY | Errno::NOBUFS) => Ok(Wake::Again),
            Err(e) => Err(e.into()),
        }
    }

    fn close(&mut self) -> bool {
        let Ok(watcher) = watcher_of(self.fd.as_fd()) else { return false };
        // Closes this process's own.
        self.fd = Arc::new(watcher);
        // A child that another thread is starting has it open until it executes.
        (0..100).any(|_| {
            let gone = knows_nobody(self.fd.as_fd());
            if !gone {
                thread::sleep(Duration::from_millis(1));
            }
            gone
        })
    }
}

impl Socket {
    /// Opens a socket on a queue of an interface in the calling thread's network namespace.
    /// Requires CAP_NET_RAW.
    ///
    /// If another socket has the queue, this waits for half a second, because a socket that was
    /// just closed still has it.
    ///
    /// Nothing arrives before an XDP program redirects into it: [`crate::Redirect`], or a program
    /// of yours.
    ///
    /// # Errors
    /// See [`SetupError`].
    pub fn open(
        pool: &Pool,
        interface: &str,
        queue: u32,
        config: &SocketConfig,
    ) -> Result<Self, SetupError> {
        let fd = sys::socket().map_err(|e| SetupError::new(Step::Open, interface, e))?;
        Self::open_on(fd, pool, interface, queue, config)
    }

    /// The same on a new AF_XDP socket that another process has opened and handed over. Requires no
    /// capability.
    ///
    /// # Errors
    /// See [`SetupError`].
    pub fn open_on(
        fd: OwnedFd,
        pool: &Pool,
        interface: &str,
        queue: u32,
        config: &SocketConfig,
    ) -> Result<Self, SetupError> {
        let on = format!("{interface}, queue {queue}");
        let sizes = [config.fill, config.completion, config.rx, config.tx];
        if !sizes.iter().all(|n| is_ring_size(*n)) {
            return Err(SetupError::of(Step::Ring, on, Cause::RingSize));
        }
        let ifindex = interface_index(interface).map_err(|source| SetupError {
            step: Step::Bind,
            on: interface.into(),
            cause: Cause::NoInterface,
            source,
        })?;
        let fd = Arc::new(fd);
        let failed = |step| {
            let on = &on;
            move |e| SetupError::new(step, on, e)
        };
        ring_mapping::make(fd.as_fd(), config).map_err(failed(Step::Ring))?;
        // Before it is bound: afterwards it takes Linux 6.4 (xsk_mmap, net/xdp/xsk.c).
        // SAFETY: they have just been made, in these sizes, which works once for a socket; only
        // `Socket::take_over` maps them again, and says what that takes.
        let (rings, places) =
            unsafe { ring_mapping::rings(&fd, config) }.map_err(failed(Step::Ring))?;
        let usage = Use {
            fill: config.fill,
            need_wakeup: config.need_wakeup,
            busy_poll: config.busy_poll.is_some(),
            several_frames: false,
        };
        let handle = Handle { fd, on: on.clone(), granted: Granted::default(), places };
        let mut socket = Queue::new(pool, rings, handle, usage)
            .map_err(|_| SetupError::of(Step::Ring, &on, Cause::TooManyQueues))?;
        // Before it is bound: a driver in zero-copy takes frames for its own ring then, and igb
        // asks for none later that it has not got. To send alone, too: ice and i40e lose frames
        // otherwise.
        socket.prime().map_err(|e| failed(Step::Ring)(io::Error::other(e)))?;
        // Borrowed: dropped after an error, the socket is open no longer than its queue.
        let fd = &socket.kernel().fd;
        let mut granted = bind(fd, pool, ifindex, queue, config, whole(interface, pool))
            .map_err(|(step, e)| bind_error(step, e, interface, queue, config))?;
        granted.zero_copy = zero_copy(fd.as_fd()).map_err(failed(Step::Option))?;
        if granted.zero_copy != (config.mode == Mode::ZeroCopy) && config.mode != Mode::Auto {
            return Err(SetupError::of(Step::Bind, on, Cause::NotGranted));
        }
        options(fd.as_fd(), config, &mut granted.refusals).map_err(failed(Step::Option))?;
        pool.umem().shared_with(fd, granted.several_frames);
        pool.inner().name_queue(socket.number(), &on);
        socket.begin(Use { several_frames: granted.several_frames, ..usage });
        socket.kernel_mut().granted = granted;
        if pool.free() == 0 {
            let frames = pool.counts().given;
            socket.kernel_mut().granted.refusals.push(format!(
                "reception has taken all {frames} frames of the pool, so that none is left to be sent: give the UMEM more, or FILL fewer slots"
            ));
        }
        Ok(socket)
    }

    /// The state that a successor needs beside the descriptor
    /// ([`Umem::offer`](crate::Umem::offer)). It continues with the rings as they are. A packet
    /// whose end has not arrived is dropped.
    pub fn leave(&mut self) -> LeftSocket {
        let rings = self.rings();
        let slots = [rings.fill.size(), rings.completion.size(), rings.rx.size(), rings.tx.size()];
        let (on, granted) = (self.name().to_owned(), self.granted().clone());
        LeftSocket { on, slots, usage: self.usage(), granted, left: Queue::leave_queue(self) }
    }

    /// Continues with a predecessor's socket, whose pool this is. Requires Linux 6.4 and no
    /// capability. Use it once the memory is claimed.
    ///
    /// # Safety
    /// `left` is what [`Socket::leave`] returned for this socket when its memory was offered, and
    /// nobody else uses the socket's rings. As for [`Umem::from_file`](crate::Umem::from_file), the
    /// predecessor must be trusted.
    ///
    /// # Errors
    /// See [`SetupError`].
    pub unsafe fn take_over(
        fd: OwnedFd,
        pool: &Pool,
        left: &LeftSocket,
    ) -> Result<Self, SetupError> {
        let on = left.on.clone();
        let [fill, completion, rx, tx] = left.slots;
        if !left.slots.iter().all(|n| is_ring_size(*n)) {
            return Err(SetupError::of(Step::Ring, on, Cause::RingSize));
        }
        let config = SocketConfig { fill, completion, rx, tx, ..SocketConfig::default() };
        let fd = Arc::new(fd);
        // SAFETY: the caller's.
        let rings = unsafe { ring_mapping::rings(&fd, &config) };
        let (rings, places) = rings.map_err(|e| SetupError::new(Step::Ring, &on, e))?;
        pool.umem().shared_with(&fd, left.granted.several_frames);
        let handle = Handle { fd, on: on.clone(), granted: left.granted.clone(), places };
        Queue::resume(pool, rings, handle, left.usage, &left.left)
            .map_err(|_| SetupError::of(Step::Ring, on, Cause::TooManyQueues))
    }

    /// The settings that the kernel granted; they may be less than those that were asked for.
    pub fn granted(&self) -> &Granted {
        &self.kernel().granted
    }

    /// Where it is: "eth0, queue 3".
    pub fn name(&self) -> &str {
        &self.kernel().on
    }

    /// The kernel's counters.
    ///
    /// # Errors
    /// The kernel is older than 5.9.
    pub fn kernel_counts(&self) -> io::Result<KernelCounts> {
        let counts: libc::xdp_statistics = sys::get(self.as_fd(), libc::XDP_STATISTICS)?;
        Ok(KernelCounts {
            rx_dropped: counts.rx_dropped,
            rx_invalid_descs: counts.rx_invalid_descs,
            tx_invalid_descs: counts.tx_invalid_descs,
            rx_ring_full: counts.rx_ring_full,
            rx_fill_ring_empty_descs: counts.rx_fill_ring_empty_descs,
            tx_ring_empty_descs: counts.tx_ring_empty_descs,
        })
    }

    /// Sleeps until packets have arrived, or TX has room while frames are unsent, at most for this
    /// time. Returns whether it was woken.
    ///
    /// # Errors
    /// Those of poll(2); an interruption by a signal is none.
    pub fn wait(&self, timeout: Duration) -> io::Result<bool> {
        let unsent = if self.unsent() > 0 { PollFlags::OUT } else { PollFlags::empty() };
        let mut fds = [PollFd::new(&self.kernel().fd, PollFlags::IN | unsent)];
        let timeout = Timespec::try_from(timeout).ok();
        match poll(&mut fds, timeout.as_ref()) {
            Ok(ready) => Ok(ready > 0),
            Err(Errno::INTR) => Ok(false),
            Err(e) => Err(e.into()),
        }
    }

    /// Asks the kernel whether the socket still has its interface, and whether that is up: rings do
    /// not show it.
    ///
    /// # Errors
    /// [`Error::Wake`] with ENXIO if the interface is gone, with ENETDOWN if it is down.
    pub fn check(&mut self) -> Result<(), Error> {
        self.probe()
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.kernel().fd.as_fd()
    }
}

/// Whether a frame has room for every packet of the interface; false where that cannot be read.
fn whole(interface: &str, pool: &Pool) -> bool {
    /// Ethernet's header, and a tag.
    const FRAMING: u32 = 18;
    let mtu = sys::interface_mtu(interface);
    mtu.is_ok_and(|mtu| mtu.saturating_add(FRAMING) <= pool.umem().room())
}

/// Binds with the wished settings, then with less. Returns the settings obtained, or the step that
/// failed. `whole`: zero-copy matters more than packets of several frames.
fn bind(
    fd: &Arc<OwnedFd>,
    pool: &Pool,
    ifindex: u32,
    queue: u32,
    config: &SocketConfig,
    whole: bool,
) -> Result<Granted, (Step, io::Error)> {
    let umem = pool.umem();
    let mut granted = Granted {
        zero_copy: false,
        several_frames: config.several_frames,
        shared_umem: true,
        refusals: Vec::new(),
    };
    if let Some((other, several_frames)) = umem.shared_by() {
        let shared = Some(other.as_fd());
        match patiently(|| sys::bind(fd.as_fd(), ifindex, queue, libc::XDP_SHARED_UMEM, shared)) {
            Ok(()) => return Ok(Granted { several_frames, ..granted }),
            Err(e) if !worth_another_try(&e) => return Err((Step::Bind, e)),
            // Another driver, which cannot do what the first can: it gets a registration of its
            // own.
            Err(_) => {}
        }
    }
    granted.shared_umem = false;
    umem.register(fd.as_fd()).map_err(|e| (Step::Register, e))?;
    let mode = match config.mode {
        Mode::Auto => 0,
        Mode::Copy => libc::XDP_COPY,
        Mode::ZeroCopy => libc::XDP_ZEROCOPY,
    };
    let wakeup = if config.need_wakeup { libc::XDP_USE_NEED_WAKEUP } else { 0 };
    let bind =
        |more| patiently(|| sys::bind(fd.as_fd(), ifindex, queue, mode | wakeup | more, None));
    // A kernel that may choose gives several frames with copies where the driver has one frame in
    // zero-copy, and one that refuses several frames shortens the others for them nevertheless
    // (xp_assign_dev, net/xdp/xsk_buff_pool.c). Whatever the driver lacks: copies, then.
    if config.mode == Mode::Auto && whole && bind(libc::XDP_ZEROCOPY).is_ok() {
        return Ok(Granted { several_frames: false, ..granted });
    }
    if config.several_frames {
        match bind(libc::XDP_USE_SG) {
            Ok(()) => return Ok(granted),
            Err(e) if !worth_another_try(&e) => return Err((Step::Bind, e)),
            Err(e) => {
                let why = "packets of several frames refused: it takes Linux 6.6 and, for zero-copy, a driver that has them";
                granted.refusals.push(format!("{why} ({e})"));
            }
        }
    }
    granted.several_frames = false;
    bind(0).map_err(|e| (Step::Bind, e)).map(|()| granted)
}

/// If the queue exists, a driver that was asked for zero-copy refuses that.
fn bind_error(
    step: Step,
    source: io::Error,
    interface: &str,
    queue: u32,
    config: &SocketConfig,
) -> SetupError {
    let on = format!("{interface}, queue {queue}");
    let mut error = SetupError::new(step, on, source);
    let device = Path::new("/sys/class/net").join(interface);
    let there = device.join(format!("queues/rx-{queue}")).exists();
    if error.cause == Cause::NoQueue && config.mode == Mode::ZeroCopy && there {
        error.cause = Cause::ZeroCopyRefused;
    }
    if matches!(error.cause, Cause::NoZeroCopy | Cause::ZeroCopyRefused) {
        error.on += &driver_and_kernel(&device);
    }
    error
}

/// " (driver igb, Linux 6.12.1)": what a driver has depends on the kernel. No driver is named where
/// there is none, or /sys is that of another network namespace.
pub(crate) fn driver_and_kernel(device: &Path) -> String {
    let driver = fs::read_link(device.join("device/driver")).ok();
    let driver = driver.as_deref().and_then(Path::file_name).map(|name| name.to_string_lossy());
    let driver = driver.map_or(String::new(), |driver| format!("driver {driver}, "));
    format!(" ({driver}Linux {})", rustix::system::uname().release().to_string_lossy())
}

/// The kernel releases a queue a moment after its socket was closed (xp_release_deferred,
/// net/xdp/xsk_buff_pool.c).
fn patiently(bind: impl Fn() -> io::Result<()>) -> io::Result<()> {
    const PAUSE: Duration = Duration::from_millis(5);
    let mut patience = 100;
    loop {
        match bind() {
            Err(e) if e.raw_os_error() == Some(libc::EBUSY) && patience > 0 => thread::sleep(PAUSE),
            other => return other,
        }
        patience -= 1;
    }
}

/// An epoll instance that knows this socket alone. It forgets it with the last of the socket's
/// descriptors and mappings, in whatever process these are.
fn watcher_of(socket: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let watcher = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    epoll::add(&watcher, socket, epoll::EventData::new_u64(0), epoll::EventFlags::empty())?;
    Ok(watcher)
}

fn knows_nobody(watcher: BorrowedFd<'_>) -> bool {
    // A line for each file that it knows (proc_pid_fdinfo(5)).
    let known = fs::read_to_string(format!("/proc/self/fdinfo/{}", watcher.as_raw_fd()));
    known.is_ok_and(|known| !known.contains("tfd:"))
}

fn is_ring_size(slots: u32) -> bool {
    slots.is_power_of_two() && slots <= 1 << 20
}

fn worth_another_try(error: &io::Error) -> bool {
    !matches!(
        error.raw_os_error(),
        Some(libc::EBUSY | libc::ENODEV | libc::EPERM | libc::ENETDOWN | libc::ENOMEM)
    )
}

fn zero_copy(fd: BorrowedFd<'_>) -> io::Result<bool> {
    let options: libc::xdp_options = sys::get(fd, libc::XDP_OPTIONS)?;
    Ok(options.flags & libc::XDP_OPTIONS_ZEROCOPY != 0)
}

/// Sets the options that follow binding. A caller who asks for busy polling relies on it, so its
/// refusal is an error; the refusal of a budget is none.
fn options(
    fd: BorrowedFd<'_>,
    config: &SocketConfig,
    refusals: &mut Vec<String>,
) -> io::Result<()> {
    if let Some(BusyPoll { micros, budget }) = config.busy_poll {
        sys::set(fd, libc::SOL_SOCKET, sys::SO_PREFER_BUSY_POLL, &1_u32)?;
        sys::set(fd, libc::SOL_SOCKET, sys::SO_BUSY_POLL, &micros)?;
        sys::set(fd, libc::SOL_SOCKET, sys::SO_BUSY_POLL_BUDGET, &budget)?;
    }
    if let Some(budget) = config.tx_budget
        && let Err(e) = sys::set(fd, libc::SOL_XDP, sys::XDP_MAX_TX_SKB_BUDGET, &budget)
        // Before Linux 6.17 there is nothing to set.
        && e.raw_os_error() != Some(libc::ENOPROTOOPT)
    {
        refusals.push(format!(
            "a TX budget of {budget} refused: it takes at least 32 and at most the slots of TX ({e})"
        ));
    }
    Ok(())
}

/// The AF_XDP socket's own ioctl would not tell.
pub(crate) fn interface_index(name: &str) -> io::Result<u32> {
    use rustix::net::{AddressFamily, SocketType, netdevice::name_to_index, socket};
    let any = socket(AddressFamily::UNIX, SocketType::DGRAM, None)?;
    Ok(name_to_index(&any, name)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_tells_an_mtu() {
        let mtu = fs::read_to_string("/sys/class/net/lo/mtu").unwrap();
        assert_eq!(sys::interface_mtu("lo").unwrap().to_string(), mtu.trim());
        for none in ["ringway-none", "a name that is longer"] {
            sys::interface_mtu(none).unwrap_err();
        }
    }

    /// The meaning of EINVAL on binding to this queue, where the interface has queue 0 alone.
    fn refused(driver: Option<&str>, mode: Mode, queue: u32) -> SetupError {
        let name = format!("ringway-bind-{}-{driver:?}-{mode:?}-{queue}", std::process::id());
        // A path in the place of a name is not looked up below /sys.
        let device = std::env::temp_dir().join(name);
        fs::create_dir_all(device.join("queues/rx-0")).unwrap();
        fs::create_dir(device.join("device")).unwrap();
        if let Some(driver) = driver {
            let bus = Path::new("../../../../bus/virtio/drivers").join(driver);
            std::os::unix::fs::symlink(bus, device.join("device/driver")).unwrap();
        }
        let config = SocketConfig { mode, ..SocketConfig::default() };
        let einval = io::Error::from_raw_os_error(libc::EINVAL);
        let mut error = bind_error(Step::Bind, einval, device.to_str().unwrap(), queue, &config);
        fs::remove_dir_all(&device).unwrap();
        error.on = error.on.replace(device.to_str().unwrap(), "eth2");
        error
    }

    #[test]
    fn a_driver_that_refuses_zero_copy_is_named_with_the_way_out() {
        let virtio = refused(Some("virtio_net"), Mode::ZeroCopy, 0);
        assert_eq!(virtio.cause, Cause::ZeroCopyRefused);
        let said = virtio.to_string();
        assert!(
            said.starts_with("eth2, queue 0 (driver virtio_net, Linux ")
                && said.contains("): binding: its driver refuses"),
            "{said}"
        );
        for words in [
            "ask for copies, or leave the choice to the kernel",
            "virtio_net has it from Linux 6.13 on",
            "iommu_platform=on",
            "mergeable buffers",
            "Invalid argument",
        ] {
            assert!(said.contains(words), "{words:?} not in {said}");
        }
        // Without a driver's name, too.
        let nameless = refused(None, Mode::ZeroCopy, 0);
        assert_eq!(nameless.cause, Cause::ZeroCopyRefused);
        assert!(nameless.on.starts_with("eth2, queue 0 (Linux "), "{nameless}");
        // A queue that is not there, and a kernel that had the choice, mean something else.
        for (mode, queue) in [(Mode::ZeroCopy, 1), (Mode::Auto, 0), (Mode::Copy, 0)] {
            let other = refused(Some("virtio_net"), mode, queue);
            assert_eq!(
                (other.cause, other.on.contains("virtio")),
                (Cause::NoQueue, false),
                "{mode:?}"
            );
        }
    }
}
