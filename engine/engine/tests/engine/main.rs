//! Workers and apps between cables of memory: no kernel, no privileges.

#![allow(clippy::unwrap_used)]

mod allocate;
mod answers;
mod audit;
mod bench_of;
mod captures;
mod counting_allocator;
mod damaged;
mod frames;
mod leaks;
mod own_app;
mod pcap;
mod ping;
mod threads;
mod verdicts;
