//! bpf/sockmap.bpf.c between nginx and its backends, which are in a control group of their own.

use std::fs::{self, File};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::path::{Path, PathBuf};

use libbpf_rs::skel::{OpenSkel as _, SkelBuilder as _};
use libbpf_rs::{MapCore as _, MapFlags, MapHandle};
use ringway_testnet::OneBridge;

use super::balancer::v4;
use crate::benches::tcp::memcg;
use crate::{Error, Result};

/// Generated from bpf/sockmap.bpf.c.
#[allow(clippy::all, clippy::undocumented_unsafe_blocks, clippy::unwrap_used)]
mod skeleton {
    include!(concat!(env!("OUT_DIR"), "/sockmap.skel.rs"));
}

/// The programs, for sockets of processes that begin in its control group.
pub(super) struct ShortCut {
    _sockops: libbpf_rs::Link,
    /// Its program stays as long as somebody has the map open.
    _connections: MapHandle,
    counts: MapHandle,
    group: Group,
}

/// What has not gone as TCP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Redirected {
    pub messages: u64,
    pub bytes: u64,
}

impl ShortCut {
    pub(super) fn lay(net: &OneBridge) -> Result<Self> {
        let group = Group::new(net.balancer.ns.name()).map_err(Error::Unavailable)?;
        let directory =
            File::open(&group.0).map_err(|source| Error::Read { path: group.0.clone(), source })?;
        let mut storage = MaybeUninit::uninit();
        let refused = |error: libbpf_rs::Error| {
            Error::Unavailable(format!(
                "the short cut of sockets: {error}; it takes a kernel with CONFIG_CGROUP_BPF and \
                 CONFIG_BPF_STREAM_PARSER"
            ))
        };
        let mut open = skeleton::SockmapSkelBuilder::default().open(&mut storage)?;
        let data = open.maps.rodata_data.as_mut().ok_or(Error::NoVariables)?;
        data.proxy = u32::from_ne_bytes(v4(net.balancer.v4).octets());
        let loaded = open.load().map_err(refused)?;
        let connections = MapHandle::try_from(&loaded.maps.connections)?;
        let counts = MapHandle::try_from(&loaded.maps.counts)?;
        loaded.progs.written.attach_sockmap(connections.as_fd().as_raw_fd()).map_err(refused)?;
        let sockops =
            loaded.progs.established.attach_cgroup(directory.as_raw_fd()).map_err(refused)?;
        Ok(Self { _sockops: sockops, _connections: connections, counts, group })
    }

    /// The control group's directory.
    pub(super) fn group(&self) -> &Path {
        &self.group.0
    }

    pub(super) fn redirected(&self) -> Result<Redirected> {
        let by_cpu = self.counts.lookup_percpu(&0_u32.to_ne_bytes(), MapFlags::ANY)?;
        let word = |bytes: &[u8], at: usize| {
            let word = bytes.get(at..at + 8).and_then(|word| word.try_into().ok());
            word.map_or(0, u64::from_ne_bytes)
        };
        Ok(by_cpu.iter().flatten().fold(Redirected::default(), |sum, bytes| Redirected {
            messages: sum.messages + word(bytes, 0),
            bytes: sum.bytes + word(bytes, 8),
        }))
    }
}

impl Redirected {
    /// # Errors
    /// Nothing was redirected since `before`: the figures would be those of plain nginx.
    pub(super) fn since(self, before: Self) -> Result<Self> {
        let Self { messages, bytes } = self;
        let since = Self { messages: messages - before.messages, bytes: bytes - before.bytes };
        if since.messages > 0 && since.bytes > 0 {
            return Ok(since);
        }
        Err(Error::Failed {
            program: "the short cut of sockets".into(),
            output: "no message was redirected".into(),
        })
    }
}

/// A control group of version 2. Drop it after its processes have ended.
struct Group(PathBuf);

impl Group {
    fn new(name: &str) -> Result<Self, String> {
        memcg::remove_stale();
        let path = memcg::root()?.join(name);
        fs::create_dir(&path).map_err(|error| {
            format!("{}: {error}; run as root, outside of a container", path.display())
        })?;
        Ok(Self(path))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // If this fails, the next run does it.
        let _ = fs::remove_dir(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_redirected_is_no_figure() {
        let before = Redirected { messages: 2, bytes: 100 };
        let after = Redirected { messages: 5, bytes: 400 };
        assert_eq!(after.since(before).unwrap(), Redirected { messages: 3, bytes: 300 });
        let error = before.since(before).unwrap_err().to_string();
        assert!(error.contains("no message was redirected"), "{error}");
    }
}
