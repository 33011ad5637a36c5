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
    assert_eq!(
        said,
        "check of service \"a\" has no port to ask backend 1 of service \"a\" at, where the \
         service has several: write port = N in check"
    );
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
    assert!(
        said.contains("port 9000-10100 of service \"a\" is one of the ports of [nat]"),
        "{said}"
    );
    // Replies are looked up before "*".
    file(&[one("a", "\"*\"", TWO)]).unwrap();
}
