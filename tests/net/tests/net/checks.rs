//! Health checks of every type: what they meet takes a backend out and is said.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Result, ensure};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use ringway_net_tests::{
    Dns, ECHO, Echo, Gateway, Responder, SERVICE_V4, SERVICE_V6, SOON, Site, WEB, ask_udp, get,
    needs_root, udp_to,
};
use ringway_testnet::{Child, wait_for, wait_until};
use serde_json::Value;

const PACE: &str = "interval = \"200ms\", timeout = \"200ms\", fall = 5";

/// Health of the backends of the first service.
fn healths(status: &Value) -> Vec<&str> {
    let backends = status["services"][0]["backends"].as_array().into_iter().flatten();
    backends.map(|backend| backend["health"].as_str().unwrap_or_default()).collect()
}

/// Why backend `n` gets no traffic.
fn reason(status: &Value, n: usize) -> &str {
    status["services"][0]["backends"][n]["reason"].as_str().unwrap_or_default()
}

/// Waits until the backends' health is this, and backend `n`'s for a reason with these words: on a
/// busy machine the first checks may fail for another one.
fn wait_health(gateway: &Gateway, healthy: [&str; 2], n: usize, why: &str) -> Result<()> {
    let fits = |status: &Value| healths(status) == healthy && reason(status, n).contains(why);
    gateway.wait_status(why, fits)?;
    Ok(())
}

/// New requests get answers from this backend alone.
fn only(site: &Site, name: &str) -> Result<()> {
    for _ in 0..20 {
        let found = get(site.client(), WEB)?;
        ensure!(found == name, "{found}");
    }
    Ok(())
}

struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    fn new() -> Result<Authority> {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Ok(Authority(CertifiedIssuer::self_signed(params, KeyPair::generate()?)?))
    }

    /// nginx with TLS on port 443 of a backend, with a certificate for this name.
    fn serve(&self, site: &Site, n: usize, name: &str) -> Result<Child> {
        let node = &site.net.backends[n];
        let directory = node.ns.directory().join(format!("tls-{name}"));
        fs::create_dir_all(&directory)?;
        let key = KeyPair::generate()?;
        let certificate =
            CertificateParams::new(vec![name.to_owned()])?.signed_by(&key, &self.0)?;
        fs::write(directory.join("cert.pem"), certificate.pem())?;
        fs::write(directory.join("key.pem"), key.serialize_pem())?;
        let address = site.backends(SERVICE_V4, 443)[n];
        let d = directory.display();
        let text = format!(
            "daemon off;\nmaster_process off;\npid {d}/pid;\nerror_log stderr warn;\nevents {{ }}\n\
             http {{\n    access_log off;\n    client_body_temp_path {d}/body;\n    \
             proxy_temp_path {d}/proxy;\n    fastcgi_temp_path {d}/fastcgi;\n    \
             uwsgi_temp_path {d}/uwsgi;\n    scgi_temp_path {d}/scgi;\n    server {{\n        \
             listen {address} ssl;\n        ssl_certificate {d}/cert.pem;\n        \
             ssl_certificate_key {d}/key.pem;\n        return 204;\n    }}\n}}\n"
        );
        fs::write(directory.join("nginx.conf"), text)?;
        let mut command = node.ns.tool("nginx")?;
        command.arg("-e").arg("stderr").arg("-p").arg(&directory);
        command.arg("-c").arg(directory.join("nginx.conf"));
        let mut child = node.ns.spawn(command)?;
        child.wait_for_port(address, SOON)?;
        Ok(child)
    }
}

