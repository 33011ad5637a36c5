//! AF_XDP without a C library: packets of a network interface's queue, in memory that the kernel
//! and the program share.
//!
//! | | |
//! |---|---|
//! | [`Umem`] | memory for packets: 4 KiB, 2 MiB or 1 GiB pages, on a NUMA node; can be passed to other processes; reports what it got and why |
//! | [`Pool`] | a worker's share of it: a list of free frames, without locks or atomics |
//! | [`Packet`] | owns its frames: dropping frees them, sending gives them to the kernel; it cannot be lost, copied or sent twice |
//! | [`Batch`] | a burst of packets |
//! | [`Transfer`] | a packet on its way to another worker's pool |
//! | [`worker_channel`] | passes packets from one worker to another without a copy |
//! | [`Socket`] | a queue of an interface: [`receive`](Queue::receive), [`send`](Queue::send), [`flush`](Queue::flush) |
//! | [`Redirect`] | the XDP program that fills it; or put it into a map of yours: [`SocketMap`] |
//! | [`Audit`] | finds every frame exactly once, or says what is wrong |
//! | [`Watch`] | the ledger from any thread: frames that are held for too long |
//! | [`Inspector`] | the same from another process, with what is in the frames |
//! | [`memory_map()`] | where all of it lies, in which pages, and how much is in memory |
//! | [`ringway_ring`] | single producer, single consumer, in shared memory |
//! | [`Umem::offer`] | a successor continues with memory, sockets and ledger |
//! | [`fake_kernel`] | a simulated kernel, for tests without privileges |
//!
//! ```no_run
//! use std::time::Duration;
//! use ringway_xsk::{Batch, XdpMode, Redirect, Socket, SocketConfig, Umem, UmemConfig};
//!
//! // Twice what reception takes, so that there is something to send.
//! let umem = Umem::new(&UmemConfig { frames: 4096, ..UmemConfig::default() })?;
//! let pool = umem.pool().ok_or("opened already")?;
//! let mut socket = Socket::open(&pool, "eth1", 0, &SocketConfig::default())?;
//! let redirect = Redirect::attach("eth1", XdpMode::Native, 1)?;
//! redirect.map().insert(0, &socket)?;
//!
//! let mut batch = Batch::new(64);
//! loop {
//!     if socket.receive(&mut batch)? == 0 {
//!         socket.flush()?;
//!         socket.wait(Duration::from_millis(100))?;
//!     }
//!     for packet in batch.iter_mut() {
//!         packet.data_mut()[..6].fill(0xff);
//!     }
//!     // In the frames in which they arrived. Those that TX has no room for stay in the batch.
//!     socket.send(&mut batch)?;
//!     batch.clear();
//! }
//! # #[allow(unreachable_code)]
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Where a frame goes
//!
//! ```text
//!                   receive                          receive
//!            +---> FILL ---> kernel ---> RX ----+
//!            |                                  v
//!          free <------------ drop ----------- held   a Packet
//!            ^  ------------ allocate ------->  |
//!            |                                  v send
//!            +-- COMPLETION <--- kernel <--- TX +
//!               receive, send, flush
//! ```
//! Each arrow is counted where it happens ([`Counts`]), and each frame has a record that says where
//! it is ([`Record`]); no figure is computed from another. [`Pool::audit`] walks lists and rings
//! and compares all of them.
//!
//! # How many frames
//!
//! For each of its queues a pool needs [`SocketConfig::fill`] frames for reception, beside those
//! that are being sent (up to [`SocketConfig::tx`]) and those that the program holds. If reception
//! took all frames, [`Granted::refusals`] says so.
//!
//! # Threads
//!
//! A worker has a pool, its queues and their packets; none of them leaves its thread. Workers share
//! a [`Umem`], which is divided into as many pools, and pass packets to one another as
//! [`Transfer`]s.
//!
//! # What is trusted
//!
//! - Every process that has the file can write the ledger. The ledger is therefore only for others
//!   to read: watches, inspectors, and once a successor. Nothing that is read there decides who
//!   owns a frame. Free lists, the chains of packets, and the list of frames that the kernel has
//!   are in memory of this process alone.
//! - A successor reads the records once, checks them, and continues with its copy. In one process
//!   no frame has two owners, and no access leaves the mapping, whatever another process writes at
//!   any time.
//! - The bytes of frames are shared in any case. A `&mut [u8]` cannot be defended against a process
//!   that writes there, so the calls that let others write are `unsafe`: [`Umem::file`] and
//!   [`Umem::from_file`]. Safe code gets from this crate no descriptor that it could write to, and
//!   no second mapping. `/proc/self/fd` has one, as `/proc/self/mem` has the memory; no library can
//!   close these.
//! - The kernel is trusted to write to no frame that it does not have. The contents of its rings
//!   are checked. Limit: a driver in zero-copy releases frames a moment after their socket is
//!   closed, and nothing tells when.
//!
//! # Privileges
//!
//! | to | you need |
//! |---|---|
//! | open a socket | CAP_NET_RAW, or a socket that a helper opened ([`Socket::open_on`]) |
//! | bind it, register memory, make rings | nothing |
//! | have more memory than RLIMIT_MEMLOCK | CAP_IPC_LOCK |
//! | load and attach the program, make its map | CAP_BPF and CAP_NET_ADMIN |
//! | put a socket into a map that is open | CAP_BPF where `kernel.unprivileged_bpf_disabled` is set |
//! | poll busily | CAP_NET_ADMIN |
//! | reserve large pages | root, once: `/sys/kernel/mm/hugepages` |
//!
//! Linux 6.1 is enough. Newer kernels take packets longer than a frame (6.6), let a successor take
//! sockets over (6.4), and send more in a system call (6.17).

#![warn(missing_docs)]

pub mod fake_kernel;
mod ledger;
mod packet;
mod queue;
mod redirect;
mod socket;
mod sys;
mod umem;
pub mod worker_channel;

pub use ledger::audit::{Audit, Fault, Found};
pub use ledger::watch::{Aged, Inspector, Watch};
pub use ledger::{Counts, Place, Record};
pub use packet::batch::{Batch, Front};
pub use packet::buffer::Buffer;
pub use packet::pool::Pool;
pub use packet::{MAX_FRAMES, NoRoom, Packet};
pub use queue::{
    Descriptor, Error, Kernel, Queue, QueueCounts, Rings, SHORTEST, TooManyQueues, Use, Wake,
};
pub use redirect::{Program, Redirect, SocketMap};
pub use ringway_bpf_sys::{XdpLink, XdpMode};
pub use socket::setup::{Cause, SetupError, Step};
pub use socket::{BusyPoll, Granted, Handle, KernelCounts, LeftSocket, Mode, Socket, SocketConfig};
pub use umem::memory::{Obtained, PageSize, node_of_interface};
pub use umem::memory_map::{Mapping, Part, memory_map, memory_map_of};
pub use umem::{Chunk, KERNEL_HEADROOM, Umem, UmemConfig, UmemError};
pub use worker_channel::Transfer;
