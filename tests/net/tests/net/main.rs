//! End to end, module by module what a user relies on.

mod flows;
mod health;
mod http;
mod restart;
mod udp;
