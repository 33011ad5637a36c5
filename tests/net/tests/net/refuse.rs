//! What must keep a gateway from starting: exit code, cause, place and remedy.

use std::fs;
use std::process::Command;

use anyhow::{Result, ensure};
use ringway_net_tests::{
    Gateway, Ran, SERVICE_V4, Site, WEB, binary, configuration, needs_root, ringway, service,
};
use ringway_testnet::{Namespace, attach_pass};

/// Starts, expects a refusal with this code and these words, and that nothing is left behind.
fn refuses(namespace: &Namespace, text: &str, code: i32, words: &[&str]) -> Result<()> {
    let mut gateway = Gateway::launch(namespace, text)?;
    let (exit, said) = gateway.refusal()?;
    ensure!(exit == code, "exit code {exit}: {said}");
    for word in words {
        ensure!(said.contains(word), "{word:?} not in {said}");
    }
    ensure!(!gateway.pins().exists(), "a refused start leaves pins");
    ensure!(!namespace.directory().join("api.sock").exists(), "and its socket");
    Ok(())
}

#[test]
fn unfit_interfaces() -> Result<()> {
    needs_root!();
    let site = Site::new(1)?;
    let ns = &site.net.gateway;
    let web = site.service("web", WEB, "");
    let on = |interfaces: &[&str]| configuration(ns, interfaces, &web);

    let absent = ["ringway.toml:3:", "eth9", "name one of: ", "eth0"];
    refuses(ns, &on(&["eth0", "eth9"]), 2, &absent)?;
    refuses(ns, &on(&[]), 2, &["ringway.toml:3:", "interfaces"])?;
    refuses(ns, &on(&["lo"]), 2, &["lo is neither Ethernet nor a device of bare IP packets"])?;
    // The backends are behind eth1.
    let elsewhere = ["reached by way of eth1", "add \"eth1\" to [node] interfaces"];
    refuses(ns, &on(&["eth0"]), 2, &elsewhere)?;

    attach_pass(ns, "eth1")?;
    let foreign = ["eth1", "\"rw_test_pass\"", "ip link set dev eth1 xdp off"];
    refuses(ns, &on(&["eth0", "eth1"]), 1, &foreign)?;
    // As told.
    ns.ip("link set dev eth1 xdp off\nlink set dev eth0 down\n")?;
    let down = ["eth0: it is down", "ip link set dev eth0 up"];
    refuses(ns, &on(&["eth0", "eth1"]), 1, &down)
}

#[test]
fn unfit_addresses_and_ports() -> Result<()> {
    needs_root!();
    let site = Site::new(1)?;
    let ns = &site.net.gateway;
    let web = site.service("web", WEB, "");
    let good = site.configuration(&web);
    let own = good.replace("address = \"10.2.0.11\"", "address = \"10.2.0.1\"");
    refuses(ns, &own, 2, &["10.2.0.1 is an address of this node"])?;
    let pool = site.configuration(&("[nat]\nports = \"30000-40000\"\n\n".to_owned() + &web));
    let range = "net.ipv4.ip_local_port_range = 32768 60999";
    refuses(ns, &pool, 2, &[range, "write ports = \"10000-29999\"", "ringway.toml:"])?;
    // An address on the backends' own network: so are its clients.
    let (at, more) = ("10.2.0.80:7".parse()?, "announce = \"arp\"\nsource = \"client\"\n");
    let past = site.configuration(&service("echo", at, &site.backends(SERVICE_V4, 7), more));
    refuses(ns, &past, 2, &["source = ", "\"client", "write source = \"node\""])?;
    let _taken = ns.run(|| std::net::TcpListener::bind("127.0.0.1:9810"))??;
    refuses(ns, &good, 1, &["127.0.0.1:9810", "in use", "[metrics] listen"])
}

