//! The parts of every header: a fixed part, perhaps options behind it, then the payload.

use zerocopy::{
    ByteSlice, FromBytes, Immutable, IntoBytes, KnownLayout, Ref, SplitByteSlice, Unaligned,
};

use crate::Sum;
use crate::malformed::{Fault, Layer, Malformed};

/// A header as it lies on the wire. Its fields are public, in network byte order by their types,
/// and may be anything: only [`Header::parse`] looks at whether they make sense.
pub trait Header:
    FromBytes + IntoBytes + KnownLayout + Immutable + Unaligned + Copy + Sized
{
    /// Its name.
    const LAYER: Layer;

    /// Whether its version and kind are those that the type stands for.
    #[inline]
    fn check(&self) -> Result<(), Fault> {
        Ok(())
    }

    /// Bytes of the fixed part and options together, as the header itself says.
    #[inline]
    fn header_len(&self) -> usize {
        size_of::<Self>()
    }

    /// Bytes of the header and all it carries, if the header says so; else it goes to the end of
    /// what there is.
    #[inline]
    fn total_len(&self) -> Option<usize> {
        None
    }

    /// The header at the beginning of these bytes, its options and its payload; all of the length
    /// that it says. What follows that (an Ethernet frame's padding) is left out.
    ///
    /// # Errors
    /// [`Malformed`] where a length is less than the header's own or more than there is, or the
    /// version is another's.
    #[inline]
    fn parse<B: SplitByteSlice>(bytes: B) -> Result<View<B, Self>, Malformed> {
        View::split(bytes, false)
    }

    /// As [`Header::parse`], of a packet whose end may be missing: a first fragment, one that an
    /// ICMP error quotes, or one that was captured in part. The header and its options must be
    /// there.
    ///
    /// # Errors
    /// As [`Header::parse`], but not for a length that is more than there is.
    #[inline]
    fn parse_partial<B: SplitByteSlice>(bytes: B) -> Result<View<B, Self>, Malformed> {
        View::split(bytes, true)
    }

    /// The fixed part alone, and all bytes behind it; no field is looked at.
    ///
    /// # Errors
    /// [`Malformed`] where there are fewer bytes than the fixed part has.
    #[inline]
    fn peek<B: SplitByteSlice>(bytes: B) -> Result<(Ref<B, Self>, B), Malformed> {
        Ref::from_prefix(bytes).map_err(|_| Self::malformed(Fault::Truncated))
    }

    /// A fault of this header.
    #[inline]
    fn malformed(fault: Fault) -> Malformed {
        Malformed { layer: Self::LAYER, fault }
    }
}

/// A header in its place, with what follows it: three slices of the frame, none of them a copy. `B`
/// is `&[u8]` to read or `&mut [u8]` to write as well; parts can be moved out one by one, so that
/// the next header is parsed from `payload` while this one is still at hand.
#[derive(Debug)]
pub struct View<B: ByteSlice, H: Header> {
    /// The fixed part of the header.
    pub header: Ref<B, H>,
    /// The bytes of the header beyond its fixed part: options or optional fields.
    pub options: B,
    /// The bytes behind the header.
    pub payload: B,
}

impl<B: SplitByteSlice, H: Header> View<B, H> {
    /// The one place where lengths are checked.
    #[inline]
    fn split(bytes: B, partial: bool) -> Result<Self, Malformed> {
        let there = bytes.len();
        let (header, behind) = H::peek(bytes)?;
        header.check().map_err(H::malformed)?;
        let header_len = header.header_len();
        let options = header_len.checked_sub(size_of::<H>());
        let options = options.ok_or(H::malformed(Fault::HeaderLength))?;
        let total = match header.total_len() {
            Some(said) if said < header_len => return Err(H::malformed(Fault::TotalLength)),
            Some(said) if said <= there => said,
            Some(_) if !partial => return Err(H::malformed(Fault::TotalLength)),
            _ => there,
        };
        let truncated = H::malformed(Fault::Truncated);
        let payload = total.checked_sub(header_len).ok_or(truncated)?;
        let (options, behind) = behind.split_at(options).map_err(|_| truncated)?;
        let (payload, _padding) = behind.split_at(payload).map_err(|_| truncated)?;
        Ok(Self { header, options, payload })
    }
}

impl<B: ByteSlice, H: Header> View<B, H> {
    /// Bytes of header, options and payload.
    #[inline]
    pub fn len(&self) -> usize {
        self.header_len() + self.payload.len()
    }

    /// Bytes of header and options: where in what was parsed the payload begins.
    ///
    /// ```
    /// use ringway_wire::{Frame, Header as _, Ip, Udp};
    ///
    /// /// Where in a frame the payload of its datagram begins.
    /// fn payload_of(frame: &[u8]) -> Result<usize, ringway_wire::Malformed> {
    ///     let frame = Frame::parse(frame)?;
    ///     let ip = Ip::parse(frame.payload)?;
    ///     let udp = Udp::parse(ip.payload)?;
    ///     Ok(frame.header_len() + ip.header_len() + udp.header_len())
    /// }
    /// # let mut frame = [0; 47];
    /// # (frame[12], frame[14], frame[17], frame[39]) = (8, 0x45, 33, 13);
    /// # assert_eq!(payload_of(&frame), Ok(42));
    /// # let mut tagged = [0; 51];
    /// # (tagged[12], tagged[16], tagged[18], tagged[21], tagged[43]) = (0x81, 8, 0x45, 33, 13);
    /// # assert_eq!(payload_of(&tagged), Ok(46));
    /// ```
    #[inline]
    pub fn header_len(&self) -> usize {
        size_of::<H>() + self.options.len()
    }

    /// Never: there is a header.
    #[inline]
    pub fn is_empty(&self) -> bool {
        false
    }

    /// The sum over header, options and payload, as a checksum covers them, begun with `own`.
    #[inline]
    pub(crate) fn sum(&self, own: Sum) -> Sum {
        own.with(self.header.as_bytes()).with(&self.options).with(&self.payload)
    }
}
