//! What a backend set makes of results and ways.

use super::*;
use crate::testing::{gateway, hop};

fn backend_set(service: &str) -> BackendSet {
    let backends = "[{ address = \"10.0.0.2\" }, { address = \"10.0.0.3\", weight = 0 }]";
    let service = format!("protocol = [\"tcp\", \"udp\"]\n{service}\nbackends = {backends}");
    BackendSet::new(&gateway("", &service), Instant::now())
}

fn way() -> Result<Hop, NoWay> {
    Ok(hop())
}

fn event(id: usize, health: Health) -> CheckEvent {
    let reason = (!health.is_up()).then(|| "connection refused on port 80".into());
    CheckEvent { reason, ..crate::testing::event(id, health) }
}

fn unresolved(interface: &str) -> Result<Hop, NoWay> {
    let next_hop = "10.0.0.2".parse().expect("an address");
    Err(NoWay::Unresolved { next_hop, interface: interface.into() })
}

const CHECK: &str = "check = { type = \"tcp\", port = 8080 }";

#[test]
fn one_check_per_backend_whatever_its_protocols() {
    let targets = backend_set(CHECK).targets(&BTreeMap::new());
    let asked: Vec<_> = targets.iter().map(|t| (t.id, t.address.to_string())).collect();
    assert_eq!(asked, [(0, "10.0.0.2:8080".into()), (1, "10.0.0.3:8080".into())]);
    assert!(backend_set("").targets(&BTreeMap::new()).is_empty());
}

