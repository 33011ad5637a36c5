//! A node on its host: what it has loaded, whether its daemon lives, what it leaves.

pub mod leftovers;
pub mod liveness;
pub mod netns_hint;
pub mod service_manager;
pub mod tables;
