//! Conclusions from counters: rates, losses, silence.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod counter_watch;
pub mod no_reply_watch;
pub mod rates;
