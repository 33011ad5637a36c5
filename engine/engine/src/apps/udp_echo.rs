//! `udp-echo`: datagrams to a port come back.

use ringway_xsk::Packet;

use super::datagram::{self, Found};
use super::{Host, icmp};
use crate::app::App;
use crate::arch::Cycles;
use crate::burst::{Burst, Verdict};
use crate::status::reason::Reason;

/// Sends datagrams back where they came from, within their frames; the host it is can be reached and pinged.
pub struct UdpEcho {
    host: Host,
    port: u16,
}

impl UdpEcho {
    /// On this UDP port.
    pub fn new(host: Host, port: u16) -> Self {
        Self { host, port }
    }

    fn echo(&self, packet: &mut Packet, from: usize) -> Result<Verdict, Reason> {
        match datagram::find(packet, &self.host, self.port)? {
            Found::Datagram(mut datagram) => datagram.turn(),
            Found::Other => return Ok(icmp::answered(&self.host, packet, from)),
        }
        Ok(Verdict::Forward(from))
    }
}

impl App for UdpEcho {
    fn name(&self) -> &'static str {
        "udp-echo"
    }

    fn on_burst(&mut self, _now: Cycles, burst: &mut Burst<'_>) {
        let from = burst.from();
        burst.decide(|packet| self.echo(packet, from).into());
    }
}
