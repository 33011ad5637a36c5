//! Conclusions from counters: rates, losses, silence.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod answer_watch;
pub mod attack_watch;
pub mod counter_watch;
pub mod mitigation_program;
pub mod no_reply_watch;
pub mod rates;
