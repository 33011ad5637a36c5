//! `af_xdp:IFACE:QUEUE`: an AF_XDP socket, and the XDP program that brings a queue's packets into
//! it: past the kernel's stack, and without a copy where the driver can.
//!
//! All that arrives at the queue comes here, whatever it is, unless the engine has a program that
//! chooses ([`Programs`](crate::programs::Programs)). So an interface that carries the default
//! route is refused in the machine's first network namespace, unless it is forced.
//!
//! A port detects the loss of its link, its interface or its program when it is checked. By policy
//! the loss ends the worker; or the port closes, takes nothing to send, and opens itself again when
//! all is back, while the worker's other ports continue.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;

use ringway_host::Host;
use ringway_host::ethtool::Ethtool;
use ringway_host::netlink::xdp_features::{self, Features};
use ringway_wire::Mac;
use ringway_xsk::{
    Batch, BusyPoll, Cause, Error, LeftSocket, Mode, Pool, Redirect, Rings, SetupError, Socket,
    SocketConfig, Step, XdpMode,
};
use tracing::{info, warn};

use crate::port::{LeftPort, Obtained, Port, PortError, PortStatistics};
use crate::port_context::PortContext;
use crate::programs::keep;

/// Packets that a system call sends in copy mode: all of some bursts. With the kernel's 32 a burst
/// of 64 takes two, and forwarding and sending are slower by a tenth.
const TX_BUDGET: u32 = 256;

/// No driver's ring is longer.
const MOST_FILL: u32 = 1 << 15;

/// Ethernet's header, and a tag.
const FRAMING: u32 = 18;

/// The settings of a socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Of the calling thread's network namespace.
    pub interface: String,
    /// Below [`QUEUES`].
    pub queue: u32,
    pub mode: Mode,
    /// Where the program runs; none: in the driver if it can, else behind it.
    pub xdp_mode: Option<XdpMode>,
    /// Even if the interface carries the default route.
    pub force: bool,
    /// Slots of RX; the other rings have twice as many. A power of two.
    pub ring: u32,
    /// The driver works within the worker's calls, where the kernel has that.
    pub busy_poll: Option<BusyPoll>,
    pub on_loss: OnLoss,
}

impl Config {
    /// A queue of an interface; all else by default.
    pub fn new(interface: impl Into<String>, queue: u32) -> Self {
        Self {
            interface: interface.into(),
            queue,
            mode: Mode::default(),
            xdp_mode: None,
            force: false,
            ring: SocketConfig::default().rx,
            busy_poll: None,
            on_loss: OnLoss::default(),
        }
    }
}

/// The policy of a port that has lost its link, its interface or its program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnLoss {
    /// It ends its worker, with what was lost as the error.
    #[default]
    Exit,
    /// It waits for an interface of that name to be there and up, and opens itself again.
    Reopen,
}

/// A queue of an interface.
pub struct AfXdp {
    name: String,
    config: Config,
    pool: Pool,
    context: PortContext,
    /// None: lost.
    open: Option<Open>,
    /// The counters of sockets that were lost.
    before: PortStatistics,
    /// Why it cannot be opened again, as said last.
    said: String,
}

struct Open {
    // Fields are dropped in this order: the socket leaves before its program.
    socket: Socket,
    redirect: Arc<Redirect>,
    mac: Option<Mac>,
    mtu: usize,
    /// Packets longer than that.
    too_long: u64,
}

impl AfXdp {
    /// Opens a queue. Sockets on several queues of one interface have one program.
    ///
    /// # Errors
    /// Where the interface or its queue is not there, taken or guarded, the pool has too few
    /// frames, or this process may not.
    pub fn open(
        name: String,
        pool: &Pool,
        config: &Config,
        context: &PortContext,
    ) -> Result<Self, PortError> {
        let open = match context.predecessor().and_then(|old| old.socket(&name)) {
            Some(left) => take_over(&name, pool, config, context, left)?,
            None => {
                // One that waits for it finds out that it is down, and waits.
                if config.on_loss == OnLoss::Exit {
                    up(&name, config)?;
                }
                open(&name, pool, config, context)?
            }
        };
        let (config, pool, context) = (config.clone(), pool.clone(), context.clone());
        let (before, said) = (PortStatistics::default(), String::new());
        Ok(Self { name, config, pool, context, open: Some(open), before, said })
    }

    /// The socket, with what was obtained of what was asked for; none while it is lost.
    pub fn socket(&self) -> Option<&Socket> {
        self.open.as_ref().map(|open| &open.socket)
    }