#[test]
fn https_takes_the_certificate_for_the_name_alone() -> Result<()> {
    needs_root!();
    let site = Site::new(2)?;
    let ca = Authority::new()?;
    let file = site.net.gateway.directory().join("ca.pem");
    fs::write(&file, ca.0.pem())?;
    let (mut good, _other) = (ca.serve(&site, 0, "web.test")?, ca.serve(&site, 1, "other.test")?);
    let check = |more: &str| {
        let check = format!("check = {{ type = \"https\", port = 443, {PACE}, {more} }}\n");
        site.configuration(&site.service("web", WEB, &check))
    };
    let by_name = format!("ca_file = {file:?}, sni = \"web.test\", expect = 204");
    let mut gateway = Gateway::start_degraded(&site.net.gateway, &check(&by_name))?;
    let want = "certificate is for other.test, not web.test: set sni, or tls_verify = false";
    wait_health(&gateway, ["up", "down"], 1, want)?;
    only(&site, "b1")?;

    gateway.terminate()?;
    gateway.rewrite(&check("tls_verify = false"))?;
    gateway.start_again()?;
    gateway.wait_serving()?;
    gateway.wait_status("both up", |status| healths(status) == ["up", "up"])?;
    good.kill()?;
    wait_health(&gateway, ["down", "up"], 0, "connection refused on port 443")?;
    only(&site, "b2")?;

    // The machine's own list has no such authority.
    gateway.terminate()?;
    gateway.rewrite(&check("sni = \"other.test\""))?;
    gateway.start_again()?;
    let want = "certificate is signed by none of the authorities in /etc/";
    wait_health(&gateway, ["down", "down"], 1, want)
}

/// An agent on another address and port of a backend, of the other family, decides.
#[test]
fn a_backend_is_asked_elsewhere() -> Result<()> {
    needs_root!();
    let site = Site::new(2)?;
    let place = site.backends(SERVICE_V6, 9000)[0];
    let agent = Responder::start(&site.net.backends[0].ns, place, "agent")?;
    let check = format!("check = {{ type = \"http\", {PACE} }}\n");
    let own = format!("\"{}\", port = 80", site.backends(SERVICE_V4, 80)[0].ip());
    let asked = format!("{own}, check = {{ address = \"{}\", port = 9000 }}", place.ip());
    let text = site.configuration(&site.service("web", WEB, &check)).replace(&own, &asked);
    let gateway = Gateway::start(&site.net.gateway, &text)?;
    gateway.wait_status("both up", |status| healths(status) == ["up", "up"])?;
    agent.say(503);
    let want = format!("HTTP status 503; 200 to 399 pass (asked at {})", place.ip());
    wait_health(&gateway, ["down", "up"], 0, &want)?;
    only(&site, "b2")?;
    agent.say(200);
    gateway.wait_status("b1 up", |status| healths(status) == ["up", "up"])?;
    Ok(())
}

#[test]
fn udp_asks_and_reads_the_answer() -> Result<()> {
    needs_root!();
    let site = Site::new(2)?;
    let backends = site.backends(SERVICE_V4, 7);
    let start = |n: usize, name: &str| Echo::start(&site.net.backends[n].ns, backends[n], name);
    let (first, _second) = (start(0, "well-1")?, start(1, "well-2")?);
    let check = format!(
        "protocol = \"udp\"\n\
         check = {{ type = \"udp\", send = \"hex:70696e67\", expect = \"well\", {PACE} }}\n"
    );
    let gateway = site.start(&site.service("echo", ECHO, &check))?;
    gateway.wait_status("both up", |status| healths(status) == ["up", "up"])?;
    drop(first);
    wait_health(&gateway, ["down", "up"], 0, "UDP port 7 is refused: nobody listens")?;
    let socket = udp_to(site.client(), ECHO)?;
    for _ in 0..5 {
        ensure!(ask_udp(&socket, "hello")? == "well-2");
    }
    let _ill = start(0, "ill")?;
    let said = |status: &Value| reason(status, 0).contains("not what is expected: \"ill ping\"");
    gateway.wait_status("b1 down for its answer", said)?;
    site.set_link(0, false)?;
    let said = |status: &Value| reason(status, 0) == "no answer on port 7 within 200 ms";
    gateway.wait_status("b1 down for its silence", said)?;
    Ok(())
}

