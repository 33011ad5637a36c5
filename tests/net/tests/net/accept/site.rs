//! Clients and servers as they are, with a gateway between them that answers SYNs with cookies.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::Ordering;

use anyhow::{Context, Result, ensure};
use ringway_net_tests::{Bulk, SOON, Transfer, binary, bulk, get, needs_root, ringway};
use ringway_testnet::{Child, Families, Nginx, TwoArmed, two_armed, wait_until};
use serde_json::Value;

use super::gateway::{Forward, Gateway};
use super::{KEYS, SERVICES, accepted, at, has_kfunc, secret};
use crate::dsr::forwards;

const BULK: u16 = 81;
const SUMMED: u16 = 82;
const GREETING: u16 = 83;
const MEGABYTES: u64 = 20;

struct Place {
    gateway: Gateway,
    net: TwoArmed,
    accept: Child,
    _nginx: Nginx,
    _bulk: Vec<Bulk>,
    greeting: TcpListener,
    _decap: Option<Child>,
}

impl Place {
    fn new(forward: Forward) -> Result<Option<Place>> {
        if !has_kfunc()? {
            return Ok(None);
        }
        let net = two_armed(1, Families::Both)?;
        forwards(&net.gateway, "eth1")?;
        let backend = &net.backends[0].ns;
        backend.ip("addr add 203.0.113.9/32 dev lo\naddr add 2001:db8::9/128 dev lo nodad\n")?;
        let services = SERVICES.map(at);
        let _decap = match forward {
            Forward::Frame => None,
            Forward::Tunnel => {
                let mut command = backend.command(binary()?);
                command.args(["decap", "-i", "eth0"]);
                let mut child = backend.spawn(command)?;
                child.wait_for_log("attached to eth0", SOON)?;
                Some(child)
            }
        };
        let nginx = Nginx::start(backend, &services, "b1")?;
        let mut bulks = Vec::new();
        for service in services {
            bulks.push(Bulk::start(backend, SocketAddr::new(service.ip(), BULK))?);
        }
        let greeting = at(&format!("[::]:{GREETING}"));
        let greeting = backend.run(|| TcpListener::bind(greeting))??;
        greeting.set_nonblocking(true)?;
        // Until it is there, for the one that `Transfer` makes.
        let summed = at(&format!("[::]:{SUMMED}"));
        let summed = backend.run(|| TcpListener::bind(summed))??;
        let accept = accept(backend)?;
        drop(summed);
        let gateway = Gateway::start(&net, &services, KEYS[0], forward)?;
        Ok(Some(Place { net, gateway, accept, _nginx: nginx, _bulk: bulks, greeting, _decap }))
    }

    fn counted(&self, end: &str) -> Result<u64> {
        let arguments = ["accept", "-i", "eth0", "--status", "-o", "json"];
        let status: Value = ringway(&self.net.backends[0].ns, &arguments)?.json()?;
        let listeners = status["listeners"].as_array().into_iter().flatten();
        let counters = listeners.flat_map(|one| one["counters"].as_array().into_iter().flatten());
        Ok(counters.filter(|one| one["end"] == end).filter_map(|one| one["packets"].as_u64()).sum())
    }

    /// Requests, much data both ways, and no SYN at the backend.
    fn serves(&self) -> Result<()> {
        let client = &self.net.client.ns;
        for service in SERVICES.map(at) {
            for _ in 0..20 {
                ensure!(get(client, service)? == "b1");
            }
            bulk(client, SocketAddr::new(service.ip(), BULK), 1 << 20, MEGABYTES << 20)
                .with_context(|| format!("{service}"))?;
        }
        ensure!(self.counted("opened")? == 42, "{}", self.counted("opened")?);
        ensure!(self.counted("handshake")? == 0 && self.counted("no-cookie")? == 0);
        Ok(())
    }
}

fn accept(backend: &ringway_testnet::Namespace) -> Result<Child> {
    let mut command = backend.command(binary()?);
    command.args(["accept", "-i", "eth0", "--secret"]).arg(secret(backend, KEYS[0])?);
    for service in SERVICES.map(at) {
        for port in [80, BULK, SUMMED, GREETING] {
            let listen = SocketAddr::new(service.ip(), port).to_string();
            command.args(["--listen", &listen]);
        }
    }
    let mut child = backend.spawn(command)?;
    child.wait_for_log("attached to eth0", SOON)?;
    Ok(child)
}

#[test]
fn servers_serve_by_frames() -> Result<()> {
    needs_root!();
    let Some(place) = Place::new(Forward::Frame)? else { return Ok(()) };
    place.serves()
}

#[test]
fn servers_serve_behind_decap() -> Result<()> {
    needs_root!();
    let Some(place) = Place::new(Forward::Tunnel)? else { return Ok(()) };
    place.serves()
}

/// One connection that is opened before and ends after all of it.
#[test]
fn connections_outlive_those_that_opened_them() -> Result<()> {
    needs_root!();
    let Some(mut place) = Place::new(Forward::Frame)? else { return Ok(()) };
    let (client, backend) = (&place.net.client.ns, &place.net.backends[0].ns);
    let service = SocketAddr::new(at(SERVICES[0]).ip(), SUMMED);
    let transfer = Transfer::start(client, service, (backend, at(&format!("[::]:{SUMMED}"))))?;
    ensure!(place.counted("opened")? == 1);
    place.accept.kill()?;
    transfer.goes_on()?;
    place.gateway = Gateway::start(&place.net, &SERVICES.map(at), KEYS[0], Forward::Frame)?;
    transfer.goes_on()?;
    place.accept = accept(backend)?;
    transfer.goes_on()?;
    place.gateway = Gateway::start(&place.net, &SERVICES.map(at), KEYS[0], Forward::Frame)?;
    let sent = transfer.finish()?;
    ensure!(sent > 0 && get(client, at(SERVICES[0]))? == "b1");
    Ok(())
}

/// A client's data open the connection in its place. Without any nobody speaks, until somebody does.
#[test]
fn a_lost_acknowledgement() -> Result<()> {
    needs_root!();
    let Some(place) = Place::new(Forward::Frame)? else { return Ok(()) };
    let client = &place.net.client.ns;
    for service in SERVICES.map(at) {
        place.gateway.loses.store(1, Ordering::Relaxed);
        ensure!(get(client, service)? == "b1");
        let greeting = SocketAddr::new(service.ip(), GREETING);
        place.gateway.loses.store(1, Ordering::Relaxed);
        let mut stream = client.run(|| TcpStream::connect_timeout(&greeting, SOON))??;
        stream.set_read_timeout(Some(SOON))?;
        let lost = || place.gateway.loses.load(Ordering::Relaxed) == 0;
        wait_until("the loss of its acknowledgement", SOON, lost)?;
        ensure!(place.greeting.accept().is_err(), "the server knows of nobody");
        stream.write_all(b"?")?;
        let (mut served, _) = accepted(&place.greeting)?;
        served.write_all(b"!")?;
        stream.read_exact(&mut [0])?;
    }
    Ok(())
}