    fn failed(&self, source: Error) -> PortError {
        let interface = self.config.interface.clone();
        PortError::Queue { port: self.name.clone(), interface, source }
    }

    /// Whether the socket and the program are where they were.
    fn sample(&mut self) -> Result<(), PortError> {
        let Some(open) = &mut self.open else { return Ok(()) };
        let checked = open.socket.check();
        let attached = open.redirect.is_attached();
        checked.map_err(|e| self.failed(e))?;
        match attached {
            Ok(true) => Ok(()),
            Ok(false) => Err(PortError::Detached { port: self.name.clone() }),
            Err(source) => Err(PortError::System {
                port: self.name.clone(),
                interface: self.config.interface.clone(),
                what: "looking at its XDP program",
                source,
                remedy: "start anew",
            }),
        }
    }

    /// Closes, and waits; or fails, if that is the policy or it would not help.
    fn lost(&mut self, error: PortError) -> Result<(), PortError> {
        let ring = matches!(&error, PortError::Queue { source: Error::Ring { .. }, .. });
        if self.config.on_loss == OnLoss::Exit || ring {
            return Err(error);
        }
        warn!("lost, to be opened again when it is back: {error}");
        self.before = self.statistics();
        self.before.lost_times += 1;
        self.open = None;
        Ok(())
    }

    fn reopen(&mut self) {
        let (name, config) = (&self.name, &self.config);
        let opened = up(name, config).and_then(|()| open(name, &self.pool, config, &self.context));
        match opened {
            Ok(open) => {
                info!("{} is back", self.name);
                self.open = Some(open);
                self.said.clear();
            }
            Err(error) => {
                let error = error.to_string();
                if error != self.said {
                    warn!("not back yet: {error}");
                    self.said = error;
                }
            }
        }
    }
}

fn open(
    name: &str,
    pool: &Pool,
    config: &Config,
    context: &PortContext,
) -> Result<Open, PortError> {
    let port = || name.to_owned();
    let interface = ringway_host::interface_by_name(&config.interface)
        .map_err(|source| PortError::Host { port: port(), source })?;
    let refused = |(why, remedy)| PortError::Refused { port: port(), why, remedy };
    let first = || Host::live().first_network_namespace();
    refuse_default_route(interface.carries_default_route, config.force, first).map_err(refused)?;
    let (mut mode, busy_poll) = (config.mode, config.busy_poll);
    if let Some(why) =
        in_pieces(&driver_name(&config.interface), interface.link.mtu, pool.umem().room())
    {
        match mode {
            Mode::Copy => {}
            Mode::Auto => {
                mode = Mode::Copy;
                warn!("{name}: copied: {why}; with --frame-size 4096 it has zero-copy");
            }
            Mode::ZeroCopy => return Err(refused((why, "start it with --frame-size 4096"))),
        }
    }
    let (rx, twice) = (config.ring, 2 * config.ring);
    let wanted = SocketConfig {
        fill: twice,
        completion: twice,
        rx,
        tx: twice,
        mode,
        busy_poll,
        tx_budget: Some(TX_BUDGET),
        ..SocketConfig::default()
    };
    let ring = ring_frames(wanted.fill, rx_ring(&config.interface));
    let fill = if ring < pool.free() { ring } else { wanted.fill };
    let wanted = SocketConfig { fill, ..wanted };
    enough(pool.free(), wanted.fill).map_err(refused)?;
    let setup = |source| setup_failed(name, config, source);
    let redirect =
        context.redirect(&config.interface, || attach(config, context)).map_err(setup)?;
    // There is no zero-copy behind the driver, and some drivers grant it.
    let behind = redirect.mode() == XdpMode::Generic && wanted.mode == Mode::Auto;
    let wanted = if behind { SocketConfig { mode: Mode::Copy, ..wanted } } else { wanted };
    let socket = Socket::open(pool, &config.interface, config.queue, &wanted).map_err(setup)?;
    redirect.map().insert(config.queue, &socket).map_err(setup)?;
    if let Some(short) = short(ring, fill, pool.counts().given)
        && socket.granted().zero_copy
    {
        warn!("{name}: {short}");
    }
    let mac = interface.link.mac.map(|mac| Mac(mac.0));
    Ok(Open { socket, redirect, mac, mtu: interface.link.mtu as usize, too_long: 0 })
}

