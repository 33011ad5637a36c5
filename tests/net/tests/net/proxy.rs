//! `syn = "proxy"`: the gateway makes handshakes, between kernels on both sides.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use ringway_net_tests::{
    ECHO, Gateway, Line, SERVICE_V4, SERVICE_V6, SOON, Site, WEB, get, needs_root, tool,
};
use ringway_testnet::Namespace;

use super::capture::counted;
use super::challenge::{ALWAYS, flood, wait_answered};

pub(super) const PROXY: &str = "syn = \"proxy\"\n";
pub(super) const MIB: usize = 1 << 20;
/// Of a transfer that does not come to its end.
const STUCK: Duration = Duration::from_secs(120);

pub(super) fn start(site: &Site, services: &[(&str, SocketAddr)]) -> Result<Gateway> {
    let services = services.iter().map(|(name, endpoint)| site.service(name, *endpoint, PROXY));
    site.start(&(ALWAYS.to_owned() + &services.collect::<String>()))
}

/// Flows that the backends of the first service have got.
fn flows(gateway: &Gateway) -> Result<u64> {
    let status = gateway.status()?;
    let backends = status["services"][0]["backends"].as_array().context("no backends")?;
    Ok(backends.iter().filter_map(|backend| backend["flows"].as_u64()).sum())
}

#[test]
fn a_flood_of_syns_reaches_no_backend_of_a_proxied_service() -> Result<()> {
    needs_root!();
    let site = Site::new(2)?;
    let six = SocketAddr::new(SERVICE_V6, 80);
    let _echo = site.echo(SERVICE_V4, 7)?;
    let gateway = start(&site, &[("web", WEB), ("six", six), ("echo", ECHO)])?;
    for target in [WEB, six] {
        let before = counted(&gateway, &["syn-answered"])?;
        get(site.client(), target)?;
        ensure!(counted(&gateway, &["syn-answered"])? == before + 1, "{target}");
    }
    let mut line = Line::open(site.client(), ECHO)?;
    line.ask("before")?;
    let before = (flows(&gateway)?, counted(&gateway, &["syn-answered"])?);
    ensure!(before.0 > 0, "no flow of a client's is counted");
    flood(site.client(), WEB)?;
    wait_answered(&gateway, "syn-answered", before.1)?;
    let flows = flows(&gateway)? - before.0;
    ensure!(flows == 0, "{flows} flows went to a backend");
    line.ask("after")?;
    get(site.client(), WEB)?;
    Ok(())
}

/// Bytes that say where they belong, different each way.
fn stream(seed: u64, mut at: u64, to: &mut [u8]) {
    for chunk in to.chunks_mut(8) {
        let word = (at / 8 + seed).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes();
        chunk.copy_from_slice(&word[..chunk.len()]);
        at += 8;
    }
}

fn send(mut to: &TcpStream, seed: u64, bytes: usize) -> Result<()> {
    let mut buffer = vec![0; 64 << 10];
    for at in (0..bytes).step_by(buffer.len()) {
        stream(seed, at as u64, &mut buffer);
        to.write_all(&buffer)?;
    }
    Ok(to.shutdown(Shutdown::Write)?)
}

fn receive(mut from: &TcpStream, seed: u64, bytes: usize) -> Result<()> {
    let (mut got, mut wanted) = (vec![0; 64 << 10], vec![0; 64 << 10]);
    for at in (0..bytes).step_by(got.len()) {
        from.read_exact(&mut got).with_context(|| format!("after {at} bytes"))?;
        stream(seed, at as u64, &mut wanted);
        ensure!(got == wanted, "other bytes than were sent, after {at}");
    }
    ensure!(from.read(&mut got)? == 0, "more than was sent");
    Ok(())
}

/// Both ways at once.
pub(super) fn exchange(stream: &TcpStream, (own, other): (u64, u64), bytes: usize) -> Result<()> {
    stream.set_read_timeout(Some(STUCK))?;
    stream.set_write_timeout(Some(STUCK))?;
    thread::scope(|scope| {
        let sends = scope.spawn(|| send(stream, own, bytes));
        receive(stream, other, bytes)?;
        sends.join().map_err(|_| anyhow!("the sender panicked"))?
    })
}

/// Serves one connection.
pub(super) fn serve(
    namespace: &Namespace,
    at: SocketAddr,
    with: impl FnOnce(TcpStream) -> Result<()> + Send + 'static,
) -> Result<JoinHandle<Result<()>>> {
    let listener = namespace.run(|| TcpListener::bind(at))??;
    Ok(thread::spawn(move || with(listener.accept()?.0)))
}

pub(super) fn connect(site: &Site, target: SocketAddr) -> Result<TcpStream> {
    Ok(site.client().run(|| TcpStream::connect_timeout(&target, SOON))??)
}

pub(super) fn done(server: JoinHandle<Result<()>>) -> Result<()> {
    server.join().map_err(|_| anyhow!("the server panicked"))?
}

