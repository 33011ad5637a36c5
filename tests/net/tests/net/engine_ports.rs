//! `ringway engine` on AF_XDP ports: only some packets, several queues, and ports that are lost.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use ringway_net_tests::{SOON, detach_as_somebody_else, needs_root, ringway, tool};
use ringway_testnet::{End, Namespace, VethOptions, veth, wait_until};

use crate::engine::{end, pair, start};

/// Between two tries, where the first ones may be lost.
const A_SECOND: Duration = Duration::from_secs(1);

/// Whether a datagram comes back, from any port.
pub fn echo(client: &Namespace, to: &str) -> Result<bool> {
    echo_within(A_SECOND, client, to)
}

fn echo_within(time: Duration, client: &Namespace, to: &str) -> Result<bool> {
    let answered = client.run(|| {
        let socket = UdpSocket::bind("10.8.0.2:0")?;
        socket.set_read_timeout(Some(time))?;
        socket.send_to(b"hello", to)?;
        let mut back = [0; 100];
        let len = socket.recv(&mut back)?;
        std::io::Result::Ok(&back[..len] == b"hello")
    })?;
    Ok(answered.unwrap_or(false))
}

/// The kernel's own service in a namespace: sends back what comes, a connection at a time.
fn serve(ours: &Namespace, address: &str) -> Result<()> {
    let listener = ours.run(|| TcpListener::bind(address))??;
    thread::spawn(move || {
        for mut connection in listener.incoming().flatten() {
            let mut bytes = [0; 5];
            let _ = connection.read_exact(&mut bytes).and_then(|()| connection.write_all(&bytes));
        }
    });
    Ok(())
}

fn served(client: &Namespace, address: SocketAddr) -> Result<bool> {
    let answered = client.run(|| {
        let mut connection = TcpStream::connect_timeout(&address, SOON)?;
        connection.set_read_timeout(Some(SOON))?;
        connection.write_all(b"hello")?;
        let mut back = [0; 5];
        connection.read_exact(&mut back)?;
        std::io::Result::Ok(&back == b"hello")
    })?;
    Ok(answered.unwrap_or(false))
}

/// On one interface and one address, a port of UDP is the engine's and all else the kernel's.
#[test]
fn the_kernel_keeps_what_is_not_chosen() -> Result<()> {
    needs_root!();
    for port in ["af_xdp:eth0:0", "af_xdp:eth0:0,generic"] {
        let (client, ours) = pair()?;
        ours.ip("address add 10.8.0.1/24 dev eth0")?;
        serve(&ours, "10.8.0.1:2222")?;
        let words = ["udp-echo", "--port", port, "--address", "10.8.0.1", "--address", "10.8.0.9"];
        let only = ["--only", "udp:7", "--only", "arp@10.8.0.9", "--only", "icmp@10.8.0.9"];
        let engine = start(&ours, &[&words[..], &only[..]].concat())?;
        wait_until("an echo of the engine", SOON, || {
            echo(&client, "10.8.0.1:7").is_ok_and(|back| back)
        })?;
        ensure!(served(&client, "10.8.0.1:2222".parse()?)?, "{port}: the kernel answers no more");
        for address in ["10.8.0.1", "10.8.0.9"] {
            tool(&client, "ping", &["-c1", "-W30", address])?.done().context(port)?;
        }
        ensure!(served(&client, "10.8.0.1:2222".parse()?)?, "{port}: the kernel answers no more");
        let document = end(engine)?;
        let packets = &document["workers"][0]["packets"];
        // The echo, ARP and a ping: nothing of TCP.
        ensure!(packets["dropped"].as_array().is_some_and(Vec::is_empty), "{document}");
    }
    Ok(())
}

#[test]
fn a_worker_for_each_queue() -> Result<()> {
    needs_root!();
    let (client, ours) = (Namespace::new("client")?, Namespace::new("engine")?);
    let options = VethOptions { queues: 2, ..VethOptions::default() };
    veth(&End::new(&client, "eth0").address("10.8.0.2/24"), &End::new(&ours, "eth0"), &options)?;
    let words = ["udp-echo", "--port", "af_xdp:eth0:all", "--address", "10.8.0.9"];
    let engine = start(&ours, &words)?;
    ensure!(engine.log().contains("all are read (0, 1)"), "{}", engine.log());
    wait_until("an echo", SOON, || echo(&client, "10.8.0.9:7").is_ok_and(|back| back))?;
    // Each from a port of its own, so that they are spread over queues.
    for _ in 0..40 {
        ensure!(echo_within(SOON, &client, "10.8.0.9:7")?, "no echo: {}", engine.log());
    }
    let document = end(engine)?;
    let workers = document["workers"].as_array().map_or(&[][..], Vec::as_slice);
    ensure!(workers.len() == 2, "{document}");
    for (n, worker) in workers.iter().enumerate() {
        ensure!(worker["worker"] == n && worker["ports"][0]["port"] == format!("af_xdp:eth0:{n}"));
        let received = worker["packets"]["received_packets"].as_u64();
        ensure!(received.is_some_and(|packets| packets > 0), "{document}");
    }

    // One of both: what nobody reads is said.
    let engine = start(&ours, &["sink", "--port", "af_xdp:eth0:1"])?;
    ensure!(engine.log().contains("into 0 goes to the kernel"), "{}", engine.log());
    end(engine)?;
    ringway(&ours, &["engine", "sink", "--port", "af_xdp:eth0:0-1", "--cpu", "0"])?
        .complains(2, &["1 CPU for 2 workers"])?;
    let ran = ringway(&ours, &["engine", "sink", "--port", "null:64", "--only", "udp"])?;
    ensure!(ran.code == 2 && ran.err.contains("there is none; leave it out"), "{ran:?}");
    Ok(())
}

