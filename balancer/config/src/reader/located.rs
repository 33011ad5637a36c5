//! A value that remembers where it was written, for errors found later.

use std::fmt;
use std::ops::{Deref, Range};

/// A value and its place in the file. Dereferences to the value; compares by value alone.
#[derive(Clone)]
pub struct Located<T> {
    value: T,
    span: Range<usize>,
}

impl<T> Located<T> {
    /// A value at a byte range of the file.
    pub fn new(value: T, span: Range<usize>) -> Located<T> {
        Located { value, span }
    }

    pub fn into_inner(self) -> T {
        self.value
    }

    /// Where it was written: bytes of the file. Empty at 0 for a default.
    pub fn span(&self) -> Range<usize> {
        self.span.clone()
    }
}

/// A default: written nowhere.
impl<T> From<T> for Located<T> {
    fn from(value: T) -> Located<T> {
        Located { value, span: 0..0 }
    }
}

impl<T> Deref for Located<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T: PartialEq> PartialEq for Located<T> {
    fn eq(&self, other: &Located<T>) -> bool {
        self.value == other.value
    }
}

impl<T: Eq> Eq for Located<T> {}

impl<T: fmt::Debug> fmt::Debug for Located<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.value.fmt(f)
    }
}

impl<T: fmt::Display> fmt::Display for Located<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.value.fmt(f)
    }
}
