//! Configurations and states of the world, and the tables they give.

#![allow(clippy::unwrap_used)]

mod common;

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};

use common::{HOP, NODE, config, ip, plan, row, well};
use ringway_abi::{BackendRef, ShieldMode};
use ringway_config::Config;
use ringway_plan::maglev::NO_MEMBER;
use ringway_plan::tables::{
    BackendRow, Limits, Protocol, RateLimit, RingRow, ServicePolicy, SynAnswer, SynPolicy, Tables,
};
use ringway_plan::{Health, Ids, Observed, PlanError, Planner};

fn at(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

/// One service "web" with a check; `backends` is a TOML list, `more` more keys.
fn web(backends: &str, more: &str) -> Config {
    config(&format!(
        "[[service]]\nname = \"web\"\naddress = \"203.0.113.10\"\nport = 80\n\
         check = {{ type = \"tcp\" }}\nbackends = {backends}\n{more}\n"
    ))
}

const TWO: &str = "[{ address = \"10.0.0.2\" }, { address = \"10.0.0.3\" }]";

/// The backend that each slot of a ring leads to, by address.
fn owners(tables: &Tables, ring: &RingRow) -> Vec<Option<IpAddr>> {
    let service = tables.services.iter().find(|service| service.ring == ring.id).unwrap();
    let row = |reference| tables.backends.iter().find(|row| row.reference() == reference).unwrap();
    let owners: Vec<IpAddr> = service.members.iter().map(|one| row(*one).address).collect();
    let owner = |slot: u16| (slot != NO_MEMBER).then(|| owners[usize::from(slot)]);
    ring.slots.written().into_iter().map(owner).collect()
}

/// The backends a ring leads to, by address.
fn served(tables: &Tables, ring: &RingRow) -> HashSet<IpAddr> {
    owners(tables, ring).into_iter().flatten().collect()
}

fn web_serves(tables: &Tables) -> HashSet<IpAddr> {
    served(tables, &tables.rings[0])
}

#[test]
fn everything_well() {
    let config = web(TWO, "announce = \"arp\"");
    let tables = plan(&config, &well(&config));
    let service = &tables.services[0];
    assert_eq!((service.id, service.ring, service.name.as_str()), (0, 0, "web"));
    assert_eq!(service.key.address, ip("203.0.113.10"));
    assert!(service.announce && service.reset_when_none && !service.source_client);
    assert_eq!(web_serves(&tables), [ip("10.0.0.2"), ip("10.0.0.3")].into());
    let second = row(&tables, "10.0.0.3:80");
    assert_eq!((second.index, second.generation, second.service), (1, 1, 0));
    assert_eq!((second.up, second.next_hop, second.nat), (true, Some(HOP), (0, 1)));
    assert_eq!(tables.nat_addresses, [NODE]);
    assert_eq!(tables.nat_ports, (10000, 20000));
    assert_eq!((tables.timeouts.established, tables.timeouts.udp), (7440, 120));
}

#[test]
fn both_protocols_have_their_own_everything() {
    let config = web(TWO, "protocol = [\"tcp\", \"udp\"]");
    let tables = plan(&config, &well(&config));
    let protocols: Vec<_> = tables.services.iter().map(|row| row.key.protocol).collect();
    assert_eq!(protocols, [Protocol::Tcp, Protocol::Udp]);
    assert_eq!((tables.backends.len(), tables.rings.len()), (4, 2));
    for (service, ring) in tables.services.iter().zip(&tables.rings) {
        assert_eq!(service.ring, ring.id);
        for reference in &service.members {
            let row = tables.backends.iter().find(|row| row.reference() == *reference).unwrap();
            assert_eq!((row.service, row.protocol), (service.id, service.key.protocol));
        }
    }
}

#[test]
fn a_kept_backend_has_its_tcp_flows_alone() {
    let config = web(TWO, "protocol = [\"tcp\", \"udp\"]");
    let mut observed = well(&config);
    observed.set_health("web", at("10.0.0.2:80"), Health::Kept);
    let tables = plan(&config, &observed);
    for (service, ring) in tables.services.iter().zip(&tables.rings) {
        assert_eq!(served(&tables, ring), [ip("10.0.0.3")].into());
        let own = |row: &&BackendRow| row.service == service.id && row.address == ip("10.0.0.2");
        let row = tables.backends.iter().find(own).unwrap();
        assert_eq!((row.up, row.flows_live()), (false, service.key.protocol == Protocol::Tcp));
    }
    // Where all serve while none is healthy, it does.
    let config = web("[{ address = \"10.0.0.2\" }]", "when_none_healthy = \"all\"");
    let row = &plan(&config, &observed).backends[0];
    assert!(row.up && !row.kept);
}

/// With dsr, too: the kept one is the former owner of its slots.
#[test]
fn flows_of_a_kept_backend_are_remembered() {
    let config = web(TWO, "forward = \"dsr-l2\"\nannounce = \"arp\"");
    let mut observed = well(&config);
    let mut planner = Planner::default();
    planner.plan(&config, &observed).unwrap();
    for (health, changed) in [(Health::Kept, true), (Health::Down, false)] {
        observed.set_health("web", at("10.0.0.2:80"), health);
        observed.now += 1;
        let tables = planner.plan(&config, &observed).unwrap();
        let ring = tables.rings[0].written();
        let formers: HashSet<_> = (0..ring.slots.len()).map(|slot| ring.former(slot)).collect();
        assert_eq!(formers.len() > 1, changed, "{health:?}");
        assert!((0..ring.slots.len()).all(|slot| ring.current(slot) == Some(1)));
    }
}

#[test]
fn affinity_by_source_is_one_backend_by_both_protocols() {
    let both = "protocol = [\"tcp\", \"udp\"]\n";
    for forward in ["", "forward = \"dsr-l2\"\nannounce = \"arp\"\n"] {
        let plan = |more: &str| {
            let config = web(TWO, &format!("{forward}{more}"));
            plan(&config, &well(&config))
        };
        let slots = |tables: &Tables, n: usize| {
            let id = tables.services[n].ring;
            tables.rings.iter().find(|ring| ring.id == id).unwrap().slots.written()
        };
        let source = plan(&format!("{both}affinity = \"source\""));
        assert!(slots(&source, 0) == slots(&source, 1));
        // Nobody else's slots are others than they were: the ring of UDP alone, and by 5-tuple.
        let five = plan(both);
        assert!(slots(&five, 0) == slots(&source, 0) && slots(&five, 1) != slots(&five, 0));
        let udp = plan("protocol = \"udp\"\naffinity = \"source\"");
        assert!(slots(&udp, 0) == slots(&five, 1));
    }
}

#[test]
fn down_until_its_first_check() {
    let config = web(TWO, "");
    let mut observed = Observed::default();
    let tables = plan(&config, &observed);
    assert!(tables.backends.iter().all(|row| !row.up));
    observed.set_health("web", at("10.0.0.2:80"), Health::Unchecked);
    assert!(row(&plan(&config, &observed), "10.0.0.2:80").up);
}

#[test]
fn without_a_check_always_up() {
    let config = config(
        "[[service]]\nname = \"web\"\naddress = \"203.0.113.10\"\nport = 80\n\
         backends = [{ address = \"10.0.0.2\" }]",
    );
    let mut observed = well(&config);
    observed.set_health("web", at("10.0.0.2:80"), Health::Down);
    assert!(plan(&config, &observed).backends[0].up);
}

#[test]
fn none_healthy() {
    for (mode, served, reset) in [("reset", 0, true), ("drop", 0, false), ("all", 2, false)] {
        let config = web(TWO, &format!("when_none_healthy = \"{mode}\""));
        let mut observed = well(&config);
        for endpoint in ["10.0.0.2:80", "10.0.0.3:80"] {
            observed.set_health("web", at(endpoint), Health::Down);
        }
        let tables = plan(&config, &observed);
        assert_eq!(web_serves(&tables).len(), served, "{mode}");
        assert_eq!(tables.services[0].reset_when_none, reset, "{mode}");
        assert!(tables.backends.iter().all(|row| row.up == (mode == "all")), "{mode}");
        // One comes back: the same in every mode.
        observed.set_health("web", at("10.0.0.3:80"), Health::Up);
        let tables = plan(&config, &observed);
        assert_eq!(web_serves(&tables), [ip("10.0.0.3")].into(), "{mode}");
        let up = ["10.0.0.2:80", "10.0.0.3:80"].map(|endpoint| row(&tables, endpoint).up);
        assert_eq!(up, [false, true], "{mode}");
    }
}

#[test]
fn more_unhealthy_than_allowed() {
    const FOUR: &str = "[{ address = \"10.0.0.2\" }, { address = \"10.0.0.3\" }, \
        { address = \"10.0.0.4\" }, { address = \"10.0.0.5\" }, { address = \"10.0.0.6\", weight = 0 }]";
    let config = web(FOUR, "max_unhealthy = 50");
    let mut observed = well(&config);
    // One without weight is not counted.
    for (down, served) in [("10.0.0.6:80", 4), ("10.0.0.2:80", 3), ("10.0.0.3:80", 2)] {
        observed.set_health("web", at(down), Health::Down);
        let tables = plan(&config, &observed);
        assert_eq!(web_serves(&tables).len(), served, "without {down}");
        assert!(!row(&tables, down).up, "{down}");
    }
    for down in ["10.0.0.4:80", "10.0.0.5:80"] {
        observed.set_health("web", at(down), Health::Down);
        let tables = plan(&config, &observed);
        assert_eq!(web_serves(&tables).len(), 4, "checks are not believed any more: {down}");
        assert!(tables.backends.iter().all(|row| row.up), "{down}");
    }
    observed.set_health("web", at("10.0.0.2:80"), Health::Up);
    observed.set_health("web", at("10.0.0.3:80"), Health::Up);
    let two = [ip("10.0.0.2"), ip("10.0.0.3")].into();
    assert_eq!(web_serves(&plan(&config, &observed)), two);
    // Nobody has asked them yet, which does not make them unhealthy: two of four are.
    for unasked in ["10.0.0.2:80", "10.0.0.3:80"] {
        observed.set_health("web", at(unasked), Health::Unknown);
    }
    assert!(web_serves(&plan(&config, &observed)).is_empty());
}

#[test]
fn drained_keeps_its_flows_alone() {
    let config = web("[{ address = \"10.0.0.2\", weight = 0 }, { address = \"10.0.0.3\" }]", "");
    let mut observed = well(&config);
    let tables = plan(&config, &observed);
    assert_eq!(web_serves(&tables), [ip("10.0.0.3")].into());
    assert!(row(&tables, "10.0.0.2:80").up);
    // It does not step in for the others.
    observed.set_health("web", at("10.0.0.3:80"), Health::Down);
    let tables = plan(&config, &observed);
    assert!(web_serves(&tables).is_empty() && row(&tables, "10.0.0.2:80").up);
}

#[test]
fn unreachable_stays_out() {
    let config = web(TWO, "");
    let mut observed = well(&config);
    observed.next_hops.remove(&ip("10.0.0.2"));
    let tables = plan(&config, &observed);
    assert_eq!(web_serves(&tables), [ip("10.0.0.3")].into());
    assert!(row(&tables, "10.0.0.2:80").up, "its flows wait for the neighbour");
    observed.next_hops.clear();
    let tables = plan(&config, &observed);
    assert!(web_serves(&tables).is_empty(), "as when none is healthy");
    assert!(tables.services[0].reset_when_none);
}

#[test]
fn no_source_address_is_no_way_out() {
    let config = web(TWO, "");
    let mut observed = well(&config);
    observed.sources.remove(&ip("10.0.0.2"));
    let tables = plan(&config, &observed);
    assert_eq!(row(&tables, "10.0.0.2:80").next_hop, None);
    assert_eq!(web_serves(&tables), [ip("10.0.0.3")].into());
}

#[test]
fn the_clients_source_needs_none() {
    let config = web(TWO, "source = \"client\"");
    let mut observed = well(&config);
    observed.sources.clear();
    let tables = plan(&config, &observed);
    assert!(tables.services[0].source_client && tables.nat_addresses.is_empty());
    assert!(tables.backends.iter().all(|row| row.next_hop == Some(HOP) && row.nat == (0, 0)));
}

#[test]
fn configured_sources_are_ranges_by_family() {
    let nat = "[nat]\naddresses = [\"2001:db8::9\", \"10.0.0.8\", \"10.0.0.9\"]\n";
    let v6 = "[[service]]\nname = \"six\"\naddress = \"2001:db8:1::1\"\nport = 80\n\
              backends = [{ address = \"2001:db8::2\" }]\n";
    let config = web(TWO, &format!("{nat}{v6}"));
    let tables = plan(&config, &well(&config));
    assert_eq!(tables.nat_addresses, [ip("10.0.0.8"), ip("10.0.0.9"), ip("2001:db8::9")]);
    assert_eq!(row(&tables, "10.0.0.2:80").nat, (0, 2));
    assert_eq!(row(&tables, "[2001:db8::2]:80").nat, (2, 1));
}

#[test]
fn a_source_keeps_its_place() {
    let config = web(TWO, "");
    let mut observed = well(&config);
    let mut planner = Planner::default();
    planner.plan(&config, &observed).unwrap();
    // The kernel changes its mind: flows that know place 0 still mean the old address.
    for source in observed.sources.values_mut() {
        *source = ip("10.0.0.7");
    }
    let tables = planner.plan(&config, &observed).unwrap();
    assert_eq!(tables.nat_addresses, [NODE, ip("10.0.0.7")]);
    assert!(tables.backends.iter().all(|row| row.nat == (1, 1)));
}

#[test]
fn too_many_sources() {
    let backends: Vec<String> =
        (2..=70).map(|i| format!("{{ address = \"10.0.0.{i}\" }}")).collect();
    let config = web(&format!("[{}]", backends.join(", ")), "");
    let mut observed = well(&config);
    let mut planner = Planner::default();
    let before = planner.plan(&config, &observed).unwrap();
    for (i, source) in observed.sources.values_mut().enumerate() {
        *source = ip(&format!("10.1.0.{i}"));
    }
    assert_eq!(planner.plan(&config, &observed), Err(PlanError::Sources));
    // And nothing is lost by it.
    assert_eq!(planner.plan(&config, &well(&config)).unwrap(), before);
}

#[test]
fn indexes_stay_and_generations_rise() {
    let one = web("[{ address = \"10.0.0.2\" }]", "");
    let other = web("[{ address = \"10.0.0.3\" }]", "");
    let both = web(TWO, "");
    let mut planner = Planner::default();
    let mut tables = |config: &Config| planner.plan(config, &well(config)).unwrap();
    let first = row(&tables(&one), "10.0.0.2:80").reference();
    assert_eq!(row(&tables(&both), "10.0.0.2:80").reference(), first);
    // Gone and back: not the index it had, as long as there are others.
    tables(&other);
    let again = tables(&both);
    assert_eq!((row(&again, "10.0.0.2:80").index, row(&again, "10.0.0.2:80").generation), (2, 1));
    assert_eq!(row(&again, "10.0.0.3:80").index, 1);
}

/// A new process that reads the tables from the kernel plans the same, and gives a freed index
/// away last and under another generation.
#[test]
fn takeover() {
    let config = web(TWO, "protocol = [\"tcp\", \"udp\"]");
    let mut planner = Planner::default();
    let reversed = web("[{ address = \"10.0.0.9\" }]", "");
    planner.plan(&reversed, &well(&reversed)).unwrap();
    let before = planner.plan(&config, &well(&config)).unwrap();
    let ids = || {
        let sources = &before.nat_addresses;
        let retired = [(0, 1), (7, BackendRef::GENERATIONS)];
        Ids::from_rows(&before.services, &before.backends, &retired, sources).within(16384)
    };
    let again = Planner::new(ids()).plan(&config, &well(&config)).unwrap();
    let want = (&before.services[0].members, &before.backends);
    assert_eq!((&again.services[0].members, &again.backends), want);
    assert_eq!(again.rings[0].slots, before.rings[0].slots);
    let mut planner = Planner::take_over(ids(), &before.services, &before.rings);
    let again = planner.plan(&config, &well(&config)).unwrap();
    // nat remembers no rings: these are new ones, which may not have ids in use.
    assert!(again.rings.iter().all(|ring| before.rings.iter().all(|old| old.id != ring.id)));

    // Fill the table: every index that was never used goes before the two that were.
    let full: Vec<String> = (0..16380)
        .map(|i| format!("{{ address = \"10.2.{}.{}\" }}", i / 250, 1 + i % 250))
        .collect();
    let services: String = full
        .chunks(1000)
        .enumerate()
        .map(|(i, backends)| {
            format!(
                "[[service]]\nname = \"s{i}\"\naddress = \"203.0.113.11\"\nport = {}\n\
                 backends = [{}]\n",
                i + 1,
                backends.join(", ")
            )
        })
        .collect();
    let config = web(TWO, &format!("protocol = [\"tcp\", \"udp\"]\n{services}"));
    let tables = Planner::new(ids()).plan(&config, &well(&config)).unwrap();
    assert_eq!(tables.backends.len(), 16384);
    let last: Vec<(u32, u16)> =
        [0, 7].map(|i| (tables.backends[i].index, tables.backends[i].generation)).into();
    assert_eq!(last, [(0, 2), (7, 1)]);
    assert_eq!(tables.backends[7].address, ip("10.2.65.130"), "the very last");
}

/// Rows that contradict one another, as no kernel should hold: no number is given twice.
#[test]
fn takeover_of_nonsense() {
    let config = web(TWO, "protocol = [\"tcp\", \"udp\"]");
    let mut rows = plan(&config, &well(&config));
    rows.services[1].id = 0;
    rows.backends[0].service = 77;
    rows.backends[2].index = 1;
    rows.backends[3].index = u32::MAX;
    let sources = [IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED); 64];
    let ids = Ids::from_rows(&rows.services, &rows.backends, &[(1, 5), (60000, 1)], &sources);
    let tables = Planner::new(ids).plan(&config, &well(&config)).unwrap();
    let indexes: HashSet<u32> = tables.backends.iter().map(|row| row.index).collect();
    let ids: HashSet<u16> = tables.services.iter().map(|row| row.id).collect();
    assert_eq!((indexes.len(), ids.len()), (4, 2));
    assert_eq!(tables.nat_addresses, [NODE]);
}

