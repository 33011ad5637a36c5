//! Devices without an Ethernet header, as WireGuard's: by TUN devices, whose packets are like them.

use std::net::{IpAddr, SocketAddr};

use anyhow::{Context, Result, ensure};
use ringway_net_tests::{
    Cable, Echo, Gateway, Line, SERVICE_V4, SERVICE_V6, ask_udp, configuration, get, needs_root,
    service, tool, udp_to,
};
use ringway_testnet::{End, Namespace, Nginx, VethOptions, XdpReceive, veth};
use serde_json::Value;

use crate::capture::{begin, end, totals, tshark};
use crate::passing::counted;

const ECHO: u16 = 7;
const SERVICES: [IpAddr; 2] = [SERVICE_V4, SERVICE_V6];
const ARP: &str = "announce = \"arp\"\n";
const CHECK: &str = "check = { type = \"tcp\", interval = \"200ms\", fall = 15 }\n";

/// A web server and an echo server.
struct Backend {
    _nginx: Nginx,
    _echo: Vec<Echo>,
}

impl Backend {
    /// In a namespace that has these addresses already.
    fn start(ns: &Namespace, addresses: &[IpAddr]) -> Result<Backend> {
        let listen: Vec<SocketAddr> = addresses.iter().map(|a| SocketAddr::new(*a, 80)).collect();
        let echo = addresses.iter().map(|a| Echo::start(ns, SocketAddr::new(*a, ECHO), "b1"));
        Ok(Backend {
            _nginx: Nginx::start(ns, &listen, "b1")?,
            _echo: echo.collect::<Result<_>>()?,
        })
    }
}

fn near(ns: &Namespace, name: &str, net: u8) -> End {
    let end = End::new(ns, name).address(format!("10.{net}.0.1/24"));
    end.address(format!("fd0{net}::1/64"))
}

fn far(ns: &Namespace, name: &str, net: u8) -> End {
    let end = End::new(ns, name).address(format!("10.{net}.0.2/24"));
    end.address(format!("fd0{net}::2/64")).xdp_receive(XdpReceive::Pass)
}

/// Client - eth0, gateway, tun0 - backend.
fn backend_behind_tun(
    arrive: impl Fn(&[u8]) -> Vec<u8> + Send + 'static,
) -> Result<(Namespace, Namespace, Namespace, Cable)> {
    let (client, gateway) = (Namespace::new("client")?, Namespace::new("gw")?);
    let backend = Namespace::new("b1")?;
    veth(&far(&client, "eth0", 1), &near(&gateway, "eth0", 1), &VethOptions::default())?;
    let ends: [(&Namespace, &[&str]); 2] =
        [(&gateway, &["10.2.0.1/24", "fd02::1/64"]), (&backend, &["10.2.0.2/24", "fd02::2/64"])];
    let cable = Cable::with("tun0", ends, arrive)?;
    Ok((client, gateway, backend, cable))
}

fn services(backends: &[IpAddr], more: &str) -> Result<String> {
    let mut text = String::new();
    for (address, backend) in SERVICES.into_iter().zip(backends) {
        for (port, protocol) in [(80, "tcp"), (ECHO, "both")] {
            let name = format!("s{port}-{}", if address.is_ipv4() { 4 } else { 6 });
            let protocol = match protocol {
                "both" => "protocol = [\"tcp\", \"udp\"]\n",
                _ => "",
            };
            let backend = SocketAddr::new(*backend, port);
            let more = format!("{ARP}{protocol}{more}");
            text += &service(&name, SocketAddr::new(address, port), &[backend], &more);
        }
    }
    Ok(text)
}

/// Everything answers, by either family: web pages, a long connection, datagrams of many sizes.
fn all_answer(client: &Namespace) -> Result<()> {
    for address in SERVICES {
        for _ in 0..10 {
            ensure!(get(client, SocketAddr::new(address, 80))? == "b1", "{address}");
        }
        let echo = SocketAddr::new(address, ECHO);
        let mut line = Line::open(client, echo).with_context(|| format!("line to {echo}"))?;
        for text in ["a", &"b".repeat(1200), &"c".repeat(9000)] {
            ensure!(line.ask(text)? == "b1", "{address}");
        }
        let socket = udp_to(client, echo)?;
        for size in [0, 1, 2, 500, 1400, 1440] {
            let asked = ask_udp(&socket, &"x".repeat(size));
            ensure!(asked.with_context(|| format!("{size} bytes to {echo}"))? == "b1");
        }
    }
    Ok(())
}

