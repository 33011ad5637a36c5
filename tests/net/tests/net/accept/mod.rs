//! `ringway accept` on a backend: the client's ACK opens the connection whose SYN a gateway has
//! answered, and nothing else does.

mod floods;
mod missing;
mod real;

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd as _;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use ringway_net_tests::raw_tcp::{
    ACK, AGREED, Client, Cookie, FIN, PLAIN, PSH, RST, SYN, Segment, cookie, mac,
};
use ringway_net_tests::{SOON, binary, needs_root, not_tested, ringway, write_secret};
use ringway_testnet::{Child, End, Namespace, Signal, VethOptions, veth, wait_for, wait_until};
use serde_json::Value;

const SERVICES: [&str; 2] = ["203.0.113.9:80", "[2001:db8::9]:80"];
const ACCEPT_STATUS: [&str; 6] = ["accept", "-i", "eth0", "--status", "-o", "json"];
const KEYS: [[u64; 2]; 3] = [[0x5555_5555_5555_5555; 2], [0x6666_6666_6666_6666; 2], [7; 2]];

fn at(text: &str) -> SocketAddr {
    text.parse().expect("an address")
}

/// False, said aloud, where the kernel cannot open connections so; `ringway accept` says it as well.
fn has_kfunc() -> Result<bool> {
    if std::fs::read_to_string("/proc/kallsyms")?.contains(" bpf_sk_assign_tcp_reqsk") {
        return Ok(true);
    }
    let backend = Namespace::new("backend")?;
    let listen = ["--listen", SERVICES[0], "--secret", "/nosuch"];
    ringway(&backend, &[&["accept", "-i", "lo"], &listen[..]].concat())?
        .complains(1, &["boot 6.9 or newer"])?;
    not_tested("ringway accept: this kernel has no bpf_sk_assign_tcp_reqsk()");
    Ok(false)
}

/// Packets that ended so at the listeners of a backend.
fn counted(backend: &Namespace, end: &str) -> Result<u64> {
    let status: Value = ringway(backend, &ACCEPT_STATUS)?.json()?;
    let listeners = status["listeners"].as_array().into_iter().flatten();
    let counters = listeners.filter_map(|one| one["counters"].as_array()).flatten();
    let own = counters.filter(|counter| counter["end"] == end);
    Ok(own.filter_map(|counter| counter["packets"].as_u64()).sum())
}

/// A client of frames, and a backend that has the service addresses on `lo`.
struct Pair {
    backend: Namespace,
    sender: Namespace,
    client: Client,
}

impl Pair {
    /// `None`, said aloud, where the kernel cannot.
    fn new() -> Result<Option<Pair>> {
        if !has_kfunc()? {
            return Ok(None);
        }
        let (sender, backend) = (Namespace::new("sender")?, Namespace::new("backend")?);
        let near = End::new(&sender, "eth0").address("10.3.0.1/24").address("fd03::1/64");
        let far = End::new(&backend, "eth0").address("10.3.0.2/24").address("fd03::2/64");
        veth(&near, &far, &VethOptions::default())?;
        backend.ip("addr add 203.0.113.9/32 dev lo\naddr add 2001:db8::9/128 dev lo nodad\n")?;
        sender.ip("route add 203.0.113.9 via 10.3.0.2\nroute add 2001:db8::9 via fd03::2\n")?;
        let own = mac(&sender, "eth0")?;
        let text: Vec<String> = own.iter().map(|byte| format!("{byte:02x}")).collect();
        for address in ["10.3.0.66", "fd03::66"] {
            let mac = text.join(":");
            backend.ip(&format!("neigh replace {address} lladdr {mac} dev eth0\n"))?;
        }
        let macs = [mac(&backend, "eth0")?, own].concat();
        let macs = macs.try_into().ok().context("two addresses")?;
        let pair = Pair { client: Client::new(&sender, macs)?, backend, sender };
        ringway(&pair.backend, &["accept", "-i", "eth0", "--status"])?.complains(3, &[])?;
        Ok(Some(pair))
    }

    fn listen(&self, address: &str) -> Result<TcpListener> {
        let listener = self.backend.run(|| TcpListener::bind(at(address)))??;
        listener.set_nonblocking(true)?;
        Ok(listener)
    }

