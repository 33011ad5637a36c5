//! `ringway status --memory`: every map, and what happens when it is full.

use ringway_inspect::memory::{self, KernelMemory, Map};
use ringway_kernel::WhenFull;

use crate::cli::{Output, StatusArgs};
use crate::exit::Exit;
use crate::table::{self, Cell, Table, Tone};
use crate::units;

/// Reads the maps, and prints them.
pub fn main(args: &StatusArgs) -> anyhow::Result<Exit> {
    let memory = memory::memory(&args.node.selector())?;
    match args.output.output {
        Output::Json => table::json(&memory)?,
        Output::Table => table::print(&render(&memory, table::colour()))?,
    }
    Ok(Exit::Done)
}

fn render(memory: &KernelMemory, colour: bool) -> String {
    let mut table = Table::new(&["map", "entries", "used", "bytes", "what for", "when full"]);
    for map in &memory.maps {
        table.row(vec![
            Cell::new(if map.pinned { map.name.clone() } else { format!("{} (own)", map.name) }),
            Cell::number(map.max_entries),
            Cell::number(units::count(map.used_entries)).tone(tone(map)),
            Cell::number(map.bytes.map_or_else(|| "-".to_owned(), units::bytes)),
            Cell::new(map.purpose),
            Cell::new(map.when_full.text()).tone(Tone::Dim),
        ]);
    }
    let sum = units::bytes(memory.sum_bytes);
    format!("node {}: {sum} in {} maps\n{}", memory.node, memory.maps.len(), table.render(colour))
}

/// Nine tenths full, or more, of what can be full.
fn tone(map: &Map) -> Tone {
    match (map.when_full, map.used_entries) {
        (WhenFull::Then(_), Some(used)) if used * 10 >= map.max_entries * 9 => Tone::Warn,
        _ => Tone::Plain,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sum_comes_first_and_what_is_not_known_is_a_dash() {
        let map = |name: &str, pinned, used_entries, bytes| Map {
            name: name.to_owned(),
            purpose: "something",
            pinned,
            max_entries: 10,
            used_entries,
            bytes,
            when_full: WhenFull::Then("dropped"),
        };
        let maps = vec![map("flows", true, Some(9), Some(1536)), map("rooms", false, None, None)];
        let memory =
            KernelMemory { schema: memory::SCHEMA, node: "gw1".into(), sum_bytes: 1536, maps };
        let text = render(&memory, false);
        assert!(text.starts_with("node gw1: 1.5 KiB in 2 maps\n"), "{text}");
        assert!(text.contains("rooms (own)       10     -        -"), "{text}");
        assert!(render(&memory, true).contains("\x1b[33m9\x1b"), "nearly full");
    }
}
