//! Names of verdicts, slots, flow states and forwarding modes.

use std::fmt;

use crate::raw::{
    Exemption, FlowState, Forward, ForwardMode, Limit, RuleAction, ShieldMode, Slot, Verdict,
};

crate::numbered!(Verdict, "verdict");
crate::numbered!(Slot, "slot");
crate::numbered!(FlowState, "flow state");
crate::numbered!(Forward, "forwarding mode");
crate::numbered!(ShieldMode, "mode of the shield");
crate::numbered!(RuleAction, "action of a rule");
crate::numbered!(Limit, "limit");
crate::numbered!(Exemption, "exemption");

impl Verdict {
    /// The verdict's name in output, metrics and tests.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Aborted => "aborted",
            Self::Drop => "drop",
            Self::Pass => "pass",
            Self::Tx => "tx",
            Self::Redirect => "redirect",
        }
    }

    /// The kernel's action on the packet.
    pub const fn meaning(self) -> &'static str {
        match self {
            Self::Aborted => "dropped after an error inside the program",
            Self::Drop => "dropped",
            Self::Pass => "handed to the kernel's network stack",
            Self::Tx => "sent back out of the interface it came in by",
            Self::Redirect => "sent out of another interface",
        }
    }
}

impl Slot {
    /// The slot's name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Shield => "shield",
            Self::Balance => "balance",
            Self::Capture => "capture",
            Self::Forward => "forward",
            Self::OnPass => "on_pass",
            Self::Icmp => "icmp",
        }
    }
}

impl ShieldMode {
    /// The mode's name in configuration, output and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Enforce => "enforce",
            Self::Observe => "observe",
            Self::Off => "off",
        }
    }
}

impl RuleAction {
    /// The action's name in configuration, output and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Drop => "drop",
            Self::Pass => "pass",
            Self::Limit => "limit",
            Self::Count => "count",
        }
    }
}

impl Limit {
    /// The limit's name in configuration and output.
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Packets => "packets",
            Self::Destination => "destination",
            Self::NewFlows => "new_flows",
            Self::Source => "source",
        }
    }
}

impl Exemption {
    /// The exemption's name in output.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Not => "none",
            Self::Established => "established",
            Self::Learnt => "learnt",
        }
    }
}

impl Forward {
    /// The mode's name in configuration, output and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Nat => "nat",
            Self::DsrL2 => "dsr-l2",
            Self::DsrIpip => "dsr-ipip",
            Self::DsrGue => "dsr-gue",
        }
    }

    /// Backends have the service address and answer clients directly.
    pub const fn is_dsr(self) -> bool {
        !matches!(self, Self::Nat)
    }

    /// Packets to backends travel inside others.
    pub const fn is_tunnel(self) -> bool {
        matches!(self, Self::DsrIpip | Self::DsrGue)
    }

    /// Bytes that the headers around a packet take; `outer_v6`: the backend's address is IPv6.
    pub const fn overhead(self, outer_v6: bool) -> u16 {
        let ip = if outer_v6 { 40 } else { 20 };
        match self {
            Self::Nat | Self::DsrL2 => 0,
            Self::DsrIpip => ip,
            Self::DsrGue => ip + 8,
        }
    }
}

impl fmt::Display for Forward {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl ForwardMode {
    /// The mode's name in configuration and output.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bridge => "bridge",
            Self::Route => "route",
        }
    }
}

impl fmt::Display for ForwardMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FlowState {
    /// The state's name in output and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Free => "free",
            Self::Claimed => "claimed",
            Self::Syn => "syn",
            Self::SynAck => "syn-ack",
            Self::Established => "established",
            Self::FinClient => "fin-client",
            Self::FinBackend => "fin-backend",
            Self::Closed => "closed",
            Self::UdpNew => "udp-new",
            Self::Udp => "udp",
            Self::Reset => "reset",
            Self::Resting => "resting",
        }
    }
}

macro_rules! display_name {
    ($($name:ident),*) => {
        $(impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.name())
            }
        })*
    };
}
display_name!(Verdict, Slot, FlowState);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts_are_the_kernels_numbers() {
        // enum xdp_action, linux/bpf.h
        let numbers: Vec<(u32, &str)> = Verdict::all().map(|v| (v as u32, v.name())).collect();
        assert_eq!(numbers, [(0, "aborted"), (1, "drop"), (2, "pass"), (3, "tx"), (4, "redirect")]);
    }

    #[test]
    fn unknown_numbers_are_errors() {
        assert_eq!(Verdict::try_from(5).unwrap_err().value, 5);
        assert!(Slot::try_from(6).is_err());
        assert!(FlowState::try_from(u32::MAX).unwrap_err().to_string().contains("flow state"));
    }

    #[test]
    fn all_lists_every_value() {
        assert_eq!(Slot::all().count(), 6);
        assert_eq!(FlowState::all().last(), Some(FlowState::Resting));
    }
}
