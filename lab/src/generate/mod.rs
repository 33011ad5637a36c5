//! Packets that are made to be counted: what they are ([`Recipe`]), when they are sent ([`Pace`]),
//! and what its receiver makes of their stamps ([`ReceiveCounts`]).
//!
//! Two apps of the engine send and receive them: [`Generator`] and [`Checker`].
//! [`live_frames`] sends them from within the kernel instead.

mod addresses;
mod generator;
pub mod live_frames;
mod pace;
mod receive_counts;
mod recipe;

pub use self::addresses::{Addresses, Numbers, SpanError};
pub use self::generator::{Checker, Generator, GeneratorControl, Rate, SendProgress, Traffic};
pub use self::pace::Pace;
pub use self::receive_counts::{Latency, ReceiveCounts, StreamCounts};
pub use self::recipe::template::{Flow, Flows, Template};
pub use self::recipe::{IMIX, Recipe, RecipeError, SIZES, Transport};
