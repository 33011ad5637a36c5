//! End to end, module by module what a user relies on.

mod flows;
mod http;
mod udp;
