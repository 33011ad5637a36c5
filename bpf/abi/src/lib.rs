//! The packet path's contract, seen from Rust.
//!
//! [`raw`] is bpf/abi/abi.h itself with the headers it includes, generated at build time: structures
//! under their C names, limits as constants. Every structure converts to and from bytes without `unsafe` (zerocopy).
//! Its enumerations are proper Rust enums, [`Verdict`], [`Reason`], [`Loss`], [`Slot`],
//! [`Forward`] and [`FlowState`]; what each reason means, why it happens and what to run next is in
//! `reason.rs`, and for what the kernel drops after our verdict in `loss.rs`.
//!
//! Byte order: addresses and fields named `*_be` are as on the wire; everything else is in host
//! byte order.

#![warn(missing_docs)]

#[cfg(not(target_endian = "little"))]
compile_error!("Ringway's maps are laid out for little-endian processors");

mod accept;
mod address;
mod flow;
mod iface;
mod ledger;
mod loss;
mod reason;
mod track;
mod verdict;

/// abi.h as bindgen sees it.
#[allow(missing_docs, non_camel_case_types)]
pub mod raw {
    include!(concat!(env!("OUT_DIR"), "/abi.rs"));

    /// All-zero defaults: what a fresh map holds.
    macro_rules! zero_default {
        ($($name:ident),* $(,)?) => {
            $(impl Default for $name {
                fn default() -> Self {
                    zerocopy::FromZeros::new_zeroed()
                }
            })*
        };
    }
    zero_default!(
        rw_ledger,
        rw_scratch,
        rw_iface,
        rw_service_key,
        rw_service,
        rw_service_info,
        rw_service_place,
        rw_label,
        rw_ring,
        rw_pair,
        rw_track,
        rw_track_bucket,
        rw_tracking,
        rw_backend,
        rw_address,
        rw_flow,
        rw_flow_bucket,
        rw_index_bucket,
        rw_traffic,
        rw_settings,
        rw_daemon,
        rw_probe,
        rw_trace,
        rw_capture,
        rw_capture_counts,
        rw_capture_record,
        rw_steer_rule,
        rw_steer,
        rw_seen_count,
        rw_list_v4,
        rw_list_v6,
        rw_list_section,
        rw_list_span,
        rw_shield,
        rw_shield_control,
        rw_shield_rule,
        rw_shield_budget,
        rw_shared_rate,
        rw_single_rate,
        rw_shield_policy,
        rw_syn_secrets,
        rw_accept_counts,
        rw_syn_offer,
        rw_shift,
        rw_shift_bucket,
        rw_lease,
        rw_arrivals,
        rw_shield_count,
        rw_shield_observed,
        rw_shield_prefix,
        rw_shield_runtime,
        rw_station_bucket,
        rw_port,
        rw_port_vlans,
        rw_way,
        rw_forwarder,
        rw_forwarding,
    );
}

pub use address::{addr_from_words, addr_to_words};
pub use flow::{BackendRef, FlowKey, flow_buckets, index_buckets};
pub use iface::Faces;
pub use raw::{
    Accept, Exemption, FlowState, Forward, ForwardMode, Limit, Loss, Reason, RuleAction,
    ShieldMode, Slot, Verdict,
};
pub use reason::Explanation;
pub use track::{TrackedFlow, track_buckets, track_capacity};
pub use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// A number from the packet path that no enumeration of abi.h has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{value} is not a known {what}: the packet path was loaded by another version of ringway; \
     run `ringway run` of this version to take it over, or read it with the version that loaded it"
)]
pub struct UnknownValue {
    /// The enumeration: "verdict", "reason", "flow state".
    pub what: &'static str,
    /// The number that has no name.
    pub value: u32,
}

/// `TryFrom<u32>` and the list of all values of an enumeration generated from abi.h.
macro_rules! numbered {
    ($name:ident, $what:literal) => {
        impl TryFrom<u32> for crate::raw::$name {
            type Error = crate::UnknownValue;

            fn try_from(value: u32) -> Result<Self, Self::Error> {
                zerocopy::TryFromBytes::try_read_from_bytes(zerocopy::IntoBytes::as_bytes(&value))
                    .map_err(|_| crate::UnknownValue { what: $what, value })
            }
        }

        impl crate::raw::$name {
            /// Every value, in the order of abi.h.
            pub fn all() -> impl Iterator<Item = Self> {
                (0u32..256).filter_map(|value| Self::try_from(value).ok())
            }
        }
    };
}
pub(crate) use numbered;
