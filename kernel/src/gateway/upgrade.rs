//! Tables that a takeover of a node's pins would keep, before anything is changed.
//!
//! [`compare`] decides, purely; [`crate::Gateway::open`] refuses what it calls lost.

use std::collections::BTreeMap;
use std::os::fd::AsFd;

use libbpf_rs::MapType;
use ringway_abi::raw::RW_LAYOUT;

use crate::gateway::layout::layout_of;
use crate::gateway::open::{GatewayOptions, Orphan, find_orphan};
use crate::load::{self, log};
use crate::maps::shape::{Shape, shape_of};
use crate::maps::{self, MapName, Maps};
use crate::pins::{Pins, is_a};
use crate::{Error, Result, requirements};

/// The fate of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It goes on as it is.
    Kept,
    /// It goes on, and what it holds is compared with what it should hold now: only what differs is
    /// written.
    Rebuilt,
    /// It goes on, with the number of entries it has: another one was asked for.
    KeptAtSize,
    /// This version has it and the pinned one has not: it is made, empty.
    Added,
    /// The pinned version had it: it stays where it is, and nobody looks.
    Unused,
    /// It cannot be taken over, so nothing is: a start is refused.
    Lost,
}

impl Fate {
    pub const fn name(self) -> &'static str {
        match self {
            Fate::Kept => "kept",
            Fate::Rebuilt => "rebuilt",
            Fate::KeptAtSize => "kept-at-size",
            Fate::Added => "added",
            Fate::Unused => "unused",
            Fate::Lost => "lost",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableFate {
    pub name: String,
    /// Its fate.
    pub fate: Fate,
    pub entries: Option<u32>,
    /// Entries that this version would give it.
    pub wanted: Option<u32>,
    /// Why; empty where there is nothing to say.
    pub why: String,
}

/// Findings under a node's pins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Upgrade {
    /// Layout of the pinned tables; `None`: nothing is pinned, and a start makes everything.
    pub layout: Option<u32>,
    /// Every table, in the order of their names.
    pub tables: Vec<TableFate>,
    /// Interfaces whose attachment is kept, and gets this version's program.
    pub interfaces: Vec<String>,
    /// Attachments that belong to nothing any more; a start removes them.
    pub orphans: Vec<Orphan>,
    /// Why a start would be refused, whatever the tables are.
    pub refused: Option<String>,
    /// It would be refused in this network namespace only: an interface is of another one.
    pub elsewhere: bool,
    /// A daemon looks after the node now; it must end first.
    pub held: bool,
}

impl Upgrade {
    /// Whether a start would take the pins over, flows and all.
    pub fn takes_over(&self) -> bool {
        self.refused.is_none() && self.tables.iter().all(|table| table.fate != Fate::Lost)
    }

