//! `ringway accept`: the program that makes connections of the gateway's SYN cookies on a backend.
//! It has an object and maps of its own, and shares nothing with a gateway but the key.

use std::collections::BTreeMap;
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::SystemTime;

use libbpf_rs::btf::Btf;
use libbpf_rs::btf::types::Func;
use ringway_abi::raw::{RW_MAX_ACCEPT_LISTENERS, rw_accept_counts, rw_service_key, rw_syn_secrets};
use ringway_abi::{addr_from_words, addr_to_words};
use ringway_bpf_sys as bpf;
use rustix::io::Errno;

use crate::load::set_clock;
use crate::load::{self, log};
use crate::maps::{Map, map};
use crate::objects::accept::{self, AcceptSkelBuilder};
use crate::shield::{ChallengeKey, SynSecrets, challenge_key};
use crate::sources::Sources;
use crate::sources::clock::Clock;
use crate::{Error, Result, requirements};

/// Name of the program, as `bpftool` shows it.
const NAME: &str = "ringway_accept";
/// What makes a connection of an ACK (Linux 6.9).
const ASSIGN: &str = "bpf_sk_assign_tcp_reqsk";
const TCP: u8 = 6;

/// The program, loaded. Dropping it detaches it.
#[derive(Debug)]
pub struct Accept {
    program: OwnedFd,
    state: AcceptState,
    link: Option<OwnedFd>,
}

impl Accept {
    /// Loads it for these addresses and ports. `ethernet`: the interface's packets have an Ethernet
    /// header.
    ///
    /// # Errors
    /// The kernel cannot, or there are too many.
    pub fn load(listeners: &[SocketAddr], ethernet: bool, key: ChallengeKey) -> Result<Self> {
        log::install();
        require_accept()?;
        let limit = RW_MAX_ACCEPT_LISTENERS as usize;
        if listeners.len() > limit {
            return Err(Error::TooManyListeners { found: listeners.len(), limit });
        }
        let mut storage = MaybeUninit::uninit();
        let mut open = load::open::<AcceptSkelBuilder>(NAME, &mut storage)?;
        load::constants(&mut open.maps.rodata_data)?.l2_len = if ethernet { 14 } else { 0 };
        set_clock!(open, Clock::Kernel);
        let loaded = load::load(NAME, open)?;
        let secrets = map!(accept, loaded.maps, syn_secrets)?;
        challenge_key::begin(&secrets, key, &Clock::Kernel)?;
        let state = AcceptState { secrets, listeners: map!(accept, loaded.maps, listeners)? };
        for listener in listeners {
            state.listeners.put_percpu(&key_of(*listener), &rw_accept_counts::default())?;
        }
        let program = load::program(&loaded.progs.ringway_accept)?;
        Ok(Self { program, state, link: None })
    }

    /// Puts it at tc ingress of an interface of the calling thread's network namespace.
    ///
    /// # Errors
    /// The kernel's.
    pub fn attach(&mut self, iface: &str, ifindex: u32) -> Result<()> {
        let link = bpf::attach_ingress(self.program.as_fd(), ifindex);
        let failed = |source| Error::AttachIngress { iface: iface.to_owned(), source };
        self.link = Some(link.map_err(failed)?);
        Ok(())
    }

    /// Takes cookies of this key from now on, and for two minutes those of the one before.
    ///
    /// # Errors
    /// The map cannot be written.
    pub fn set_key(&self, key: ChallengeKey) -> Result<()> {
        challenge_key::set(&self.state.secrets, Some(key), &Sources::default())
    }

    /// Follows the clock of the machine, by which gateways and backends agree.
    ///
    /// # Errors
    /// The map cannot be written.
    pub fn follow_clock(&self, now: SystemTime) -> Result<()> {
        challenge_key::follow_clock(&self.state.secrets, now, &Clock::Kernel)
    }

    /// Whether it is where it was put, and that still exists.
    pub fn is_attached(&self) -> bool {
        let info = self.link.as_ref().map(|link| bpf::link_info(link.as_fd()));
        matches!(info, Some(Ok(info)) if info.ifindex != 0)
    }

    /// For test runs.
    pub fn program(&self) -> BorrowedFd<'_> {
        self.program.as_fd()
    }

    /// What it knows and has counted.
    pub fn state(&self) -> &AcceptState {
        &self.state
    }
}

/// The maps of a program that is at work, whichever process started it.
#[derive(Debug)]
pub struct AcceptState {
    secrets: Map<u32, rw_syn_secrets>,
    listeners: Map<rw_service_key, rw_accept_counts>,
}

impl AcceptState {
    /// The keys whose cookies it takes.
    ///
    /// # Errors
    /// The map cannot be read.
    pub fn secrets(&self) -> Result<SynSecrets> {
        Ok(SynSecrets::of(&self.secrets.get(0)?))
    }

    /// Segments to each address and port, by their end.
    ///
    /// # Errors
    /// The map cannot be read.
    pub fn counts(&self) -> Result<BTreeMap<SocketAddr, rw_accept_counts>> {
        let keys = self.listeners.keys_there()?;
        let counts = |key: rw_service_key| {
            let listener = SocketAddr::new(addr_from_words(key.addr), u16::from_be(key.port_be));
            Ok((listener, self.listeners.sum(&key, rw_accept_counts::add)?))
        };
        keys.into_iter().map(counts).collect()
    }
}

/// What is at work at an interface of the calling thread's network namespace; `None`: nothing is.
///
/// # Errors
/// The kernel does not say.
pub fn accept_state(ifindex: u32) -> Result<Option<AcceptState>> {
    let programs = match bpf::ingress_programs(ifindex) {
        // Before 6.6 there is no such place.
        Err(error) if error.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => return Ok(None),
        other => other.map_err(|source| Error::System { action: "list tc programs", source })?,
    };
    let ours = programs.into_iter().find(|id| crate::program_name(*id).as_deref() == Some(NAME));
    let Some(id) = ours else { return Ok(None) };
    let maps = (Map::of_program(id, "syn_secrets")?, Map::of_program(id, "listeners")?);
    let (Some(secrets), Some(listeners)) = maps else { return Ok(None) };
    Ok(Some(AcceptState { secrets, listeners }))
}

/// Refuses a kernel that cannot make a connection of somebody else's cookie: by what it has, since
/// distributions add to old ones.
///
/// # Errors
/// It cannot, or nobody may load programs here.
pub fn require_accept() -> Result<()> {
    let found = requirements::probe()?;
    found.require()?;
    let types = Btf::from_vmlinux();
    if types.is_ok_and(|types| types.type_by_name::<Func<'_>>(ASSIGN).is_some()) {
        return Ok(());
    }
    Err(Error::NoAccept { found: found.kernel })
}

fn key_of(listener: SocketAddr) -> rw_service_key {
    rw_service_key {
        addr: addr_to_words(listener.ip()),
        port_be: listener.port().to_be(),
        proto: TCP,
        block: 0,
    }
}
