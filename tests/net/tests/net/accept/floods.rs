//! Floods of ACKs at a backend with `ringway accept`, forged ones and such with cookies; what ends and
//! begins again meanwhile.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};

use anyhow::{Context, Result, ensure};
use ringway_net_tests::raw_tcp::{ACK, AGREED, FIN, PLAIN, RST, Segment};
use ringway_net_tests::{SOON, needs_root};
use ringway_testnet::{Child, wait_for, wait_until};

use super::{Answered, KEYS, Pair, SERVICES, accepted, at, is_the_first};

/// Segments that no queue on their way overflows by.
const BATCH: u16 = 500;

/// A connection that there is all the time.
struct Steady {
    stream: TcpStream,
    served: TcpStream,
}

impl Steady {
    fn open(pair: &Pair, listener: &TcpListener) -> Result<Steady> {
        let connect = || TcpStream::connect_timeout(&at(SERVICES[0]), SOON);
        let stream = pair.sender.run(connect)??;
        let (served, _) = accepted(listener)?;
        Ok(Steady { stream, served })
    }

    fn goes_on(&mut self) -> Result<()> {
        self.stream.set_read_timeout(Some(SOON))?;
        self.stream.write_all(b"?")?;
        self.served.read_exact(&mut [0])?;
        self.served.write_all(b"!")?;
        Ok(self.stream.read_exact(&mut [0])?)
    }
}

/// Until the kernel has all of them: it forgets none.
fn sends(pair: &Pair, end: &str, segments: impl Iterator<Item = Segment>) -> Result<u64> {
    let before = pair.counted(end)?;
    let mut sent = 0;
    for segment in segments {
        pair.client.send(&segment)?;
        sent += 1;
        if sent % u64::from(BATCH) == 0 {
            wait_until("the batch", SOON, || pair.counted(end).is_ok_and(|n| n >= before + sent))?;
        }
    }
    wait_until("the rest", SOON, || pair.counted(end).is_ok_and(|n| n == before + sent))?;
    Ok(sent)
}

/// All are counted, and none is answered; who is connected does not notice, and others get in.
#[test]
fn forged_acknowledgements_have_no_effect() -> Result<()> {
    needs_root!();
    let Some(pair) = Pair::new()? else { return Ok(()) };
    let listener = pair.listen("[::]:80")?;
    let _accept = pair.accept()?;
    let mut steady = Steady::open(&pair, &listener)?;
    for (service, kind) in [(0, (AGREED, true)), (1, (PLAIN, false))] {
        let forged = (10_000..20_000).map(|port| {
            let mut answered = Answered::new(SERVICES[service], port, KEYS[0], kind)?;
            answered.cookie.number ^= 1 << 20;
            Ok(answered.ack(""))
        });
        let forged = forged.collect::<Result<Vec<_>>>()?;
        ensure!(sends(&pair, "no-cookie", forged.into_iter())? == 10_000);
        steady.goes_on()?;
        // Of the first that was forged.
        let right = Answered::new(SERVICES[service], 10_000, KEYS[0], kind)?;
        pair.client.send(&right.ack(""))?;
        is_the_first(&pair, &listener, &right)?;
    }
    ensure!(pair.counted("opened")? == 2, "{}", pair.status()?);
    Ok(())
}

/// Connections that it has opened go on without it, and others begin when it is back.
#[test]
fn it_ends_in_the_middle_of_a_flood_of_cookies() -> Result<()> {
    needs_root!();
    let Some(pair) = Pair::new()? else { return Ok(()) };
    let listener = pair.listen("[::]:80")?;
    let mut accept = pair.accept()?;
    let mut steady = Steady::open(&pair, &listener)?;
    let kind = (AGREED, true);
    let opening = |port| Answered::new(SERVICES[0], port, KEYS[0], kind);
    let mut opened = Vec::new();
    for port in 10_000..10_100 {
        pair.client.send(&opening(port)?.ack(""))?;
        opened.push(accepted(&listener)?.0);
    }
    accept.kill()?;
    wait_until("its end", SOON, || pair.status().is_ok_and(|out| out.is_empty()))?;
    for port in 10_100..10_200 {
        pair.client.send(&opening(port)?.ack(""))?;
    }
    // Its kernel does not know the cookies.
    let last = opening(10_199)?;
    pair.client.receive(last.from, |s| s.flags & RST != 0)?;
    ensure!(listener.accept().is_err());
    for (port, stream) in (10_000..10_100).zip(&mut opened) {
        pair.client.send(&opening(port)?.ack("x"))?;
        stream.read_exact(&mut [0]).with_context(|| format!("port {port}"))?;
    }
    steady.goes_on()?;
    let _accept = pair.accept()?;
    pair.ends(&opening(10_200)?.ack(""), "opened")?;
    accepted(&listener)?;
    pair.ends(&opening(10_000)?.ack(""), "known")?;
    steady.goes_on()
}

/// The server is started anew while it runs: it says so, and opens connections for the new one.
#[test]
fn a_server_begins_anew() -> Result<()> {
    needs_root!();
    let Some(pair) = Pair::new()? else { return Ok(()) };
    let mut listener = pair.listen("[::]:80")?;
    let accept = pair.accept()?;
    let kind = (AGREED, true);
    let told = |accept: &Child, words: &str, times: usize| {
        wait_for(words, SOON, || match accept.log() {
            log if log.matches(words).count() == times => Ok(()),
            log => Err(log),
        })
    };
    for (times, port) in [(1, 11_000), (2, 11_010)] {
        let first = Answered::new(SERVICES[0], port, KEYS[0], kind)?;
        pair.ends(&first.ack(""), "opened")?;
        let (served, _) = accepted(&listener)?;
        drop((served, listener));
        let fin = pair.client.receive(first.from, |s| s.flags & FIN != 0);
        fin.context("its connection ends with it")?;
        told(&accept, "ringway: nobody listens at 203.0.113.9:80", times)?;
        let other = Answered::new(SERVICES[0], port + 1, KEYS[0], kind)?;
        pair.ends(&other.ack(""), "no-listener")?;
        let reset = pair.client.receive(other.from, |s| s.flags & RST != 0);
        reset.context("the kernel answers")?;
        listener = pair.listen("[::]:80")?;
        let again = Answered::new(SERVICES[0], port + 2, KEYS[0], kind)?;
        pair.ends(&again.ack(""), "opened")?;
        wait_for("no problem", SOON, || match pair.status() {
            Ok(text) if !text.contains("nobody listens at") => Ok(()),
            other => Err(format!("{other:?}")),
        })?;
        told(&accept, "no longer: nobody listens at 203.0.113.9:80", times)?;
        // Of the former server's, by its last state.
        let fin = Segment { flags: FIN | ACK, ..first.ack("") };
        pair.ends(&fin, "known")?;
        accepted(&listener)?;
    }
    Ok(())
}
