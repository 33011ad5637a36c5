//! A link without Ethernet: a TUN device at either end, and two threads that carry the packets, as a
//! WireGuard tunnel would.

use std::fs::File;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use anyhow::Result;
use ringway_testnet::Namespace;

use crate::tunnel::{drain, open};

/// What becomes of a packet on its way.
type Through = Box<dyn Fn(&[u8]) -> Vec<u8> + Send>;

/// The link. Dropping it takes both devices away.
#[derive(Debug)]
pub struct Cable {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Cable {
    /// Makes device `name` in both namespaces, up, with these addresses.
    ///
    /// # Errors
    /// No /dev/net/tun, or `ip` fails.
    pub fn new(name: &str, ends: [(&Namespace, &[&str]); 2]) -> Result<Cable> {
        Cable::with(name, ends, <[u8]>::to_vec)
    }

    /// The same; what reaches the second end goes through `arrive` first.
    ///
    /// # Errors
    /// No /dev/net/tun, or `ip` fails.
    pub fn with(
        name: &str,
        ends: [(&Namespace, &[&str]); 2],
        arrive: impl Fn(&[u8]) -> Vec<u8> + Send + 'static,
    ) -> Result<Cable> {
        let make = |(namespace, addresses): (&Namespace, &[&str])| -> Result<File> {
            let tun = namespace.run(|| open(name))??;
            let mut lines = format!("link set {name} up\n");
            for address in addresses {
                lines += &format!("addr add {address} dev {name}\n");
            }
            namespace.ip(&lines)?;
            Ok(tun)
        };
        let (near, far) = (make(ends[0])?, make(ends[1])?);
        let stop = Arc::new(AtomicBool::new(false));
        let carry = |from: &File, to: &File, through: Through| {
            let (from, mut to, stop) = (from.try_clone()?, to.try_clone()?, stop.clone());
            // What the device refuses is lost, as on any link.
            let work = move || drain(from, &stop, |packet| drop(to.write(&through(packet))));
            Ok::<_, std::io::Error>(std::thread::spawn(work))
        };
        let there = carry(&near, &far, Box::new(arrive))?;
        let back = carry(&far, &near, Box::new(<[u8]>::to_vec))?;
        Ok(Cable { stop, threads: vec![there, back] })
    }
}

impl Drop for Cable {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}
