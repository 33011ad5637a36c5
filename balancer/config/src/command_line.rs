//! A configuration by the options of a command, in place of a file.

use std::path::{Path, PathBuf};

use ringway_bpf_sys::XdpMode;
use toml::de::DeValue;

use crate::DEFAULT_STATE;
use crate::model::{Api, Config, ForwardMode, InterfaceForward, Metrics, Node, fewest};
use crate::reader::diagnostics::{Diagnostics, Errors, Source};
use crate::reader::located::Located;
use crate::reader::section::Section;
use crate::reader::value::{Read, listen};
use crate::sections::{daemon, flows, nat, node, tunnel};

/// How errors name what has no file.
const NAME: &str = "command line";

/// The options of `ringway forward`.
#[derive(Clone, Debug)]
pub struct ForwardOptions {
    /// `--name`: the node's.
    pub name: String,
    /// `--interface`: what packets go between.
    pub interfaces: Vec<String>,
    /// `--route`, or a bridge.
    pub mode: ForwardMode,
    /// `--bypass-firewall`
    pub bypass_firewall: bool,
    /// `--xdp-mode`; `None`: "auto".
    pub xdp_mode: Option<XdpMode>,
    /// `--allow-default-route`
    pub allow_default_route: bool,
    /// `--socket`: of the API.
    pub socket: PathBuf,
    /// `--metrics`: address and port, or "off".
    pub metrics: String,
}

/// What a remedy tells to set: a key of the file, or an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Setting {
    AllowDefaultRoute,
    MetricsAddress,
    Socket,
    /// To one of these modes, the best first.
    XdpMode(&'static [&'static str]),
}

impl Config {
    /// A node that forwards between interfaces and has no service; everything else is as in a file
    /// that does not speak of it.
    ///
    /// # Errors
    /// Every option that is wrong.
    pub fn forwarding(options: &ForwardOptions) -> Result<Config, Errors> {
        let report = Diagnostics::new(Source::options(NAME));
        let mut nothing = Section::absent(&report);
        let name = option(&report, "--name", &options.name, node::node_name);
        let interfaces = interfaces(&report, options);
        let path = options.socket.to_string_lossy();
        let socket = option(&report, "--socket", &path, daemon::socket);
        let listen = option(&report, "--metrics", &options.metrics, listen);
        let parts = name.zip(socket).zip(listen);
        let config = parts.map(|((name, socket), listen)| Config {
            node: Node {
                state: Path::new(DEFAULT_STATE).join(&name).into(),
                name: name.into(),
                interfaces: interfaces.clone(),
                faces: Default::default(),
                xdp_mode: options.xdp_mode.into(),
                allow_default_route: options.allow_default_route,
                on_pass: None,
            },
            nat: nat::read(&mut nothing),
            flows: flows::read(&mut nothing),
            tunnel: tunnel::read(&mut nothing),
            shield: None,
            forward: Some(InterfaceForward {
                mode: options.mode,
                interfaces,
                bypass_firewall: options.bypass_firewall,
                by_options: true,
            }),
            services: Vec::new(),
            metrics: Metrics { listen: listen.map(Located::from), ..daemon::metrics(&mut nothing) },
            api: Api { socket: socket.into() },
            log: daemon::log(&mut nothing),
            source: report.source(),
        });
        drop(nothing);
        report.finish(config)
    }

    /// The file it was read from; `None`: options of a command are all there is.
    pub fn file(&self) -> Option<&Path> {
        self.source.is_file().then(|| Path::new(self.filename()))
    }

    /// How to set this, for remedies.
    pub fn to_set(&self, setting: Setting) -> String {
        let quoted = |modes: &[&str]| {
            modes.iter().map(|mode| format!("\"{mode}\"")).collect::<Vec<_>>().join(" or ")
        };
        match (self.file(), setting) {
            (Some(_), Setting::AllowDefaultRoute) => {
                "write allow_default_route = true under [node]".into()
            }
            (None, Setting::AllowDefaultRoute) => "add --allow-default-route".into(),
            (Some(_), Setting::MetricsAddress) => {
                "choose another [metrics] listen, or \"off\"".into()
            }
            (None, Setting::MetricsAddress) => {
                "add --metrics ADDRESS:PORT, or --metrics off".into()
            }
            (Some(_), Setting::Socket) => "choose another [api] socket".into(),
            (None, Setting::Socket) => {
                "add --socket with another path, such as /run/ringway/forward.sock".into()
            }
            (Some(_), Setting::XdpMode(modes)) => {
                format!("write xdp_mode = {} under [node]", quoted(modes))
            }
            (None, Setting::XdpMode(modes)) => format!("use --xdp-mode {}", modes.join(" or ")),
        }
    }
}

/// The value of an option, read as that of a key.
fn option<T>(
    report: &Diagnostics,
    name: &str,
    value: &str,
    read: impl FnOnce(&DeValue) -> Read<T>,
) -> Option<T> {
    read(&DeValue::String(value.into()))
        .inspect_err(|complaint| refuse(report, format!("{name} {value:?} {complaint}")))
        .ok()
}

fn refuse(report: &Diagnostics, message: String) {
    report.error_of(NAME, message);
}

fn interfaces(report: &Diagnostics, options: &ForwardOptions) -> Vec<Located<String>> {
    const OPTION: &str = "--interface";
    let read = |name: &String| option(report, OPTION, name, node::interface);
    let names: Vec<Located<String>> =
        options.interfaces.iter().filter_map(read).map(Located::from).collect();
    for name in node::repeated(&names) {
        refuse(report, format!("{OPTION} {:?} is there twice: remove one", **name));
    }
    let (count, mode) = (options.interfaces.len(), options.mode);
    if count > node::MAX_INTERFACES {
        let most = node::MAX_INTERFACES;
        refuse(report, format!("{OPTION} names {count} interfaces: a node takes at most {most}"));
    }
    if names.len() == count && count < fewest(mode) {
        refuse(
            report,
            format!(
                "{OPTION} names too few interfaces: a bridge takes two or more, such as \
                 {OPTION} eth0,eth1; with --route one is enough"
            ),
        );
    }
    names
}
