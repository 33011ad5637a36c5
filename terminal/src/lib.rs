//! Terminal output of `ringway` and `ringway-lab`: errors with a remedy, exit codes, tables,
//! numbers with units, completions and manual pages. It knows nothing of packets.

pub mod command_line;
pub mod error;
pub mod exit;
pub mod journal;
pub mod output_file;
pub mod quantity;
pub mod table;
#[cfg(any(test, feature = "testing"))]
pub mod testing_documents;
pub mod text;
pub mod units;
