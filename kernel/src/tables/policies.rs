//! Rows of services with limits.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ringway_abi::raw::{
    RW_BUDGET_DESTINATION, RW_BUDGET_NEW_FLOWS, RW_BUDGET_PACKETS, RW_COARSE_SHIFT, RW_FINE_SHIFT,
    RW_LEARN_TCP, RW_LEARN_UDP, RW_MAX_SERVICES, RW_OFFER_ECN, RW_OFFER_SACK, RW_OFFER_SCALE,
    RW_OFFER_STAMPS, RW_SYN_ALWAYS, RW_SYN_BACKEND, RW_SYN_CHALLENGE, RW_SYN_FORWARDED,
    RW_SYN_PROXY, rw_clock, rw_limits, rw_shared_rate, rw_shield_policy, rw_single_rate,
    rw_syn_offer,
};
use ringway_plan::tables::{
    Limits, RateLimit, ServicePolicy, ServiceRow, SynAnswer, SynOffer, SynPolicy,
};

use crate::Result;
use crate::load::possible_cpus;
use crate::sources::clock::Clock;

/// At most so many packets does a CPU take from a budget at once.
const LARGEST_BATCH: u32 = 64;
/// What CPUs let through of a source, without asking its budget, is this part of its rate at most.
const UNASKED_PART: u32 = 4;

/// The rows of those that have limits, by id.
pub(crate) fn policies(
    services: &[ServiceRow],
    clock: &Clock,
) -> Result<BTreeMap<u32, rw_shield_policy>> {
    if services.iter().all(|service| service.policy.is_none()) {
        return Ok(BTreeMap::new());
    }
    let makes = RateMaker { ticks: clock.ticks()?, cpus: possible_cpus()? };
    let mut first: BTreeMap<IpAddr, u32> = BTreeMap::new();
    for service in services {
        first.entry(service.key.address).or_insert(service.id.into());
    }
    let row = |service: &ServiceRow| {
        let policy = service.policy.as_ref()?;
        let id = u32::from(service.id);
        let destination = first.get(&service.key.address).copied().unwrap_or(id);
        Some((id, makes.policy(policy, id, destination)))
    };
    Ok(services.iter().filter_map(row).collect())
}

fn syn(SynPolicy { answer, always, .. }: SynPolicy) -> u32 {
    let answer = match answer {
        SynAnswer::Forward => return RW_SYN_FORWARDED,
        SynAnswer::Challenge => RW_SYN_CHALLENGE,
        SynAnswer::Proxy => RW_SYN_PROXY,
        SynAnswer::Backend => RW_SYN_BACKEND,
    };
    if always { answer | RW_SYN_ALWAYS } else { answer }
}

/// The window before the backend itself tells one: of what every system takes at once (RFC 6928).
const FIRST_WINDOW: u16 = 14_600;

/// Windows are scaled towards the client, whether the backend does so or not.
fn offer(SynPolicy { answer, offer, .. }: SynPolicy) -> rw_syn_offer {
    let option = |offered: bool, option: u32| if offered { option } else { 0 };
    let options = RW_OFFER_SCALE
        | option(offer.sack, RW_OFFER_SACK)
        | option(offer.stamps, RW_OFFER_STAMPS)
        | option(offer.ecn, RW_OFFER_ECN);
    rw_syn_offer {
        mss: offer.mss,
        options: options as u8,
        window: if answer == SynAnswer::Backend { FIRST_WINDOW } else { 0 },
        ..Default::default()
    }
}

/// [`syn`] and [`offer`] backwards.
pub(crate) fn syn_policy(row: &rw_shield_policy) -> SynPolicy {
    let answer = match row.syn & !RW_SYN_ALWAYS {
        RW_SYN_CHALLENGE => SynAnswer::Challenge,
        RW_SYN_PROXY => SynAnswer::Proxy,
        RW_SYN_BACKEND => SynAnswer::Backend,
        _ => SynAnswer::Forward,
    };
    let has = |option: u32| u32::from(row.offer.options) & option != 0;
    let offer = SynOffer {
        mss: row.offer.mss,
        stamps: has(RW_OFFER_STAMPS),
        sack: has(RW_OFFER_SACK),
        ecn: has(RW_OFFER_ECN),
    };
    SynPolicy { answer, always: row.syn & RW_SYN_ALWAYS != 0, offer }
}

struct RateMaker {
    ticks: rw_clock,
    cpus: u32,
}

impl RateMaker {
    fn policy(&self, policy: &ServicePolicy, service: u32, destination: u32) -> rw_shield_policy {
        let (v4, v6) = policy.source_prefix;
        let udp = if policy.learns_udp { RW_LEARN_UDP } else { 0 };
        let v6 = u128::MAX.checked_shl(128 - u32::from(v6)).unwrap_or(0).to_be_bytes();
        let words = [0, 4, 8, 12].map(|at| [v6[at], v6[at + 1], v6[at + 2], v6[at + 3]]);
        rw_shield_policy {
            always: self.limits(&policy.limits, service, destination),
            armed: self.limits(&policy.armed, service, destination),
            flow: self.single(policy.flow),
            learnt: self.single(policy.learnt),
            mode: policy.mode as u32,
            learns: if policy.learns { RW_LEARN_TCP | udp } else { 0 },
            prefix: words.map(u32::from_ne_bytes),
            prefix4: u32::MAX.checked_shl(32 - u32::from(v4)).unwrap_or(0).to_be(),
            syn: syn(policy.syn),
            offer: offer(policy.syn),
        }
    }

