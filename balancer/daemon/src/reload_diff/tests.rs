//! What changes between two configurations, and which flows move.

use std::time::Instant;

use super::*;

fn service(name: &str, last: u8, backends: &str, more: &str) -> String {
    format!(
        "[[service]]\nname = \"{name}\"\naddress = \"203.0.113.{last}\"\nport = 80\n{more}\n\
         backends = [{backends}]\n"
    )
}

fn config(services: &[String]) -> Config {
    let text = format!("[node]\nname = \"gw\"\ninterfaces = [\"eth0\"]\n{}", services.concat());
    ringway_config::parse(&text, "ringway.toml").unwrap_or_else(|errors| panic!("{errors}"))
}

fn changes(old: &Config, new: &Config) -> Changes {
    ConfigDiff { old, new }.changes(&BackendSet::new(old, Instant::now())).expect("a plan")
}

const A: &str = "{ address = \"10.0.0.2\" }";
const AB: &str = "{ address = \"10.0.0.2\" }, { address = \"10.0.0.3\" }";

#[test]
fn nothing_changes_by_writing_it_differently() {
    let one = config(&[service("a", 1, AB, ""), service("b", 2, A, "")]);
    let same = changes(&one, &one.clone());
    assert!(!same.changed && same.services.is_empty() && same.rings.is_empty());
    // Another order is another configuration, which changes nothing for anybody.
    let turned = config(&[service("b", 2, A, ""), service("a", 1, AB, "")]);
    let turned = changes(&one, &turned);
    assert!(turned.services.is_empty() && turned.backends.is_empty());
}

#[test]
fn forwarding_between_interfaces_is_a_setting_and_needs_no_service() {
    let forwarding = |mode: &str| {
        let node = "[node]\nname = \"gw\"\ninterfaces = [\"eth0\", \"eth1\"]\n";
        let text = format!("{node}[forward]\nmode = \"{mode}\"\n");
        ringway_config::parse(&text, "ringway.toml").unwrap_or_else(|errors| panic!("{errors}"))
    };
    let (bridge, route) = (forwarding("bridge"), forwarding("route"));
    assert!(!changes(&bridge, &bridge.clone()).changed);
    let found = changes(&bridge, &route);
    assert!(found.changed && found.services.is_empty());
    assert_eq!(found.settings, ["forward"]);
}

#[test]
fn services_come_go_and_change() {
    let old = config(&[service("a", 1, A, ""), service("b", 2, A, ""), service("c", 3, A, "")]);
    let new = config(&[
        service("a", 1, A, "affinity = \"source\""),
        service("d", 4, A, ""),
        service("new", 3, A, ""),
    ]);
    let found = changes(&old, &new);
    let shown: Vec<_> =
        found.services.iter().map(|s| (s.service.as_str(), s.change, s.keys.join(", "))).collect();
    assert_eq!(
        shown,
        [
            ("a", What::Changed, "affinity 5-tuple becomes source".into()),
            ("d", What::Added, String::new()),
            ("new", What::Changed, "name c becomes new".into()),
            ("b", What::Removed, String::new()),
        ]
    );
    let gone: Vec<String> =
        ConfigDiff { old: &old, new: &new }.gone().iter().map(|(key, _)| key.endpoint()).collect();
    assert_eq!(gone, ["203.0.113.2:80"]);
}

#[test]
fn clients_of_another_address_or_mode_are_not_forgotten() {
    let old = config(&[service("a", 1, A, ""), service("b", 2, A, "")]);
    let told = |new: &Config| {
        let found = changes(&old, new);
        (found.lost_endpoints, found.ended_services)
    };
    let of = |a: &str| config(&[a.to_owned(), service("b", 2, A, "")]);
    let (lost, ended) = (vec!["a 203.0.113.1:80 tcp".to_owned()], vec!["a".to_owned()]);
    assert_eq!(told(&of(&service("a", 3, A, ""))), (lost.clone(), ended.clone()));
    let port = service("a", 1, A, "").replace("port = 80", "port = 81");
    assert_eq!(told(&of(&port)), (lost, ended.clone()));
    // A range that has the old port serves its clients on; their flows are another service's.
    let range = service("a", 1, A, "").replace("port = 80", "port = \"80-90\"");
    assert_eq!(told(&of(&range)), (Vec::new(), ended.clone()));
    let mode = service("a", 1, A, "forward = \"dsr-l2\"");
    assert_eq!(told(&of(&mode)), (Vec::new(), ended));
    assert_eq!(told(&of(&service("new", 1, AB, ""))), (Vec::new(), Vec::new()));
}

#[test]
fn a_new_backend_takes_its_share_of_the_ring_alone() {
    let old = config(&[service("a", 1, AB, ""), service("b", 2, AB, "")]);
    let three = format!("{AB}, {{ address = \"10.0.0.4\" }}");
    let new = config(&[service("a", 1, &three, ""), service("b", 2, AB, "")]);
    let found = changes(&old, &new);
    assert_eq!(found.backends.len(), 1);
    assert_eq!((found.backends[0].change, found.backends[0].weight_after), (What::Added, Some(1)));
    assert_eq!(found.rings.len(), 1, "{:?}", found.rings);
    let RingChange { moved_slots, slots, .. } = found.rings[0];
    // A third, and little more.
    assert!((21_845..24_000).contains(&moved_slots) && slots == 65_537, "{moved_slots}");
    // Nobody has looked for the new one yet, so they do not move at once.
    let (mut found, before) = (found, BackendSet::new(&old, Instant::now()));
    found.note(before.reconfigure(&new, Instant::now()).idle_beside(&before));
    assert!(found.rings[0].once_up && found.no_traffic_yet.len() == 1, "{found:?}");
    assert_eq!(found.no_traffic_yet[0].address.to_string(), "10.0.0.4");
    assert!(found.no_traffic_yet[0].reason.contains("has not been looked up"), "{found:?}");
    found.note(before.idle_beside(&before));
    assert!(!found.rings[0].once_up && found.no_traffic_yet.is_empty());
}