fn mode<'a>(status: &'a Value, interface: &str) -> &'a str {
    let mut all = status["interfaces"].as_array().into_iter().flatten();
    let found = all.find(|one| one["name"] == interface);
    found.and_then(|one| one["mode"].as_str()).unwrap_or_default()
}

/// Every packet is in the ledger, and none was lost after it was counted.
pub fn balanced(status: &Value) -> Result<()> {
    ensure!(status["ledger"]["difference_packets"] == 0, "{}", status["ledger"]);
    ensure!(status["losses"] == Value::Array(vec![]), "{}", status["losses"]);
    Ok(())
}

fn allow(gateway: &Namespace, interface: &str) -> Result<()> {
    for key in ["forwarding", "accept_local"] {
        gateway.sysctl(&format!("net/ipv4/conf/{interface}/{key}"), "1")?;
    }
    Ok(gateway.sysctl("net/ipv6/conf/all/forwarding", "1")?)
}

#[test]
fn backends_behind_it() -> Result<()> {
    needs_root!();
    let (client, gateway, backend, _cable) = backend_behind_tun(<[u8]>::to_vec)?;
    let addresses = ["10.2.0.2".parse()?, "fd02::2".parse()?];
    let _backend = Backend::start(&backend, &addresses)?;
    let services = services(&addresses, CHECK)?;
    let text = configuration(&gateway, &["eth0", "tun0"], &services);
    let (code, words) = Gateway::launch(&gateway, &text)?.refusal()?;
    let sysctl = "sysctl -w net.ipv4.conf.eth0.forwarding=1; sysctl -w net.ipv4.conf.eth0.accept_local=1; \
                  sysctl -w net.ipv6.conf.all.forwarding=1";
    ensure!(code == 1 && words.contains(sysctl), "{code}: {words}");
    allow(&gateway, "eth0")?;
    for (asked, got) in [("auto", "native"), ("generic", "generic")] {
        let text = text.replacen("\n\n", &format!("\nxdp_mode = {asked:?}\n\n"), 1);
        let running = Gateway::start(&gateway, &text)?;
        all_answer(&client)?;
        // Answers to the health checks come to the kernel unharmed.
        let checked = |status: &Value| counted(status, "tun0", "pass", "no-service") > 0;
        let status = running.wait_status("an answer to a check", checked)?;
        ensure!((mode(&status, "eth0"), mode(&status, "tun0")) == (got, "generic"), "{status}");
        let count = |interface, verdict, reason| counted(&status, interface, verdict, reason);
        ensure!(count("eth0", "pass", "pass-rewritten") > 100, "{}", status["counters"]);
        ensure!(count("eth0", "redirect", "nat-forward") == 0, "{}", status["counters"]);
        ensure!(count("tun0", "redirect", "nat-reply") > 100, "{}", status["counters"]);
        balanced(&status)?;
    }
    Ok(())
}

/// Client - tun0, gateway, eth1 - backend; and the backend's addresses.
fn client_behind_tun() -> Result<(Namespace, Namespace, Namespace, Cable, [IpAddr; 2])> {
    let (client, gateway) = (Namespace::new("client")?, Namespace::new("gw")?);
    let backend = Namespace::new("b1")?;
    let ends: [(&Namespace, &[&str]); 2] =
        [(&gateway, &["10.1.0.1/24", "fd01::1/64"]), (&client, &["10.1.0.2/24", "fd01::2/64"])];
    let cable = Cable::new("tun0", ends)?;
    veth(&far(&backend, "eth0", 2), &near(&gateway, "eth1", 2), &VethOptions::default())?;
    Ok((client, gateway, backend, cable, ["10.2.0.2".parse()?, "fd02::2".parse()?]))
}

