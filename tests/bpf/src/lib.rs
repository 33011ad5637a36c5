//! Feeds frames to the packet path by BPF_PROG_TEST_RUN and says what came of them.
//!
//! [`frame`] builds frames, [`wire`] checks them, neither knowing how the packet path does it;
//! [`World`] is a gateway with a fixed set of services, its own maps and no pins; [`audit`] reads
//! the flow tables. The tests are in tests/bpf. They need root.

#![allow(clippy::unwrap_used)]
#![deny(clippy::disallowed_methods)]

pub mod audit;
pub mod capture;
pub mod cast;
pub mod clock;
mod dry;
pub mod frame;
mod gateway_pool;
pub mod icmp;
pub mod inspect;
pub mod judge;
pub mod lines;
mod map_batch;
pub mod mapping;
pub mod model;
pub mod mutate;
pub mod prelude;
pub mod run;
pub mod seeds;
mod services;
pub mod table;
pub mod watch;
pub mod wire;
mod world;

pub use gateway_pool::PooledGateway;
pub use services::{NAT_PORTS, add_service, forward_across, new_backend, ports, ring, serve_by};
pub use world::{Flow, Service, Summary, World, backend_port_of, mac_of, protocol};

/// False, said aloud, when a test cannot run here; a panic where CI=true says that it must.
pub fn can_run(test: &str) -> bool {
    capture::begin(test);
    ringway_testnet::root_or_skip(test)
}
