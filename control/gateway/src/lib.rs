//! The daemon of Ringway, as a library: health checks, next hops, preflight, API and metrics.

pub mod api;
pub mod ask;
pub mod board;
pub mod changes;
pub mod clock;
pub mod daemon;
pub mod decap;
pub mod detach;
pub mod explain;
pub mod guard;
pub mod health;
pub mod metrics;
pub mod next_hop;
pub mod notify;
pub mod order;
pub mod overrides;
pub mod preflight;
mod privileges;
pub mod problem;
pub mod ready;
pub mod road;
pub mod roster;
pub mod silence;
pub mod slots;
pub mod state;
pub mod status;
pub mod upgrade;
