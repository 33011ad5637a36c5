//! The kinds of ports, one file each.

pub mod af_packet;
pub mod af_xdp;
pub mod memory;
mod null;
pub mod pcap;

use ringway_wire::ethertype;
use ringway_xsk::{Batch, Packet};

pub use self::{af_packet::AfPacket, af_xdp::AfXdp, memory::Memory, null::Null, pcap::Pcap};

/// Frees packets that an interface of this MTU does not send; some drivers and a veth would drop
/// them silently. Returns their number.
#[inline]
fn drop_too_long(batch: &mut Batch, mtu: usize) -> u64 {
    if !batch.iter().any(|packet| is_too_long(packet, mtu)) {
        return 0;
    }
    let before = batch.len();
    batch.retain(|packet| !is_too_long(packet, mtu));
    (before - batch.len()) as u64
}

/// Beside the MTU a packet has an Ethernet header, and may have a VLAN tag
/// (packet_extra_vlan_len_allowed, net/packet/af_packet.c).
#[inline]
fn is_too_long(packet: &Packet, mtu: usize) -> bool {
    let len = if packet.frames() == 1 { packet.data().len() } else { packet.len() };
    if len <= mtu + 14 {
        return false;
    }
    let tagged = packet.data().get(12..14) == Some(&ethertype::VLAN.to_be_bytes());
    !tagged || len > mtu + 18
}

#[cfg(test)]
mod tests {
    use ringway_xsk::{Umem, UmemConfig};

    use super::*;

    #[test]
    fn a_header_and_a_tag_beside_the_mtu() {
        let pool = Umem::new(&UmemConfig::default()).unwrap().pool().unwrap();
        for (len, tagged, sent) in [
            (60, false, true),
            (1514, false, true),
            (1515, false, false),
            (1518, false, false),
            (1518, true, true),
            (1519, true, false),
            (9000, false, false),
        ] {
            let mut bytes = vec![0; len];
            if tagged {
                bytes[12] = 0x81;
            }
            let mut batch = Batch::new(3);
            let mut packet = pool.allocate().unwrap();
            packet.append(&bytes).unwrap();
            batch.push(packet).unwrap();
            assert_eq!(drop_too_long(&mut batch, 1500), u64::from(!sent), "{len} {tagged}");
            assert_eq!(batch.len(), usize::from(sent), "{len} {tagged}");
        }
    }
}
