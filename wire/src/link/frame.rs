//! An Ethernet frame with its VLAN tags.

use zerocopy::{ByteSlice, Ref, SplitByteSlice};

use crate::{Ethernet, Header as _, Malformed, Vlan, ethertype};

/// An Ethernet header, up to two VLAN tags, and what they carry.
#[derive(Debug)]
pub struct Frame<B: ByteSlice> {
    /// The header. Its EtherType is the first tag's, where there is one.
    pub ethernet: Ref<B, Ethernet>,
    /// The tags, outermost first.
    pub tags: [Option<Ref<B, Vlan>>; 2],
    /// The payload's EtherType. Behind two tags it may be a third.
    pub ethertype: u16,
    /// The bytes behind header and tags, with the frame's padding.
    pub payload: B,
}

impl<B: SplitByteSlice> Frame<B> {
    /// Reads header and tags.
    ///
    /// # Errors
    /// [`Malformed`] where the bytes end within the header or a tag that an EtherType announces.
    #[inline]
    pub fn parse(bytes: B) -> Result<Self, Malformed> {
        let (ethernet, mut payload) = Ethernet::peek(bytes)?;
        let mut ethertype = ethernet.ethertype.get();
        let mut tags = [None, None];
        for tag in &mut tags {
            if !matches!(ethertype, ethertype::VLAN | ethertype::PROVIDER_VLAN) {
                break;
            }
            let (vlan, behind) = Vlan::peek(payload)?;
            ethertype = vlan.ethertype.get();
            *tag = Some(vlan);
            payload = behind;
        }
        Ok(Self { ethernet, tags, ethertype, payload })
    }
}

impl<B: ByteSlice> Frame<B> {
    /// Bytes of header and tags: where in the frame the payload begins.
    #[inline]
    pub fn header_len(&self) -> usize {
        size_of::<Ethernet>() + self.tags.iter().flatten().count() * size_of::<Vlan>()
    }
}
