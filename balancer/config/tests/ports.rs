//! Services of many ports.

#![allow(clippy::unwrap_used)]

use ringway_config::{Config, Errors, PortRange, parse};

const TWO: &str = "backends = [{ address = \"10.0.0.2\" }, { address = \"10.0.0.3\", port = 90 }]";

fn one(name: &str, port: &str, rest: &str) -> String {
    format!("[[service]]\nname = \"{name}\"\naddress = \"203.0.113.10\"\nport = {port}\n{rest}\n")
}

fn file(services: &[String]) -> Result<Config, Errors> {
    let node = "[node]\nname = \"gw1\"\ninterfaces = [\"eth0\"]\n";
    parse(&format!("{node}{}", services.concat()), "gw.toml")
}

fn wrong(services: &[String]) -> String {
    file(services).unwrap_err().iter().map(|e| e.message.clone()).collect::<Vec<_>>().join("\n")
}

#[test]
fn a_port_a_range_or_all() {
    for (written, first, last, shown) in [
        ("80", 80, 80, "80"),
        ("\"8000-8100\"", 8000, 8100, "8000-8100"),
        ("\" 1 - 65534 \"", 1, 65_534, "1-65534"),
        ("\"*\"", 1, 65_535, "*"),
    ] {
        let nat = "[nat]\naddresses = [\"10.0.0.1\"]\n".to_owned();
        let config = file(&[one("web", written, TWO), nat]).unwrap();
        let service = &config.services[0];
        assert_eq!(service.ports(), PortRange { first, last });
        assert_eq!(service.ports().to_string(), shown);
        // The port asked for is kept, unless the backend's is written.
        let kept = if first == last { first } else { 0 };
        assert_eq!(service.backends.iter().map(|b| b.port).collect::<Vec<_>>(), [kept, 90]);
    }
}

#[test]
fn what_may_lie_beside_what() {
    let range = one("a", "\"8000-8100\"", TWO);
    for fine in ["8050", "\"*\"", "\"8101-8200\"", "\"7000-7999\""] {
        let nat = "[nat]\naddresses = [\"10.0.0.1\"]\n".to_owned();
        file(&[range.clone(), one("b", fine, TWO), nat]).unwrap();
    }
    let udp = format!("protocol = \"udp\"\n{TWO}");
    file(&[range.clone(), one("b", "\"8050-8060\"", &udp)]).unwrap();
    for bad in ["\"8050-8060\"", "\"8100-8101\"", "\"1-65534\""] {
        let said = wrong(&[range.clone(), one("b", bad, TWO)]);
        assert!(said.contains("overlaps \"8000-8100\" of service \"a\" on the same"), "{said}");
    }
    let said = wrong(&[range.clone(), one("b", "\"8000-8100\"", TWO)]);
    assert!(said.contains("has the address, port and protocol of service \"a\""), "{said}");
}

#[test]
fn a_check_needs_a_port() {
    let check = format!("check = {{ type = \"tcp\" }}\n{TWO}");
    let said = wrong(&[one("a", "\"8000-8100\"", &check)]);
    let want = "check of service \"a\" has no port to ask backend 1 of service \"a\" at, where the \
                service has several: write port = N in check";
    assert_eq!(said, want);
    let own = "check = { type = \"tcp\" }\n\
               backends = [{ address = \"10.0.0.2\", check = { port = 8000 } }]\n";
    file(&[one("a", "\"8000-8100\"", own)]).unwrap();
    let check = format!("check = {{ type = \"tcp\", port = 8000 }}\n{TWO}");
    file(&[one("a", "\"8000-8100\"", &check)]).unwrap();
}

#[test]
fn dsr_changes_no_port() {
    let dsr = format!("forward = \"dsr-l2\"\n{TWO}");
    let said = wrong(&[one("a", "\"8000-8100\"", &dsr)]);
    assert!(said.contains("port = 90 in backend 2 of service \"a\" is not possible"), "{said}");
}

#[test]
fn the_ports_of_nat() {
    let said = wrong(&[one("a", "\"9000-10100\"", TWO)]);
    let words = "port 9000-10100 of service \"a\" is one of the ports of [nat]";
    assert!(said.contains(words), "{said}");
    // Replies are looked up before "*".
    file(&[one("a", "\"*\"", TWO)]).unwrap();
}

#[test]
fn ranges_are_aligned_blocks() {
    let of = |first, last| PortRange { first, last }.blocks();
    assert_eq!(of(80, 80), [(80, 0)]);
    assert_eq!(of(8000, 8100), [(8000, 6), (8064, 5), (8096, 2), (8100, 0)]);
    assert_eq!(of(1, 65535), [(0, 16)]);
    assert_eq!(of(65534, 65535), [(65534, 1)]);
    for (first, last) in [(1, 65534), (1024, 65535), (1023, 1025), (5000, 50_000)] {
        let ports = |(at, bits): &(u16, u8)| u32::from(*at)..u32::from(*at) + (1 << bits);
        let all: Vec<u32> = of(first, last).iter().flat_map(ports).collect();
        assert_eq!(all, (u32::from(first)..=u32::from(last)).collect::<Vec<_>>());
        assert!(of(first, last).len() <= 30);
    }
}

/// 4096 services of 30 blocks fit, but not with every backend's address as well.
#[test]
fn the_table_of_ports_and_addresses_is_limited() {
    let services = |backends: usize, ports: &str, source: &str| -> Vec<String> {
        let one_of = |n: usize| {
            let backend =
                |b: usize| format!("{{ address = \"10.{}.{}.{b}\", port = 1 }}", n >> 8, n & 0xff);
            let backends = (1..=backends).map(backend).collect::<Vec<_>>().join(", ");
            format!(
                "[[service]]\nname = \"s{n}\"\naddress = \"198.18.{}.{}\"\nport = {ports}\n\
                 source = {source:?}\nbackends = [{backends}]\n",
                n >> 8,
                n & 0xff
            )
        };
        let nat = "[nat]\naddresses = [\"10.255.0.1\"]\n".to_owned();
        (0..4096).map(one_of).chain([nat]).collect()
    };
    // 4096 x (30 + 1), and backends of source = "client": 12 288 more are left.
    assert!(file(&services(3, "\"1-65534\"", "client")).is_ok());
    let words = wrong(&services(4, "\"1-65534\"", "client"));
    assert!(words.contains("rows of the packet path's table, which has 139264"), "{words}");
    assert!(words.contains("port = \"1-65534\" alone takes 30 for each protocol"), "{words}");
    for (ports, source) in [("\"*\"", "client"), ("80", "client"), ("\"1-65534\"", "node")] {
        assert!(file(&services(4, ports, source)).is_ok(), "{ports} {source}");
    }
}