#[test]
fn rings_are_kept_while_nothing_changes() {
    let config = web(TWO, "");
    let mut planner = Planner::default();
    let first = planner.plan(&config, &well(&config)).unwrap();
    let second = planner.plan(&config, &well(&config)).unwrap();
    assert_eq!(first.rings, second.rings);
}

/// Neither the order in the file nor the numbers a node has given matter.
#[test]
fn every_node_has_the_same_ring() {
    let config = web(TWO, "");
    let turned = web("[{ address = \"10.0.0.3\" }, { address = \"10.0.0.2\" }]", "");
    let before = web("[{ address = \"10.0.0.9\" }, { address = \"10.0.0.8\" }]", "");
    let mut planner = Planner::default();
    planner.plan(&before, &well(&before)).unwrap();
    let (a, b) = (plan(&config, &well(&config)), planner.plan(&turned, &well(&turned)).unwrap());
    assert!(owners(&a, &a.rings[0]) == owners(&b, &b.rings[0]));
}

/// A backend that came up lately grows to its weight; each step takes slots from the others alone.
#[test]
fn slow_start_grows_in_small_steps() {
    let config = web(
        "[{ address = \"10.0.0.2\" }, { address = \"10.0.0.3\" }, { address = \"10.0.0.4\" }]",
        "",
    );
    let new = |tables: &Tables| -> HashSet<usize> {
        let owners = owners(tables, &tables.rings[0]);
        (0..owners.len()).filter(|n| owners[*n] == Some(ip("10.0.0.4"))).collect()
    };
    let mut planner = Planner::default();
    let mut before: HashSet<usize> = HashSet::new();
    for tenths in 1..=10 {
        let mut observed = well(&config);
        observed.set_share("web", at("10.0.0.4:80"), tenths);
        let tables = planner.plan(&config, &observed).unwrap();
        let (now, share) = (new(&tables), f64::from(tenths) / f64::from(20 + tenths));
        assert!((now.len() as f64 - 65537.0 * share).abs() < 10.0, "{tenths}: {}", now.len());
        let lost = before.difference(&now).count();
        assert!(lost < 65537 / 100, "{tenths}: {lost} slots were taken back");
        assert_eq!(row(&tables, "10.0.0.4:80").weight, 1);
        before = now;
    }
    assert_eq!(before, new(&planner.plan(&config, &well(&config)).unwrap()));
}

