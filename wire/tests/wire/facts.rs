//! What a frame says, field by field, under the names that tshark has for them; of a field that
//! occurs more than once all values, outermost first. Numbers are decimal.

use std::collections::BTreeMap;

use ringway_wire::{
    Arp, Extensions, Frame, Gre, Gue, Header as _, Icmp, Icmpv6, Ip, IpHeader, Ipv4, Malformed,
    RawOption, Tcp, TcpOption, Udp, UdpChecksum, Vxlan, ethertype, gue, nd, protocol,
};

pub type Facts = BTreeMap<&'static str, Vec<String>>;

/// Of a frame that is well formed.
pub fn facts(frame: &[u8]) -> Facts {
    let mut noted = Noted::default();
    noted.link(frame).unwrap();
    noted.0
}

#[derive(Default)]
struct Noted(Facts);

impl Noted {
    fn note(&mut self, field: &'static str, value: impl ToString) {
        self.0.entry(field).or_default().push(value.to_string());
    }

    fn flag(&mut self, field: &'static str, value: bool) {
        self.note(field, u8::from(value));
    }

    fn link(&mut self, bytes: &[u8]) -> Result<(), Malformed> {
        let frame = Frame::parse(bytes)?;
        self.note("eth.dst", frame.ethernet.destination);
        self.note("eth.src", frame.ethernet.source);
        let mut announced = frame.ethernet.ethertype.get();
        for tag in frame.tags.iter().flatten() {
            let [id, priority, eligible] = match announced {
                ethertype::PROVIDER_VLAN => {
                    ["ieee8021ad.id", "ieee8021ad.priority", "ieee8021ad.dei"]
                }
                _ => ["vlan.id", "vlan.priority", "vlan.dei"],
            };
            self.note(id, tag.id());
            self.note(priority, tag.priority());
            self.flag(eligible, tag.drop_eligible());
            announced = tag.ethertype.get();
        }
        if frame.ethertype != ethertype::ARP {
            return self.ip(frame.payload);
        }
        let arp = Arp::parse(frame.payload)?.header;
        self.note("arp.opcode", arp.operation.get());
        self.note("arp.src.hw_mac", arp.sender_mac);
        self.note("arp.src.proto_ipv4", std::net::Ipv4Addr::from(arp.sender));
        self.note("arp.dst.hw_mac", arp.target_mac);
        self.note("arp.dst.proto_ipv4", std::net::Ipv4Addr::from(arp.target));
        Ok(())
    }

    fn ip(&mut self, bytes: &[u8]) -> Result<(), Malformed> {
        let ip = Ip::parse(bytes)?;
        match &ip.header {
            IpHeader::V4(header) => self.v4(header, &ip, bytes)?,
            IpHeader::V6(header) => {
                self.note("ipv6.src", ip.source());
                self.note("ipv6.dst", ip.destination());
                self.note("ipv6.hlim", header.hop_limit);
                self.note("ipv6.plen", header.payload_length.get());
                self.note("ipv6.nxt", header.next_header);
                self.note("ipv6.tclass", header.traffic_class());
                self.note("ipv6.flow", header.flow_label());
                for extension in Extensions::new(header.next_header, ip.between) {
                    if let Some(fragment) = extension?.fragment() {
                        self.note("ipv6.fraghdr.ident", fragment.identification);
                        self.note("ipv6.frag_offset", fragment.offset);
                        self.flag("ipv6.fraghdr.more", fragment.more);
                    }
                }
            }
        }
        match ip.protocol {
            _ if ip.fragment.is_some() => Ok(()),
            protocol::UDP => self.udp(&ip),
            protocol::TCP => self.tcp(&ip),
            protocol::ICMP => self.icmp(&ip),
            protocol::ICMPV6 => self.icmpv6(&ip),
            protocol::IPV4 | protocol::IPV6 => self.ip(ip.payload),
            protocol::GRE => {
                let gre = Gre::parse(ip.payload)?;
                self.note("gre.proto", gre.header.ethertype.get());
                gre.key().into_iter().for_each(|key| self.note("gre.key", key));
                let number = gre.sequence();
                number.into_iter().for_each(|n| self.note("gre.sequence_number", n));
                self.ip(gre.payload)
            }
            other => panic!("nobody built protocol {other}"),
        }
    }

    fn v4(&mut self, header: &Ipv4, ip: &Ip<&[u8]>, bytes: &[u8]) -> Result<(), Malformed> {
        let view = Ipv4::parse(bytes)?;
        self.note("ip.src", ip.source());
        self.note("ip.dst", ip.destination());
        self.note("ip.ttl", header.ttl);
        self.note("ip.proto", header.protocol);
        self.note("ip.len", header.total_length.get());
        self.note("ip.hdr_len", 20 + view.options.len());
        self.note("ip.id", header.identification.get());
        self.note("ip.dsfield", header.traffic_class);
        self.flag("ip.flags.df", header.dont_fragment());
        self.flag("ip.flags.mf", header.more_fragments());
        self.note("ip.frag_offset", header.fragment_offset());
        self.flag("ip.checksum.status", view.checksum_is_right());
        for option in view.each_option() {
            if let RawOption { kind: 148, data: [high, low] } = option? {
                self.note("ip.opt.ra", u16::from_be_bytes([*high, *low]));
            }
        }
        Ok(())
    }

