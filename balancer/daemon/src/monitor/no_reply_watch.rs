//! Requests that go out while nothing comes back: everything looks healthy, and nobody is served.
//! Pure: fed with the kernel's counters every few seconds.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use ringway_api::documents::status::Problem;
use ringway_api::problem_kind::ProblemKind;
use ringway_host::Fix;
use ringway_kernel::ServiceState;
use ringway_plan::tables::{Protocol, ServiceKey};

/// How often the counters are to be noted.
pub const PERIOD: Duration = Duration::from_secs(2);
/// Flows and replies of the last while count.
const WINDOW: Duration = Duration::from_secs(10);
/// Fewer flows without a reply may be chance.
const FLOWS: u64 = 3;
/// A silence stays a problem this long after the last flow that met it.
const HOLD: Duration = Duration::from_secs(60);
/// One good checksum in 65536 looks like an unfinished one: so many, and one connection in so many,
/// are none by chance.
const UNFINISHED: u64 = 3;
const ONE_IN: u64 = 1000;

/// Counters of one TCP service since it was loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Flows begun.
    pub flows: u64,
    /// Client to backend.
    pub packets: u64,
    /// Backend to client; `None` where answers do not pass by (dsr), so that silence means nothing.
    pub replies: Option<u64>,
    /// SYNs whose checksum the sender left unfinished.
    pub partial_checksums: u64,
}

/// TCP services by key, with their names. A UDP service may well be one that never answers.
pub type Sample = HashMap<ServiceKey, (String, Traffic)>;

/// The counters of all TCP services.
pub fn sample(services: &[ServiceState]) -> Sample {
    let tcp = services.iter().filter(|service| service.key.protocol == Protocol::Tcp);
    tcp.map(|service| (service.key, (service.name.clone(), traffic(service)))).collect()
}

fn traffic(service: &ServiceState) -> Traffic {
    let replies = (!service.forward.is_dsr()).then_some(0);
    let none = Traffic { replies, ..Traffic::default() };
    service.backends.iter().fold(none, |sum, backend| Traffic {
        flows: sum.flows + backend.traffic.flows,
        packets: sum.packets + backend.traffic.packets,
        replies: sum.replies.map(|replies| replies + backend.traffic.reply_packets),
        partial_checksums: sum.partial_checksums + backend.traffic.partial_checksums,
    })
}

/// Recent samples of every service.
#[derive(Debug, Default)]
pub struct NoReplyWatch {
    services: HashMap<ServiceKey, Memory>,
}

#[derive(Debug, Default)]
struct Memory {
    name: String,
    noted: VecDeque<(Instant, Traffic)>,
    silent: Option<Silent>,
    unfinished: Option<Unfinished>,
}

/// Connections that began with an unfinished checksum.
#[derive(Clone, Copy, Debug)]
struct Unfinished {
    seen: Instant,
    connections: u64,
    of: u64,
}

/// A silence that was noticed.
#[derive(Clone, Copy, Debug)]
struct Silent {
    seen: Instant,
    flows: u64,
    packets: u64,
}

impl NoReplyWatch {
    /// Takes the counters as they are now.
    pub fn note(&mut self, now: Instant, sample: Sample) {
        self.services.retain(|key, _| sample.contains_key(key));
        for (key, (name, traffic)) in sample {
            let memory = self.services.entry(key).or_default();
            memory.name = name;
            memory.note(now, traffic);
        }
    }

    /// A backend of the service has come or gone: what was silent before says nothing any more.
    pub fn forget(&mut self, service: &str) {
        for memory in self.services.values_mut().filter(|memory| memory.name == service) {
            memory.noted.clear();
            memory.silent = None;
        }
    }

    /// The services that get no replies.
    pub fn problems(&self) -> Vec<Problem> {
        let mut silent: Vec<_> = self
            .services
            .values()
            .filter_map(|memory| Some((&memory.name, memory.silent?)))
            .collect();
        silent.sort_by_key(|(name, _)| *name);
        silent.into_iter().map(|(name, silent)| problem(name, silent)).collect()
    }

