//! `[node]`: this machine and its interfaces.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};

use ringway_abi::Faces;
use ringway_abi::raw::RW_MAX_IFACES;
use ringway_bpf_sys::XdpMode;
use toml::de::{DeTable, DeValue};

use crate::DEFAULT_STATE;
use crate::model::Node;
use crate::reader::located::Located;
use crate::reader::section::Section;
use crate::reader::value::{Read, boolean, choice, file, text};

pub(crate) const MAX_INTERFACES: usize = RW_MAX_IFACES as usize;
/// IFNAMSIZ without the NUL (linux/if.h).
const MAX_INTERFACE_NAME: usize = 15;
const MAX_NODE_NAME: usize = 32;

const MODES: [(&str, Option<XdpMode>); 3] = [
    ("auto", None),
    (XdpMode::Native.name(), Some(XdpMode::Native)),
    (XdpMode::Generic.name(), Some(XdpMode::Generic)),
];

const FACES: [(&str, Faces); 3] =
    [named(Faces::Both), named(Faces::Clients), named(Faces::Backends)];

const fn named(faces: Faces) -> (&'static str, Faces) {
    (faces.name(), faces)
}

/// `None` when name or interfaces are missing or wrong.
pub(crate) fn read(file: &mut Section) -> Option<Node> {
    let Some(mut section) = file.table("node", "[node]".into()) else {
        file.require("node", "[node] with name = \"gw1\" and interfaces = [\"eth0\"]");
        return None;
    };
    let name = section.required("name", "name = \"gw1\"", node_name);
    let written = section.required_list("interfaces", "interfaces = [\"eth0\"]", written);
    let (interfaces, faces) = written.map(|written| interfaces(&section, written)).unzip();
    let xdp_mode = section.or("xdp_mode", None, |v| choice(v, &MODES));
    let allow_default_route = *section.or("allow_default_route", false, boolean);
    let on_pass = section.optional("on_pass", on_pass);
    let state = section.optional("state", state);
    section.finish();
    let (name, interfaces, faces) = (name?, interfaces?, faces?);
    let default = || Path::new(DEFAULT_STATE).join(name.as_str()).into();
    let state = state.unwrap_or_else(default);
    Some(Node { name, interfaces, faces, xdp_mode, allow_default_route, on_pass, state })
}

/// A name that is a directory's, too.
pub(crate) fn node_name(value: &DeValue) -> Read<String> {
    const REMEDY: &str = "write up to 32 letters, digits, \"-\" and \"_\", such as \"gw1\"";
    let name = text(value, REMEDY)?;
    let fits = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    if name.is_empty() || name.starts_with('-') || !name.chars().all(fits) {
        return Err(format!("is not usable as the name of a directory: {REMEDY}"));
    }
    if name.len() > MAX_NODE_NAME {
        return Err(format!("is too long: {REMEDY}"));
    }
    Ok(name.into())
}

/// Where bpffs is mounted is for others to find out.
fn on_pass(value: &DeValue) -> Read<PathBuf> {
    file(value, "write where an XDP program is pinned, such as \"/sys/fs/bpf/mine\"")
}

/// An element of `interfaces`.
enum Written<'v> {
    Name(String),
    Table(&'v DeTable<'v>),
}

fn written<'v>(value: &'v DeValue<'v>) -> Read<Written<'v>> {
    match value {
        DeValue::Table(table) => Ok(Written::Table(table)),
        value => interface(value).map(Written::Name),
    }
}

/// Names, and whom those face that say it.
fn interfaces(
    section: &Section,
    written: Located<Vec<Located<Written>>>,
) -> (Vec<Located<String>>, BTreeMap<String, Faces>) {
    let span = written.span();
    let (mut names, mut facing) = (Vec::new(), BTreeMap::new());
    for (i, each) in written.into_inner().into_iter().enumerate() {
        let at = each.span();
        match each.into_inner() {
            Written::Name(name) => names.push(Located::new(name, at)),
            Written::Table(table) => {
                let place = format!("interface {} of {}", i + 1, section.place);
                let mut table = section.inside(place, &Located::new(table, at));
                let name = table.required("name", "name = \"eth0\"", interface);
                let faces = table.or("faces", Faces::Both, |v| choice(v, &FACES));
                table.finish();
                let Some(name) = name else { continue };
                if *faces != Faces::Both {
                    facing.insert(name.to_string(), *faces);
                }
                names.push(name);
            }
        }
    }
    check_interfaces(section, &Located::new(&names, span));
    (names, facing)
}

/// Names that the kernel accepts for a device (dev_valid_name in net/core/dev.c).
pub(crate) fn interface(value: &DeValue) -> Read<String> {
    const REMEDY: &str = "write a name as `ip link` shows it, such as \"eth0\"";
    let name = text(value, REMEDY)?;
    if name.len() > MAX_INTERFACE_NAME {
        return Err(format!(
            "is longer than the {MAX_INTERFACE_NAME} characters of an interface name: {REMEDY}"
        ));
    }
    let fits = |c: char| !c.is_whitespace() && !c.is_control() && c != '/' && c != ':';
    if name.is_empty() || name == "." || name == ".." || !name.chars().all(fits) {
        return Err(format!("is not an interface name: {REMEDY}"));
    }
    Ok(name.into())
}

fn state(value: &DeValue) -> Read<PathBuf> {
    const REMEDY: &str = "write an absolute path such as \"/var/lib/ringway/gw1\"";
    let path = text(value, REMEDY)?;
    if !path.starts_with('/') || path.contains('\0') {
        return Err(format!("is not the absolute path of a directory: {REMEDY}"));
    }
    Ok(path.into())
}

/// Names that stand earlier in the list, too.
pub(crate) fn repeated(names: &[Located<String>]) -> impl Iterator<Item = &Located<String>> {
    let mut seen = HashSet::new();
    names.iter().filter(move |name| !seen.insert(name.as_str()))
}

fn check_interfaces(section: &Section, interfaces: &Located<&Vec<Located<String>>>) {
    for interface in repeated(interfaces) {
        let message = format!("{:?} is twice in interfaces of [node]: remove one", **interface);
        section.report.error(interface.span(), message);
    }
    if interfaces.len() > MAX_INTERFACES {
        let message = format!(
            "interfaces of [node] has {} elements: keep the {MAX_INTERFACES} that carry services \
             or backends",
            interfaces.len()
        );
        section.report.error(interfaces.span(), message);
    }
}
