//! `ringway capture`: packets as they come and leave, with what was decided about them.

mod lines;
mod names;
mod options;
mod output;
mod packet;
mod pcapng;
mod run;
mod selection;
mod sink;

pub use lines::Form;
pub use options::{CaptureOptions, CaptureTarget, Limits};
pub use run::{CaptureOutcome, Ended, SCHEMA, Summary, run};
pub use selection::Selection;
