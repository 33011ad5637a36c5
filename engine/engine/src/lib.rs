//! Packet programs in user space: bursts go from ports through an app to ports, and a ledger
//! accounts for each packet.
//!
//! ```text
//!             rx_burst                on_burst                    tx_burst
//!  port 0 --.          .-> incoming ---> app: a verdict for each --> waiting --> port 0
//!  port 1 --+- Worker -+                  |- Forward(k)           '-> waiting --> port 1
//!           .          .                  '- Drop(reason) ----> counted, freed
//!  one thread, one pool of frames
//! ```
//! - A [`Port`] receives and sends packets: the kernel ([`ports::AfPacket`], [`ports::AfXdp`]), a
//!   capture file ([`ports::Pcap`]), or another port of this or another worker ([`ports::Memory`]).
//!   Each has a text form ([`PortSpec`]), and an app cannot tell them apart.
//! - An [`App`] decides about packets and may change them in place. The worker keeps owning them:
//!   an app cannot lose one.
//! - A [`Worker`] asks each port for a burst, hands it to the app, and carries the verdicts out,
//!   round after round. It allocates nothing meanwhile. It belongs to one thread.
//! - An [`Engine`] runs workers on threads of their own, bound to CPUs, over one UMEM.
//! - A [`WorkerAudit`] compares two counts: every packet that came or was made was sent, waits, or
//!   was dropped for a [`Reason`]; and every frame is where the ledger of [`ringway_xsk`] says.
//!   [`Worker::audit`] makes one.
//!
//! ```
//! use ringway_engine::{App, Burst, Cycles, WorkerOptions, Port as _, Verdict, Worker, ports::Memory};
//! use ringway_xsk::{Batch, Umem, UmemConfig};
//!
//! /// Sends back what comes.
//! struct Echo;
//!
//! impl App for Echo {
//!     fn name(&self) -> &'static str {
//!         "echo"
//!     }
//!
//!     fn on_burst(&mut self, _now: Cycles, burst: &mut Burst<'_>) {
//!         let from = burst.from();
//!         burst.decide(|_packet| Verdict::Forward(from));
//!     }
//! }
//!
//! let pool = Umem::new(&UmemConfig::default())?.pool().ok_or("no pool")?;
//! let (mut outside, inside) = Memory::pair("a", &pool, 64)?;
//! let mut worker = Worker::new(pool.clone(), vec![Box::new(inside)], Echo, WorkerOptions::default());
//!
//! let mut batch = Batch::new(64);
//! pool.allocate_burst(&mut batch, 3);
//! batch.iter_mut().try_for_each(|packet| packet.append(&[0; 60]))?;
//! outside.tx_burst(&mut batch)?;
//! worker.round()?;
//! assert_eq!(outside.rx_burst(&mut batch)?, 3);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod app;
pub mod apps;
pub mod arch;
mod buffer_pool;
mod burst;
mod engine;
mod error;
mod port;
mod port_context;
pub mod ports;
pub mod programs;
mod spec;
pub mod stamp;
pub mod status;
mod takeover;

pub use app::App;
pub use arch::Cycles;
pub use buffer_pool::BufferPool;
pub use burst::{Burst, Verdict};
pub use engine::port_opener::{Opened, PortOpener};
pub use engine::spread;
pub use engine::worker::{Ended, Idle, Worker, WorkerAudit, WorkerOptions};
pub use engine::{AppFactory, Engine, EngineConfig, WorkerConfig, WorkerReport, allowed_cpus};
pub use error::EngineError;
pub use port::{LeftPort, Obtained, Port, PortError, PortStatistics};
pub use port_context::PortContext;
pub use spec::{PortSpec, SpecError};
pub use status::Status;
pub use status::leak::Leak;
pub use status::reason::Reason;
pub use takeover::control_socket::{control_of, engine_on};
pub use takeover::{Control, Predecessor, Successor, TakeoverError};
