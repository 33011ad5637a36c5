//! Forwarding between interfaces (`[forward]`): what the daemon does for it beside the packet path.
//!
//! A thread of its own keeps the tables of the packet path as the kernel's bridge or routes are,
//! whatever the loop is busy with. What it finds out is posted on a board that the loop reads.

mod board;
mod facts;
mod keeper;
mod mirror;
mod plan;
mod sync_state;

pub use board::Board;
pub use facts::Facts;
pub use keeper::Keeper;
pub use plan::plan;
