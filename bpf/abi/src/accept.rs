//! Where a segment ends that `ringway accept` has met.

use crate::raw::{Accept, rw_accept_counts};

crate::numbered!(Accept, "end of a segment");

impl Accept {
    /// Name in output and tests: kebab-case, never changed once released.
    pub const fn name(self) -> &'static str {
        self.text()[0]
    }

    /// What happened to the segment, and why.
    pub const fn meaning(self) -> &'static str {
        self.text()[1]
    }

    /// It reached no socket.
    pub const fn is_dropped(self) -> bool {
        matches!(self, Self::NoCookie | Self::Refused)
    }

    /// Exhaustive on purpose: see accept.h, enum rw_accept.
    const fn text(self) -> [&'static str; 2] {
        match self {
            Self::Opened => ["opened", "an ACK with a valid cookie; it has opened a connection"],
            Self::TimeWait => [
                "time-wait",
                "an ACK with a valid cookie; it has ended the TIME_WAIT of an earlier connection, and the next segment opens one",
            ],
            Self::Known => ["known", "of a connection that the kernel has; passed untouched"],
            Self::Handshake => ["handshake", "a SYN, a RST or the like; passed to the listener"],
            Self::KernelCookie => [
                "kernel-cookie",
                "an ACK with a cookie that this kernel made; passed to the listener",
            ],
            Self::NoListener => ["no-listener", "nobody listens here; passed to the kernel"],
            Self::NoCookie => {
                ["no-cookie", "an ACK of no connection, without a valid cookie; dropped"]
            }
            Self::Refused => {
                ["refused", "a valid cookie, of which the kernel made no connection; dropped"]
            }
        }
    }
}

impl rw_accept_counts {
    /// Adds another's packets.
    pub fn add(&mut self, other: &Self) {
        for (sum, packets) in self.packets.iter_mut().zip(other.packets) {
            *sum += packets;
        }
    }

    /// Packets that ended so.
    pub fn of(&self, end: Accept) -> u64 {
        self.packets.get(end as usize).copied().unwrap_or_default()
    }
}
