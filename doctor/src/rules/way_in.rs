//! Interfaces that this machine is reached by.

use crate::{Check, Facts, Looked, Outcome, Profile};

/// Who takes such an interface from the kernel cuts the machine off.
pub const CHECK: Check = Check {
    number: 64,
    name: "way-in",
    rule: "an interface with a default route is not given to a program that bypasses the kernel",
    source: "heuristic of Ringway, which refuses it, too",
    why: "After that nobody reaches the machine any more, and nobody can take it back.",
    profiles: &[Profile::Bypass],
    look,
};

fn look(facts: &Facts) -> Looked {
    let carries = facts.network()?.interfaces.iter().filter(|one| one.carries_default_route);
    let cards = carries.filter(|one| !one.link.loopback && one.link.kind.is_none());
    let found: Vec<Outcome> = cards
        .map(|card| {
            let name = &card.link.name;
            // With another card beside it there is one to give away.
            let spare = facts.cards().is_ok_and(|cards| cards.len() > 1);
            if spare {
                return Outcome::ok(name, "it carries the default route: leave it, take another");
            }
            Outcome::info(name, "the only card carries the default route: leave it to the kernel")
                .saw("ip route show default", name)
                .advice("add a card, or manage the machine by its console")
        })
        .collect();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::State;
    use crate::testing::{Machine, table};

    #[test]
    fn the_only_card() {
        let only = Machine::healthy().network(|network| {
            network.interfaces[1].carries_default_route = true;
        });
        let two = only.clone().network(|network| {
            let mut other = network.interfaces[1].clone();
            (other.link.ifindex, other.carries_default_route) = (9, false);
            network.interfaces.push(other);
        });
        table(&CHECK, [(only, State::Info), (two, State::Ok)]);
    }
}
