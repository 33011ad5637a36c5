//! Reads what `ipvsadm-save` prints.

use std::iter::Peekable;
use std::net::{IpAddr, SocketAddr};
use std::vec::IntoIter;

use super::{Error, Server, Service, Virtual};
use crate::model::{Forward, Protocol};

/// The port of a name such as "http" (/etc/services), for TCP or UDP.
pub type Ports<'p> = &'p dyn Fn(&str, Protocol) -> Option<u16>;

const LINES: &str = "expected -A or -a, as `ipvsadm-save -n` writes them";

/// Reads every line.
///
/// # Errors
/// Every line that is not understood.
pub fn read(text: &str, ports: Ports<'_>) -> Result<Vec<Service>, Vec<Error>> {
    let (mut services, mut errors) = (Vec::new(), Vec::new());
    for (number, line) in text.lines().enumerate() {
        let words = line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let words = words.into_iter().peekable();
        if let Err(error) = (Line { number: number + 1, words, ports }).read(&mut services) {
            errors.push(error);
        }
    }
    if errors.is_empty() { Ok(services) } else { Err(errors) }
}

struct Line<'p> {
    number: usize,
    words: Peekable<IntoIter<String>>,
    ports: Ports<'p>,
}

impl Line<'_> {
    fn error(&self, what: impl Into<String>, remedy: impl Into<String>) -> Error {
        Error { line: self.number, what: what.into(), remedy: remedy.into() }
    }

    fn read(mut self, services: &mut Vec<Service>) -> Result<(), Error> {
        // A script may hold whole commands.
        self.words.next_if(|word| word.ends_with("ipvsadm"));
        match self.words.next().as_deref() {
            None => Ok(()),
            Some(word) if word.starts_with('#') => Ok(()),
            // An old list begins with a command that clears the rules.
            Some("-C" | "--clear") => Ok(()),
            Some("-A" | "--add-service") => {
                let service = self.service()?;
                if services.iter().any(|other| other.at == service.at) {
                    let what = format!("service {} is there already", service.at);
                    return Err(self.error(what, "remove one of the two lines"));
                }
                services.push(service);
                Ok(())
            }
            Some("-a" | "--add-server") => {
                let (at, server) = self.server()?;
                let service = services.iter_mut().find(|service| service.at == at);
                let missing = || self.error(format!("no service {at}"), "write its -A line before");
                service.ok_or_else(missing)?.servers.push(server);
                Ok(())
            }
            Some(word) => Err(self.error(format!("{word:?} begins no line of a list"), LINES)),
        }
    }

    fn service(&mut self) -> Result<Service, Error> {
        let mut at = None;
        let mut service = Service {
            at: Virtual::Mark(0),
            scheduler: "wlc".to_owned(),
            flags: Vec::new(),
            persistent: None,
            prefix: None,
            others: Vec::new(),
            servers: Vec::new(),
        };
        while let Some(option) = self.words.next() {
            match option.as_str() {
                "-s" | "--scheduler" => service.scheduler = self.value(&option)?,
                "-p" | "--persistent" => {
                    let given = self.words.next_if(|word| !word.starts_with('-'));
                    // ipvsadm(8): 300 seconds unless said otherwise.
                    let seconds = given.map_or(Ok(300), |word| self.number(&option, &word))?;
                    service.persistent = Some(seconds);
                }
                "-M" | "--netmask" => service.prefix = Some(self.value(&option)?),
                "-b" | "--sched-flags" => {
                    service.flags = self.value(&option)?.split(',').map(str::to_owned).collect();
                }
                "-o" | "--ops" => service.others.push(option),
                "--pe" => service.others.push(format!("--pe {}", self.value(&option)?)),
                // The family of a mark.
                "-6" | "--ipv6" => {}
                _ => at = Some(self.at(&option)?),
            }
        }
        service.at = at.ok_or_else(|| self.error("-A names no service", "add -t ADDRESS:PORT"))?;
        Ok(service)
    }

    fn server(&mut self) -> Result<(Virtual, Server), Error> {
        let (mut at, mut real, mut tunnel) = (None, None, "ipip".to_owned());
        let mut server = Server {
            line: self.number,
            address: IpAddr::from([0; 4]),
            port: 0,
            // ipvsadm(8): -g unless said otherwise.
            forward: Some(Forward::DsrL2),
            gue_port: None,
            weight: 1,
            others: Vec::new(),
        };
        while let Some(option) = self.words.next() {
            match option.as_str() {
                "-r" | "--real-server" => real = Some(self.value(&option)?),
                "-g" | "--gatewaying" => server.forward = Some(Forward::DsrL2),
                "-i" | "--ipip" => server.forward = Some(Forward::DsrIpip),
                "-m" | "--masquerading" => server.forward = Some(Forward::Nat),
                "-w" | "--weight" => {
                    let value = self.value(&option)?;
                    server.weight = self.number(&option, &value)?;
                }
                "-x" | "-y" | "--u-threshold" | "--l-threshold" => {
                    let value = self.value(&option)?;
                    if self.number::<u32>(&option, &value)? > 0 {
                        server.others.push(format!("{option} {value}"));
                    }
                }
                "--tun-type" => tunnel = self.value(&option)?,
                "--tun-port" => {
                    let value = self.value(&option)?;
                    server.gue_port = Some(self.number(&option, &value)?);
                }
                "--tun-nocsum" | "--tun-csum" | "--tun-remcsum" => server.others.push(option),
                _ => at = Some(self.at(&option)?),
            }
        }
        let at = at.ok_or_else(|| self.error("-a names no service", "add -t ADDRESS:PORT"))?;
        let real = real.ok_or_else(|| self.error("-a names no server", "add -r ADDRESS:PORT"))?;
        let protocol =
            if let Virtual::Endpoint(protocol, _) = at { protocol } else { Protocol::Tcp };
        let endpoint = self.endpoint(&real, protocol, true)?;
        (server.address, server.port) = (endpoint.ip(), endpoint.port());
        if server.forward == Some(Forward::DsrIpip) {
            server.forward = match tunnel.as_str() {
                "ipip" => Some(Forward::DsrIpip),
                "gue" => Some(Forward::DsrGue),
                _ => None,
            };
        }
        Ok((at, server))
    }

    fn at(&mut self, option: &str) -> Result<Virtual, Error> {
        match option {
            "-t" | "--tcp-service" => {
                let value = self.value(option)?;
                Ok(Virtual::Endpoint(Protocol::Tcp, self.endpoint(&value, Protocol::Tcp, false)?))
            }
            "-u" | "--udp-service" => {
                let value = self.value(option)?;
                Ok(Virtual::Endpoint(Protocol::Udp, self.endpoint(&value, Protocol::Udp, false)?))
            }
            "--sctp-service" => {
                let value = self.value(option)?;
                Ok(Virtual::Sctp(self.endpoint(&value, Protocol::Tcp, false)?))
            }
            "-f" | "--fwmark-service" => {
                let value = self.value(option)?;
                Ok(Virtual::Mark(self.number(option, &value)?))
            }
            _ => {
                let remedy = "expected an option of ipvsadm(8) for -A or -a: -t, -u, -f, -s, -p, -r, -g, -i, -m, -w, ...";
                Err(self.error(format!("{option:?} is not known here"), remedy))
            }
        }
    }

    fn value(&mut self, option: &str) -> Result<String, Error> {
        let value = self.words.next();
        value.ok_or_else(|| self.error(format!("{option} has no value"), "the line is cut short"))
    }

    fn number<T: std::str::FromStr>(&self, option: &str, value: &str) -> Result<T, Error> {
        let what =
            || self.error(format!("{value:?} is no number for {option}"), "expected a number");
        value.parse().map_err(|_| what())
    }

    /// `192.0.2.1:80`, `[2001:db8::1]:80`, with a port's name instead of its number; `optional`:
    /// also without.
    fn endpoint(
        &self,
        text: &str,
        protocol: Protocol,
        optional: bool,
    ) -> Result<SocketAddr, Error> {
        let (host, port) = match text.strip_prefix('[').map(|rest| rest.split_once(']')) {
            Some(Some((host, rest))) => (host, rest.strip_prefix(':')),
            _ => text.rsplit_once(':').map_or((text, None), |(host, port)| (host, Some(port))),
        };
        let address = host.parse().map_err(|_| {
            let what = format!("{host:?} is not an address");
            self.error(what, "names are not looked up: save the list with `ipvsadm-save -n`")
        })?;
        let port = match port {
            None if optional => 0,
            None => {
                let what = format!("{text:?} has no port");
                return Err(self.error(what, "expected ADDRESS:PORT or [IPV6]:PORT"));
            }
            Some(port) => {
                port.parse().ok().or_else(|| (self.ports)(port, protocol)).ok_or_else(|| {
                    let what = format!("{port:?} is not a port, nor in /etc/services");
                    self.error(what, "save the list with `ipvsadm-save -n`")
                })?
            }
        };
        Ok(SocketAddr::new(address, port))
    }
}