    /// The file with a key, replaced as a whole.
    fn secret(&self, key: [u64; 2]) -> Result<PathBuf> {
        let [file, new] = ["secret", "new"].map(|name| self.backend.directory().join(name));
        write_secret(&new, &format!("{:016x}{:016x}\n", key[0], key[1]))?;
        std::fs::rename(new, &file)?;
        Ok(file)
    }

    fn accept(&self) -> Result<Child> {
        self.accept_by(self.backend.command(binary()?))
    }

    fn accept_by(&self, mut command: Command) -> Result<Child> {
        command.args(["accept", "-i", "eth0", "--secret"]).arg(self.secret(KEYS[0])?);
        command.args(SERVICES.iter().flat_map(|service| ["--listen", service]));
        let mut child = self.backend.spawn(command)?;
        child.wait_for_log("attached to eth0", SOON)?;
        Ok(child)
    }

    fn refused(&self, words: &str) -> Result<()> {
        let file = self.secret(KEYS[0])?.display().to_string();
        let listen = SERVICES.iter().flat_map(|service| ["--listen", service]);
        let arguments: Vec<&str> =
            ["accept", "-i", "eth0", "--secret", &file].into_iter().chain(listen).collect();
        let ran = ringway(&self.backend, &arguments)?;
        ensure!(ran.code == 2 && ran.err.contains(words), "{words}: {ran:?}");
        Ok(())
    }

    fn counted(&self, end: &str) -> Result<u64> {
        counted(&self.backend, end)
    }

    /// This many more segments end so when that is sent.
    fn ends(&self, segment: &Segment, end: &str) -> Result<()> {
        let before = self.counted(end)?;
        self.client.send(segment)?;
        let more = || self.counted(end).is_ok_and(|now| now == before + 1);
        wait_until(format!("one more {end}"), SOON, more)
            .with_context(|| format!("{segment:?}: {:?}", self.status()))
    }

    /// Whether an ACK by this key opens a connection; it is counted either way.
    fn opens(&self, listener: &TcpListener, port: u16, key: [u64; 2]) -> Result<bool> {
        let answered = Answered::new(SERVICES[0], port, key, (AGREED, true))?;
        let counts = || Ok((self.counted("opened")?, self.counted("no-cookie")?));
        let before = counts()?;
        self.client.send(&answered.ack(""))?;
        let after = wait_for("an end", SOON, || match counts() {
            Ok(now) if now != before => Ok(now),
            other => Err::<_, String>(format!("{:?}", other as Result<(u64, u64)>)),
        })?;
        let opened = after.0 > before.0;
        if opened {
            accepted(listener)?;
        }
        Ok(opened)
    }

    fn status(&self) -> Result<String> {
        Ok(ringway(&self.backend, &["accept", "-i", "eth0", "--status"])?.out)
    }
}

/// A connection that a gateway has answered for.
#[derive(Clone, Copy, Debug)]
struct Answered {
    from: SocketAddr,
    to: SocketAddr,
    isn: u32,
    stamped: bool,
    cookie: Cookie,
}

impl Answered {
    fn new(service: &str, port: u16, key: [u64; 2], agreed: (u32, bool)) -> Result<Self> {
        Self::aged(service, port, key, agreed, 0)
    }

    fn aged(
        service: &str,
        port: u16,
        key: [u64; 2],
        agreed: (u32, bool),
        age: u64,
    ) -> Result<Self> {
        let to = at(service);
        let from: IpAddr = if to.is_ipv4() { "10.3.0.66" } else { "fd03::66" }.parse()?;
        let (from, isn) = (SocketAddr::new(from, port), 0xffff_fff0);
        let cookie = cookie(key, (from, to), isn, agreed, age)?;
        Ok(Self { from, to, isn, stamped: agreed.1, cookie })
    }

    fn ack(&self, payload: &str) -> Segment {
        Segment {
            from: self.from,
            to: self.to,
            flags: ACK | if payload.is_empty() { 0 } else { PSH },
            seq: self.isn.wrapping_add(1),
            ack: self.cookie.number.wrapping_add(1),
            stamps: self.stamped.then_some((1000, self.cookie.stamp)),
            options: Vec::new(),
            payload: payload.into(),
        }
    }
}