#[test]
fn weights_move_slots_and_nobody_goes() {
    let old = config(&[service("a", 1, AB, "")]);
    let drained = AB.replacen(" }", ", weight = 0 }", 1);
    let new = config(&[service("a", 1, &drained, "")]);
    let found = changes(&old, &new);
    let want = (Some(1), Some(0));
    assert_eq!((found.backends[0].weight_before, found.backends[0].weight_after), want);
    assert!((32_700..32_800).contains(&found.rings[0].moved_slots), "{:?}", found.rings);
    let renamed = changes(&old, &config(&[service("new", 1, &drained, "")]));
    assert_eq!(renamed.rings.len(), 1, "{renamed:?}");
    assert_eq!(renamed.rings[0].service, "new");
    assert!(ConfigDiff { old: &old, new: &new }.gone().is_empty(), "flows stay");
    let mode = config(&[service("a", 1, AB, "forward = \"dsr-l2\"")]);
    assert_eq!(
        ConfigDiff { old: &old, new: &mode }.gone().len(),
        2,
        "nat flows do not go on by dsr"
    );
}

#[test]
fn changes_of_mitigation_are_one_line_for_each_key() {
    let with = |text: &str| {
        let shield = format!("[shield]\n{text}");
        config(&[service("a", 1, A, ""), shield])
    };
    let said = |was: &str, is: &str| {
        let (old, new) = (with(was), with(is));
        ConfigDiff { old: &old, new: &new }.shield()
    };
    let was = "mitigation = { packets = \"2kpps\", limits = { source = \"500pps\" } }";
    let is = "mitigation = { packets = \"3kpps\", for = \"4s\", run = [\"/a\", \"b\"], \
              limits = { new_flows = \"1kpps\" } }";
    assert_eq!(
        said(was, is),
        [
            "mitigation packets 2kpps becomes 3kpps",
            "mitigation for 10m becomes 4s",
            "mitigation run is set to /a b",
            "mitigation run_after is set to 10s",
            "mitigation limits new_flows is set to 1kpps",
            "mitigation limits source is removed, was 500pps",
        ]
    );
    assert_eq!(said("", was), ["mitigation added"]);
    assert_eq!(said(was, ""), ["mitigation removed"]);
}

#[test]
fn changes_of_the_shield_are_in_words() {
    let with = |shield: &str| config(&[service("a", 1, A, ""), shield.to_owned()]);
    let none = with("");
    let old = with(
        "[shield]\nlist = [{ name = \"drop\", file = \"/a\", action = \"block\" }]\n\
         rule = [{ match = \"udp\", action = \"drop\" }, { match = \"tcp\", action = \"count\" }, \
         { match = \"icmp\", action = \"pass\", name = \"ping\" }]\n",
    );
    let new = with(
        "[shield]\nmode = \"observe\"\nlist = [{ name = \"new\", file = \"/a\", action = \"block\" }]\n\
         rule = [{ match = \"udp\", action = \"limit\", rate = \"1kpps\" }, \
         { match = \"icmp\", action = \"pass\", name = \"ping\" }]\n",
    );
    let told = |old: &Config, new: &Config| {
        let found = changes(old, new);
        assert_eq!(found.settings.iter().any(|one| one == "shield"), !found.shield.is_empty());
        found.shield.join(", ")
    };
    assert_eq!(told(&old, &old.clone()), "");
    assert_eq!(told(&none, &old), "added");
    assert_eq!(told(&old, &none), "removed");
    let want = "mode enforce becomes observe, list new added, list drop removed, rule 1 changed, \
                rule 2 removed";
    assert_eq!(told(&old, &new), want);
    let rules = |order: [&str; 2]| {
        let rule = |preset: &str| format!("{{ preset = \"{preset}\", action = \"count\" }}");
        with(&format!("[shield]\nrule = [{}, {}]\n", rule(order[0]), rule(order[1])))
    };
    let (one, other) = ("udp-flood", "icmp-flood");
    assert_eq!(told(&rules([one, other]), &rules([other, one])), "order of rules changed");
    let mode = config(&[
        service("a", 1, A, "shield = \"off\""),
        "[shield]\nmode = \"observe\"\n".to_owned(),
    ]);
    let keys = changes(&new, &mode).services.remove(0).keys;
    assert_eq!(keys, ["shield as [shield] becomes off"]);
    let limits = |own: &str, text: &str| {
        config(&[service("a", 1, A, own), format!("[shield]\nlimits = {{ {text} }}\n")])
    };
    let many = limits("", "packets = \"5kpps\", source = \"2kpps\"");
    let few = limits(
        "shield = { source = \"none\", new_flows = \"9pps\" }",
        "packets = \"1kpps\", source = \"2kpps\", allow_rate = \"7pps\", source_prefix_v6 = 48",
    );
    assert_eq!(
        told(&many, &few),
        "packets 5kpps becomes 1kpps, allow_rate 500pps becomes 7pps, source_prefix_v6 64 becomes 48"
    );
    let want = "shield as [shield] becomes as [shield], new_flows 9pps, source none";
    assert_eq!(changes(&many, &few).services.remove(0).keys, [want]);
}