    fn limits(&self, limits: &Limits, service: u32, destination: u32) -> rw_limits {
        let shared = |limit: Option<RateLimit>, kind: u32, id: u32| {
            limit.map_or_else(rw_shared_rate::default, |limit| {
                self.shared(limit, kind * RW_MAX_SERVICES + id)
            })
        };
        let source = limits.source;
        rw_limits {
            packets: shared(limits.packets, RW_BUDGET_PACKETS, service),
            new_flows: shared(limits.new_flows, RW_BUDGET_NEW_FLOWS, service),
            destination: shared(limits.destination, RW_BUDGET_DESTINATION, destination),
            source: source.map_or_else(rw_single_rate::default, |limit| self.single(limit)),
            unasked: source.map_or(0, |it| it.packets_per_second / UNASKED_PART / self.cpus),
            pad: 0,
        }
    }

    fn shared(&self, limit: RateLimit, budget: u32) -> rw_shared_rate {
        let (gap, window) = fine(limit, self.ticks);
        let batch = (limit.burst / 4 / self.cpus).clamp(1, LARGEST_BATCH);
        rw_shared_rate { gap, window, batch, budget }
    }

    /// Rounded so that the rate is not exceeded.
    fn single(&self, limit: RateLimit) -> rw_single_rate {
        let gap = (1u32 << RW_COARSE_SHIFT).div_ceil(limit.packets_per_second.max(1));
        let tick = (self.ticks.per_tick >> (RW_FINE_SHIFT - RW_COARSE_SHIFT)) as u32;
        let window = gap.saturating_mul(limit.burst).clamp(gap + tick, 1 << 29);
        rw_single_rate { gap, window }
    }
}

/// Between two packets, and ahead of time, on the fine clock; at least what a tick of the kernel's
/// clock lets through.
pub(crate) fn fine(limit: RateLimit, ticks: rw_clock) -> (u64, u64) {
    let gap = (1u64 << RW_FINE_SHIFT) / u64::from(limit.packets_per_second.max(1));
    let most = 1 << 62;
    let window = gap.saturating_mul(limit.burst.into()).min(most);
    (gap, window.max(gap + ticks.per_tick))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TICKS: rw_clock = rw_clock { per_tick: (1 << RW_FINE_SHIFT) / 250, base: 0 };

    fn limit(packets_per_second: u32, burst: u32) -> RateLimit {
        RateLimit { packets_per_second, burst }
    }

    #[test]
    fn a_budget_lets_a_tick_through() {
        let (gap, window) = fine(limit(1_000, 100), TICKS);
        assert_eq!((gap, window / gap), ((1 << RW_FINE_SHIFT) / 1_000, 100));
        let (gap, window) = fine(limit(1_000_000, 1), TICKS);
        assert!(window / gap >= 4_000, "{gap} {window}");
        let (gap, window) = fine(limit(1, u32::MAX), TICKS);
        assert!(window <= 1 << 62 && gap == 1 << RW_FINE_SHIFT);
    }

    #[test]
    fn a_single_rate_is_not_exceeded() {
        let makes = RateMaker { ticks: TICKS, cpus: 4 };
        for rate in [1, 7, 999, 10_000, 123_456, 1_000_000] {
            let single = makes.single(limit(rate, rate / 10 + 1));
            assert!(u64::from(single.gap) * u64::from(rate) >= 1 << RW_COARSE_SHIFT, "{rate}");
            // The clock's signed differences hold twice the window.
            assert!(2 * u64::from(single.window) + u64::from(single.gap) < 1 << 31, "{rate}");
            assert!(single.window > single.gap);
        }
    }

    #[test]
    fn a_batch_is_a_small_part_of_the_burst() {
        let makes = RateMaker { ticks: TICKS, cpus: 4 };
        for burst in [1, 15, 16, 100, 1_000_000] {
            let rate = makes.shared(limit(10_000, burst), 7);
            assert!(rate.batch >= 1 && u64::from(rate.batch) * rate.gap <= rate.window, "{burst}");
            assert!(rate.batch * 4 * 4 <= burst.max(16), "{burst}");
        }
    }

    #[test]
    fn answers_are_read_as_they_were_written() {
        let answers =
            [SynAnswer::Forward, SynAnswer::Challenge, SynAnswer::Proxy, SynAnswer::Backend];
        for (bits, answer) in (0u16..).zip(answers) {
            let [stamps, sack, ecn] = [0, 1, 2].map(|bit| bits & 1 << bit == 0);
            let offer = SynOffer { mss: 1000 + bits, stamps, sack, ecn };
            let policy = SynPolicy { answer, always: answer != SynAnswer::Forward, offer };
            let row = rw_shield_policy {
                syn: syn(policy),
                offer: super::offer(policy),
                ..Default::default()
            };
            assert_eq!(syn_policy(&row), policy);
        }
    }

    #[test]
    fn masks_are_as_addresses_on_the_wire() {
        let policy = ServicePolicy {
            mode: ringway_abi::ShieldMode::Enforce,
            limits: Limits::default(),
            armed: Limits::default(),
            flow: limit(1, 1),
            learnt: limit(1, 1),
            learns: true,
            learns_udp: true,
            syn: SynPolicy::default(),
            source_prefix: (24, 56),
        };
        let makes = RateMaker { ticks: TICKS, cpus: 1 };
        let row = makes.policy(&policy, 0, 0);
        assert_eq!(row.prefix4.to_ne_bytes(), [255, 255, 255, 0]);
        assert_eq!(row.prefix[1].to_ne_bytes(), [255, 255, 255, 0]);
        assert_eq!((row.prefix[0], row.prefix[2]), (u32::MAX, 0));
        let all = ServicePolicy { source_prefix: (32, 128), ..policy };
        let row = makes.policy(&all, 0, 0);
        assert_eq!((row.prefix4, row.prefix), (u32::MAX, [u32::MAX; 4]));
    }
}
