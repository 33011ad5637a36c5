//! What clients of `syn = "proxy"` are promised: what checks have seen every backend offer.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread;

use anyhow::{Context, Result, ensure};
use ringway_host::{TcpOptions, tcp_options};
use ringway_net_tests::{Gateway, SERVICE_V4, SERVICE_V6, SOON, Site, needs_root};
use ringway_testnet::{Namespace, wait_for, wait_until};
use serde_json::json;

use super::capture::counted;
use super::challenge::ALWAYS;
use super::proxy::{PROXY, connect};

const PORT: u16 = 9000;

/// Of a connection that [`ask`] has made, to tell it from others.
type Word = [u8; 4];

/// Answers a word with itself, and tells what its connection has. Checks say nothing.
fn serve(namespace: &Namespace, at: SocketAddr, told: &Sender<(Word, TcpOptions)>) -> Result<()> {
    let listener = namespace.run(|| TcpListener::bind(at))??;
    let told = told.clone();
    let one = |mut stream: TcpStream| -> Result<(Word, TcpOptions)> {
        let mut word = [0; 4];
        stream.read_exact(&mut word)?;
        stream.write_all(&word)?;
        Ok((word, tcp_options(&stream)?))
    };
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let told = told.clone();
            thread::spawn(move || one(stream).map(|options| told.send(options)));
        }
    });
    Ok(())
}

fn start(site: &Site, address: std::net::IpAddr, check: &str) -> Result<Gateway> {
    let target = SocketAddr::new(address, PORT);
    let more = format!("{PROXY}check = {{ type = \"tcp\", {check} }}\n");
    let body = ALWAYS.to_owned() + &site.service("data", target, &more);
    site.start(&body)
}

/// A connection that works: its word, and what the client has in it.
fn ask(site: &Site, target: SocketAddr) -> Result<(Word, TcpOptions)> {
    static WORDS: AtomicU32 = AtomicU32::new(0);
    let own = WORDS.fetch_add(1, Ordering::Relaxed).to_be_bytes();
    let mut stream = connect(site, target)?;
    stream.set_read_timeout(Some(SOON))?;
    stream.write_all(&own)?;
    let mut word = [0; 4];
    stream.read_exact(&mut word)?;
    ensure!(word == own, "{word:?}, not {own:?}");
    Ok((own, tcp_options(&stream)?))
}

fn set(namespace: &Namespace, option: &str, value: u8) -> Result<()> {
    Ok(namespace.sysctl(&format!("net/ipv4/tcp_{option}"), &value.to_string())?)
}

/// Waits until new connections have this.
fn wait(site: &Site, target: SocketAddr, fits: impl Fn(TcpOptions) -> bool) -> Result<()> {
    wait_for("another promise", SOON, || match ask(site, target) {
        Ok((_, options)) if fits(options) => Ok(()),
        Ok((_, options)) => Err(format!("{options:?}")),
        Err(error) => Err(format!("{error:#}")),
    })?;
    Ok(())
}

#[test]
fn clients_get_what_every_backend_has() -> Result<()> {
    needs_root!();
    let site = Site::new(2)?;
    let target = SocketAddr::new(SERVICE_V4, PORT);
    let at = site.backends(SERVICE_V4, PORT);
    let backends = [&site.net.backends[0].ns, &site.net.backends[1].ns];
    let (told, tells) = channel();
    serve(backends[0], at[0], &told)?;
    serve(backends[1], at[1], &told)?;
    // What both sides of a connection have.
    let ask = || -> Result<[TcpOptions; 2]> {
        let (word, has) = ask(&site, target)?;
        // Its backend tells after its answer, as it did of connections before.
        loop {
            let (of, options) = tells.recv_timeout(SOON)?;
            if of == word {
                return Ok([has, options]);
            }
        }
    };
    set(backends[0], "timestamps", 0)?;
    set(site.client(), "ecn", 1)?;
    let gateway = start(&site, SERVICE_V4, "interval = \"200ms\"")?;
    for _ in 0..8 {
        let got = ask()?;
        ensure!(got.iter().all(|has| !has.stamps && has.sack && !has.ecn), "{got:?}");
    }
    let status = gateway.status()?["services"][0]["backends"].take();
    let stamps: Vec<_> = (0..2).map(|n| &status[n]["offers"]["timestamps"]).collect();
    ensure!(stamps == [false, true], "{status}");
    let shield = || gateway.document(&["shield", "status"]);
    let promised = shield()?["limits"][0]["promises"].take();
    let wanted =
        json!({ "mss_bytes": 1460, "timestamps": false, "selective_ack": true, "ecn": false });
    ensure!(promised == wanted, "{promised}");
    set(backends[0], "timestamps", 1)?;
    wait(&site, target, |got| got.stamps)?;
    for _ in 0..8 {
        let got = ask()?;
        ensure!(got.iter().all(|has| has.stamps && has.sack && !has.ecn), "{got:?}");
    }
    // Where the node asks for it, checks see congestion notification, too.
    set(&site.net.gateway, "ecn", 1)?;
    wait(&site, target, |got| got.ecn)?;
    let got = ask()?;
    ensure!(got.iter().all(|has| has.stamps && has.ecn), "{got:?}");
    set(backends[1], "sack", 0)?;
    site.net.backends[0].ns.ip("route change 10.2.0.0/24 dev eth0 proto kernel advmss 1000\n")?;
    wait(&site, target, |got| !got.sack && got.mss == 1000)?;
    let said = gateway.ringway(&["shield", "status"])?;
    ensure!(said.out.contains("  MSS 1000, timestamps, ECN\n"), "{said:?}");
    Ok(())
}

/// A backend loses its time stamps after its check. Connections that were promised them end at once,
/// on both sides; the next check corrects the promise.
#[test]
fn a_backend_that_changes_resets_who_was_promised_more() -> Result<()> {
    needs_root!();
    let site = Site::new(1)?;
    let target = SocketAddr::new(SERVICE_V6, PORT);
    let backend = &site.net.backends[0].ns;
    let (told, _tells) = channel();
    serve(backend, site.backends(SERVICE_V6, PORT)[0], &told)?;
    let gateway = start(&site, SERVICE_V6, "interval = \"60s\"")?;
    wait(&site, target, |got| got.stamps)?;
    set(backend, "timestamps", 0)?;
    // While it connects, or later.
    let ended = ask(&site, target).err().context("an answer")?;
    let ended = ended.downcast::<std::io::Error>()?;
    ensure!(ended.kind() == std::io::ErrorKind::ConnectionReset, "{ended}");
    wait_until("the backend's reset", SOON, || {
        counted(&gateway, &["reset-no-stamps"]).is_ok_and(|count| count >= 2)
    })?;
    let text = std::fs::read_to_string(gateway.configuration())?;
    gateway.reload(&text.replace("\"60s\"", "\"200ms\""))?;
    wait(&site, target, |got| !got.stamps)
}