    /// Senders that leave checksums to a card, by an interface where the packet path expects none:
    /// it finishes those of veth and tap devices, and in generic mode.
    pub fn findings(&self) -> Vec<Problem> {
        let met: Vec<_> = self
            .services
            .values()
            .filter_map(|memory| Some((memory.name.as_str(), memory.unfinished?)))
            .collect();
        let Some((_, last)) = met.iter().max_by_key(|(_, one)| one.seen) else { return Vec::new() };
        let mut names: Vec<&str> = met.iter().map(|(name, _)| *name).collect();
        names.sort_unstable();
        names.dedup();
        let Unfinished { connections, of, .. } = last;
        vec![ProblemKind::UnfinishedChecksum.problem(
            format!(
                "unfinished checksums: of {of} connections within {} s {connections} began with one (service {}): \
                 Ringway finishes those of veth and tap devices only, the backends drop the others",
                WINDOW.as_secs(),
                names.join(", ")
            ),
            "where they are sent (inside the container, namespace or virtual machine): \
             ethtool -K IFACE tx off; or write xdp_mode = \"generic\" under [node]",
        )]
    }
}

impl Memory {
    fn note(&mut self, now: Instant, traffic: Traffic) {
        while self.noted.front().is_some_and(|(at, _)| now - *at > WINDOW) {
            self.noted.pop_front();
        }
        // A backend that was removed takes its numbers with it.
        if self.noted.back().is_some_and(|(_, last)| last.flows > traffic.flows) {
            self.noted.clear();
        }
        self.judge(now, traffic);
        self.noted.push_back((now, traffic));
    }

    fn judge(&mut self, now: Instant, traffic: Traffic) {
        let (Some((_, first)), Some((_, last))) = (self.noted.front(), self.noted.back()) else {
            return;
        };
        self.unfinished = self.unfinished.filter(|one| now - one.seen <= HOLD);
        let connections = traffic.partial_checksums.saturating_sub(first.partial_checksums);
        let of = traffic.flows.saturating_sub(first.flows);
        if connections >= UNFINISHED && connections * ONE_IN >= of {
            self.unfinished = Some(Unfinished { seen: now, connections, of });
        }
        // Flows of the last moment may get their replies yet: those up to the note before count.
        let flows = last.flows.saturating_sub(first.flows);
        if traffic.replies.is_none() || traffic.replies != last.replies {
            self.silent = None;
        } else if traffic.replies == first.replies && flows >= FLOWS {
            let packets = traffic.packets.saturating_sub(first.packets);
            self.silent = Some(Silent { seen: now, flows, packets });
        } else if self.silent.is_some_and(|silent| now - silent.seen > HOLD) {
            self.silent = None;
        }
    }
}