/// Why packets would arrive in pieces, each as if it were one, in zero-copy: these drivers tell their
/// NICs the room of a frame in whole KiB (igb_setup_srrctl, igc_configure_rx_ring,
/// ixgbe_configure_srrctl).
fn in_pieces(driver: &str, mtu: u32, room: u32) -> Option<String> {
    let (whole, longest) = (room / 1024 * 1024, mtu + FRAMING);
    (matches!(driver, "igb" | "igc" | "ixgbe") && longest > whole).then(|| {
        format!(
            "in zero-copy {driver} puts {whole} bytes into a frame with room for {room}, and a packet has up to {longest}"
        )
    })
}

fn driver_name(interface: &str) -> String {
    let driver = Ethtool::open().and_then(|ethtool| ethtool.driver(interface)).ok().flatten();
    driver.unwrap_or_default().name
}

/// Slots of the driver's own ring; none where it does not tell.
fn rx_ring(interface: &str) -> Option<u32> {
    Ethtool::open().ok()?.rings(interface).ok()?.map(|rings| rings.rx)
}

/// Frames for reception, if there are so many: in zero-copy the driver takes as many as its ring
/// has at once.
fn ring_frames(usual: u32, rx_ring: Option<u32>) -> u32 {
    rx_ring.unwrap_or(0).min(MOST_FILL).next_power_of_two().max(usual)
}

/// Some drivers never ask again for frames that they lacked. `given`: frames of the whole pool.
fn short(ring: u32, fill: u32, given: u64) -> Option<String> {
    let frames = given + u64::from(ring);
    (fill < ring).then(|| {
        format!(
            "the driver takes {ring} frames for its RX ring and gets {fill}, so packets may be lost: \
             give each worker more (`--frames {frames}`)"
        )
    })
}

/// The kernel opens sockets on an interface that is down, and nothing comes or goes then.
fn up(name: &str, config: &Config) -> Result<(), PortError> {
    let host = |source| PortError::Host { port: name.to_owned(), source };
    if ringway_host::netlink::links::by_name(&config.interface).map_err(host)?.up {
        return Ok(());
    }
    let (port, interface) = (name.to_owned(), config.interface.clone());
    let alternative = match config.on_loss {
        OnLoss::Exit => ", or have it waited for (`--on-loss reopen`)",
        OnLoss::Reopen => "",
    };
    Err(PortError::Down { port, interface, alternative })
}

fn setup_failed(name: &str, config: &Config, source: SetupError) -> PortError {
    PortError::Setup { port: name.to_owned(), interface: config.interface.clone(), source }
}

/// Why not, and what to do.
type Refusal = (String, &'static str);

/// Refuses an interface that carries the default route: a remote user would lose this machine.
fn refuse_default_route(
    default_route: bool,
    force: bool,
    first: impl FnOnce() -> bool,
) -> Result<(), Refusal> {
    if !default_route || force || !first() {
        return Ok(());
    }
    let why = "it carries the default route: all that it receives would end here, ssh too";
    let remedy = "take another, or add `,force` if there is another way to this machine, or if `--only` leaves that to the kernel";
    Err((why.into(), remedy))
}

/// Reception takes its frames at once, and some must be left.
fn enough(free: u32, fill: u32) -> Result<(), Refusal> {
    if free > fill {
        return Ok(());
    }
    let why = format!("{free} frames of the pool are free, and reception takes {fill}");
    Err((
        why,
        "give each worker some thousands more for each of its ports: `--frames 16384`; or shorter rings: `--ring 256`",
    ))
}

/// Continues with a predecessor's socket and program.
fn take_over(
    name: &str,
    pool: &Pool,
    config: &Config,
    context: &PortContext,
    (socket, left, mac): (OwnedFd, LeftSocket, Option<Mac>),
) -> Result<Open, PortError> {
    let setup = |source| setup_failed(name, config, source);
    let redirect =
        context.redirect(&config.interface, || attach(config, context)).map_err(setup)?;
    // SAFETY: both come from the predecessor that gave the memory (`Predecessor::ask`), and each
    // socket is had once.
    let socket = unsafe { Socket::take_over(socket, pool, &left) }.map_err(setup)?;
    let link = ringway_host::netlink::links::by_name(&config.interface);
    let mtu = link.map_err(|source| PortError::Host { port: name.to_owned(), source })?.mtu;
    let other = other_mode(config, redirect.mode(), socket.granted().zero_copy);
    match other {
        Some(option) => Err(PortError::Refused {
            port: name.to_owned(),
            why: format!("the running engine has it as `{option}`"),
            remedy: "it is taken over as it is: write that, or leave it out",
        }),
        None => Ok(Open { socket, redirect, mac, mtu: mtu as usize, too_long: 0 }),
    }
}

/// The mode of a socket that is open, if another mode is asked for.
fn other_mode(config: &Config, xdp_mode: XdpMode, zero_copy: bool) -> Option<&'static str> {
    match (config.xdp_mode, config.mode) {
        (Some(asked), _) if asked != xdp_mode => Some(xdp_mode.name()),
        (_, Mode::Copy) if zero_copy => Some("zero-copy"),
        (_, Mode::ZeroCopy) if !zero_copy => Some("copy"),
        _ => None,
    }
}

