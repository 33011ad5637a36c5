//! The engine's programs on DPDK's drivers: packets lie in mbufs, ports are devices that DPDK
//! drives, and each worker has a queue of each.
//!
//! [`Dpdk`] opens devices for the workers of an engine ([`ringway_engine::PortOpener`]):
//!
//! ```no_run
//! use std::sync::Arc;
//!
//! use ringway_dpdk::{Dpdk, Options};
//! use ringway_engine::apps::{L2fwd, Macs};
//! use ringway_engine::{Engine, WorkerConfig, WorkerOptions};
//!
//! let ports = vec!["dpdk:net_null0".parse()?, "dpdk:net_null1".parse()?];
//! let opener = Dpdk::open(&[ports.clone()], &Options::default())?;
//! let app = Arc::new(|| -> Box<dyn ringway_engine::App<_>> { Box::new(L2fwd::new(Macs::AsIs)) });
//! let worker = WorkerConfig { cpu: None, ports, app };
//! let engine = Engine::start_with(opener, WorkerOptions::default(), vec![worker])?;
//! # drop(engine);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What is trusted
//!
//! DPDK and its drivers run in this process, and a device that vfio does not confine writes
//! wherever it is told to. What a packet's peer can decide are its bytes and their number; both are
//! read from the mbuf that the driver filled, and the driver is trusted to have kept them within
//! its buffer.
//!
//! # What it cannot do
//!
//! A successor cannot take devices over, and no record says which stage has a frame: a leak is
//! counted, and not named.
#![cfg(feature = "dpdk")]
#![warn(missing_docs)]

mod device;
mod devices;
mod environment;
mod error;
mod mbuf;
mod pool;
mod port;
mod sys;
mod tally;

pub use devices::Dpdk;
pub use environment::{Options, version};
pub use error::Error;
pub use mbuf::Mbuf;
pub use pool::MbufPool;
pub use port::DpdkPort;
