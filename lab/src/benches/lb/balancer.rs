//! The shared part of every balancer's set-up.

use std::fs;
use std::net::Ipv4Addr;
use std::path::PathBuf;

use ringway_kernel::XdpLink;
use ringway_testnet::{Child, Namespace};

use crate::{Error, Result};

/// Where clients connect and backends listen.
pub(super) const PORT: u16 = 80;

/// The running part of a path's set-up.
pub(super) struct Balancer {
    /// Where clients connect, at [`PORT`].
    pub address: Ipv4Addr,
    pub configuration: String,
    /// The program, if there is one.
    pub child: Option<Child>,
    /// The program on an interface, if there is one.
    pub _xdp: Option<XdpLink>,
}

/// The topology always has IPv4; [`Ipv4Addr::UNSPECIFIED`] would fail the trial fetches.
pub(super) fn v4(address: Option<Ipv4Addr>) -> Ipv4Addr {
    address.unwrap_or(Ipv4Addr::UNSPECIFIED)
}

/// Writes a program's configuration into its namespace's directory.
pub(super) fn write(namespace: &Namespace, name: &str, text: &str) -> Result<PathBuf> {
    let path = namespace.directory().join(name);
    fs::write(&path, text).map_err(|source| Error::Write { path: path.clone(), source })?;
    Ok(path)
}
