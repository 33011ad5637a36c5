//! Lets neighbour solicitations for announced IPv6 addresses through to the packet path.
//!
//! Whoever asks for an IPv6 address asks its solicited-node group. A card's filter, and a switch
//! that listens to MLD, drop what goes to groups that nobody joined; and the kernel joins none for
//! an address that it does not own.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use ringway_abi::Faces;
use ringway_api::node::leftovers::{Groups, give_up, of, of_tables};
use ringway_host::neighbour_packets::multicast::{self, Memberships};
use ringway_host::{Error, Mac};
use ringway_kernel::{Interface, View};

/// Multicast groups that the interfaces receive for announced addresses. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Solicitations {
    /// `None`: not known yet.
    wanted: Arc<Mutex<Option<Groups>>>,
    held: Arc<Mutex<Held>>,
}

/// Frames of the groups are received until they are given up, as the packet path stays, too.
/// Memberships end with this process.
#[derive(Debug, Default)]
struct Held {
    received: Groups,
    _memberships: Memberships,
}

impl Solicitations {
    /// Those of the daemon before, as the tables have them.
    pub fn inherit(view: &View) -> Solicitations {
        let held = Held { received: of_tables(view), ..Held::default() };
        Solicitations { held: Arc::new(Mutex::new(held)), ..Solicitations::default() }
    }

    /// Receives what `announced` needs from now on, and nothing else; in the background, since the
    /// kernel may take its time. `done` is told what failed; the next call tries that again.
    pub fn follow(
        &self,
        announced: &BTreeSet<IpAddr>,
        interfaces: &[Interface],
        done: impl FnOnce(Result<(), String>) + Send + 'static,
    ) {
        let new = Some(groups(announced, interfaces));
        let old = {
            let mut wanted = self.wanted.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::replace(&mut *wanted, new.clone())
        };
        if old == new {
            return;
        }
        let own = self.clone();
        tokio::task::spawn_blocking(move || done(own.update()));
    }

    fn update(&self) -> Result<(), String> {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        // The newest, whichever call this is: they may come in another order.
        let newest = self.wanted.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let wanted = newest.clone().unwrap_or_default();
        let (_, mut errors) = give_up(held.received.difference(&wanted));
        errors.extend(wanted.iter().filter_map(|(ifindex, group)| {
            multicast::receive(*ifindex, Mac::of_multicast(*group)).err()
        }));
        // The old memberships end after the new ones have begun: a group in both is never left.
        let (memberships, failed) = Memberships::join(wanted.iter().copied());
        errors.extend(failed);
        *held = Held { received: wanted, _memberships: memberships };
        // The daemon reports a missing device elsewhere.
        errors.retain(|error| !matches!(error, Error::NoInterface { .. }));
        let Some(error) = errors.first() else { return Ok(()) };
        let mut wanted = self.wanted.lock().unwrap_or_else(PoisonError::into_inner);
        if *wanted == newest {
            *wanted = None;
        }
        match errors.len() - 1 {
            0 => Err(error.to_string()),
            more => Err(format!("{error}; and {more} more")),
        }
    }
}

/// By which interfaces clients may ask for the addresses, and in which groups.
fn groups(announced: &BTreeSet<IpAddr>, interfaces: &[Interface]) -> Groups {
    let asked = |interface: &&Interface| !interface.layer3 && interface.faces != Faces::Backends;
    let indexes = interfaces.iter().filter(asked).map(|interface| interface.ifindex);
    of(announced, indexes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_ask_on_ethernet_that_does_not_face_backends_alone() {
        let interface = |ifindex, layer3, faces| {
            let ethernet = crate::testing::interface(ifindex, ifindex, "if");
            Interface { layer3, faces, ..ethernet }
        };
        let interfaces = [
            interface(1, false, Faces::Both),
            interface(2, false, Faces::Clients),
            interface(3, false, Faces::Backends),
            interface(4, true, Faces::Both),
        ];
        // Two of the addresses share a group.
        let addresses = ["fd00::80", "fd01::80", "10.0.0.80"].map(|text| text.parse().unwrap());
        let group = "ff02::1:ff00:80".parse().unwrap();
        let found = groups(&BTreeSet::from(addresses), &interfaces);
        assert_eq!(found, Groups::from([(1, group), (2, group)]));
    }
}
