//! XDP programs on the parts of a bond.

use crate::{Check, Facts, Looked, Outcome, each};

/// Since Linux 5.15 a bond takes a program for all of its parts.
pub const CHECK: Check = Check {
    number: 75,
    name: "bond-xdp",
    rule: "an XDP program is on the bond, or on every one of its parts",
    source: "Linux, drivers/net/bonding/bond_main.c: bond_xdp_set",
    why: "A program on some of the parts sees some of the packets, and the bond chooses which.",
    profiles: &[],
    look,
};

fn look(facts: &Facts) -> Looked {
    let bonds = facts.of_kind("bond")?;
    let network = facts.network()?;
    let found = each(
        bonds,
        |bond| bond.link.name.clone(),
        |bond| {
            let name = &bond.link.name;
            let parts: Vec<_> = network
                .interfaces
                .iter()
                .filter(|one| one.link.master == Some(bond.link.ifindex))
                .collect();
            let with = parts.iter().filter(|part| !part.link.xdp.is_empty()).count();
            if with == 0 || !bond.link.xdp.is_empty() || with == parts.len() {
                return Ok(Outcome::ok(
                    name,
                    format!("{with} of {} parts have a program", parts.len()),
                ));
            }
            Ok(Outcome::warn(
                name,
                format!("{with} of its {} parts have an XDP program, others none", parts.len()),
            )
            .saw(format!("ip link show master {name}, with xdp"), with)
            .advice("attach it to the bond; in generic mode, if the bond refuses"))
        },
    );
    Ok(found)
}

#[cfg(test)]
mod tests {
    use ringway_host::links::{Xdp, XdpMode};

    use super::*;
    use crate::State;
    use crate::testing::{Machine, table};

    #[test]
    fn one_of_two_parts() {
        let bond = |on_bond: bool| {
            Machine::healthy().network(|network| {
                let program = vec![Xdp { program: 1, mode: XdpMode::Native }];
                let mut bond = network.interfaces[1].clone();
                (bond.link.ifindex, bond.link.name, bond.link.kind) =
                    (9, "bond0".into(), Some("bond".into()));
                if on_bond {
                    bond.link.xdp = program.clone();
                }
                network.interfaces[1].link.master = Some(9);
                network.interfaces[2].link.master = Some(9);
                network.interfaces[1].link.xdp = program;
                network.interfaces.push(bond);
            })
        };
        table(&CHECK, [(bond(false), State::Warn), (bond(true), State::Ok)]);
    }
}
