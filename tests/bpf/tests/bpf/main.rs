//! Packet tables: frame in -> verdict, frame out, counters.
mod smoke;