fn problem(service: &str, silent: Silent) -> Problem {
    ProblemKind::NoReplies.of_service(
        service,
        format!(
            "service {service}: requests are forwarded, but no backend replies: {} flows, {} packets, 0 replies",
            silent.flows, silent.packets
        ),
        Fix::Sequence(vec![
            Fix::command(["ringway", "check", "--host"]),
            Fix::ethtool("-K", "IFACE", "gro on")
                .after("usual causes: the far end of a veth pair without GRO, there:"),
            "backends without a way back to the nat address, a firewall, nobody listening".into(),
        ]),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::service_state;
    use ringway_config::Forward;

    /// Notes one service's (flows, replies) every two seconds; whether it is silent after each.
    fn play(silence: &mut NoReplyWatch, start: Instant, steps: &[(u64, u64)]) -> Vec<bool> {
        let steps: Vec<_> = steps.iter().map(|(flows, replies)| (*flows, Some(*replies))).collect();
        play_any(silence, start, &steps)
    }

    fn play_any(
        silence: &mut NoReplyWatch,
        start: Instant,
        steps: &[(u64, Option<u64>)],
    ) -> Vec<bool> {
        let address = "203.0.113.9".parse().expect("address");
        let key = ServiceKey::new(address, 80, Protocol::Tcp);
        let mut now = start;
        let mut one = |(flows, replies): &(u64, Option<u64>)| {
            let traffic = Traffic {
                flows: *flows,
                packets: 3 * flows,
                replies: *replies,
                ..Traffic::default()
            };
            silence.note(now, HashMap::from([(key, ("web".to_owned(), traffic))]));
            now += PERIOD;
            !silence.problems().is_empty()
        };
        steps.iter().map(&mut one).collect()
    }

    #[test]
    fn flows_without_a_reply_are_a_problem_until_one_comes() {
        let mut silence = NoReplyWatch::default();
        let steps = [(7, 9), (12, 9), (12, 9), (13, 9), (14, 20), (18, 24)];
        let start = Instant::now();
        assert_eq!(play(&mut silence, start, &steps), [false, false, true, true, false, false]);
        let text = play(&mut silence, start + HOLD, &[(20, 24), (25, 24), (25, 24)]);
        assert!(text[2], "{silence:?}");
        let words = "5 flows, 15 packets, 0 replies";
        assert!(silence.problems()[0].error.contains(words), "{silence:?}");
    }

    #[test]
    fn nothing_is_said_of_idle_answered_and_hardly_used_services() {
        for steps in
            [[(5, 5); 4], [(0, 0), (5, 5), (9, 9), (20, 20)], [(0, 0), (2, 0), (2, 0), (2, 0)]]
        {
            let silent = play(&mut NoReplyWatch::default(), Instant::now(), &steps);
            assert_eq!(silent, [false; 4], "{steps:?}");
        }
    }

    /// Notes (flows, of these with an unfinished checksum) of one service every two seconds.
    fn unfinished(steps: &[(u64, u64)]) -> Vec<Problem> {
        let address = "203.0.113.9".parse().expect("address");
        let key = ServiceKey::new(address, 80, Protocol::Tcp);
        let (mut silence, mut now) = (NoReplyWatch::default(), Instant::now());
        for (flows, partial_checksums) in steps.iter().copied() {
            let traffic = Traffic { flows, partial_checksums, ..Traffic::default() };
            silence.note(now, HashMap::from([(key, ("web".to_owned(), traffic))]));
            now += PERIOD;
        }
        silence.findings()
    }

    #[test]
    fn unfinished_checksums_are_told_when_they_are_none_by_chance() {
        assert!(unfinished(&[(0, 0), (5, 2)]).is_empty(), "two");
        assert!(unfinished(&[(0, 0), (9000, 8)]).is_empty(), "chance");
        let told = unfinished(&[(0, 0), (5, 3)]);
        assert!(told[0].error.contains("of 5 connections within 10 s 3 began"), "{told:?}");
        assert!(told[0].error.contains("(service web)"), "{told:?}");
        let mut steps = vec![(0, 0)];
        steps.resize(32, (5, 5));
        assert_eq!(unfinished(&steps).len(), 1, "held for a minute");
        steps.resize(40, (5, 5));
        assert!(unfinished(&steps).is_empty(), "and no longer");
    }

    #[test]
    fn answers_that_pass_by_elsewhere_are_not_missed() {
        let replies =
            |forward| traffic(&ServiceState { forward, ..service_state(0, "web", 80) }).replies;
        assert_eq!((replies(Forward::Nat), replies(Forward::DsrGue)), (Some(0), None));
        let steps = [(0, None), (5, None), (50, None), (90, None)];
        let silent = play_any(&mut NoReplyWatch::default(), Instant::now(), &steps);
        assert_eq!(silent, [false; 4]);
    }

    #[test]
    fn a_silence_ends_with_a_change_or_after_a_minute() {
        let mut silence = NoReplyWatch::default();
        let start = Instant::now();
        let met = [(0, 0), (5, 0), (5, 0)];
        assert!(play(&mut silence, start, &met)[2]);
        silence.forget("web");
        assert!(silence.problems().is_empty());
        assert!(play(&mut silence, start + PERIOD, &met)[2]);
        assert!(play(&mut silence, start + 10 * PERIOD, &[(5, 0)])[0], "held for a while");
        assert!(!play(&mut silence, start + 60 * PERIOD, &[(5, 0), (5, 0)])[1]);
    }
}
