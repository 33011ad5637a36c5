//! Packets that the kernel drops after our verdict. Each was counted as sent and is counted a
//! second time here. Names begin with `lost-`, unlike those of reasons.

use std::fmt;

use crate::raw::Loss;

crate::numbered!(Loss, "reason of a loss");

impl Loss {
    /// Name in output, metrics and tests: kebab-case, never changed once released.
    pub const fn name(self) -> &'static str {
        self.text()[0]
    }

    /// What happened to the packet.
    pub const fn meaning(self) -> &'static str {
        self.text()[1]
    }

    /// The usual cause, for `ringway reasons`.
    pub const fn cause(self) -> &'static str {
        self.text()[2]
    }

    /// The next command or change.
    pub const fn next(self) -> &'static str {
        self.text()[3]
    }

    /// The reason with this name.
    pub fn by_name(name: &str) -> Option<Self> {
        Self::all().find(|loss| loss.name() == name)
    }

    /// Name, meaning, cause, next. Exhaustive on purpose: see abi.h, enum rw_loss.
    const fn text(self) -> [&'static str; 4] {
        match self {
            Self::TooBig => [
                "lost-too-big",
                "Sent on, and dropped by the kernel: the frame is longer than the MTU of the device it should leave by.",
                "The MTU of a device was lowered, or that of the route is higher than the device's; frames made longer by GRO.",
                "ip link show; on the interface that packets come in by: ethtool -K IFACE gro off lro off",
            ],
            Self::DeviceDown => [
                "lost-device-down",
                "Sent on, and dropped by the kernel: the device it should leave by is down.",
                "An administrator or a driver took it down while flows went that way.",
                "ip link show; ip link set dev IFACE up",
            ],
            Self::NoReceiver => [
                "lost-no-receiver",
                "Sent on, and dropped by the kernel: the device it should leave by takes no redirected frames.",
                "The far end of a veth pair has neither GRO nor native XDP; or a driver has no native XDP, or only while it has an XDP program of its own.",
                "veth: ethtool -K IFACE gro on, at the far end of the pair; otherwise xdp_mode = \"generic\"",
            ],
            Self::QueueFull => [
                "lost-queue-full",
                "Sent on, and dropped by the device it should leave by, which took only part of a batch.",
                "Its transmit ring, or that of the far end of a veth pair, is full: more packets than the link or the receiver can take. On veth also frames longer than the far end's MTU.",
                "ip -s link show dev IFACE; ethtool -g IFACE; ethtool -G IFACE tx N",
            ],
            Self::TxRefused => [
                "lost-tx-refused",
                "Sent back out of the interface it came in by, or redirected in generic mode, and dropped by the driver.",
                "The transmit queue is full or stopped, or the driver has no transmit ring for XDP.",
                "ip -s link show dev IFACE; ethtool -g IFACE",
            ],
            Self::NoMemory => [
                "lost-no-memory",
                "Sent on, and dropped by the kernel for want of memory, or of room before the packet.",
                "The machine is short of memory, or the driver leaves too little headroom.",
                "free -m; dmesg",
            ],
            Self::Other => [
                "lost-other",
                "Sent on, and dropped by the kernel for a reason without a name of its own.",
                "An error of the driver.",
                "perf trace -e 'xdp:*' shows the error number; dmesg",
            ],
        }
    }
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::raw::{RW_LOSS_SPACE, Reason};

    #[test]
    fn every_loss_is_explained_and_found_by_its_name() {
        for loss in Loss::all() {
            assert!(loss.name().starts_with("lost-"), "{loss}");
            assert_eq!(Loss::by_name(loss.name()), Some(loss));
            assert_eq!(Reason::by_name(loss.name()), None);
            assert!(loss.meaning().ends_with('.') && loss.cause().ends_with('.'), "{loss}");
            assert!(!loss.next().is_empty(), "{loss}");
        }
        assert!(Loss::all().count() <= RW_LOSS_SPACE as usize);
        assert_eq!(Loss::all().last(), Some(Loss::Other));
    }
}
