//! The daemon's contract with its clients: documents, errors, the client, and how a node is
//! found on its host.

pub mod client;
pub mod clock;
pub mod documents;
pub mod node;
pub mod overrides;
pub mod problem_kind;
pub mod shield;
pub mod state_dir;
pub mod syn_secret;

pub use ringway_terminal::{error, output_file, text};
