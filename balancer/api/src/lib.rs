//! What the daemon and those who ask it agree on: documents, errors, the client, and how a node is
//! found on its host.

pub mod client;
pub mod clock;
pub mod documents;
pub mod error;
pub mod node;
pub mod output_file;
pub mod overrides;
pub mod problem_kind;
pub mod state_dir;
pub mod text;
