//! `icmp`: a host that can be reached and pinged, and no more.

use ringway_xsk::Packet;

use super::Host;
use crate::app::App;
use crate::arch::Cycles;
use crate::burst::{Burst, Verdict};

/// Answers ARP, neighbour solicitations and echo requests, by the port that they came in by.
pub struct Icmp {
    host: Host,
}

impl Icmp {
    /// For these addresses.
    pub fn new(host: Host) -> Self {
        Self { host }
    }
}

/// Back by `port`, or dropped for the reason why it was not answered.
pub(crate) fn answered(host: &Host, packet: &mut Packet, port: usize) -> Verdict {
    host.answer(packet).map(|()| Verdict::Forward(port)).into()
}

impl App for Icmp {
    fn name(&self) -> &'static str {
        "icmp"
    }

    fn on_burst(&mut self, _now: Cycles, burst: &mut Burst<'_>) {
        let port = burst.from();
        burst.decide(|packet| answered(&self.host, packet, port));
    }
}
