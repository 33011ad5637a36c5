//! TCP's options (RFC 9293, section 3.1; RFC 7323; RFC 2018).

use zerocopy::{FromBytes, IntoBytes};

use crate::malformed::{Fault, Layer, Malformed};
use crate::{BuildError, HeaderOptions, RawOption, U16, U32};

/// An option of a TCP header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TcpOption<'a> {
    /// The largest segment that the sender takes, in bytes.
    MaximumSegmentSize(u16),
    /// By how many bits the sender's windows are to be shifted.
    WindowScale(u8),
    /// Selective acknowledgments are understood.
    SackPermitted,
    /// Received blocks: first and one past the last sequence number of each block, at most four.
    Sack(&'a [[U32; 2]]),
    /// The sender's clock, and what it last saw of the other's.
    Timestamps {
        /// The sender's clock.
        value: u32,
        /// The echoed timestamp.
        echo: u32,
    },
    /// An option without a variant.
    Other(RawOption<'a>),
}

impl<'a> TcpOption<'a> {
    /// None where the length is not what the kind has.
    fn read(raw: RawOption<'a>) -> Option<Self> {
        let data = raw.data;
        Some(match raw.kind {
            2 => Self::MaximumSegmentSize(U16::read_from_bytes(data).ok()?.get()),
            3 => Self::WindowScale(u8::read_from_bytes(data).ok()?),
            4 => data.is_empty().then_some(Self::SackPermitted)?,
            5 => Self::Sack(<[[U32; 2]]>::ref_from_bytes(data).ok()?),
            8 => {
                let [value, echo] = <[U32; 2]>::read_from_bytes(data).ok()?;
                Self::Timestamps { value: value.get(), echo: echo.get() }
            }
            _ => Self::Other(raw),
        })
    }

    /// Writes options one behind the other, padded to a multiple of four bytes, and returns the
    /// bytes for [`crate::Builder::tcp`].
    ///
    /// # Errors
    /// [`BuildError::Options`] where they need more than 40 bytes.
    pub fn write<'b>(
        options: &[TcpOption<'a>],
        to: &'b mut [u8; 40],
    ) -> Result<&'b [u8], BuildError> {
        let mut len = 0;
        for option in options {
            len = match option {
                Self::MaximumSegmentSize(size) => append(to, len, 2, &size.to_be_bytes()),
                Self::WindowScale(shift) => append(to, len, 3, &[*shift]),
                Self::SackPermitted => append(to, len, 4, &[]),
                Self::Sack(blocks) => append(to, len, 5, blocks.as_bytes()),
                Self::Timestamps { value, echo } => {
                    append(to, len, 8, [U32::new(*value), U32::new(*echo)].as_bytes())
                }
                Self::Other(raw) => append(to, len, raw.kind, raw.data),
            }?;
        }
        let written = to.get_mut(..len.next_multiple_of(4)).unwrap_or_default();
        // Zero ends the options.
        written.iter_mut().skip(len).for_each(|byte| *byte = 0);
        Ok(written)
    }
}

/// Writes one option at `at` and returns where it ends.
fn append(to: &mut [u8; 40], at: usize, kind: u8, data: &[u8]) -> Result<usize, BuildError> {
    let len = 2 + data.len();
    let too_long = BuildError::Options { layer: Layer::Tcp, len: at + len };
    let [of_kind, of_len, rest @ ..] = to.get_mut(at..at + len).ok_or(too_long)? else {
        return Err(too_long);
    };
    (*of_kind, *of_len) = (kind, len as u8);
    rest.copy_from_slice(data);
    Ok(at + len)
}

/// Options one by one. After one whose length is wrong there are no more.
#[derive(Clone, Debug)]
pub struct TcpOptions<'a>(HeaderOptions<'a>);

impl<'a> TcpOptions<'a> {
    /// The options in the bytes behind a header.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self(HeaderOptions::new(Layer::Tcp, bytes))
    }
}

impl<'a> Iterator for TcpOptions<'a> {
    type Item = Result<TcpOption<'a>, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        let read = self.0.next()?.and_then(|raw| {
            let malformed = Malformed { layer: Layer::Tcp, fault: Fault::OptionLength };
            TcpOption::read(raw).ok_or(malformed)
        });
        if read.is_err() {
            self.0 = HeaderOptions::new(Layer::Tcp, &[]);
        }
        Some(read)
    }
}
