//! `af_xdp:IFACE:QUEUE`: an AF_XDP socket, and the XDP program that brings a queue's packets into it: past the kernel's stack, and
//! without a copy where the driver can.
//!
//! All that arrives at the queue comes here, whatever it is. So an interface that carries the default route is refused in the machine's
//! first network namespace, unless it is forced.

use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::Arc;

use ringway_host::Host;
use ringway_wire::Mac;
use ringway_xsk::{Batch, Hook, Mode, Pool, Redirect, Rings, SetupError, Socket, SocketConfig};

use crate::port::{Port, PortError, PortStatistics};
use crate::spec::Commons;

/// Queues that the program knows: 0 to 255.
pub const QUEUES: u32 = 256;

/// What is wanted of a socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Of the calling thread's network namespace.
    pub interface: String,
    /// Below [`QUEUES`].
    pub queue: u32,
    /// See [`Mode`].
    pub mode: Mode,
    /// Where the program runs; none: in the driver if it can, else behind it.
    pub hook: Option<Hook>,
    /// Even if the interface carries the default route.
    pub force: bool,
}

/// A queue of an interface.
pub struct AfXdp {
    name: String,
    // Fields are dropped in this order: the socket leaves before its program.
    socket: Socket,
    _redirect: Arc<Redirect>,
    mac: Option<Mac>,
}

impl AfXdp {
    /// Opens a queue. Sockets on several queues of one interface have one program.
    ///
    /// # Errors
    /// Where the interface or its queue is not there, taken or guarded, the pool has too few frames, or this process may not.
    pub fn open(
        name: String,
        pool: &Pool,
        config: &Config,
        commons: &Commons,
    ) -> Result<Self, PortError> {
        let host = |source| PortError::Host { port: name.clone(), source };
        let interface = ringway_host::interface_by_name(&config.interface).map_err(host)?;
        let refused = |why, remedy| Err(PortError::Refused { port: name.clone(), why, remedy });
        let first = || Host::live().first_network_namespace();
        if interface.carries_default_route && !config.force && first() {
            let why = "it carries the default route: all that it receives would end here".into();
            return refused(
                why,
                "take another, or add `,force` if there is another way to this machine",
            );
        }
        let wanted = SocketConfig { mode: config.mode, ..SocketConfig::default() };
        if pool.free() <= wanted.fill {
            let (free, fill) = (pool.free(), wanted.fill);
            let why = format!("{free} frames of the pool are free, and reception takes {fill}");
            return refused(why, "give each worker some thousands more for each of its ports");
        }
        let setup = |source| PortError::Setup { port: name.clone(), source };
        let redirect = commons.redirect(&config.interface, || attach(config)).map_err(setup)?;
        let socket = Socket::open(pool, &config.interface, config.queue, &wanted).map_err(setup)?;
        redirect.map().insert(config.queue, &socket).map_err(setup)?;
        let mac = interface.link.mac.map(|mac| Mac(mac.0));
        Ok(Self { name, socket, _redirect: redirect, mac })
    }

    /// The socket, with what was obtained of what was asked for.
    pub fn socket(&self) -> &Socket {
        &self.socket
    }

    fn failed(&self) -> impl FnOnce(ringway_xsk::Error) -> PortError + use<'_> {
        |source| PortError::Queue { port: self.name.clone(), source }
    }
}

fn attach(config: &Config) -> Result<Redirect, SetupError> {
    let attach = |hook| Redirect::attach(&config.interface, hook, QUEUES);
    match config.hook {
        Some(hook) => attach(hook),
        None if config.mode == Mode::ZeroCopy => attach(Hook::Native),
        None => attach(Hook::Native).or_else(|_| attach(Hook::Generic)),
    }
}

impl Port for AfXdp {
    fn name(&self) -> &str {
        &self.name
    }

    fn rx_burst(&mut self, batch: &mut Batch) -> Result<usize, PortError> {
        let received = self.socket.receive(batch);
        received.map_err(self.failed())
    }

    fn tx_burst(&mut self, batch: &mut Batch) -> Result<usize, PortError> {
        let sent = self.socket.send(batch);
        sent.map_err(self.failed())
    }

    fn statistics(&mut self) -> PortStatistics {
        let counts = self.socket.counts();
        let kernel = self.socket.kernel_counts().ok();
        PortStatistics {
            received_packets: counts.received_packets,
            transmitted_packets: counts.sent_packets,
            tx_full_packets: counts.tx_full_packets,
            unsendable_packets: counts.unsendable_packets,
            no_frame_times: counts.starved_times,
            filled_frames: Some(counts.filled_frames),
            completed_frames: Some(counts.completed_frames),
            kernel_rx_dropped_packets: kernel.map(|kernel| kernel.rx_dropped),
            kernel_rx_invalid_descs: kernel.map(|kernel| kernel.rx_invalid_descs),
            kernel_tx_invalid_descs: kernel.map(|kernel| kernel.tx_invalid_descs),
            kernel_rx_ring_full_packets: kernel.map(|kernel| kernel.rx_ring_full),
            kernel_fill_ring_empty_times: kernel.map(|kernel| kernel.rx_fill_ring_empty_descs),
        }
    }

    fn readable(&self) -> Option<BorrowedFd<'_>> {
        Some(self.socket.as_fd())
    }

    fn rings(&self) -> Option<&Rings> {
        Some(self.socket.rings())
    }

    fn check(&mut self) -> Result<(), PortError> {
        let checked = self.socket.check();
        checked.map_err(self.failed())
    }

    fn mac(&self) -> Option<Mac> {
        self.mac
    }
}