fn attach(config: &Config, context: &PortContext) -> Result<Redirect, SetupError> {
    let interface = &config.interface;
    let programs = context.programs();
    let load = |frames| programs.load(interface, frames);
    let attach = |mode| Redirect::attach_program(interface, mode, load);
    let zero_copy = (config.mode == Mode::ZeroCopy).then_some(XdpMode::Native);
    let mode = config.xdp_mode.or(zero_copy);
    let redirect = match (programs.left(interface, mode), mode) {
        (Some((link, mode)), _) => Redirect::replace_program(interface, &link, mode, load),
        (None, Some(mode)) => attach(mode),
        (None, None) => attach(XdpMode::Native).or_else(|_| attach(XdpMode::Generic)),
    }?;
    if programs.outlive() {
        keep(programs, interface, &redirect).map_err(|source| SetupError {
            step: Step::Keep,
            on: interface.clone(),
            cause: Cause::Other,
            source,
        })?;
    }
    Ok(redirect)
}

/// The driver's features. Failure to read them is no reason to refuse the port.
fn driver(interface: &str) -> Option<Features> {
    let ifindex = ringway_host::netlink::links::by_name(interface).ok()?.ifindex;
    let devices = xdp_features::devices().unwrap_or_else(|error| {
        warn!("{interface}: {error}");
        None
    });
    devices?.remove(&ifindex)
}

impl Port for AfXdp {
    fn name(&self) -> &str {
        &self.name
    }

    fn rx_burst(&mut self, batch: &mut Batch) -> Result<usize, PortError> {
        let Some(open) = &mut self.open else { return Ok(0) };
        let before = batch.len();
        match open.socket.receive(batch) {
            Ok(received) => Ok(received),
            Err(e) => self.lost(self.failed(e)).map(|()| batch.len() - before),
        }
    }

    fn tx_burst(&mut self, batch: &mut Batch) -> Result<usize, PortError> {
        let Some(open) = &mut self.open else { return Ok(0) };
        open.too_long += super::drop_too_long(batch, open.mtu);
        let before = open.socket.counts().sent_packets;
        match open.socket.send(batch) {
            Ok(sent) => Ok(sent),
            Err(e) => {
                let sent = open.socket.counts().sent_packets - before;
                // No more than were in the batch.
                self.lost(self.failed(e)).map(|()| sent as usize)
            }
        }
    }

    fn statistics(&mut self) -> PortStatistics {
        let Some(open) = &self.open else { return PortStatistics { lost: true, ..self.before } };
        let counts = open.socket.counts();
        let kernel = open.socket.kernel_counts().ok();
        self.before.then(&PortStatistics {
            received_packets: counts.received_packets,
            transmitted_packets: counts.sent_packets,
            tx_full_packets: counts.tx_full_packets,
            unsendable_packets: counts.unsendable_packets + open.too_long,
            no_frame_times: counts.starved_times,
            too_long_packets: 0,
            filled_frames: Some(counts.filled_frames),
            completed_frames: Some(counts.completed_frames),
            kernel_rx_dropped_packets: kernel.map(|kernel| kernel.rx_dropped),
            kernel_rx_invalid_descs: kernel.map(|kernel| kernel.rx_invalid_descs),
            kernel_tx_invalid_descs: kernel.map(|kernel| kernel.tx_invalid_descs),
            kernel_rx_ring_full_packets: kernel.map(|kernel| kernel.rx_ring_full),
            kernel_fill_ring_empty_times: kernel.map(|kernel| kernel.rx_fill_ring_empty_descs),
            lost_times: 0,
            lost: false,
        })
    }

