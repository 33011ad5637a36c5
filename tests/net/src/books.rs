//! What the kernel counts, to hold Ringway's books against.

use anyhow::{Context, Result, ensure};
use ringway_testnet::Namespace;
use serde_json::Value;

/// Counters and XDP programs of an interface, by `ip -d -s -j link`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// Packets received.
    pub received: u64,
    /// Id of the attached XDP program, 0: none.
    pub program: u64,
}

impl Device {
    /// Reads one.
    ///
    /// # Errors
    /// There is no such interface.
    pub fn read(namespace: &Namespace, name: &str) -> Result<Device> {
        let output = namespace
            .command("ip")
            .args(["-d", "-s", "-j", "link", "show", "dev", name])
            .output()?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let links: Value = serde_json::from_slice(&output.stdout)?;
        let received = links[0]["stats64"]["rx"]["packets"].as_u64().context("no counters")?;
        let program = links[0]["xdp"]["prog"]["id"].as_u64().unwrap_or(0);
        Ok(Device { received, program })
    }
}

/// Packets received by an interface.
///
/// # Errors
/// There is no such interface.
pub fn received(namespace: &Namespace, name: &str) -> Result<u64> {
    Ok(Device::read(namespace, name)?.received)
}
