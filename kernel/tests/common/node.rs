//! Pinned nodes for tests.

use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use libbpf_rs::{MapCore as _, MapFlags, MapHandle};
use ringway_abi::raw::rw_settings;
use ringway_abi::{FromBytes as _, IntoBytes as _};
use ringway_kernel::{DEFAULT_BPFFS, Detached, Error, GatewayOptions, Pins, View, detach};
use ringway_testnet::{root_or_skip, wait_until};

/// A node of its own under the machine's bpffs, detached when dropped, also by a failing test.
/// What a killed test left behind goes when the next one starts.
pub struct Node {
    /// Its name: rwtest-PID-N.
    pub name: String,
}

impl Node {
    /// Skips the test without root.
    pub fn of(test: &str) -> Option<Self> {
        root_or_skip(test).then(Self::new)
    }

    /// A node with a name that no other test has.
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        sweep();
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        Self { name: format!("rwtest-{}-{number}", std::process::id()) }
    }

    pub fn options(&self) -> GatewayOptions {
        GatewayOptions { node: self.name.clone(), flows: 4096, ..GatewayOptions::default() }
    }

    pub fn pins(&self) -> Pins {
        Pins::new(DEFAULT_BPFFS, &self.name).expect("the name is good")
    }

    /// Reads it as `status` does.
    pub fn view(&self) -> ringway_kernel::Result<View> {
        View::open(Path::new(DEFAULT_BPFFS), &self.name)
    }

    pub fn map(&self, name: &str) -> MapHandle {
        MapHandle::from_pinned_path(self.pins().map(name)).expect("it is pinned")
    }

    pub fn change_settings(&self, change: impl FnOnce(&mut rw_settings)) {
        let map = self.map("settings");
        let bytes = map.lookup(&[0; 4], MapFlags::ANY).expect("a row").expect("written");
        let mut settings = rw_settings::read_from_bytes(&bytes).expect("the layout is ours");
        change(&mut settings);
        map.update(&[0; 4], settings.as_bytes(), MapFlags::ANY).expect("a table to write");
    }

    pub fn detach(&self) -> ringway_kernel::Result<Detached> {
        detach(Path::new(DEFAULT_BPFFS), &self.name)
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if self.pins().dir().exists() {
            // A process that another test is starting may have inherited its lock.
            let _ = wait_until("the lock of the node", Duration::from_secs(30), || {
                !matches!(self.detach(), Err(Error::Busy { .. }))
            });
        }
    }
}

fn sweep() {
    let Ok(pins) = Pins::new(DEFAULT_BPFFS, "rwtest") else { return };
    for name in pins.known_nodes().unwrap_or_default() {
        let owner = name.strip_prefix("rwtest-").and_then(|rest| rest.split('-').next());
        let Some(owner) = owner else { continue };
        if !Path::new("/proc").join(owner).exists() {
            let _ = detach(Path::new(DEFAULT_BPFFS), &name);
        }
    }
}
