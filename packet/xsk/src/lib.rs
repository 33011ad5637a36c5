//! AF_XDP without a C library. So far its rings: single producer, single consumer, in memory that two sides share, of which
//! one is usually the kernel.
//!
//! ```
//! use ringway_xsk::ring;
//!
//! let (mut producer, mut consumer) = ring::in_memory::<u64>(4);
//!
//! let mut reserved = producer.reserve(2)?;
//! assert_eq!(reserved.push(0x1000), Ok(()));
//! assert_eq!(reserved.push(0x2000), Ok(()));
//! assert_eq!(reserved.push(0x3000), Err(0x3000), "two were reserved");
//! reserved.submit();
//!
//! let arrived = consumer.peek(64)?;
//! assert_eq!(arrived.iter().collect::<Vec<_>>(), [0x1000, 0x2000]);
//! arrived.release();
//! # Ok::<(), ringway_xsk::ring::Corrupt>(())
//! ```

pub mod ring;
mod sync;