#[test]
fn dns_judges_the_code_of_the_answer() -> Result<()> {
    needs_root!();
    let site = Site::new(2)?;
    let service = SocketAddr::new(SERVICE_V4, 53);
    let record = Ipv4Addr::new(192, 0, 2, 7);
    let backends = site.backends(SERVICE_V4, 53);
    let start = |n: usize| Dns::start(&site.net.backends[n].ns, backends[n], record);
    let (first, _second) = (start(0)?, start(1)?);
    let check = format!(
        "protocol = \"udp\"\ncheck = {{ type = \"dns\", query = \"www.example.com\", {PACE} }}\n"
    );
    let text = |check: &str| site.configuration(&site.service("dns", service, check));
    let mut gateway = Gateway::start(&site.net.gateway, &text(&check))?;
    gateway.wait_status("both up", |status| healths(status) == ["up", "up"])?;
    drop(first);
    wait_health(&gateway, ["down", "up"], 0, "refused")?;
    let ask = || {
        site.client()
            .command("dig")
            .args(["+short", "+time=30", "+tries=1", "@10.1.0.80", "a.example"])
            .output()
    };
    for _ in 0..5 {
        let answer = ask()?;
        ensure!(answer.stdout == b"192.0.2.7\n", "{answer:?}");
    }
    gateway.terminate()?;
    gateway.rewrite(&text(&check.replace("}", ", rcode = [\"NXDOMAIN\", \"REFUSED\"] }")))?;
    gateway.start_again()?;
    let want = "DNS answer NOERROR; NXDOMAIN or REFUSED passes";
    wait_health(&gateway, ["down", "down"], 1, want)
}

/// A program in a file of its own.
fn program(site: &Site, name: &str, text: &str) -> Result<PathBuf> {
    let file = site.net.gateway.directory().join(name);
    fs::write(&file, format!("#!/bin/sh\n{text}\n"))?;
    fs::set_permissions(&file, fs::Permissions::from_mode(0o755))?;
    Ok(file)
}

#[test]
fn a_program_decides() -> Result<()> {
    needs_root!();
    let site = Site::new(2)?;
    let directory = site.net.gateway.directory().to_owned();
    let d = directory.display();
    // Takes out the backend whose address is in the file; with "hang" there, hangs.
    let text = format!(
        "touch {d}/ill\nread -r ill <{d}/ill\nls -l /proc/$$/fd >{d}/open\n\
         [ \"$ill\" = hang ] && sleep 1000\n\
         [ \"$ill\" = \"$RINGWAY_ADDRESS\" ] || exit 0\n\
         echo \"$RINGWAY_SERVICE $RINGWAY_PORT $1: replication lags\" >&2\nexit 3"
    );
    let file = program(&site, "replication", &text)?;
    // A busy machine takes longer to start a program than to connect.
    let pace = "interval = \"1s\", timeout = \"1s\", fall = 2";
    let check = format!("check = {{ type = \"exec\", command = [{file:?}, \"main\"], {pace} }}\n");
    let site_text = site.configuration(&site.service("web", WEB, &check));
    let mut gateway = Gateway::start(&site.net.gateway, &site_text)?;
    gateway.wait_status("both up", |status| healths(status) == ["up", "up"])?;
    let backends = site.backends(SERVICE_V4, 80);
    fs::write(directory.join("ill"), format!("{}\n", backends[0].ip()))?;
    let want = "replication: web 80 main: replication lags (exit status 3)";
    wait_health(&gateway, ["down", "up"], 0, want)?;
    only(&site, "b2")?;

    // Nothing of the daemon's is open in the program.
    let open = fs::read_to_string(directory.join("open"))?;
    ensure!(
        !open.contains("bpf") && !open.contains("socket:") && !open.contains("netlink"),
        "{open}"
    );

    fs::write(directory.join("ill"), "hang\n")?;
    let want = "replication has not ended within 1000 ms: killed";
    wait_health(&gateway, ["down", "down"], 1, want)?;
    fs::write(directory.join("ill"), "\n")?;
    gateway.wait_status("both up", |status| healths(status) == ["up", "up"])?;
    let daemon = gateway.child().pid();
    wait_for("no process left behind", SOON, || match left_of(daemon, &file) {
        left if left.is_empty() => Ok(()),
        left => Err(format!("{left:?}")),
    })?;
    Ok(())
}

