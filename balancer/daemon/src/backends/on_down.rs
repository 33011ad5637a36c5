//! `on_down = "keep"`: the established TCP connections of a backend whose checks fail go on, until
//! its host is gone or it has sent nothing for a while.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant, SystemTime};

use ringway_config::{Forward, Protocol, endpoint_text};
use ringway_kernel::ServiceState;

use super::{BackendSet, Line, Member};
use crate::health::Health;
use crate::network::next_hop::NoWay;

/// A backend that is down and has its connections still.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kept {
    /// Nothing has come from it since then: since it went down, as far as is known.
    silent_since: Instant,
    /// Packets that had come from it then.
    replies: Option<u64>,
}

impl Kept {
    /// From now on, in a service that keeps connections.
    pub(super) fn begin(keep_for: Option<Duration>, now: Instant) -> Option<Kept> {
        keep_for.map(|_| Kept { silent_since: now, replies: None })
    }
}

/// Packets that have come from each backend by TCP: by the service's address and port.
pub type Replies = HashMap<(IpAddr, u16, SocketAddr), u64>;

/// The counters of all backends. Under dsr they stay 0, as answers do not pass by.
pub fn replies(services: &[ServiceState]) -> Replies {
    let tcp = services.iter().filter(|service| service.key.protocol == Protocol::Tcp);
    let each = |service: &ServiceState| {
        let key = service.key;
        let one = move |(address, replies)| ((key.address, key.port, address), replies);
        let backends = service.backends.iter().map(|b| (b.address, b.traffic.reply_packets));
        backends.map(one).collect::<Vec<_>>()
    };
    tcp.flat_map(each).collect()
}

impl BackendSet {
    /// Ends the keeping of backends whose hosts are gone, or that were silent for too long. What to
    /// say of each; the tables have to follow.
    pub fn tend(&mut self, now: Instant, replies: &Replies) -> Vec<Line> {
        let mut lines = Vec::new();
        for entry in &mut self.services {
            for member in entry.members.iter_mut().filter(|member| member.kept.is_some()) {
                let replies = replies.get(&(entry.address, entry.port, member.endpoint)).copied();
                let Some(why) = member.tend(now, entry.keep_for, entry.forward, replies) else {
                    continue;
                };
                let (service, backend) = (&entry.name, endpoint_text(member.endpoint));
                let text =
                    format!("{service}: backend {backend}: its connections are reset: {why}");
                lines.push(Line { good: false, text, lost_by: member.lost_by.clone() });
            }
        }
        lines
    }
}

impl Member {
    /// Its health has changed. `keep_for`: if it may have connections to keep.
    pub(super) fn settle_keeping(&mut self, keep_for: Option<Duration>, now: Instant) {
        self.kept = match self.health {
            Health::Down if self.host_gone().is_none() => Kept::begin(keep_for, now),
            _ => None,
        };
    }