/// What the kernel must let through of packets that are passed on rewritten.
fn forwards(gateway: &Namespace) -> Result<()> {
    gateway.sysctl("net/ipv4/conf/eth1/forwarding", "1")?;
    gateway.sysctl("net/ipv4/conf/eth1/rp_filter", "2")?;
    Ok(gateway.sysctl("net/ipv6/conf/all/forwarding", "1")?)
}

#[test]
fn clients_behind_it() -> Result<()> {
    needs_root!();
    let (client, gateway, backend, _cable, addresses) = client_behind_tun()?;
    let _backend = Backend::start(&backend, &addresses)?;
    let empty = service("empty", "10.1.0.80:81".parse()?, &["10.2.0.9:81".parse()?], ARP);
    let empty = empty.replacen("announce", &format!("{CHECK}announce"), 1);
    let text = services(&addresses, "")? + &empty;
    let text = configuration(&gateway, &["tun0", "eth1"], &text);
    gateway.sysctl("net/ipv4/conf/eth1/rp_filter", "1")?;
    let (code, words) = Gateway::launch(&gateway, &text)?.refusal()?;
    let sysctl = "sysctl -w net.ipv4.conf.eth1.forwarding=1; sysctl -w net.ipv4.conf.eth1.rp_filter=2; \
                  sysctl -w net.ipv6.conf.all.forwarding=1";
    ensure!(code == 1 && words.contains(sysctl), "{code}: {words}");
    forwards(&gateway)?;
    let mut running = Gateway::launch(&gateway, &text)?;
    running.wait_serving()?;
    all_answer(&client)?;
    // What Ringway itself says to a client goes back by the device: a reset, an echo.
    let refused = Line::open(&client, "10.1.0.80:81".parse()?);
    let refused = refused.err().map(|error| error.kind());
    ensure!(refused == Some(std::io::ErrorKind::ConnectionRefused), "{refused:?}");
    for address in SERVICES {
        let words = ["-c", "2", "-i", "0.2", "-W", "30", &address.to_string()];
        tool(&client, "ping", &words)?.done()?;
    }
    let status = running.status()?;
    let count = |interface, verdict, reason| counted(&status, interface, verdict, reason);
    ensure!(count("tun0", "redirect", "nat-forward") > 100, "{}", status["counters"]);
    ensure!(count("eth1", "pass", "pass-rewritten") > 100, "{}", status["counters"]);
    ensure!(count("tun0", "tx", "reset-no-backend") >= 1, "{}", status["counters"]);
    ensure!(count("tun0", "tx", "echo-reply") == 4, "{}", status["counters"]);
    balanced(&status)
}

/// Records of tun0 begin with the IP header, those of eth1 with Ethernet's; of both there are 60
/// bytes.
#[test]
fn captured_with_and_without_header() -> Result<()> {
    needs_root!();
    let (client, gateway, backend, _cable, addresses) = client_behind_tun()?;
    let _backend = Backend::start(&backend, &addresses)?;
    forwards(&gateway)?;
    let text = configuration(&gateway, &["tun0", "eth1"], &services(&addresses, "")?);
    let _running = Gateway::start(&gateway, &text)?;
    let file = gateway.directory().join("raw.pcapng");
    let capture =
        begin(&gateway, &["-s", "60", "-w", &file.to_string_lossy(), "port 7 or port 80"])?;
    all_answer(&client)?;
    let (code, log) = end(capture)?;
    ensure!(code == 0 && totals(&log)?[0] > 100, "{log}");
    // WTAP_ENCAP_ETHERNET and WTAP_ENCAP_RAW_IP of Wireshark's wiretap/wtap.h.
    let of = |interface| if interface == "tun0" { "7" } else { "1" };
    let fields = ["frame.interface_name", "frame.encap_type", "frame.cap_len", "frame.len"];
    let rows = tshark(&gateway, &file, &[&fields[..], &["ip.src", "ipv6.src"]].concat())?;
    let rows: Vec<Vec<&str>> = rows.iter().map(|row| row.split('\t').collect()).collect();
    for row in &rows {
        ensure!(row[1] == of(row[0]) && row[4].is_empty() != row[5].is_empty(), "{row:?}");
        ensure!(row[2].parse::<u32>()? == row[3].parse::<u32>()?.min(60), "{row:?}");
    }
    for (interface, source) in [("tun0", "10.1.0.2"), ("tun0", "fd01::2"), ("eth1", "10.2.0.2")] {
        let found = rows.iter().any(|row| row[0] == interface && row[4..].contains(&source));
        ensure!(found, "nothing by {interface} from {source}");
    }
    Ok(())
}