fn accepted(listener: &TcpListener) -> Result<(TcpStream, SocketAddr)> {
    let found = wait_for("a connection", SOON, || listener.accept().map_err(|e| e.to_string()))?;
    found.0.set_nonblocking(false)?;
    found.0.set_read_timeout(Some(SOON))?;
    Ok(found)
}

/// The first connection is this one, and the first segment to it the server's: nobody has been
/// answered before.
fn is_the_first(pair: &Pair, listener: &TcpListener, answered: &Answered) -> Result<()> {
    let (mut stream, from) = accepted(listener)?;
    ensure!(from.ip().to_canonical() == answered.from.ip(), "{from}");
    stream.write_all(b"!")?;
    let first = pair.client.receive(answered.from, |_| true)?;
    ensure!(first.payload == b"!", "{first:?}");
    Ok(())
}

/// Options and scales: what the client may send by, and the segments that it gets.
fn agreed(stream: &TcpStream) -> Result<(u8, u8, u32)> {
    let mut info = [0u8; 104];
    let mut length = info.len() as u32;
    // SAFETY: the kernel writes as many bytes as there is room for.
    let read = unsafe {
        libc::getsockopt(
            stream.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    ensure!(read == 0, "{}", std::io::Error::last_os_error());
    // struct tcp_info: options, both scales, and tcpi_snd_mss.
    Ok((info[5], info[6], u32::from_ne_bytes(info[16..20].try_into()?)))
}

/// Both families, with and without timestamps; the first data come with the ACK.
#[test]
fn a_cookie_opens_a_connection() -> Result<()> {
    needs_root!();
    let Some(pair) = Pair::new()? else { return Ok(()) };
    let listeners = [pair.listen(SERVICES[0])?, pair.listen(SERVICES[1])?];
    let mut accept = pair.accept()?;
    let mut port = 1000;
    // TCPI_OPT_TIMESTAMPS 1, TCPI_OPT_SACK 2, TCPI_OPT_WSCALE 4
    for (kind, options, scales, mss) in [
        ((AGREED, true), 7, 0x73, 1448),
        ((AGREED, false), 6, 0x73, 1460),
        ((PLAIN, true), 1, 0, 1208),
        ((PLAIN, false), 0, 0, 1220),
    ] {
        for (service, listener) in SERVICES.iter().zip(&listeners) {
            port += 1;
            let answered = Answered::new(service, port, KEYS[0], kind)?;
            // IPv6's header is longer, by as much as the interface's MTU leaves less.
            let most = if answered.to.is_ipv4() { 1460 } else { 1440 };
            let mss = mss.min(most - if kind.1 { 12 } else { 0 });
            if port % 2 == 0 {
                pair.client.send(&answered.ack(""))?;
            }
            pair.client.send(&answered.ack("hello"))?;
            let (mut stream, from) = accepted(listener)?;
            ensure!(from == answered.from, "{from}");
            let mut said = [0; 5];
            stream.read_exact(&mut said)?;
            ensure!(&said == b"hello", "{said:?}");
            ensure!(agreed(&stream)? == (options, scales, mss), "{kind:?}: {:?}", agreed(&stream)?);
            stream.write_all(b"welcome")?;
            let answer = pair.client.receive(answered.from, |s| !s.payload.is_empty())?;
            ensure!(answer.payload == b"welcome", "{answer:?}");
            ensure!(answer.seq == answered.cookie.number.wrapping_add(1), "{answer:?}");
            ensure!(answer.ack == answered.isn.wrapping_add(6), "{answer:?}");
            if let Some((value, echo)) = answer.stamps {
                let since = value.wrapping_sub(answered.cookie.stamp);
                ensure!(echo == 1000 && since < 60_000, "time stamps go on: {answer:?}");
            }
        }
    }
    ensure!(pair.counted("opened")? == 8, "{}", pair.status()?);
    accept.signal(Signal::TERM)?;
    let end = accept.wait(SOON)?;
    ensure!(end.status.success() && end.log.contains("opened"), "{}", end.log);
    Ok(())
}

/// Nor does the kernel hear of it, which would answer with a RST.
#[test]
fn nothing_else_opens_one() -> Result<()> {
    needs_root!();
    let Some(pair) = Pair::new()? else { return Ok(()) };
    let _other = pair.listen(SERVICES[1])?;
    let listener = pair.listen(SERVICES[0])?;
    let _accept = pair.accept()?;
    for (port, kind) in [(2000, (AGREED, true)), (2010, (PLAIN, false))] {
        let right = Answered::new(SERVICES[0], port, KEYS[0], kind)?;
        let of_another = Answered::new(SERVICES[0], port + 1, KEYS[0], kind)?;
        let mut wrong: Vec<(&str, Segment)> = Vec::new();
        for bit in [0, 2, 6, 9, 10, 31] {
            let mut one = right;
            one.cookie.number ^= 1 << bit;
            wrong.push(("a bit of the cookie", one.ack("")));
        }
        wrong.push(("another client's", Segment { ack: of_another.ack("").ack, ..right.ack("") }));
        wrong.push((
            "the second segment",
            Segment { seq: right.isn.wrapping_add(2), ..right.ack("x") },
        ));
        wrong.push(("a probe", Segment { seq: right.isn, ..right.ack("") }));
        let old = Answered::aged(SERVICES[0], port, KEYS[0], kind, 130)?;
        wrong.push(("an old one", old.ack("")));
        let strange = Answered::new(SERVICES[0], port, KEYS[1], kind)?;
        wrong.push(("of another key", strange.ack("")));
        if kind.1 {
            let stamps = Some((1000, right.cookie.stamp ^ 1));
            wrong.push(("another echo", Segment { stamps, ..right.ack("") }));
            wrong.push(("no echo", Segment { stamps: None, ..right.ack("") }));
        } else {
            wrong.push(("an echo", Segment { stamps: Some((1000, 0)), ..right.ack("") }));
        }
        for (what, segment) in wrong {
            pair.ends(&segment, "no-cookie").with_context(|| format!("{what}, {kind:?}"))?;
        }
        pair.ends(&right.ack(""), "opened")?;
        is_the_first(&pair, &listener, &right)?;
        pair.client.send(&Segment { flags: RST, ..right.ack("") })?;
    }
    Ok(())
}

/// What is not to a listed address and port, or of no bare ACK, is the kernel's as before.
#[test]
fn all_else_passes() -> Result<()> {
    needs_root!();
    let Some(pair) = Pair::new()? else { return Ok(()) };
    let listener = pair.listen("[::]:80")?;
    let _unlisted = pair.listen("203.0.113.9:81")?;
    let _accept = pair.accept()?;
    let right = Answered::new(SERVICES[0], 3000, KEYS[0], (PLAIN, false))?;
    let unlisted = SocketAddr::new(right.to.ip(), 81);
    pair.client.send(&Segment { to: unlisted, ..right.ack("") })?;
    let reset = pair.client.receive(right.from, |s| s.from == unlisted)?;
    ensure!(reset.flags & RST != 0, "{reset:?}");
    pair.ends(&Segment { flags: SYN, ..right.ack("") }, "handshake")?;
    pair.ends(&Segment { flags: RST, ..right.ack("") }, "handshake")?;
    pair.ends(&Segment { flags: FIN, ..right.ack("") }, "handshake")?;
    // A client that the gateway let through.
    for service in SERVICES {
        let mut stream = pair.sender.run(|| TcpStream::connect_timeout(&at(service), SOON))??;
        let (mut served, _) = accepted(&listener)?;
        stream.write_all(b"hello")?;
        let mut said = [0; 5];
        served.read_exact(&mut said)?;
    }
    ensure!(pair.counted("known")? >= 4 && pair.counted("no-cookie")? == 0, "{}", pair.status()?);
    // A child of another test has its descriptor until it is another program.
    rustix::net::shutdown(&listener, rustix::net::Shutdown::Both)?;
    let right = Answered::new(SERVICES[0], 3001, KEYS[0], (PLAIN, false))?;
    pair.ends(&right.ack(""), "no-listener")
}

/// Where its queue of SYNs is full, the backend's kernel makes cookies of its own.
#[test]
fn cookies_of_the_backends_kernel_hold() -> Result<()> {
    needs_root!();
    let Some(pair) = Pair::new()? else { return Ok(()) };
    pair.backend.sysctl("net/ipv4/tcp_syncookies", "2")?;
    let listener = pair.listen("[::]:80")?;
    let _accept = pair.accept()?;
    for (n, service) in SERVICES.into_iter().enumerate() {
        let _client = pair.sender.run(|| TcpStream::connect_timeout(&at(service), SOON))??;
        accepted(&listener)?;
        ensure!(pair.counted("kernel-cookie")? == n as u64 + 1, "{}", pair.status()?);
    }
    Ok(())
}

/// Several sockets share a port; and one of IPv6 takes IPv4.
#[test]
fn any_listener_gets_connections() -> Result<()> {
    needs_root!();
    let Some(pair) = Pair::new()? else { return Ok(()) };
    let one = || {
        use rustix::net::sockopt::set_socket_reuseport;
        use rustix::net::{AddressFamily, SocketType, bind, listen, socket};
        let socket = socket(AddressFamily::INET6, SocketType::STREAM, None)?;
        set_socket_reuseport(&socket, true)?;
        bind(&socket, &at("[::]:80"))?;
        listen(&socket, 16)?;
        let listener = TcpListener::from(socket);
        listener.set_nonblocking(true)?;
        std::io::Result::Ok(listener)
    };
    let listeners = pair.backend.run(|| [one(), one()])?;
    let listeners = listeners.into_iter().collect::<std::io::Result<Vec<_>>>()?;
    let _accept = pair.accept()?;
    let mut opened = [0, 0];
    for port in 4000..4016 {
        for service in SERVICES {
            let answered = Answered::new(service, port, KEYS[0], (AGREED, true))?;
            pair.client.send(&answered.ack(""))?;
            let found = wait_for("a connection", SOON, || {
                let mut all = listeners.iter().map(TcpListener::accept).enumerate();
                all.find_map(|(n, one)| Some((n, one.ok()?.1))).ok_or("none".to_owned())
            })?;
            opened[found.0] += 1;
            ensure!(found.1.ip().to_canonical() == answered.from.ip(), "{found:?}");
        }
    }
    ensure!(opened.iter().all(|count| *count > 0), "{opened:?}");
    Ok(())
}

/// A changed secret is taken while it runs, and that before it still holds; a bad one is told. All
/// that without the right to everything; and it ends where its interface does.
#[test]
fn the_key_changes_while_it_runs() -> Result<()> {
    needs_root!();
    let Some(pair) = Pair::new()? else { return Ok(()) };
    let listener = pair.listen("[::]:80")?;
    let mut command = pair.backend.command("setpriv");
    command.arg("--bounding-set=-all,+bpf,+net_admin,+perfmon").arg(binary()?);
    let mut accept = pair.accept_by(command)?;
    let opens = |port, key| pair.opens(&listener, port, key);
    ensure!(opens(5000, KEYS[0])? && !opens(5001, KEYS[1])?);
    pair.secret(KEYS[1])?;
    wait_until("the new key", SOON, || opens(5002, KEYS[1]).is_ok_and(|opened| opened))?;
    accept.wait_for_log("ringway: secret of answers to SYNs: ", SOON)?;
    ensure!(opens(5003, KEYS[0])?, "the former key");
    pair.secret(KEYS[2])?;
    wait_until("the third key", SOON, || opens(5004, KEYS[2]).is_ok_and(|opened| opened))?;
    ensure!(opens(5005, KEYS[1])? && !opens(5006, KEYS[0])?, "two keys at most");
    std::fs::write(pair.backend.directory().join("secret"), "short")?;
    accept.wait_for_log("32 to 128 hexadecimal digits", SOON)?;
    ensure!(opens(5007, KEYS[2])?, "the key read before stays");
    pair.backend.ip("link del eth0\n")?;
    let end = accept.wait(SOON)?;
    ensure!(end.status.code() == Some(1) && end.log.contains("vanished"), "{}", end.log);
    Ok(())
}

/// The earlier connection's TIME_WAIT, which the SYN would have ended, gives way to a newer one and to
/// no copy of the earlier one's segments.
#[test]
fn a_port_is_used_again() -> Result<()> {
    needs_root!();
    let Some(pair) = Pair::new()? else { return Ok(()) };
    let listener = pair.listen("[::]:80")?;
    let _accept = pair.accept()?;
    for (service, kind) in [(0, (AGREED, true)), (1, (PLAIN, false))] {
        let mut first = Answered::new(SERVICES[service], 6000, KEYS[0], kind)?;
        first.isn = 1 << 30;
        first.cookie = cookie(KEYS[0], (first.from, first.to), first.isn, kind, 0)?;
        pair.ends(&first.ack(""), "opened")?;
        drop(accepted(&listener)?);
        // The server closes first.
        let fin = pair.client.receive(first.from, |s| s.flags & FIN != 0)?;
        let last = Segment { flags: FIN | ACK, ack: fin.seq.wrapping_add(1), ..first.ack("") };
        pair.ends(&last, "known")?;
        pair.ends(&first.ack(""), "known").context("a copy")?;
        let mut second = first;
        second.isn = first.isn + 1000;
        second.cookie = cookie(KEYS[0], (first.from, first.to), second.isn, kind, 0)?;
        let mut ack = second.ack("");
        ack.stamps = ack.stamps.map(|(value, echo)| (value + 1, echo));
        pair.ends(&ack, "time-wait")?;
        ack.payload = b"again".to_vec();
        pair.ends(&ack, "opened")?;
        let (mut stream, _) = accepted(&listener)?;
        let mut said = [0; 5];
        stream.read_exact(&mut said)?;
        ensure!(&said == b"again");
    }
    Ok(())
}

#[test]
fn what_cannot_work_is_refused_by_name() -> Result<()> {
    needs_root!();
    let Some(pair) = Pair::new()? else { return Ok(()) };
    pair.refused("nobody listens at 203.0.113.9:80 in this network namespace")?;
    let listener = pair.listen("[::]:80")?;
    for setting in ["tcp_syncookies", "tcp_sack", "tcp_timestamps", "tcp_window_scaling"] {
        let key = format!("net/ipv4/{setting}");
        pair.backend.sysctl(&key, "0")?;
        pair.refused(&format!("sysctl -w net.ipv4.{setting}=1"))?;
        pair.backend.sysctl(&key, "1")?;
    }
    for (arguments, code, words) in [
        (&["-i", "nosuch0", "--status"][..], 2, "nosuch0"),
        (&["-i", "lo", "--status"], 2, "loopback"),
        (&["-i", "eth0", "--secret", "/nosuch", "--listen", "0.0.0.0:80"], 2, "service's own"),
        (&["-i", "eth0", "--secret", "/nosuch", "--listen", SERVICES[0]], 2, "--secret, /nosuch"),
    ] {
        let ran = ringway(&pair.backend, &[&["accept"], arguments].concat())?;
        ensure!(ran.code == code && ran.err.contains(words), "{arguments:?}: {ran:?}");
    }
    let mut accept = pair.accept()?;
    let file = pair.secret(KEYS[0])?.display().to_string();
    let again = ["accept", "-i", "eth0", "--secret", &file, "--listen", SERVICES[0]];
    ringway(&pair.backend, &again)?.complains(1, &["another ringway accept"])?;
    drop(listener);
    accept.wait_for_log("nobody listens at [2001:db8::9]:80", SOON)?;
    // Multipath TCP.
    // SAFETY: no memory is given.
    let open = || unsafe { libc::socket(libc::AF_INET6, libc::SOCK_STREAM, libc::IPPROTO_MPTCP) };
    let socket = pair.backend.run(open)?;
    if socket < 0 {
        not_tested("Multipath TCP: this kernel has none");
        return Ok(());
    }
    use std::os::fd::FromRawFd as _;
    // SAFETY: opened above; nobody else has it.
    let socket = unsafe { std::os::fd::OwnedFd::from_raw_fd(socket) };
    rustix::net::bind(&socket, &at("[::]:80"))?;
    rustix::net::listen(&socket, 1)?;
    accept.wait_for_log("GODEBUG=multipathtcp=0", SOON)?;
    let answered = Answered::new(SERVICES[0], 8000, KEYS[0], (AGREED, true))?;
    pair.ends(&answered.ack(""), "refused")?;
    accept.signal(Signal::TERM)?;
    accept.wait(SOON)?;
    pair.refused("speaks Multipath TCP")
}