    /// The part about its connections in a line about its health.
    pub(super) fn kept_told(&self) -> &'static str {
        if self.kept.is_some() { "; established connections, if any, go on" } else { "" }
    }

    /// An earlier daemon has kept it. Where answers do not pass by, its time goes on from when it
    /// went down.
    pub(super) fn restore_keeping(&mut self, forward: Forward, now: Instant, wall: SystemTime) {
        let (Some(kept), Some(since)) = (&mut self.kept, self.since) else { return };
        let age = wall.duration_since(since).unwrap_or_default();
        if let (true, Some(then)) = (forward.is_dsr(), now.checked_sub(age)) {
            kept.silent_since = then;
        }
    }

    /// Why its connections do not go on any more.
    fn tend(
        &mut self,
        now: Instant,
        keep_for: Option<Duration>,
        forward: Forward,
        replies: Option<u64>,
    ) -> Option<String> {
        let kept = self.kept.as_mut()?;
        if replies.is_some() && kept.replies != replies {
            // The first count is what had come before.
            if kept.replies.is_some() {
                kept.silent_since = now;
            }
            kept.replies = replies;
        }
        let silent = now.saturating_duration_since(kept.silent_since);
        let keep_for = keep_for.unwrap_or_default();
        let seconds = keep_for.as_secs();
        let why = self.host_gone().or_else(|| match forward.is_dsr() {
            _ if silent < keep_for => None,
            true => Some(format!("it has been down for {seconds} s (keep_for)")),
            false => Some(format!("nothing came from it for {seconds} s")),
        })?;
        self.kept = None;
        Some(why)
    }

    /// Why there is no such host now, as far as is known.
    fn host_gone(&self) -> Option<String> {
        let asked_itself = self.asked.check.as_ref().is_some_and(|check| check.address.is_none());
        match &self.way {
            Err(
                why @ (NoWay::NoRoute(_) | NoWay::Unresolved { .. } | NoWay::OtherInterface { .. }),
            ) => Some(why.to_string()),
            _ if asked_itself && self.record.host_gone() => {
                Some("the network says that its host is unreachable".into())
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::health::{CheckTarget, Checks};
    use crate::network::next_hop::Hop;
    use crate::testing::{event, gateway, hop};
    use ringway_plan::Health as Planned;
    use tokio::sync::mpsc;

    fn backend_set(more: &str) -> BackendSet {
        let config = gateway("", &format!("check = {{ type = \"tcp\" }}\n{more}"));
        let mut backend_set = BackendSet::new(&config, Instant::now());
        backend_set.take_ways(|_| Ok(hop()));
        backend_set
    }

    /// With a backend that has just gone down.
    fn gone_down(more: &str) -> BackendSet {
        let mut backend_set = backend_set(more);
        take(&mut backend_set, Health::Up);
        take(&mut backend_set, Health::Down);
        backend_set
    }

    fn lost() -> Result<Hop, NoWay> {
        let next_hop = "10.0.0.2".parse().expect("an address");
        Err(NoWay::Unresolved { next_hop, interface: "eth0".into() })
    }

    fn take(backend_set: &mut BackendSet, health: Health) -> String {
        backend_set.take(&event(0, health), Instant::now()).expect("a line")
    }

    fn planned(backend_set: &BackendSet) -> Planned {
        let endpoint = "10.0.0.2:80".parse().expect("an endpoint");
        backend_set.observed(Instant::now()).health("web", endpoint)
    }

    fn counted(packets: u64) -> Replies {
        let key = ("203.0.113.9".parse(), 80, "10.0.0.2:80".parse());
        [((key.0.expect("an address"), key.1, key.2.expect("an endpoint")), packets)].into()
    }

    #[test]
    fn connections_go_on_until_nothing_has_come_for_a_while() {
        let mut backend_set = backend_set("keep_for = \"10s\"");
        take(&mut backend_set, Health::Up);
        let line = take(&mut backend_set, Health::Down);
        let said = "web: backend 10.0.0.2:80 is down; established connections, if any, go on";
        assert_eq!((line.as_str(), planned(&backend_set)), (said, Planned::Kept));
        assert!(backend_set.shown(Instant::now())[0].backends[0].kept);
        let start = Instant::now();
        // (after, packets so far, goes on)
        for (after, packets, goes_on) in
            [(9, 5, true), (18, 6, true), (27, 6, true), (28, 6, false)]
        {
            let lines = backend_set.tend(start + Duration::from_secs(after), &counted(packets));
            assert_eq!(lines.is_empty(), goes_on, "{after}: {lines:?}");
            assert_eq!(planned(&backend_set) == Planned::Kept, goes_on);
            let said = "its connections are reset: nothing came from it for 10 s";
            assert!(lines.iter().all(|line| !line.good && line.text.ends_with(said)), "{lines:?}");
        }
        // It is said once, and what was cut stays so until the backend is up again.
        assert_eq!(backend_set.tend(start, &counted(99)), []);
        assert_eq!(planned(&backend_set), Planned::Down);
        take(&mut backend_set, Health::Up);
        take(&mut backend_set, Health::Down);
        assert_eq!(planned(&backend_set), Planned::Kept);
    }

    /// What it sends does not pass by, so nothing is known of it.
    #[test]
    fn under_dsr_connections_go_on_for_a_while() {
        let mut backend_set =
            gone_down("keep_for = \"10s\"\nforward = \"dsr-l2\"\nannounce = \"arp\"");
        let start = Instant::now();
        assert!(backend_set.tend(start + Duration::from_secs(9), &counted(0)).is_empty());
        let lines = backend_set.tend(start + Duration::from_secs(11), &counted(0));
        let said = "its connections are reset: it has been down for 10 s (keep_for)";
        assert!(lines[0].text.ends_with(said), "{lines:?}");
    }

    /// The gateway's own link is down: with the route, or with the neighbour alone.
    #[test]
    fn without_a_link_or_a_route_nothing_is_kept() {
        let no_route = || Err(NoWay::NoRoute("no route to 10.0.0.2".into()));
        let other = || Err(NoWay::OtherInterface { interface: "mgmt0".into() });
        for gone in [&no_route as &dyn Fn() -> Result<Hop, NoWay>, &other] {
            let mut backend_set = gone_down("");
            assert_eq!(planned(&backend_set), Planned::Kept);
            backend_set.take_ways(|_| gone());
            let lines = backend_set.tend(Instant::now(), &Replies::new());
            assert!(lines[0].text.contains("its connections are reset: "), "{lines:?}");
            assert_eq!(planned(&backend_set), Planned::Down);
        }
    }

    /// As an ICMP message says of a machine behind a router. The kernel says as much of a broadcast
    /// address, without a packet.
    #[tokio::test]
    async fn an_unreachable_host_keeps_nothing() {
        let (mut backend_set, (send, mut receive)) = (gone_down(""), mpsc::channel(8));
        assert!(backend_set.tend(Instant::now(), &Replies::new()).is_empty());
        let target = backend_set.targets(&Default::default()).remove(0);
        let address = "127.255.255.255:80".parse().expect("an address");
        let _checks =
            Checks::start(vec![CheckTarget { address, initial: Health::Up, ..target }], &send);
        let event = receive.recv().await.expect("a result");
        assert_eq!(event.health, Health::Down, "{:?}", event.reason);
        let lines = backend_set.tend(Instant::now(), &Replies::new());
        let said = "its connections are reset: the network says that its host is unreachable";
        assert!(lines[0].text.ends_with(said), "{lines:?}");
        assert_eq!(planned(&backend_set), Planned::Down);
        // Known when it goes down, it is kept not even for a moment.
        take(&mut backend_set, Health::Up);
        assert!(!backend_set.take(&event, Instant::now()).expect("a line").contains("go on"));
    }

    #[test]
    fn a_host_that_is_gone_keeps_nothing() {
        let mut backend_set = gone_down("");
        backend_set.take_ways(|_| lost());
        let lines = backend_set.tend(Instant::now(), &Replies::new());
        assert!(lines[0].text.contains("reset: next hop 10.0.0.2 on eth0 has not"), "{lines:?}");
        assert_eq!(planned(&backend_set), Planned::Down);
        // Nor one that is gone when its checks fail.
        take(&mut backend_set, Health::Up);
        assert_eq!(take(&mut backend_set, Health::Down), "web: backend 10.0.0.2:80 is down");
        assert_eq!(planned(&backend_set), Planned::Down);
    }

    #[test]
    fn those_who_want_resets_have_them() {
        let mut reset = backend_set("on_down = \"reset\"");
        take(&mut reset, Health::Up);
        assert_eq!(take(&mut reset, Health::Down), "web: backend 10.0.0.2:80 is down");
        assert_eq!(planned(&reset), Planned::Down);
        let mut udp = backend_set("protocol = \"udp\"");
        take(&mut udp, Health::Down);
        assert_eq!(planned(&udp), Planned::Down);
    }

    #[test]
    fn a_restart_changes_nothing() {
        let mut backend_set = backend_set("");
        backend_set.inherit(Instant::now(), |_, _| Some(Planned::Kept));
        assert!(backend_set.shown(Instant::now())[0].backends[0].health == Health::Down);
        assert_eq!(planned(&backend_set), Planned::Kept);
        backend_set.inherit(Instant::now(), |_, _| Some(Planned::Down));
        assert_eq!(planned(&backend_set), Planned::Kept, "it is known already");
    }
}
