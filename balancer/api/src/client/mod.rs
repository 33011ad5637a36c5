//! Asking a node: its daemon where it runs, else its pins.

pub mod http;
pub mod node_list;
pub mod node_selector;
pub mod ready;
pub mod requests;
pub mod shield;
pub mod status_query;
