//! The daemon of Ringway, as a library: health checks, next hops, preflight, API and metrics.

pub mod backends;
pub mod commit_confirm;
pub mod daemon;
mod descriptor_reserve;
pub mod health;
pub mod metrics;
pub mod monitor;
pub mod network;
pub mod notify;
pub mod preflight;
mod privileges;
pub mod reload_diff;
pub mod server;
pub mod snapshot;
#[cfg(test)]
mod testing;
pub mod upgrade;