/// Of services that stay, by key; whoever comes or goes is not among them.
#[test]
fn slots_that_move_from_one_plan_to_the_next() {
    let service = |name: &str, port: u16, backends: &str| {
        format!(
            "[[service]]\nname = \"{name}\"\naddress = \"203.0.113.10\"\nport = {port}\n\
             check = {{ type = \"tcp\" }}\nbackends = {backends}\n"
        )
    };
    let before = config(&(service("web", 80, TWO) + &service("old", 81, TWO)));
    let mut planner = Planner::default();
    let old = planner.plan(&before, &well(&before)).unwrap();
    assert!(planner.plan(&before, &well(&before)).unwrap().slots_moved(&old).is_empty());
    let one = "[{ address = \"10.0.0.3\" }]";
    let after = config(&(service("new", 79, TWO) + &service("web", 80, one)));
    let new = planner.plan(&after, &well(&after)).unwrap();
    let moved = new.slots_moved(&old);
    let [(web, slots)] = moved[..] else { panic!("{moved:?}") };
    // Those of the backend that is gone.
    assert!(web.name == "web" && (32_768..=32_769).contains(&slots), "{slots}");
    // Nobody has any slot any more.
    let mut observed = well(&after);
    observed.set_health("web", at("10.0.0.3:80"), Health::Down);
    let none = planner.plan(&after, &observed).unwrap();
    let moved: Vec<_> = none.slots_moved(&new).iter().map(|(_, slots)| *slots).collect();
    assert_eq!(moved, [65_537]);
}

