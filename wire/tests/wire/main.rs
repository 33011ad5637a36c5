//! Headers against tables, against themselves (built and read again), and against two other
//! decoders: tshark and etherparse.

#![allow(clippy::unwrap_used)]

mod damaged;
mod facts;
mod packets;
mod read;
mod round_trip;
mod strategies;
mod tables;
mod witnesses;