const ECHO: [&str; 5] = ["udp-echo", "--port", "af_xdp:eth0:0", "--address", "10.8.0.9"];

/// What is lost, and how.
type Loss = (&'static str, fn(&Namespace) -> Result<()>);

const LOSSES: [Loss; 3] = [
    ("the interface", |ours| Ok(ours.ip("link del eth0")?)),
    ("the link", |ours| Ok(ours.ip("link set eth0 down")?)),
    ("the program", |ours| ours.run(|| detach_as_somebody_else("eth0"))?),
];

#[test]
fn what_is_lost_ends_it() -> Result<()> {
    needs_root!();
    for ((what, lose), said) in LOSSES.into_iter().zip([
        "the interface is gone",
        "the interface is down",
        "detached by somebody else",
    ]) {
        let (client, ours) = pair()?;
        let mut engine = start(&ours, &ECHO)?;
        wait_until("an echo", SOON, || echo(&client, "10.8.0.9:7").is_ok_and(|back| back))?;
        lose(&ours)?;
        let ended = engine.wait(SOON)?;
        ensure!(ended.status.code() == Some(1), "{what}: {:?}, {}", ended.status, ended.log);
        ensure!(ended.log.contains(said), "{what}: {}", ended.log);
        ensure!(ended.log.contains("\"balanced\": true"), "{what}: {}", ended.log);
    }
    Ok(())
}

/// What will be dropped is said at the start, and how not to.
#[test]
fn a_jumbo_mtu() -> Result<()> {
    needs_root!();
    let ours = Namespace::new("ours")?;
    let jumbo = VethOptions { mtu: 9000, ..VethOptions::default() };
    veth(&End::new(&ours, "eth0"), &End::new(&ours, "eth1"), &jumbo)?;
    let engine = start(&ours, &["sink", "--port", "af_packet:eth0"])?;
    let said = "the MTU is 9000, and it sends packets up to";
    ensure!(engine.log().contains(said), "{}", engine.log());
    end(engine)?;
    let engine = start(&ours, &["sink", "--port", "af_xdp:eth0:0"])?;
    let log = engine.log();
    ensure!(
        log.contains("mtu: eth0: 9000: packets over 1792 bytes take several frames")
            || log.contains("to do: ip link set dev eth0 mtu 1774"),
        "{log}"
    );
    end(engine)?;
    Ok(())
}

/// Nothing comes or goes where the link is down, whatever the kernel lets one open.
#[test]
fn a_link_that_is_down_is_waited_for() -> Result<()> {
    needs_root!();
    let (client, ours) = pair()?;
    ours.ip("link set eth0 down")?;
    let ran = ringway(&ours, &[&["engine"], &ECHO[..]].concat())?;
    ensure!(ran.code == 1 && ran.err.contains("eth0 is down; `ip link set"), "{ran:?}");
    let mut engine = start(&ours, &[&ECHO[..], &["--on-loss", "reopen"]].concat())?;
    engine.wait_for_log("not back yet: af_xdp:eth0:0: eth0 is down", SOON)?;
    let log = engine.log();
    ensure!(log.contains("`ip link set dev eth0 up`") && !log.contains("--on-loss"), "{log}");
    ours.ip("link set eth0 up")?;
    wait_until("an echo", SOON, || echo(&client, "10.8.0.9:7").is_ok_and(|back| back))?;
    let document = end(engine)?;
    let port = &document["workers"][0]["ports"][0];
    ensure!(port["lost_times"] == 1 && port["lost"] == false, "{document}");
    Ok(())
}

#[test]
fn what_is_lost_is_opened_again() -> Result<()> {
    needs_root!();
    for (what, lose) in LOSSES {
        let (client, ours) = pair()?;
        let words =
            [&ECHO[..], &["--only", "udp", "--only", "arp", "--on-loss", "reopen"]].concat();
        let mut engine = start(&ours, &words)?;
        let echoes = || echo(&client, "10.8.0.9:7").is_ok_and(|back| back);
        wait_until("an echo", SOON, echoes)?;
        lose(&ours)?;
        engine.wait_for_log("to be opened again when it is back", SOON)?;
        match what {
            "the interface" => {
                let near = End::new(&client, "eth0").address("10.8.0.2/24");
                veth(&near, &End::new(&ours, "eth0"), &VethOptions::default()).map(drop)?;
            }
            "the link" => ours.ip("link set eth0 up")?,
            _ => {}
        }
        wait_until("an echo when it is back", SOON, echoes)?;
        let document = end(engine)?;
        let port = &document["workers"][0]["ports"][0];
        ensure!(port["lost_times"] == 1 && port["lost"] == false, "{what}: {document}");
        let received = document["workers"][0]["packets"]["received_packets"].as_u64();
        ensure!(port["received_packets"].as_u64() == received, "{what}: {document}");
    }
    Ok(())
}
