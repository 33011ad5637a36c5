//! The sections of the file, each read into its part of the model.

pub(crate) mod check;
pub(crate) mod daemon;
pub(crate) mod flows;
pub(crate) mod forward;
mod mitigation;
pub(crate) mod nat;
pub(crate) mod node;
mod rates;
pub(crate) mod service;
pub(crate) mod shield;
pub(crate) mod tunnel;