#[test]
fn services_with_limits_have_a_policy() {
    let policies = |shield: &str, own: &str| {
        let more = format!("forward = \"dsr-l2\"\n{own}\n{shield}");
        let config = config(&format!(
            "[[service]]\nname = \"nat\"\naddress = \"203.0.113.9\"\nport = 80\nbackends = {TWO}\n\
             protocol = [\"tcp\", \"udp\"]\n[[service]]\nname = \"web\"\naddress = \"203.0.113.10\"\n\
             port = 80\nbackends = {TWO}\n{more}\n"
        ));
        let rows = plan(&config, &well(&config)).services;
        rows.into_iter().map(|row| (row.name, row.policy)).collect::<Vec<_>>()
    };
    for shield in ["", "[shield]\n", "[shield]\nlimits = { flow_rate = \"5kpps\" }\n"] {
        let found = policies(shield, "");
        assert!(found.len() == 3 && found.iter().all(|(_, policy)| policy.is_none()), "{shield}");
    }
    let limits =
        "[shield]\nmode = \"observe\"\nlimits = { packets = \"5kpps\", source_prefix_v4 = 24 }\n";
    let [(_, tcp), (_, udp), (_, dsr)] =
        policies(limits, "shield = { mode = \"enforce\", source = \"50pps\" }").try_into().unwrap();
    let packets = Some(RateLimit { packets_per_second: 5000, burst: 500 });
    let nat = ServicePolicy {
        mode: ShieldMode::Observe,
        limits: Limits { packets, ..Limits::default() },
        armed: Limits { packets, ..Limits::default() },
        flow: RateLimit { packets_per_second: 10_000, burst: 1000 },
        learnt: RateLimit { packets_per_second: 500, burst: 50 },
        learns: true,
        learns_udp: true,
        syn: SynPolicy::default(),
        source_prefix: (24, 64),
    };
    assert_eq!((tcp, udp), (Some(nat), Some(nat)));
    let source = Some(RateLimit { packets_per_second: 50, burst: 5 });
    let own = Limits { source, ..nat.limits };
    let mode = ShieldMode::Enforce;
    assert_eq!(dsr, Some(ServicePolicy { mode, limits: own, armed: own, learns: false, ..nat }));
    let found = policies(limits, "shield = { packets = \"none\" }");
    assert!(found[0].1.is_some() && found[2].1.is_none(), "{found:?}");
}

