//! How values are read: with their places, and all errors at once.

pub(crate) mod diagnostics;
pub(crate) mod located;
pub(crate) mod section;
pub(crate) mod suggest;
pub(crate) mod syntax;
pub(crate) mod value;
