//! Options of IPv4 and TCP, which are alike: a kind, a length that counts both, data. Kind 0 ends
//! them, kind 1 is padding.

use crate::malformed::{Fault, Layer, Malformed};

/// An option as it stands in the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawOption<'a> {
    /// Option kind.
    pub kind: u8,
    /// The bytes behind kind and length.
    pub data: &'a [u8],
}

/// Options one by one, without padding and what is behind their end. After an error there are no
/// more.
#[derive(Clone, Debug)]
pub struct HeaderOptions<'a> {
    layer: Layer,
    rest: &'a [u8],
}

impl<'a> HeaderOptions<'a> {
    pub(crate) fn new(layer: Layer, bytes: &'a [u8]) -> Self {
        Self { layer, rest: bytes }
    }

    fn split(&self) -> Option<(RawOption<'a>, &'a [u8])> {
        let [kind, len, ..] = *self.rest else { return None };
        let (option, rest) = self.rest.split_at_checked(len.into())?;
        Some((RawOption { kind, data: option.get(2..)? }, rest))
    }
}

impl<'a> Iterator for HeaderOptions<'a> {
    type Item = Result<RawOption<'a>, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        while let [1, rest @ ..] = self.rest {
            self.rest = rest;
        }
        if let [] | [0, ..] = self.rest {
            self.rest = &[];
            return None;
        }
        let split = self.split();
        self.rest = split.map_or(&[], |(_, rest)| rest);
        let malformed = Malformed { layer: self.layer, fault: Fault::OptionLength };
        Some(split.map(|(option, _)| option).ok_or(malformed))
    }
}
