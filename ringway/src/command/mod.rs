//! One file per subcommand.

pub mod accept;
pub mod bundle;
pub mod capture;
pub mod check;
pub mod confirm;
pub mod decap;
pub mod detach;
pub mod doctor;
pub mod engine;
pub mod engine_metrics;
pub mod explain;
pub mod flows;
pub mod forward;
pub mod import;
pub mod inspect;
pub mod memory;
pub mod nic;
pub mod other_node;
pub mod overrides;
pub mod reasons;
pub mod reload;
pub mod run;
pub mod shield;
pub mod status;
pub mod upgrade;