/// Zombies of the daemon's, and processes that wait where the program hung.
fn left_of(daemon: u32, program: &Path) -> Vec<String> {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let state = |entry: fs::DirEntry| {
        let stat = fs::read_to_string(entry.path().join("stat")).ok()?;
        let cmdline = fs::read_to_string(entry.path().join("cmdline")).ok()?;
        let (_, rest) = stat.rsplit_once(") ")?;
        let zombie = rest.starts_with(&format!("Z {daemon} "));
        let hanging =
            cmdline.contains(&*program.to_string_lossy()) || cmdline == "sleep\x001000\x00";
        (zombie || hanging).then(|| format!("{stat} {cmdline}"))
    };
    processes.filter_map(state).collect()
}

#[test]
fn every_result_is_logged_if_asked_for() -> Result<()> {
    needs_root!();
    let mut site = Site::new(2)?;
    let check = format!("check = {{ type = \"http\", {PACE} }}\n");
    let loud = check.replace(" }", ", log_checks = true }");
    let other = SocketAddr::new(SERVICE_V4, 81);
    let services = site.service("web", WEB, &loud)
        + &ringway_net_tests::service(
            "quiet",
            other,
            &site.backends(SERVICE_V4, 80),
            &format!("announce = \"arp\"\n{check}"),
        );
    let gateway = site.start(&services)?;
    site.nginx[0].kill()?;
    gateway.wait_status("b1 down", |status| healths(status) == ["down", "up"])?;
    let backends = site.backends(SERVICE_V4, 80);
    let quiet = format!("quiet: backend {}", backends[0]);
    wait_for("every result in the log", SOON, || {
        let log = gateway.log();
        let lines = |text: &str| log.lines().filter(|line| line.contains(text)).count();
        let passed = lines(&format!("web: backend {} passed", backends[1]));
        let failed = lines(&format!("web: backend {} failed: connection refused", backends[0]));
        let down = lines(&format!("{quiet} is down: connection refused"));
        match passed >= 4 && failed >= 4 && down == 1 {
            true => Ok(()),
            false => Err(format!("{passed} passed, {failed} failed, {down} down in\n{log}")),
        }
    })?;
    let log = gateway.log();
    ensure!(log.lines().any(|line| line.contains("passed") && line.contains("ms=")), "{log}");
    ensure!(
        !log.contains(&format!("{quiet} failed"))
            && !log.contains(&format!("quiet: backend {} passed", backends[1])),
        "{log}"
    );
    Ok(())
}

#[test]
fn since_when_and_why_survive_a_restart() -> Result<()> {
    needs_root!();
    let mut site = Site::new(2)?;
    let check = "check = { type = \"http\", interval = \"500ms\", fall = 5 }\n";
    let text = site.configuration(&site.service("web", WEB, check));
    let mut gateway = Gateway::start(&site.net.gateway, &text)?;
    site.nginx[0].kill()?;
    let before = gateway.wait_status("b1 down", |status| healths(status) == ["down", "up"])?;
    let second = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    let known = |status: &Value| {
        let backends = status["services"][0]["backends"].as_array().cloned().unwrap_or_default();
        backends.iter().map(|b| (b["since"].clone(), b["reason"].clone())).collect::<Vec<_>>()
    };
    let document = site.net.gateway.directory().join("state/health.json");
    wait_for("the document", SOON, || match fs::read_to_string(&document) {
        Ok(text) if text.contains("connection refused") => Ok(()),
        other => Err(format!("{other:?}")),
    })?;
    for gently in [false, true] {
        match gently {
            true => drop(gateway.terminate()?),
            false => gateway.kill()?,
        }
        let now = second();
        wait_until("another second", SOON, || second() > now)?;
        gateway.start_again()?;
        gateway.wait_serving()?;
        let after = gateway.wait_status("a checked b1", |status| {
            healths(status) == ["down", "up"]
                && status["services"][0]["backends"][0]["checks_failed"].as_u64() > Some(0)
        })?;
        ensure!(known(&after) == known(&before), "{after}\nbefore: {before}");
    }
    // Without the document only the state itself is known.
    gateway.kill()?;
    fs::remove_file(&document)?;
    gateway.start_again()?;
    gateway.wait_serving()?;
    let after = gateway.wait_status("b1 down", |status| healths(status) == ["down", "up"])?;
    let since = &after["services"][0]["backends"][0]["since"];
    ensure!(since.is_null(), "{since}: nothing was tested");
    Ok(())
}