/// The far end asks for what it has itself, so that all goes in and out by the device: the kernel
/// forwards nothing, and need not.
#[test]
fn both_behind_it() -> Result<()> {
    needs_root!();
    let (gateway, far) = (Namespace::new("gw")?, Namespace::new("far")?);
    let ends: [(&Namespace, &[&str]); 2] =
        [(&gateway, &["10.1.0.1/24", "fd01::1/64"]), (&far, &["10.1.0.2/24", "fd01::2/64"])];
    let _cable = Cable::new("tun0", ends)?;
    let addresses = ["10.1.0.2".parse()?, "fd01::2".parse()?];
    let _backend = Backend::start(&far, &addresses)?;
    let text = configuration(&gateway, &["tun0"], &services(&addresses, "")?);
    let running = Gateway::start(&gateway, &text)?;
    all_answer(&far)?;
    let status = running.status()?;
    let count = |verdict, reason| counted(&status, "tun0", verdict, reason);
    ensure!(count("tx", "nat-forward") > 100, "{}", status["counters"]);
    ensure!(count("tx", "nat-reply") > 100, "{}", status["counters"]);
    balanced(&status)
}

/// The packet inside, as `ringway decap` or a tunnel device would find it.
fn opened(packet: &[u8]) -> Vec<u8> {
    const GUE: [u8; 2] = 6080u16.to_be_bytes();
    let (next, head) = match packet.first().map(|first| first >> 4) {
        Some(4) => (packet[9], 20),
        _ => (packet[6], 40),
    };
    let inner = match next {
        4 | 41 => head,
        17 if packet[head + 2..head + 4] == GUE => head + 8,
        _ => 0,
    };
    packet[inner..].to_vec()
}

/// Health checks go by the same path.
#[test]
fn tunnels_into_it() -> Result<()> {
    needs_root!();
    let (client, gateway, backend, _cable) = backend_behind_tun(opened)?;
    allow(&gateway, "eth0")?;
    gateway.sysctl("net/ipv4/ip_forward", "1")?; // as the backend's router
    backend.ip(&format!("addr add {SERVICE_V4} dev lo\naddr add {SERVICE_V6} dev lo nodad\n"))?;
    backend.ip("route add default dev tun0\nroute add ::/0 dev tun0\n")?;
    let _backend = Backend::start(&backend, &SERVICES)?;
    let ways: [[IpAddr; 2]; 2] =
        [["10.2.0.2".parse()?, "fd02::2".parse()?], ["fd02::2".parse()?, "10.2.0.2".parse()?]];
    for forward in ["dsr-ipip", "dsr-gue"] {
        for addresses in ways {
            let more = format!("forward = {forward:?}\n{CHECK}");
            let text = configuration(&gateway, &["eth0", "tun0"], &services(&addresses, &more)?);
            let running = Gateway::start(&gateway, &text)?;
            all_answer(&client).with_context(|| format!("{forward} to {addresses:?}"))?;
            let status = running.status()?;
            let passed = counted(&status, "eth0", "pass", "pass-rewritten");
            ensure!(passed > 100, "{}", status["counters"]);
            balanced(&status)?;
        }
    }
    let text = services(&ways[0], "forward = \"dsr-l2\"\n")?;
    let text = configuration(&gateway, &["eth0", "tun0"], &text);
    let (code, words) = Gateway::launch(&gateway, &text)?.refusal()?;
    let why = "tun0 is a tun, without Ethernet header: no redirect leads into it: dsr-l2 has no other way";
    ensure!(code == 2 && words.contains(why), "{code}: {words}");
    Ok(())
}