/// Gives both services so many bytes each way.
fn transfers(site: &Site, gateway: &Gateway, bytes: usize) -> Result<()> {
    for target in [SERVICE_V4, SERVICE_V6].map(|address| SocketAddr::new(address, 9000)) {
        let before = counted(gateway, &["syn-answered"])?;
        let here = site.backends(target.ip(), 9000)[0];
        let server =
            serve(&site.net.backends[0].ns, here, move |stream| exchange(&stream, (2, 1), bytes))?;
        exchange(&connect(site, target)?, (1, 2), bytes).context("client")?;
        done(server).context("server")?;
        let answered = counted(gateway, &["syn-answered"])?;
        ensure!(answered > before, "the gateway did not answer");
    }
    Ok(())
}

/// On a good way and on a bad one; with small segments; and between other systems: neither side has
/// window scaling, SACK and time stamps, or one of them has.
#[test]
fn no_byte_is_lost() -> Result<()> {
    needs_root!();
    let site = Site::new(1)?;
    let targets = [SERVICE_V4, SERVICE_V6].map(|address| SocketAddr::new(address, 9000));
    let gateway = start(&site, &[("four", targets[0]), ("six", targets[1])])?;
    let (client, backend) = (site.client(), &site.net.backends[0].ns);
    transfers(&site, &gateway, 64 * MIB)?;

    let nft = |rules: &str| tool(client, "nft", &[rules])?.done();
    for (hook, chain) in [("input", "i"), ("output", "o")] {
        nft(&format!(
            "add table inet loss; \
             add chain inet loss {chain} {{ type filter hook {hook} priority 0; }}; \
             add rule inet loss {chain} numgen random mod 100 == 0 drop"
        ))?;
    }
    transfers(&site, &gateway, 8 * MIB).context("one packet in a hundred is lost, each way")?;
    nft("delete table inet loss")?;

    for (namespace, side) in [(client, "client"), (backend, "backend")] {
        let options = |value| -> Result<()> {
            for option in ["window_scaling", "sack", "timestamps"] {
                namespace.sysctl(&format!("net/ipv4/tcp_{option}"), value)?;
            }
            Ok(())
        };
        options("0")?;
        transfers(&site, &gateway, 8 * MIB).with_context(|| format!("no options at the {side}"))?;
        options("1")?;
    }

    client
        .ip("route change default via 10.1.0.1 advmss 500\n")
        .or_else(|_| client.ip("route add 10.1.0.80/32 dev eth0 advmss 500\n"))?;
    transfers(&site, &gateway, 4 * MIB).context("small segments")
}

/// Who is silent until it is greeted is greeted.
#[test]
fn a_server_speaks_first() -> Result<()> {
    needs_root!();
    let site = Site::new(1)?;
    let target = SocketAddr::new(SERVICE_V4, 25);
    let server =
        serve(&site.net.backends[0].ns, site.backends(SERVICE_V4, 25)[0], |mut stream| {
            stream.write_all(b"220 hello\n")?;
            let mut answer = [0; 5];
            stream.read_exact(&mut answer)?;
            ensure!(&answer == b"QUIT\n", "{answer:?}");
            Ok(())
        })?;
    let _gateway = start(&site, &[("mail", target)])?;
    let mut stream = connect(&site, target)?;
    stream.set_read_timeout(Some(SOON))?;
    let mut greeting = [0; 10];
    stream.read_exact(&mut greeting)?;
    ensure!(&greeting == b"220 hello\n", "{greeting:?}");
    stream.write_all(b"QUIT\n")?;
    done(server)
}

/// One side ends, the other goes on for a while; a reset reaches both.
#[test]
fn connections_end() -> Result<()> {
    needs_root!();
    let site = Site::new(1)?;
    let target = SocketAddr::new(SERVICE_V4, 9000);
    let at = site.backends(SERVICE_V4, 9000)[0];
    let gateway = start(&site, &[("data", target)])?;
    // Nobody listens: refused, not silent.
    let refused = connect(&site, target).and_then(|mut stream| {
        stream.set_read_timeout(Some(SOON))?;
        stream.write_all(b"anybody?")?;
        Ok(stream.read(&mut [0])?)
    });
    let refused = refused.err().context("an answer of nobody")?;
    ensure!(format!("{refused:#}").contains("reset"), "{refused:#}");
    let server = serve(&site.net.backends[0].ns, at, |mut stream| {
        let mut all = Vec::new();
        stream.read_to_end(&mut all)?;
        ensure!(all == b"ask", "{all:?}");
        stream.write_all(b"answer")?;
        Ok(())
    })?;
    let mut stream = connect(&site, target)?;
    stream.write_all(b"ask")?;
    stream.shutdown(Shutdown::Write)?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    ensure!(answer == "answer", "{answer:?}");
    done(server)?;
    drop(gateway);
    Ok(())
}
