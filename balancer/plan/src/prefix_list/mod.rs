//! Prefix lists of the shield: the text of list files in, the packet path's tables out.
//!
//! [`parse()`] reads one file. [`PrefixSet`] joins the lists of one kind, allow or block, into
//! disjoint prefixes. [`ListTables`] is what the packet path searches.

mod parse;
mod prefix;
mod set;
mod table;

pub use parse::{
    BadLine, Entry, ListFile, ListFileError, MAX_BAD_LINES, MAX_ENTRIES, TooMany, Why, parse,
};
pub use prefix::{Family, Prefix, PrefixError};
pub use set::{Listed, PrefixSet};
pub use table::ListTables;
