//! End to end, module by module what a user relies on.

mod announce;
mod bench;
mod books;
mod broken;
mod clients;
mod decap;
mod demo;
mod dsr;
mod flows;
mod fragments;
mod guide;
mod health;
mod http;
mod icmp;
mod losses;
mod passing;
mod ports;
mod ranges;
mod refuse;
mod restart;
mod ring;
mod road;
mod stumbles;
mod udp;
mod watch;
