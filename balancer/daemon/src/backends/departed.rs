//! Counters of services never go backwards: what was counted for a backend that has left, or whose
//! own counters began anew, stays counted for its service.

use std::collections::HashMap;
use std::net::SocketAddr;

use ringway_api::documents::status::Sums;
use ringway_api::documents::status::{Backend, Service};
use ringway_config::Protocol;

/// Counters of each service, by name and protocol.
#[derive(Debug, Default)]
pub struct Departed {
    services: HashMap<(String, Protocol), Known>,
}

#[derive(Debug, Default)]
struct Known {
    /// Sums of the backends that have left.
    left: Sums,
    /// Last known sums of the current backends.
    here: HashMap<SocketAddr, Sums>,
}

impl Departed {
    /// Takes what is counted now, no older than what it took before, and enters into each service
    /// what those that left had. A backend whose traffic was not found has what it had before.
    pub fn note(&mut self, services: &mut [Service]) {
        let mut known = std::mem::take(&mut self.services);
        for service in services {
            let key = (service.name.clone(), service.protocol);
            let Known { mut left, here: mut before } = known.remove(&key).unwrap_or_default();
            let mut here = HashMap::new();
            for backend in &mut service.backends {
                let place = backend.endpoint();
                let last = before.remove(&place).unwrap_or_default();
                if !backend.is_counted {
                    set_traffic(backend, last.traffic);
                }
                let now = sums_of(backend);
                add_what_began_anew(&mut left, &last, &now);
                here.insert(place, now);
            }
            before.values().for_each(|gone| add_what_began_anew(&mut left, gone, &Sums::default()));
            service.departed = left.clone();
            self.services.insert(key, Known { left, here });
        }
    }
}

fn sums_of(backend: &Backend) -> Sums {
    let Backend { flows, evicted_flows, packets, bytes, reply_packets, reply_bytes, .. } = *backend;
    Sums {
        traffic: [flows, evicted_flows, packets, bytes, reply_packets, reply_bytes],
        checks: [backend.checks_passed, backend.checks_failed],
        durations: backend.check_durations.clone(),
    }
}

/// Adds the counters of `last` that are smaller in `now`.
fn add_what_began_anew(sums: &mut Sums, last: &Sums, now: &Sums) {
    let add = |sum: &mut u64, (last, now): (&u64, &u64)| {
        *sum += if now < last { *last } else { 0 };
    };
    let traffic = last.traffic.iter().zip(&now.traffic);
    sums.traffic.iter_mut().zip(traffic).for_each(|(sum, pair)| add(sum, pair));
    let checks = last.checks.iter().zip(&now.checks);
    sums.checks.iter_mut().zip(checks).for_each(|(sum, pair)| add(sum, pair));
    // Of one mould: all of a histogram begins anew, or nothing.
    if now.durations.sum_us < last.durations.sum_us {
        sums.durations.add(&last.durations);
    }
}

fn set_traffic(backend: &mut Backend, traffic: [u64; 6]) {
    [
        backend.flows,
        backend.evicted_flows,
        backend.packets,
        backend.bytes,
        backend.reply_packets,
        backend.reply_bytes,
    ] = traffic;
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use ringway_api::documents::durations::Counted;
    use ringway_config::Forward;
    use ringway_plan::tables::ServiceKey;

    use super::*;

    const A: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2)), 80);
    const B: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 3)), 80);

    fn backend(endpoint: SocketAddr, packets: u64, passed: u64) -> Backend {
        Backend {
            is_counted: true,
            packets,
            checks_passed: passed,
            check_durations: Counted { sum_us: passed * 10, ..Counted::default() },
            ..Backend::new(endpoint)
        }
    }

    /// Totals of the service: packets, checks that passed, microseconds of checks.
    fn sums(departed: &mut Departed, backends: Vec<Backend>) -> (u64, u64, u64) {
        let key = ServiceKey::new(A.ip(), 80, Protocol::Tcp);
        let mut all = [Service { backends, ..Service::new("web", key, Forward::Nat) }];
        departed.note(&mut all);
        let [service] = &all;
        let of = |value: fn(&Backend) -> u64| service.backends.iter().map(value).sum::<u64>();
        let Sums { traffic, checks, durations } = &service.departed;
        (
            of(|b| b.packets) + traffic[2],
            of(|b| b.checks_passed) + checks[0],
            of(|b| b.check_durations.sum_us) + durations.sum_us,
        )
    }

    #[test]
    fn nothing_goes_backwards() {
        let mut departed = Departed::default();
        let both = || vec![backend(A, 100, 5), backend(B, 50, 3)];
        assert_eq!(sums(&mut departed, both()), (150, 8, 80));
        assert_eq!(sums(&mut departed, vec![backend(A, 110, 6)]), (160, 9, 90), "b has left");
        // It comes back as a new one.
        let back = || vec![backend(A, 110, 6), backend(B, 1, 1)];
        assert_eq!(sums(&mut departed, back()), (161, 10, 100));
        assert_eq!(sums(&mut departed, back()), (161, 10, 100), "nothing is added twice");
        // Its own counters begin anew.
        let anew = vec![backend(A, 2, 6), backend(B, 1, 0)];
        assert_eq!(sums(&mut departed, anew), (163, 10, 100));
        // The tables have no row of it for a moment.
        let unseen = Backend { is_counted: false, ..backend(A, 0, 6) };
        assert_eq!(sums(&mut departed, vec![unseen, backend(B, 1, 0)]), (163, 10, 100));
        assert_eq!(sums(&mut departed, vec![backend(A, 3, 6), backend(B, 1, 0)]).0, 164);
    }
}
