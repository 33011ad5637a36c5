//! What the scenarios share: the machine, medians, plots, peers.

pub(crate) mod machine;
pub(crate) mod median;
pub(crate) mod named;
pub(crate) mod plot;
pub(crate) mod tool;
pub(crate) mod wrk;