    /// The layout of this version.
    pub const fn own_layout() -> u32 {
        RW_LAYOUT
    }
}

/// A pin as it was found.
pub(crate) enum Pinned {
    Map(Shape),
    /// It is no map, or one that cannot be opened.
    Foreign(String),
}

/// Whether a start makes another one where the pinned one does not fit.
fn is_remade(name: &str) -> bool {
    [MapName::service_index, MapName::service_places].iter().any(|map| map.name() == name)
}

fn remade() -> (Fate, String) {
    (Fate::Rebuilt, "made anew, from the services".to_owned())
}

/// The fate of every table when these are pinned and those wanted.
pub(crate) fn compare(
    layout: u32,
    pinned: &BTreeMap<String, Pinned>,
    wanted: &BTreeMap<String, Shape>,
) -> Vec<TableFate> {
    let lost_all =
        (layout != RW_LAYOUT).then(|| format!("layout {layout}, this version has {RW_LAYOUT}"));
    let names: std::collections::BTreeSet<&String> = pinned.keys().chain(wanted.keys()).collect();
    let one = |name: &String| {
        let want = wanted.get(name);
        let (fate, why) = match (pinned.get(name), want) {
            (None, _) => (Fate::Added, String::new()),
            (Some(Pinned::Foreign(why)), Some(_)) => (Fate::Lost, why.clone()),
            (Some(_), None) => (Fate::Unused, String::new()),
            (Some(Pinned::Map(have)), Some(want)) => match (&lost_all, have.unfit(want)) {
                (Some(why), _) => (Fate::Lost, why.clone()),
                (None, Some(_)) if is_remade(name) => remade(),
                (None, Some(why)) => (Fate::Lost, why),
                (None, None) if is_remade(name) && have.entries < want.entries => remade(),
                (None, None) if have.entries != want.entries => (Fate::KeptAtSize, String::new()),
                (None, None) => match Maps::rebuilt(name) {
                    Some(from) => (Fate::Rebuilt, from.to_owned()),
                    None => (Fate::Kept, String::new()),
                },
            },
        };
        let entries = match pinned.get(name) {
            Some(Pinned::Map(have)) => Some(have.entries),
            _ => None,
        };
        let wanted = want.map(|want| want.entries);
        TableFate { name: name.clone(), fate, entries, wanted, why }
    };
    names.into_iter().map(one).collect()
}

/// Looks at the pins of a node as [`crate::Gateway::open`] would with these options, and changes
/// nothing.
pub fn upgrade(options: &GatewayOptions) -> Result<Upgrade> {
    log::install();
    let pins = Pins::new(&options.bpffs, &options.node)?;
    let mut found = Upgrade {
        layout: None,
        tables: Vec::new(),
        interfaces: Vec::new(),
        orphans: Vec::new(),
        refused: None,
        elsewhere: false,
        held: false,
    };
    if !pins.exist()? {
        return Ok(found);
    }
    // Without, every pin would look like somebody else's.
    if requirements::missing_capabilities()?.contains(&"CAP_BPF") {
        return Err(Error::NotPermitted { missing: vec!["CAP_BPF"] });
    }
    found.held = pins.is_held();
    let pinned = pinned(&pins)?;
    let layout = match pinned.get("settings") {
        Some(Pinned::Map(shape)) if shape.kind == MapType::Array => layout(&pins)?,
        _ => None,
    };
    found.layout = Some(layout.unwrap_or(0));
    match layout {
        None => {
            found.refused = Some(format!(
                "{} is not the settings of a Ringway node: these pins are somebody else's",
                pins.map(MapName::settings.name()).display()
            ));
        }
        Some(layout) => found.tables = compare(layout, &pinned, &load::shapes(options.sizes())?),
    }
    for iface in pins.iface_names()? {
        match find_orphan(&pins, &iface) {
            Ok(None) => found.interfaces.push(iface),
            Ok(Some(cause)) => found.orphans.push(Orphan { iface, cause }),
            Err(error @ Error::OtherNamespace { .. }) if found.refused.is_none() => {
                (found.refused, found.elsewhere) = (Some(error.to_string()), true);
            }
            Err(error) => found.refused = found.refused.or(Some(error.to_string())),
        }
    }
    Ok(found)
}

fn pinned(pins: &Pins) -> Result<BTreeMap<String, Pinned>> {
    let mut all = BTreeMap::new();
    for name in pins.map_names()? {
        let pin = match maps::open_pinned(&pins.map(&name)) {
            // libbpf believes that what is pinned there is a map.
            Ok(Some(map)) if is_a("bpf-map", map.as_fd()) => Pinned::Map(shape_of(&map)),
            Ok(Some(_)) => Pinned::Foreign("the pin is no map: somebody else's".to_owned()),
            Ok(None) => continue,
            Err(error) => Pinned::Foreign(error.to_string()),
        };
        all.insert(name, pin);
    }
    Ok(all)
}

/// The first word of the settings; `None` where there is none.
fn layout(pins: &Pins) -> Result<Option<u32>> {
    let Some(map) = maps::open_pinned(&pins.map(MapName::settings.name()))? else {
        return Ok(None);
    };
    // What a start that was cut short would have left has none yet.
    Ok(layout_of(&map).ok().filter(|layout| *layout != 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROWS: Shape = Shape { kind: MapType::Array, key: 4, value: 16, entries: 64 };

    fn fates(
        layout: u32,
        pinned: Vec<(&str, Pinned)>,
        wanted: &[(&str, Shape)],
    ) -> Vec<(String, Fate)> {
        let pinned = pinned.into_iter().map(|(name, pin)| (name.to_owned(), pin)).collect();
        let wanted = wanted.iter().map(|(name, shape)| ((*name).to_owned(), *shape)).collect();
        compare(layout, &pinned, &wanted).into_iter().map(|t| (t.name, t.fate)).collect()
    }

    #[test]
    fn each_table_has_its_fate() {
        let map = |shape: Shape| Pinned::Map(shape);
        let hash = Shape { kind: MapType::Hash, ..ROWS };
        for (pin, want, fate) in [
            (Some(map(ROWS)), Some(ROWS), Fate::Kept),
            (Some(map(Shape { entries: 128, ..ROWS })), Some(ROWS), Fate::KeptAtSize),
            (Some(map(Shape { value: 24, ..ROWS })), Some(ROWS), Fate::Lost),
            (Some(map(Shape { key: 8, ..ROWS })), Some(ROWS), Fate::Lost),
            (Some(map(hash)), Some(ROWS), Fate::Lost),
            // An array of maps: the kernel's value is a descriptor.
            (Some(map(Shape { value: 4, ..ROWS })), Some(Shape { value: 0, ..ROWS }), Fate::Kept),
            (Some(Pinned::Foreign("a program".into())), Some(ROWS), Fate::Lost),
            (None, Some(ROWS), Fate::Added),
            (Some(map(ROWS)), None, Fate::Unused),
            (Some(Pinned::Foreign("a program".into())), None, Fate::Unused),
        ] {
            let pinned = pin.map(|pin| ("t", pin)).into_iter().collect();
            let wanted: Vec<_> = want.map(|want| ("t", want)).into_iter().collect();
            assert_eq!(fates(RW_LAYOUT, pinned, &wanted), [("t".to_owned(), fate)]);
        }
    }

    #[test]
    fn another_layout_loses_all() {
        let pinned = vec![("a", Pinned::Map(ROWS)), ("b", Pinned::Map(ROWS))];
        let found = fates(RW_LAYOUT - 1, pinned, &[("a", ROWS), ("b", ROWS), ("c", ROWS)]);
        let wanted = [Fate::Lost, Fate::Lost, Fate::Added];
        assert_eq!(found.iter().map(|(_, f)| *f).collect::<Vec<_>>(), wanted);
    }
}