    fn readable(&self) -> Option<BorrowedFd<'_>> {
        self.socket().map(|socket| socket.as_fd())
    }

    fn rings(&self) -> Option<&Rings> {
        self.socket().map(|socket| socket.rings())
    }

    fn check(&mut self) -> Result<(), PortError> {
        if self.open.is_none() {
            self.reopen();
            return Ok(());
        }
        self.sample().or_else(|error| self.lost(error))
    }

    fn leave(&mut self) -> Option<LeftPort> {
        let open = self.open.as_mut()?;
        Some(LeftPort {
            name: self.name.clone(),
            interface: self.config.interface.clone(),
            socket: open.socket.as_fd().try_clone_to_owned().ok()?,
            left: open.socket.leave(),
            redirect: open.redirect.clone(),
            chooses: self.context.programs().choice().to_owned(),
            mac: open.mac,
        })
    }

    fn mac(&self) -> Option<Mac> {
        self.open.as_ref()?.mac
    }

    fn obtained(&self) -> Option<Obtained> {
        let open = self.open.as_ref()?;
        let granted = open.socket.granted();
        let chosen = match open.redirect.mode() {
            XdpMode::Native => self.config.mode == Mode::Copy,
            _ => self.config.xdp_mode == Some(XdpMode::Generic),
        };
        Some(Obtained {
            interface: self.config.interface.clone(),
            queue: self.config.queue,
            native: open.redirect.mode() == XdpMode::Native,
            zero_copy: granted.zero_copy,
            chosen,
            several_frames: granted.several_frames && open.redirect.several_frames(),
            driver: driver(&self.config.interface),
            refusals: granted.refusals.clone(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_successor_has_the_mode_that_is_there() {
        let (native, generic) = (Some(XdpMode::Native), Some(XdpMode::Generic));
        for (xdp_mode, mode, is, zero_copy, other) in [
            (None, Mode::Auto, XdpMode::Native, false, None),
            (None, Mode::Auto, XdpMode::Generic, false, None),
            (native, Mode::Copy, XdpMode::Native, false, None),
            (native, Mode::Auto, XdpMode::Generic, false, Some("generic")),
            (generic, Mode::Auto, XdpMode::Native, true, Some("native")),
            (None, Mode::Copy, XdpMode::Native, true, Some("zero-copy")),
            (native, Mode::ZeroCopy, XdpMode::Native, false, Some("copy")),
        ] {
            let config = Config {
                interface: "eth0".into(),
                queue: 0,
                mode,
                xdp_mode,
                force: false,
                ring: 1024,
                busy_poll: None,
                on_loss: OnLoss::Exit,
            };
            assert_eq!(other_mode(&config, is, zero_copy), other, "{xdp_mode:?} {mode:?}");
        }
    }

    #[test]
    fn the_way_to_this_machine_is_guarded() {
        for (default_route, force, first, refused) in [
            (true, false, true, true),
            (false, false, true, false),
            (true, true, true, false),
            // Of a container, say.
            (true, false, false, false),
        ] {
            let said = refuse_default_route(default_route, force, || first);
            assert_eq!(said.is_err(), refused, "{default_route} {force} {first}");
            assert!(said.err().is_none_or(|(_, remedy)| remedy.contains("`,force`")));
        }
        assert!(enough(2049, 2048).is_ok());
        assert!(enough(2048, 2048).is_err_and(|(_, remedy)| remedy.contains("`--frames 16384`")));
    }

    #[test]
    fn some_nics_count_in_whole_kib() {
        assert_eq!(in_pieces("igb", 1500, 3840), None);
        assert_eq!(in_pieces("igb", 1000, 1792), None);
        assert_eq!(in_pieces("ice", 1500, 1792), None);
        let said = in_pieces("igb", 1500, 1792).expect("a reason");
        assert!(said.contains("puts 1024 bytes") && said.contains("up to 1518"), "{said}");
    }

    #[test]
    fn a_pool_too_small_for_the_drivers_ring_is_told() {
        for (rx_ring, wanted) in [
            (None, 2048),
            (Some(256), 2048),
            (Some(4096), 4096),
            (Some(4080), 4096),
            (Some(u32::MAX), 32_768),
        ] {
            assert_eq!(ring_frames(2048, rx_ring), wanted, "{rx_ring:?}");
        }
        assert_eq!(short(8192, 8192, 16_384), None);
        let said = short(8192, 2048, 8192).expect("a warning");
        assert!(said.contains("takes 8192") && said.contains("`--frames 16384`"), "{said}");
    }
}
