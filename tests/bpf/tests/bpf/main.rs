//! Packet tables: frame in -> verdict, frame out, counters; then the flow table's behaviour.

#![allow(clippy::unwrap_used)]
#![deny(clippy::disallowed_methods)]

/// Returns from a test that cannot run here.
macro_rules! needs_root {
    ($name:literal) => {
        if !ringway_bpf_tests::can_run($name) {
            return;
        }
    };
}

mod accept;
mod adversary;
mod announce;
mod answered;
mod bridge;
mod capture;
mod challenge;
mod challenged_syns;
mod decap;
mod dsr;
mod faces;
mod filter;
mod forward;
mod fragments;
mod hijack;
mod icmp;
mod layer3;
mod layers;
mod ledger;
mod limits;
mod lines;
mod malformed;
mod nat_model;
mod partial;
mod passed;
mod port_ranges;
mod probation;
mod probe;
mod proxy;
mod proxy_model;
mod races;
mod refused;
mod reset;
mod room;
mod shield;
mod smoke;
mod source_client;
mod sources;
mod stages;
mod states;
mod steer;
mod table;
mod track;
mod track_model;
mod unbalanced;
mod vlan;