#[test]
fn a_check_may_ask_elsewhere() {
    let asked = |general: &str| {
        let backends = "{ address = \"10.0.0.2\" }, { address = \"10.0.0.3\", check = { port = 81 } }, \
                        { address = \"10.0.0.4\", check = { address = \"fd00::4\", port = 82 } }";
        let check = format!("check = {{ type = \"tcp\"{general} }}");
        let config = gateway("", &format!("{check}\nbackends = [{backends}]"));
        let targets = BackendSet::new(&config, Instant::now()).targets(&BTreeMap::new());
        targets.iter().map(|target| target.address.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(asked(""), ["10.0.0.2:80", "10.0.0.3:81", "[fd00::4]:82"]);
    let general = ", address = \"192.168.0.1\", port = 90";
    assert_eq!(asked(general), ["192.168.0.1:90", "192.168.0.1:81", "[fd00::4]:82"]);
}

#[test]
fn without_a_check_only_the_way_is_waited_for() {
    let mut backend_set = backend_set("");
    assert!(backend_set.waiting());
    backend_set.take_ways(|_| Err(NoWay::Local));
    assert!(!backend_set.waiting(), "waiting would not help");
    backend_set.take_ways(|_| way());
    assert!(!backend_set.waiting());
}

#[test]
fn a_service_without_traffic_is_a_problem_and_says_why() {
    let mut backend_set = backend_set(CHECK);
    assert!(backend_set.waiting());
    assert!(backend_set.take_ways(|_| way()).0 && !backend_set.take_ways(|_| way()).0);
    backend_set.take(&event(0, Health::Down), Instant::now());
    let line = backend_set.take(&event(1, Health::Up), Instant::now()).expect("known");
    assert_eq!(line, "web: backend 10.0.0.3:80 is up");
    assert!(!backend_set.waiting());
    // The only one that is up has no weight.
    let problems = backend_set.problems();
    assert!(problems[0].error.contains("10.0.0.2:80 connection refused"), "{problems:?}");
    assert!(problems[0].error.contains("10.0.0.3:80 has weight 0 in the file"), "{problems:?}");
    let remedy = "`ringway backend weight web 10.0.0.3:80 1` gives it new connections again";
    assert_eq!(problems[0].remedy, remedy.into());
    assert_eq!(backend_set.unserved().collect::<Vec<_>>(), ["web"]);
    backend_set.take(&event(0, Health::Up), Instant::now());
    assert!(backend_set.problems().is_empty());
    assert_eq!(backend_set.serving(), (1, 2));
    backend_set.take_ways(|_| Err(NoWay::Local));
    assert_eq!(backend_set.problems().len(), 1);
}

#[test]
fn what_a_dsr_backend_needs_is_the_remedy() {
    let remedy = |forward: &str| {
        let mut backend_set = backend_set(&format!("{CHECK}\nannounce = \"arp\"\n{forward}"));
        backend_set.take_ways(|_| way());
        for id in [0, 1] {
            backend_set.take(&event(id, Health::Down), Instant::now());
        }
        backend_set.problems()[0].remedy.to_string()
    };
    let l2 = remedy("forward = \"dsr-l2\"");
    assert!(l2.contains("203.0.113.9 on its lo") && !l2.contains("decap"), "{l2}");
    let gue = remedy("forward = \"dsr-gue\"");
    assert!(gue.contains("203.0.113.9 on its lo") && gue.contains("`ringway decap`"), "{gue}");
    assert!(remedy("").ends_with("nc -zv -w 1 10.0.0.2 8080"));
}

#[test]
fn blind_services_serve_while_there_is_a_way() {
    let mut backend_set = backend_set(&format!("{CHECK}\nwhen_none_healthy = \"all\""));
    backend_set.take_ways(|_| way());
    assert!(backend_set.problems().is_empty());
    // But nobody who is to get nothing (plan.rs: weight 0 stays 0).
    backend_set.services[0].members.iter_mut().for_each(|member| member.weight = 0);
    assert_eq!(backend_set.problems().len(), 1);
}

#[test]
fn only_those_known_to_be_down_are_unhealthy() {
    let backends = (2..6).map(|n| format!("{{ address = \"10.0.0.{n}\" }}"));
    let backends = backends.collect::<Vec<_>>().join(", ");
    let with = |more: &str| {
        let config = gateway("", &format!("{CHECK}\n{more}\nbackends = [{backends}]"));
        let mut backend_set = BackendSet::new(&config, Instant::now());
        backend_set.take_ways(|_| way());
        backend_set
    };
    let found =
        |backend_set: &BackendSet| backend_set.panicking().map(|one| one.error).collect::<Vec<_>>();
    let mut backend_set = with("max_unhealthy = 50");
    // A start: nobody was asked, so nobody gets traffic, and that is the problem.
    assert!(found(&backend_set).is_empty());
    let problem = backend_set.problems().remove(0).error;
    assert!(problem.contains("has not been checked yet"), "{problem}");
    (0..2).for_each(|id| drop(backend_set.take(&event(id, Health::Down), Instant::now())));
    assert!(found(&backend_set).is_empty() && backend_set.problems().len() == 1, "two of four are");
    backend_set.take(&event(2, Health::Down), Instant::now());
    let found_now = found(&backend_set);
    assert!(found_now[0].starts_with("service web: 3 of 4 backends fail"), "{found_now:?}");
    assert!(backend_set.problems().is_empty(), "all get traffic");
    // Without it, checks are believed.
    let mut without = with("");
    (0..4).for_each(|id| drop(without.take(&event(id, Health::Down), Instant::now())));
    assert!(found(&without).is_empty() && without.problems().len() == 1);
}

#[test]
fn a_service_whose_backends_are_drained_says_who_undoes_it() {
    let mut backend_set = backend_set(CHECK);
    backend_set.take_ways(|_| way());
    backend_set.take(&event(0, Health::Up), Instant::now());
    assert!(backend_set.problems().is_empty());
    let drained = &mut backend_set.services[0].members[0];
    (drained.drained, drained.weight, drained.file_weight) = (true, 0, Some(1));
    let problem = backend_set.problems().remove(0);
    assert!(problem.error.contains("10.0.0.2:80 is drained by an operator"), "{problem:?}");
    let words = "`ringway backend undrain web 10.0.0.2:80`";
    assert!(problem.remedy.to_string().contains(words), "{problem:?}");
}

#[test]
fn a_new_daemon_begins_with_the_health_it_finds() {
    let mut backend_set = backend_set(CHECK);
    backend_set.inherit(Instant::now(), |_, member| {
        (member.weight > 0).then_some(ringway_plan::Health::Up)
    });
    assert!(backend_set.waiting(), "the second backend is new");
    let states: Vec<_> =
        backend_set.targets(&BTreeMap::new()).iter().map(|target| target.initial).collect();
    assert_eq!(states, [Health::Up, Health::Unknown]);
}

#[test]
fn what_is_observed_and_shown() {
    let mut backend_set = backend_set(CHECK);
    backend_set.take_ways(|address| {
        if address.to_string().ends_with('2') { way() } else { Err(NoWay::Local) }
    });
    backend_set.take(&event(0, Health::Up), Instant::now());
    let observed = backend_set.observed(Instant::now());
    let address: IpAddr = "10.0.0.2".parse().expect("address");
    assert_eq!(observed.health("web", (address, 80).into()), ringway_plan::Health::Up);
    assert_eq!(observed.next_hops[&address].mac, [2, 0, 0, 0, 0, 9]);
    assert_eq!(observed.sources[&address].to_string(), "10.0.0.1");
    assert_eq!(observed.next_hops.len(), 1);

    let shown = backend_set.shown(Instant::now());
    let kinds: Vec<_> = shown.iter().map(|service| service.protocol.name()).collect();
    assert_eq!(kinds, ["tcp", "udp"]);
    assert_eq!(shown[0].serving(), 1);
    assert!(shown[0].backends[1].reason.as_ref().expect("reason").contains("not been checked"));
}

/// It is known from the first check on, and forgotten when the backend is asked in another way.
#[test]
fn what_backends_offer_is_observed() {
    let offer = SynOffer { mss: 1460, stamps: true, sack: true, ecn: false };
    let planned = |backend_set: &BackendSet| {
        let mut expected = backend_set.observed(Instant::now());
        expected.set_offer("web", backend_set.services[0].members[0].endpoint, offer);
        expected == backend_set.observed(Instant::now())
    };
    let mut backend_set = backend_set(CHECK);
    backend_set.take(&event(0, Health::Up), Instant::now());
    assert!(!planned(&backend_set));
    let sees = CheckEvent { offer: Some(offer), ..event(0, Health::Up) };
    assert_eq!(backend_set.take(&sees, Instant::now()), None, "no news for the log");
    assert!(planned(&backend_set));
    backend_set.take(&event(0, Health::Down), Instant::now());
    assert!(planned(&backend_set), "what was seen last");
    let shown = backend_set.shown(Instant::now());
    let shown: Vec<_> = shown.iter().map(|service| service.backends[0].offers).collect();
    assert_eq!(shown, [Some(offer.into()), None], "TCP, UDP");
    let config = |check: &str| gateway("", &format!("protocol = [\"tcp\", \"udp\"]\n{check}"));
    assert!(planned(&backend_set.reconfigure(&config(CHECK), Instant::now())));
    let other = "check = { type = \"tcp\", port = 8081 }";
    assert!(!planned(&backend_set.reconfigure(&config(other), Instant::now())));
}

#[test]
fn a_neighbour_that_does_not_answer_is_not_a_server_that_does_not() {
    let mut backend_set = backend_set(CHECK);
    backend_set.take_ways(|_| unresolved("eth1"));
    backend_set.take(&event(0, Health::Down), Instant::now());
    let reason =
        |backend_set: &BackendSet| backend_set.shown(Instant::now())[0].backends[0].reason.clone();
    let said = reason(&backend_set).expect("a reason");
    assert!(said.starts_with("next hop 10.0.0.2 on eth1 has not answered ARP, "), "{said}");
    backend_set.take_ways(|_| way());
    assert_eq!(reason(&backend_set).as_deref(), Some("connection refused on port 80"));
}

#[test]
fn what_becomes_of_a_backend_that_is_down_is_said_once() {
    let mut backend_set = backend_set(CHECK);
    let silent = || unresolved("eth0");
    // At the start every next hop is asked first, which is no loss.
    assert_eq!(backend_set.take_ways(|_| silent()).1, []);
    assert_eq!(backend_set.take_ways(|_| way()).1, []);
    let down = backend_set.take(&event(0, Health::Down), Instant::now()).expect("known");
    assert!(down.ends_with("is down: connection refused on port 80"), "{down}");
    let reason = Some("no answer on port 80 within 500 ms".to_owned());
    let still = CheckEvent { reason, at: SystemTime::now(), ..event(0, Health::Down) };
    let line = backend_set.take(&still, Instant::now()).expect("known");
    let want = "web: backend 10.0.0.2:80 is still down, now: no answer on port 80 within 500 ms";
    assert_eq!(line, want);
    let since = backend_set.shown(Instant::now())[0].backends[0].since.expect("down");
    assert_eq!(since, Timestamp::default(), "down since it went down");

    let by = |news: &[Line]| news.iter().map(|n| (n.good, n.text.clone())).collect::<Vec<_>>();
    assert!(!backend_set.lost_several("eth0"));
    let lines = backend_set.take_ways(|_| silent()).1;
    assert!(lines.iter().all(|line| line.lost_by.as_deref() == Some("eth0")), "{lines:?}");
    assert!(backend_set.lost_several("eth0") && !backend_set.lost_several("eth1"));
    assert_eq!(backend_set.lost_by(&still).as_deref(), Some("eth0"));
    let lost = by(&lines);
    assert_eq!(lost.len(), 2);
    assert!(!lost[0].0 && lost[0].1.contains("10.0.0.2:80: no way to it: next hop 10.0.0.2 on"));
    assert_eq!(backend_set.take_ways(|_| silent()).1, []);
    let other = by(&backend_set.take_ways(|_| Err(NoWay::NoRoute("no route".into()))).1);
    assert!(other[1].1.ends_with("10.0.0.3:80: no way to it: no route"), "{other:?}");
    let back = by(&backend_set.take_ways(|_| way()).1);
    assert!(back[0].0 && back[0].1.ends_with("there is a way to it again, by eth0"), "{back:?}");
    assert!(!backend_set.lost_several("eth0") && backend_set.lost_by(&still).is_none());
}

/// `status` prints it: a remedy that points to `status` would lead nowhere.
#[test]
fn the_remedy_of_a_service_without_traffic_leads_further() {
    let mut backend_set = backend_set(CHECK);
    let outside = Err(NoWay::OtherInterface { interface: "eth9".into() });
    backend_set.take(&event(0, Health::Down), Instant::now());
    for (way, want) in [
        (way(), "nc -zv -w 1 10.0.0.2 8080"),
        (unresolved("eth0"), "ip neighbour show dev eth0; ping -c 3 10.0.0.2"),
        (outside, "ip route get 10.0.0.2"),
    ] {
        backend_set.take_ways(|_| way.clone());
        let remedy = backend_set.services()[0].members[0].next_step();
        assert!(remedy.contains(want) && !remedy.contains("ringway status"), "{remedy}");
    }
}
