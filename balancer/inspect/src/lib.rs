//! Commands that need no daemon: they read and change the pins themselves.

pub mod accept;
pub mod capture;
pub mod decap;
pub mod detach;
pub mod explain;
pub mod flows;
pub mod headers;
pub mod memory;
