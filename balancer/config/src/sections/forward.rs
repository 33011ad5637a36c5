//! `[forward]`: packets of no service, between interfaces.

use std::cell::Cell;

use super::node::{interface, repeated};
use crate::model::{ForwardMode, InterfaceForward, Node, fewest};
use crate::reader::located::Located;
use crate::reader::section::Section;
use crate::reader::value::{boolean, choice};

const INTERFACES: &str = "interfaces = [\"eth0\", \"eth1\"]";
const MODES: [(&str, ForwardMode); 2] = [named(ForwardMode::Bridge), named(ForwardMode::Route)];

const fn named(mode: ForwardMode) -> (&'static str, ForwardMode) {
    (mode.name(), mode)
}

/// `None`: nothing is forwarded, or something is wrong. `node`: `None` when that is wrong.
pub(crate) fn read(file: &mut Section, node: Option<&Node>) -> Option<InterfaceForward> {
    let mut section = file.table("forward", "[forward]".into())?;
    let example = "mode = \"bridge\" or mode = \"route\"";
    let mode = section.required("mode", example, |v| choice(v, &MODES));
    // Of an element that is wrong the list has none.
    let elements = Cell::new(0);
    let written = section.list("interfaces", INTERFACES, |value| {
        elements.set(elements.get() + 1);
        interface(value)
    });
    let bypass_firewall = *section.or("bypass_firewall", false, boolean);
    match (&written, node) {
        (Some(written), node) => {
            check_names(&section, written, node);
            if let Some(mode) = mode.as_deref().filter(|_| written.len() == elements.get()) {
                check_number(&section, *mode, written);
            }
        }
        (None, Some(node)) if !section.has("interfaces") => {
            if let Some(mode) = mode.as_ref().filter(|mode| node.interfaces.len() < fewest(***mode))
            {
                let message = format!(
                    "mode = \"{mode}\" in [forward] takes two interfaces or more, and [node] has \
                     one: add another to interfaces of [node], or write mode = \"route\""
                );
                section.report.error(mode.span(), message);
            }
        }
        (None, _) => {}
    }
    section.finish();
    let all = || node.map(|node| node.interfaces.clone());
    let interfaces = written.map(Located::into_inner).or_else(all)?;
    Some(InterfaceForward { mode: *mode?, interfaces, bypass_firewall, by_options: false })
}

fn check_names(section: &Section, interfaces: &[Located<String>], node: Option<&Node>) {
    for name in repeated(interfaces) {
        let message = format!("{:?} is twice in interfaces of [forward]: remove one", **name);
        section.report.error(name.span(), message);
    }
    let Some(node) = node else { return };
    for name in interfaces.iter().filter(|name| !node.interfaces.contains(name)) {
        let message = format!(
            "{:?} in interfaces of [forward] is not one of interfaces of [node]: add it there, or \
             remove it here",
            **name
        );
        section.report.error(name.span(), message);
    }
}

fn check_number(section: &Section, mode: ForwardMode, interfaces: &Located<Vec<Located<String>>>) {
    let message = match interfaces.len() {
        0 => {
            "interfaces = [] in [forward] is empty: remove it, which means all of [node], or write \
              those that packets go between"
                .to_owned()
        }
        n if n < fewest(mode) => format!(
            "interfaces of [forward] has one element, and mode = \"{mode}\" takes two or more: add \
             another, or write mode = \"route\""
        ),
        _ => return,
    };
    section.report.error(interfaces.span(), message);
}
