//! `ringway import ipvs`: another balancer's configuration as ours.

use std::collections::HashMap;
use std::io::Read;
use std::path::Path;

use anyhow::Context;
use ringway_api::error::Error;
use ringway_config::{Protocol, ipvs};

use crate::cli::{ImportArgs, ImportFrom, ImportIpvsArgs};
use crate::exit::{self, Exit};
use crate::table;

/// Where ports have names.
const SERVICES: &str = "/etc/services";

/// Prints the configuration; warnings go to standard error.
pub fn main(args: &ImportArgs) -> anyhow::Result<Exit> {
    match &args.from {
        ImportFrom::Ipvs(args) => from_ipvs(args),
    }
}

fn from_ipvs(args: &ImportIpvsArgs) -> anyhow::Result<Exit> {
    print(&convert(&text_of(&args.file)?, args)?)
}

fn print((text, warnings): &(String, Vec<String>)) -> anyhow::Result<Exit> {
    for warning in warnings {
        exit::say(format_args!("ringway: {warning}"));
    }
    table::print(text)?;
    Ok(Exit::Done)
}

/// The configuration, and what is not as it was.
fn convert(text: &str, args: &ImportIpvsArgs) -> Result<(String, Vec<String>), Error> {
    let names = names(&std::fs::read_to_string(SERVICES).unwrap_or_default());
    let port = |name: &str, protocol| names.get(&(name.to_owned(), protocol)).copied();
    let services = ipvs::read(text, &port).map_err(|errors| {
        let lines: Vec<String> = errors.iter().map(ToString::to_string).collect();
        let what = format!("{}:\n{}", args.file.display(), lines.join("\n"));
        Error::configuration(what, "give what `ipvsadm-save -n` prints")
    })?;
    if services.is_empty() {
        return Err(nothing(&args.file));
    }
    let options =
        ipvs::ImportOptions { node: args.node.clone(), interfaces: args.interfaces.clone() };
    Ok(ipvs::write(&services, &options))
}

/// A configuration without services is of no use, and hides that whatever should have printed the
/// list failed.
fn nothing(file: &Path) -> Error {
    let whence =
        if file == Path::new("-") { "standard input".into() } else { file.display().to_string() };
    Error::configuration(
        format!("{whence}: no service in it, so there is nothing to import"),
        "`ipvsadm-save -n` prints one line or more for each service: run it as root, in the network \
         namespace where IPVS balances, and before its rules are cleared",
    )
}

fn text_of(file: &Path) -> anyhow::Result<String> {
    if file == Path::new("-") {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text).context("standard input")?;
        return Ok(text);
    }
    let why = |error| Error::configuration(format!("{}: {error}", file.display()), "");
    Ok(std::fs::read_to_string(file).map_err(why)?)
}

/// Ports by their names: lines such as `http 80/tcp www # WorldWideWeb HTTP`.
fn names(services: &str) -> HashMap<(String, Protocol), u16> {
    let mut all = HashMap::new();
    for line in services.lines() {
        let line = line.split('#').next().unwrap_or_default();
        let mut words = line.split_whitespace();
        let (Some(name), Some(port)) = (words.next(), words.next()) else { continue };
        let (port, protocol) = match port.split_once('/') {
            Some((port, "tcp")) => (port, Protocol::Tcp),
            Some((port, "udp")) => (port, Protocol::Udp),
            _ => continue,
        };
        let Ok(port) = port.parse() else { continue };
        for name in words.chain([name]) {
            all.entry((name.to_owned(), protocol)).or_insert(port);
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(file: &str) -> ImportIpvsArgs {
        ImportIpvsArgs { file: file.into(), interfaces: Vec::new(), node: "gw1".into() }
    }

    #[test]
    fn a_list_without_services_is_refused() {
        for (text, file, whence) in [
            ("", "-", "standard input"),
            ("# cleared\n-C\n", "/etc/ipvsadm.rules", "/etc/ipvsadm.rules"),
        ] {
            let refused = convert(text, &args(file)).expect_err(file);
            assert_eq!(refused.kind, ringway_api::error::Kind::Configuration);
            assert!(refused.what.starts_with(whence), "{refused}");
            assert!(refused.what.contains("no service in it"), "{refused}");
        }
        assert!(convert("-A -t 192.0.2.1:80 -s rr\n", &args("-")).is_ok());
    }

    #[test]
    fn ports_have_names_and_aliases() {
        let names =
            names("# all\nhttp\t80/tcp www # World\ndomain 53/udp\nbad\nx y/tcp\nsip 5060/sctp\n");
        let port = |name: &str, protocol| names.get(&(name.to_owned(), protocol)).copied();
        assert_eq!(port("http", Protocol::Tcp), Some(80));
        assert_eq!(port("www", Protocol::Tcp), Some(80));
        assert_eq!(port("http", Protocol::Udp), None);
        assert_eq!(port("domain", Protocol::Udp), Some(53));
        assert_eq!(names.len(), 3);
    }
}
