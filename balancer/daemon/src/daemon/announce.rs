//! Says that addresses with `announce = "arp"` are here now (gratuitous ARP, unsolicited neighbour
//! advertisements): when a program is attached, and when new addresses come.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use ringway_config::{Announce, Config};
use ringway_host::Mac;
use ringway_host::netlink::addresses::{self, Address};
use ringway_kernel::Interface;

use crate::preflight::covers;

/// Nobody acknowledges an announcement: it is made this often.
const TIMES: u32 = 3;

/// The slot of an interface, an address, and whether it was announced there.
type Announced = (u32, IpAddr, ringway_host::Result<()>);

/// Addresses that Ringway answers for.
pub(super) fn ours(config: &Config) -> BTreeSet<IpAddr> {
    let services = config.services.iter().filter(|service| service.announce == Announce::Arp);
    services.map(|service| *service.address).collect()
}

/// Tells `done` after each time what could not be announced, and what could.
pub(super) fn start(
    wanted: BTreeSet<IpAddr>,
    interfaces: &[Interface],
    done: impl Fn(Vec<Announced>) + Send + 'static,
) {
    if wanted.is_empty() {
        return;
    }
    // Without a link layer there is nobody to tell.
    let ethernet = interfaces.iter().filter(|interface| !interface.layer3);
    let interfaces: Vec<Interface> = ethernet.cloned().collect();
    tokio::spawn(async move {
        for _ in 0..TIMES {
            let (wanted, interfaces) = (wanted.clone(), interfaces.clone());
            // Packet sockets are made on a thread that may wait.
            let all = tokio::task::spawn_blocking(move || all(&wanted, &interfaces)).await;
            done(all.unwrap_or_default());
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    });
}

fn all(wanted: &BTreeSet<IpAddr>, interfaces: &[Interface]) -> Vec<Announced> {
    let known = addresses::all().unwrap_or_default();
    let mut done = Vec::new();
    for address in wanted {
        for interface in places(*address, interfaces, &known) {
            let sent = ringway_host::announce(interface.ifindex, Mac(interface.mac), *address);
            done.push((interface.slot, *address, sent));
        }
    }
    done
}

/// Interfaces on whose network the address is; all of them when it is on none.
fn places<'a>(
    address: IpAddr,
    interfaces: &'a [Interface],
    known: &[Address],
) -> Vec<&'a Interface> {
    let on_link = |interface: &&Interface| {
        known
            .iter()
            .any(|own| own.ifindex == interface.ifindex && covers(own.address, own.prefix, address))
    };
    let found: Vec<&Interface> = interfaces.iter().filter(on_link).collect();
    if found.is_empty() { interfaces.iter().collect() } else { found }
}
