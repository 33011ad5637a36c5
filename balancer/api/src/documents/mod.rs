//! The documents of the API.

pub mod changes;
pub mod durations;
pub mod forward;
pub mod health;
pub mod limits;
pub mod measure;
pub mod mitigation;
pub mod mitigation_event;
pub mod named;
pub mod readiness;
pub mod shield;
pub mod status;
pub mod tcp_offer;
