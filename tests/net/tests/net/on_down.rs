//! What becomes of established connections when the checks of their backend fail.

use std::io::ErrorKind;
use std::net::SocketAddr;

use anyhow::{Context, Result, bail, ensure};
use ringway_net_tests::{ECHO, Flow, Gateway, SERVICE_V4, SOON, Site, needs_root};
use ringway_testnet::{Namespace, Nginx};
use serde_json::Value;

use crate::dsr::{Dsr, ECHO as DSR_ECHO, Opener};

/// The echo servers live on when the web server that the checks ask is killed.
const BOTH: &str = "protocol = [\"tcp\", \"udp\"]\n\
    check = { type = \"http\", port = 80, interval = \"1s\", timeout = \"500ms\", fall = 4 }\n";

/// `field` of the first backend of the first service.
fn first<'s>(status: &'s Value, field: &str) -> &'s Value {
    &status["services"][0]["backends"][0][field]
}

/// A connection and a UDP socket of the same client to each of both backends.
struct Flows {
    client: Namespace,
    target: SocketAddr,
    lines: [Flow; 2],
    sockets: [Flow; 2],
}

impl Flows {
    fn open(client: &Namespace, target: SocketAddr) -> Result<Flows> {
        let one = |name: &str, open: fn(&Namespace, SocketAddr) -> Result<Flow>| -> Result<Flow> {
            for _ in 0..60 {
                let flow = open(client, target)?;
                if flow.owner == name {
                    return Ok(flow);
                }
            }
            bail!("none of 60 flows is with {name}")
        };
        let lines = [one("b1", Flow::tcp)?, one("b2", Flow::tcp)?];
        let sockets = [one("b1", Flow::udp)?, one("b2", Flow::udp)?];
        Ok(Flows { client: client.clone(), target, lines, sockets })
    }

    /// Connections are where they were; everything else is with b2.
    fn b1_has_its_connection_alone(&mut self) -> Result<()> {
        self.lines.iter_mut().try_for_each(|line| line.stays("still there?"))?;
        self.all_else_is_with_b2()
    }

    fn all_else_is_with_b2(&mut self) -> Result<()> {
        for socket in &mut self.sockets {
            let now = socket.ask("where now?")?;
            ensure!(now == "b2", "a datagram is answered by {now}");
        }
        for _ in 0..20 {
            let now = Flow::tcp(&self.client, self.target)?.owner;
            ensure!(now == "b2", "a new connection is answered by {now}");
        }
        Ok(())
    }

    fn b1_is_cut_off(&mut self) -> Result<()> {
        let error = self.lines[0].ask("still there?").err().context("b1 answers")?;
        ensure!(error.kind() == ErrorKind::ConnectionReset, "{error}");
        self.lines[1].stays("and you?")?;
        self.all_else_is_with_b2()
    }
}

/// b1 is down, and has its connection; so it is after a restart of the daemon, until `lose` takes
/// its host away.
fn goes_on(
    gateway: &mut Gateway,
    flows: &mut Flows,
    nginx: &mut Nginx,
    lose: impl FnOnce() -> Result<()>,
) -> Result<()> {
    nginx.kill()?;
    let kept = |status: &Value| first(status, "health") == "down" && first(status, "kept") == true;
    gateway.wait_status("b1 down and kept", kept)?;
    flows.b1_has_its_connection_alone()?;
    ensure!(
        gateway.log().contains("; established connections, if any, go on"),
        "{}",
        gateway.log()
    );
    gateway.kill()?;
    flows.b1_has_its_connection_alone()?;
    gateway.start_again()?;
    gateway.wait_serving()?;
    gateway.wait_status("b1 down and kept, still", kept)?;
    flows.b1_has_its_connection_alone()?;
    lose()?;
    gateway.wait_status("b1 kept no more", |status| first(status, "kept") == false)?;
    flows.b1_is_cut_off()?;
    gateway.child().wait_for_log("its connections are reset: next hop ", SOON)?;
    Ok(())
}

#[test]
fn a_failed_check_cuts_no_connection() -> Result<()> {
    needs_root!();
    let mut site = Site::new(2)?;
    let _echo = site.echo(SERVICE_V4, 7)?;
    let mut gateway = site.start(&site.service("echo", ECHO, BOTH))?;
    let mut flows = Flows::open(site.client(), ECHO)?;
    let mut nginx = site.nginx.remove(0);
    goes_on(&mut gateway, &mut flows, &mut nginx, || site.set_link(0, false))
}

#[test]
fn a_failed_check_cuts_no_connection_of_a_dsr_service() -> Result<()> {
    needs_root!();
    for forward in ["dsr-l2", "dsr-gue"] {
        let mut site = Dsr::new(Opener::Ringway)?;
        let plain = site.configuration(forward, SERVICE_V4, false);
        let text = plain.replace("protocol = [\"tcp\", \"udp\"]\n", BOTH);
        // The service that is looked at comes first.
        let (head, services) = text.split_once("[[service]]").context("services")?;
        let (_web, echo) = services.split_once("[[service]]").context("two services")?;
        let mut gateway = Gateway::start(&site.net.gateway, &format!("{head}[[service]]{echo}"))?;
        let mut flows = Flows::open(site.client(), SocketAddr::new(SERVICE_V4, DSR_ECHO))?;
        let mut nginx = site.nginx.remove(0);
        let lose = || Ok(site.net.switch.ip("link set b1 down\n")?);
        goes_on(&mut gateway, &mut flows, &mut nginx, lose).context(forward)?;
    }
    Ok(())
}

#[test]
fn a_backend_that_says_nothing_is_kept_for_a_while_or_not_at_all() -> Result<()> {
    needs_root!();
    let mut site = Site::new(2)?;
    let _echo = site.echo(SERVICE_V4, 7)?;
    let more = format!("keep_for = \"3s\"\n{BOTH}");
    let mut gateway = site.start(&site.service("echo", ECHO, &more))?;
    let mut flows = Flows::open(site.client(), ECHO)?;
    site.nginx[0].kill()?;
    gateway.wait_status("b1 down", |status| first(status, "health") == "down")?;
    gateway.wait_status("b1 kept no more", |status| first(status, "kept") == false)?;
    flows.b1_is_cut_off()?;
    gateway.child().wait_for_log("reset: nothing came from it for 3 s", SOON)?;
    site.restart_nginx(0)?;
    gateway.wait_status("b1 up", |status| first(status, "health") == "up")?;
    Flows::open(site.client(), ECHO)?;

    // Who wants resets has them at once.
    let more = format!("on_down = \"reset\"\n{BOTH}");
    gateway.reload(&site.configuration(&site.service("echo", ECHO, &more)))?;
    let mut flows = Flows::open(site.client(), ECHO)?;
    site.nginx[0].kill()?;
    gateway.wait_status("b1 down", |status| first(status, "health") == "down")?;
    flows.b1_is_cut_off()
}