    fn udp(&mut self, ip: &Ip<&[u8]>) -> Result<(), Malformed> {
        let udp = Udp::parse(ip.payload)?;
        self.note("udp.srcport", udp.header.source.get());
        self.note("udp.dstport", udp.header.destination.get());
        self.note("udp.length", udp.header.length.get());
        let status = match (udp.verify(ip.pseudo()), &ip.header) {
            (UdpChecksum::Right, _) => "1",
            (UdpChecksum::Wrong, _) => "0",
            // tshark calls it absent over IPv4, illegal over IPv6.
            (UdpChecksum::None, IpHeader::V4(_)) => "3",
            (UdpChecksum::None, IpHeader::V6(_)) => "4",
        };
        self.note("udp.checksum.status", status);
        match udp.header.destination.get() {
            Vxlan::PORT => {
                let vxlan = Vxlan::parse(udp.payload)?;
                self.note("vxlan.vni", vxlan.header.vni());
                self.link(vxlan.payload)
            }
            Gue::PORT => match Gue::open(udp.payload)? {
                gue::Opened::Ip(inner) => self.ip(inner),
                gue::Opened::Header(gue) => self.ip(gue.payload),
            },
            _ => Ok(()),
        }
    }

    fn tcp(&mut self, ip: &Ip<&[u8]>) -> Result<(), Malformed> {
        let tcp = Tcp::parse(ip.payload)?;
        self.note("tcp.srcport", tcp.header.source.get());
        self.note("tcp.dstport", tcp.header.destination.get());
        self.note("tcp.seq_raw", tcp.header.sequence.get());
        self.note("tcp.ack_raw", tcp.header.acknowledgment.get());
        self.note("tcp.hdr_len", 20 + tcp.options.len());
        self.note("tcp.flags", tcp.header.flags());
        self.note("tcp.window_size_value", tcp.header.window.get());
        self.note("tcp.urgent_pointer", tcp.header.urgent.get());
        self.flag("tcp.checksum.status", tcp.checksum_is_right(ip.pseudo()));
        self.note("tcp.len", tcp.payload.len());
        for option in tcp.each_option() {
            match option? {
                TcpOption::MaximumSegmentSize(size) => self.note("tcp.options.mss_val", size),
                TcpOption::WindowScale(shift) => self.note("tcp.options.wscale.shift", shift),
                TcpOption::Timestamps { value, echo } => {
                    self.note("tcp.options.timestamp.tsval", value);
                    self.note("tcp.options.timestamp.tsecr", echo);
                }
                TcpOption::Sack(blocks) => blocks.iter().for_each(|[from, to]| {
                    self.note("tcp.options.sack_le", from.get());
                    self.note("tcp.options.sack_re", to.get());
                }),
                _ => (),
            }
        }
        Ok(())
    }

    fn icmp(&mut self, ip: &Ip<&[u8]>) -> Result<(), Malformed> {
        let icmp = Icmp::parse(ip.payload)?;
        self.note("icmp.type", icmp.header.kind);
        self.note("icmp.code", icmp.header.code);
        self.note("icmp.ident", icmp.header.words[0].get());
        self.note("icmp.seq", icmp.header.words[1].get());
        self.flag("icmp.checksum.status", icmp.checksum_is_right());
        Ok(())
    }

    fn icmpv6(&mut self, ip: &Ip<&[u8]>) -> Result<(), Malformed> {
        let icmp = Icmpv6::parse(ip.payload)?;
        self.note("icmpv6.type", icmp.header.kind);
        self.note("icmpv6.code", icmp.header.code);
        self.flag("icmpv6.checksum.status", icmp.checksum_is_right(ip.pseudo()));
        let word = icmp.header.word.get();
        match icmp.header.kind {
            Icmpv6::ECHO_REQUEST => {
                self.note("icmpv6.echo.identifier", icmp.header.echo().0);
                self.note("icmpv6.echo.sequence_number", icmp.header.echo().1);
                Ok(())
            }
            Icmpv6::ROUTER_ADVERTISEMENT => {
                let router = nd::Router::of(&icmp.header);
                let times = nd::RouterTimes::parse(icmp.payload)?;
                self.note("icmpv6.nd.ra.cur_hop_limit", router.hop_limit);
                self.note("icmpv6.nd.ra.router_lifetime", router.lifetime.get());
                self.note("icmpv6.nd.ra.reachable_time", times.header.reachable.get());
                self.note("icmpv6.nd.ra.retrans_timer", times.header.retransmit.get());
                self.options(times.payload)
            }
            kind => {
                let neighbour = nd::Neighbour::parse(icmp.payload)?;
                let target = std::net::Ipv6Addr::from(neighbour.header.target);
                if kind == Icmpv6::NEIGHBOUR_SOLICITATION {
                    self.note("icmpv6.nd.ns.target_address", target);
                } else {
                    self.note("icmpv6.nd.na.target_address", target);
                    self.flag("icmpv6.nd.na.flag.r", word & nd::flags::ROUTER != 0);
                    self.flag("icmpv6.nd.na.flag.s", word & nd::flags::SOLICITED != 0);
                    self.flag("icmpv6.nd.na.flag.o", word & nd::flags::OVERRIDE != 0);
                }
                self.options(neighbour.payload)
            }
        }
    }

    fn options(&mut self, bytes: &[u8]) -> Result<(), Malformed> {
        for option in nd::NdOptions::new(bytes) {
            match option? {
                nd::NdOption::SourceLinkLayer(mac) | nd::NdOption::TargetLinkLayer(mac) => {
                    self.note("icmpv6.opt.linkaddr", mac);
                }
                nd::NdOption::Prefix(prefix) => {
                    let address = std::net::Ipv6Addr::from(prefix.prefix);
                    self.note("icmpv6.opt.prefix", address);
                    self.note("icmpv6.opt.prefix.length", prefix.prefix_len);
                    self.note("icmpv6.opt.prefix.valid_lifetime", prefix.valid.get());
                    self.note("icmpv6.opt.prefix.preferred_lifetime", prefix.preferred.get());
                }
                other => panic!("nobody built {other:?}"),
            }
        }
        Ok(())
    }
}
