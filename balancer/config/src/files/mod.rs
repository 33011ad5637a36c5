//! The files: reading, including, identity, and what is shown of them.

pub(crate) mod file;
pub(crate) mod identity;
pub(crate) mod include;
pub(crate) mod redact;
