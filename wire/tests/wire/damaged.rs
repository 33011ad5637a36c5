//! Whatever comes: no panic, and nothing beyond the bytes. Frames of every kind are cut, lengthened
//! and changed; then everything that can be read of them is read, and written.
//! `PROPTEST_CASES=1000000` makes it a long run.

use proptest::collection::vec;
use proptest::prelude::*;
use ringway_wire::gue;
use ringway_wire::nd;
use ringway_wire::{
    Arp, ByteSlice, Extensions, Frame, Gre, Gue, Header, Icmp, Icmpv6, Ip, Ipv4, Ipv6, Malformed,
    SplitByteSlice, Tcp, Udp, View, Vxlan, is_extension,
};

use crate::strategies;

/// How many bytes a view covers, after all that can be asked of any.
fn covered<B: ByteSlice, H: Header>(view: &View<B, H>, of: usize) {
    let len = size_of::<H>() + view.options.len() + view.payload.len();
    assert_eq!(view.len(), len);
    assert!(len <= of);
    assert_eq!(view.header.header_len(), size_of::<H>() + view.options.len());
}

fn options<H: Header>(view: &View<&[u8], H>) {
    assert!(nd::NdOptions::new(view.payload).count() <= view.payload.len() / 8 + 1);
}

/// Reads everything that the bytes could be, whether or not they are; and into tunnels as far as
/// they go.
fn read(bytes: &[u8]) -> Result<(), Malformed> {
    let of = bytes.len();
    let every = |each: &dyn Fn() -> Result<(), Malformed>| {
        let _ = each();
    };
    every(&|| Arp::parse(bytes).map(|view| covered(&view, of)));
    every(&|| {
        let view = Ipv4::parse(bytes)?;
        covered(&view, of);
        view.checksum_is_right();
        assert!(view.each_option().count() <= 40);
        Ok(())
    });
    every(&|| Ipv6::parse(bytes).map(|view| covered(&view, of)));
    for parse in [Ip::parse, Ip::parse_partial] {
        every(&|| {
            let ip = parse(bytes)?;
            assert!(ip.between.len() + ip.payload.len() + 20 <= of);
            if let Ok(udp) = Udp::parse(ip.payload) {
                udp.verify(ip.pseudo());
            }
            if let Ok(tcp) = Tcp::parse(ip.payload) {
                tcp.checksum_is_right(ip.pseudo());
            }
            Ok(())
        });
    }
    every(&|| {
        let view = Tcp::parse(bytes)?;
        covered(&view, of);
        assert!(view.each_option().count() <= 40);
        Ok(())
    });
    every(&|| Udp::parse(bytes).map(|view| covered(&view, of)));
    every(&|| Udp::parse_partial(bytes).map(|view| covered(&view, of)));
    every(&|| Icmp::parse(bytes).map(|view| assert!(view.checksum_is_right() || !view.is_empty())));
    every(&|| Icmpv6::parse(bytes).map(|view| covered(&view, of)));
    every(&|| nd::Neighbour::parse(bytes).map(|view| options(&view)));
    every(&|| nd::RouterTimes::parse(bytes).map(|view| options(&view)));
    every(&|| nd::Redirect::parse(bytes).map(|view| options(&view)));
    every(&|| {
        let view = Gre::parse(bytes)?;
        covered(&view, of);
        assert_eq!(view.key().is_some(), view.header.flags.get() & Gre::KEY != 0);
        assert_eq!(view.sequence().is_some(), view.header.flags.get() & Gre::SEQUENCE != 0);
        Ok(())
    });
    every(&|| Vxlan::parse(bytes).map(|view| covered(&view, of)));
    every(&|| {
        match Gue::open(bytes)? {
            gue::Opened::Header(view) => covered(&view, of),
            gue::Opened::Ip(inner) => assert_eq!(inner.len(), of),
        }
        Ok(())
    });
    for first in (0..=255).filter(|number| is_extension(*number)) {
        let mut extensions = Extensions::new(first, bytes);
        let stepped: usize = extensions.by_ref().flatten().map(|e| e.bytes.len()).sum();
        assert_eq!(stepped + extensions.rest().len(), of);
    }
    Frame::parse(bytes).map(drop)
}

/// Writes to whatever can be had of the bytes.
fn write(bytes: &mut [u8]) -> Result<(), Malformed> {
    fn end<B: SplitByteSlice + ringway_wire::ByteSliceMut>(mut payload: B) {
        payload.fill(0xa5);
    }
    let mut frame = Frame::parse(bytes)?;
    frame.ethernet.swap();
    for tag in frame.tags.iter_mut().flatten() {
        tag.set_id(7);
    }
    let mut ip = Ipv4::parse(frame.payload)?;
    ip.header.decrement_ttl();
    ip.options.fill(1);
    let mut udp = Udp::parse(ip.payload)?;
    udp.header.replace(&ip.header.source, &[1, 2, 3, 4]);
    end(udp.payload);
    Ok(())
}

/// Every suffix: each header of the frame comes to the front once.
fn read_all(bytes: &[u8]) {
    for at in 0..=bytes.len().min(120) {
        let _ = read(&bytes[at..]);
    }
}

proptest! {
    #[test]
    fn any_bytes(bytes in vec(any::<u8>(), 0..200)) {
        read_all(&bytes);
        let _ = write(&mut bytes.clone());
    }

    #[test]
    fn damaged_frames(
        link in strategies::link(), cut in any::<prop::sample::Index>(),
        changes in vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
    ) {
        let mut frame = link.build();
        for (at, byte) in changes {
            let at = at.index(frame.len());
            frame[at] = byte;
        }
        read_all(&frame);
        frame.truncate(cut.index(frame.len() + 1));
        read_all(&frame);
        let _ = write(&mut frame);
    }
}
