//! The topology of the demo: a client, a gateway and three backends, each in a namespace of its
//! own.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use ringway_testnet::{Child, Families, Namespace, Nginx, Node, TwoArmed, two_armed, wait_for};

use super::daemon::Daemon;
use crate::{Error, Result, programs};

pub(super) const BACKENDS: usize = 3;
/// The service addresses: in the client's network, owned by no kernel; Ringway answers ARP and ND
/// for them.
pub(super) const SERVICE_V4: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 1, 0, 80));
pub(super) const SERVICE_V6: IpAddr = IpAddr::V6(Ipv6Addr::new(0xfd01, 0, 0, 0, 0, 0, 0, 0x80));
pub(super) const HTTP: u16 = 80;
/// echo (RFC 862), except that the answer begins with the backend's name.
pub(super) const ECHO: u16 = 7;
/// The default check's interval times its fall, plus its timeout, and what is left for noticing:
/// see issue text.
pub(super) const FAILOVER_LIMIT: Duration = Duration::from_millis(3000);

/// Everything that stands. Dropping it takes it down, except when kept.
pub(super) struct Site {
    pub daemon: Daemon,
    backends: Vec<Backend>,
    pub net: TwoArmed,
    pub configuration: PathBuf,
}

struct Backend {
    nginx: Nginx,
    _echo: Child,
}

impl Site {
    /// Builds it all and waits until the gateway says that every backend is up.
    pub fn build(ringway: &Path, say: super::Say) -> Result<Self> {
        let net = two_armed(BACKENDS, Families::Both)?;
        // Every request on a connection of its own leaves a port in TIME_WAIT for a minute.
        net.client.ns.sysctl("net/ipv4/ip_local_port_range", "1024 65535")?;
        say(&format!(
            "namespaces: client {} - gateway {} - {BACKENDS} backends",
            net.client.ns.name(),
            net.gateway.name()
        ));
        let mut backends = Vec::new();
        for (n, node) in net.backends.iter().enumerate() {
            backends.push(Backend { nginx: nginx(n, node)?, _echo: echo(n, node)? });
        }
        let configuration = net.gateway.directory().join("ringway.toml");
        fs::write(&configuration, text_for(&net))
            .map_err(|source| Error::Write { path: configuration.clone(), source })?;
        say(&format!("ringway run -c {}", configuration.display()));
        let daemon = Daemon::start(ringway, &net.gateway, &configuration)?;
        Ok(Self { daemon, backends, net, configuration })
    }

    pub fn client(&self) -> &Namespace {
        &self.net.client.ns
    }

    /// SIGKILL for the nginx of backend `n` (from 0): its kernel resets every connection, and
    /// refuses new ones.
    pub fn kill_backend(&mut self, n: usize) -> Result<()> {
        Ok(self.backends[n].nginx.kill()?)
    }

    pub fn restart_backend(&mut self, n: usize) -> Result<()> {
        self.backends[n].nginx = nginx(n, &self.net.backends[n])?;
        Ok(())
    }

    /// Takes the switch's port to backend `n` down or up: silence, as when a machine loses power.
    pub fn set_link(&self, n: usize, up: bool) -> Result<()> {
        let state = if up { "up" } else { "down" };
        Ok(self.net.switch.ip(&format!("link set {} {state}\n", backend_name(n)))?)
    }

    pub fn backend_pid(&mut self, n: usize) -> u32 {
        self.backends[n].nginx.child().pid()
    }

    /// Ends the daemon and removes its pins.
    pub fn take_down(mut self) -> Result<()> {
        self.daemon.detach()
    }
}

/// The name that backend `n` (from 0) answers with.
pub(super) fn backend_name(n: usize) -> String {
    format!("b{}", n + 1)
}

fn nginx(n: usize, node: &Node) -> Result<Nginx> {
    Ok(Nginx::start(&node.ns, &node.sockets(HTTP), &backend_name(n))?)
}

/// This program itself answers UDP: no package brings a server that would be simpler.
fn echo(n: usize, node: &Node) -> Result<Child> {
    let address = node.sockets(ECHO).into_iter().next().ok_or_else(no_address)?;
    let mut command = node.ns.command(programs::own()?);
    command.args(["demo", "--inner", &format!("echo,{address},{}", backend_name(n))]);
    let mut child = node.ns.spawn(command)?;
    child.wait_for_log(super::echo::READY, Duration::from_secs(5))?;
    Ok(child)
}

fn no_address() -> Error {
    Error::Unavailable("the demo's topology has a backend without an address".into())
}

/// The configuration that the gateway runs with.
fn text_for(net: &TwoArmed) -> String {
    const CHECK: &str = "interval = \"1s\", timeout = \"500ms\", rise = 2, fall = 2 }";
    let service = |name: &str, address: IpAddr, port: u16, more: &str| {
        let of_family =
            |node: &Node| node.addresses().into_iter().find(|a| a.is_ipv4() == address.is_ipv4());
        let backends: String = net
            .backends
            .iter()
            .filter_map(of_family)
            .map(|a| format!("    {{ address = \"{a}\" }},\n"))
            .collect();
        format!(
            "[[service]]\nname = \"{name}\"\naddress = \"{address}\"\nport = {port}\nforward = \"nat\"\n\
             announce = \"arp\"\n{more}backends = [\n{backends}]\n\n"
        )
    };
    // Clients of a machine that dies without a word learn it from the failed check.
    let http = format!("on_down = \"reset\"\ncheck = {{ type = \"http\", path = \"/\", {CHECK}\n");
    let udp = format!("protocol = \"udp\"\ncheck = {{ type = \"tcp\", port = {HTTP}, {CHECK}\n");
    format!(
        "# A gateway between two networks: clients at eth0, backends at eth1.\n\
         [node]\nname = \"{}\"\ninterfaces = [\"eth0\", \"eth1\"]\nstate = {:?}\n\n{}{}{}\
         [metrics]\nlisten = \"127.0.0.1:9810\"\n\n[api]\nsocket = {:?}\n",
        net.gateway.name(),
        net.gateway.directory().join("state"),
        service("web", SERVICE_V4, HTTP, &http),
        service("web6", SERVICE_V6, HTTP, &http),
        service("echo", SERVICE_V4, ECHO, &udp),
        net.gateway.directory().join("api.sock"),
    )
}

/// Waits until one HTTP request from the client is answered.
pub(super) fn wait_for_answer(client: &Namespace, target: SocketAddr) -> Result<()> {
    let second = Duration::from_secs(1);
    let ask = || {
        let get = || super::http::Connection::open(target, second)?.get(second);
        client.run(get).map_err(|e| e.to_string())?.map_err(|fault| format!("{fault:?}"))
    };
    wait_for(format!("an answer from http://{target}/"), Duration::from_secs(5), ask)?;
    Ok(())
}