#[test]
fn an_interface_of_another_node() -> Result<()> {
    needs_root!();
    let site = Site::new(1)?;
    let text = site.configuration(&site.service("web", WEB, ""));
    let _first = Gateway::start(&site.net.gateway, &text)?;
    let other = text.replacen(site.net.gateway.name(), "another", 1).replace("api.sock", "b.sock");
    let file = site.net.gateway.directory().join("other.toml");
    fs::write(&file, other + "[metrics]\nlisten = \"off\"\n")?;
    let file = file.to_string_lossy();
    let checked = ringway(&site.net.gateway, &["check", "--host", "-c", &file])?;
    let remedy = format!("ringway detach --node {}", site.net.gateway.name());
    ensure!(checked.code == 3 && checked.out.contains(&remedy), "{checked:?}");
    ringway(&site.net.gateway, &["run", "-c", &file])?
        .complains(1, &["belongs to Ringway node"])?;
    ensure!(!std::path::Path::new("/sys/fs/bpf/ringway/another").exists());
    Ok(())
}

#[test]
fn a_check_of_the_host_finds_what_a_start_would_refuse_and_touches_nothing() -> Result<()> {
    needs_root!();
    let site = Site::new(1)?;
    let ns = &site.net.gateway;
    attach_pass(ns, "eth1")?;
    let file = ns.directory().join("ringway.toml");
    fs::write(&file, site.configuration(&site.service("web", WEB, "")))?;
    let ran = ringway(ns, &["check", "--host", "-o", "json", "-c", &file.to_string_lossy()])?;
    let found = ran.json()?;
    ensure!(ran.code == 3 && found["schema"] == "ringway.check/1", "{ran:?}");
    ensure!(found["valid"] == true && found["ok"] == false, "{found}");
    let findings = found["findings"].as_array().into_iter().flatten();
    let mut failed = findings.filter(|finding| finding["state"] == "fail");
    let foreign = failed.next().map(|finding| (&finding["check"], &finding["subject"]));
    ensure!(foreign.is_some_and(|(check, at)| check == "foreign-xdp" && at == "eth1"), "{found}");
    ensure!(failed.next().is_none(), "{found}");
    ensure!(!std::path::Path::new("/sys/fs/bpf/ringway").join(ns.name()).exists());
    Ok(())
}

const GOOD: &str = "[node]\nname = \"gw\"\ninterfaces = [\"eth0\"]\n\n[[service]]\nname = \"web\"\n\
    address = \"10.1.0.80\"\nport = 80\nbackends = [{ address = \"10.2.0.11\" }]\n";

/// No root needed: nothing is touched.
fn with(text: &str, arguments: &[&str]) -> Result<Ran> {
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("ringway.toml");
    fs::write(&file, text)?;
    Ok(Command::new(binary()?).args(arguments).arg("-c").arg(&file).output()?.into())
}

fn check(text: &str) -> Result<Ran> {
    with(text, &["check"])
}

#[test]
fn a_file_that_is_not_there_and_a_command_that_is_none() -> Result<()> {
    for (arguments, code, words) in [
        (&["run", "-c", "/nowhere/ringway.toml"][..], 2, "/nowhere/ringway.toml"),
        (&["fly"], 2, "fly"),
    ] {
        let ran: Ran = Command::new(binary()?).args(arguments).output()?.into();
        ensure!(ran.code == code && ran.err.contains(words), "{ran:?}");
    }
    Ok(())
}

/// Nothing is touched, so no root is needed.
#[test]
fn without_what_a_check_needs_nothing_starts() -> Result<()> {
    let of = |what: &str| check(&format!("{GOOD}check = {{ {what} }}\n"));
    let ran = of("type = \"https\", ca_file = \"/nonexistent/ca.pem\"")?;
    let words = "/nonexistent/ca.pem cannot be used: No such file";
    ensure!(ran.code == 2 && ran.said().contains(words), "{ran:?}");
    ensure!(ran.said().contains("ringway.toml:10:37: https check"), "{ran:?}");
    let ran = of("type = \"exec\", command = [\"/nonexistent/check\"]")?;
    ensure!(ran.code == 2 && ran.said().contains("install it, or write the path"), "{ran:?}");
    Ok(())
}
