//! One file per subcommand.

pub mod backend;
pub mod bench;
pub mod bundle;
pub mod capture;
pub mod check;
pub mod completions;
pub mod confirm;
pub mod decap;
pub mod demo;
pub mod detach;
pub mod engine;
pub mod engine_metrics;
pub mod explain;
pub mod flows;
pub mod r#gen;
pub mod import;
pub mod inspect;
pub mod man;
pub mod memory;
pub mod overrides;
pub mod reasons;
pub mod reload;
pub mod run;
pub mod size;
pub mod status;
pub mod upgrade;
