//! What the counters tell: rates, losses, silence.

pub mod counter_watch;
pub mod no_reply_watch;
pub mod rates;
