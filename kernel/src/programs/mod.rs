//! Programs beside the balancer, one file each.

pub(crate) mod accept;
pub mod capture;
pub(crate) mod decap;
pub(crate) mod drop_reasons;
pub(crate) mod explain;
pub(crate) mod pass_program;
pub(crate) mod pinned_link;
pub(crate) mod probe;
pub(crate) mod redirect_errors;
pub(crate) mod steer;
pub(crate) mod steer_rule;