#[test]
fn cookies_are_for_services_all_of_whose_backends_take_them() {
    let three = "[{ address = \"10.0.0.2\" }, { address = \"10.0.0.3\" }, \
                 { address = \"10.0.0.4\", weight = 0 }]";
    let syn = "[shield]\nsyn = { always = true, secret = \"/s\" }\n";
    let config = web(three, &format!("forward = \"dsr-l2\"\nsyn = \"backend\"\n{syn}"));
    let answer = |observed: &Observed| {
        let policy = plan(&config, observed).services[0].policy.unwrap();
        (policy.syn.answer, policy.syn.offer.stamps)
    };
    let mut observed = well(&config);
    assert_eq!(answer(&observed), (SynAnswer::Backend, true));
    observed.set_no_cookies("web", at("10.0.0.4:80"));
    observed.set_no_cookies("other", at("10.0.0.2:80"));
    assert_eq!(answer(&observed), (SynAnswer::Backend, true), "it gets no flows");
    observed.set_no_cookies("web", at("10.0.0.3:80"));
    assert_eq!(answer(&observed), (SynAnswer::Challenge, false));
    observed.set_health("web", at("10.0.0.3:80"), Health::Down);
    assert_eq!(answer(&observed), (SynAnswer::Backend, true), "it is down");
    observed.set_health("web", at("10.0.0.3:80"), Health::Up);
    observed.next_hops.remove(&ip("10.0.0.3"));
    assert_eq!(answer(&observed), (SynAnswer::Backend, true), "there is no way to it");
}
