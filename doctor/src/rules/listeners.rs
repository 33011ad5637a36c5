//! What rules about listening sockets share: what bounds their queues, and so what mends one that is too small.

use std::net::SocketAddr;

use ringway_host::netlink::sockets::Listener;

use crate::{Facts, Outcome, Unknown};

const KEY: &str = "net/core/somaxconn";
/// What the kernel starts with.
const DEFAULT: i64 = 4096;
/// Sockets that a finding names.
const NAMED: usize = 8;

/// Nine tenths of its accept queue are in use. One of a backlog of 1 is no sign of anything.
pub fn nearly_full(listener: &&Listener) -> bool {
    listener.waiting > 1 && u64::from(listener.waiting) * 10 >= u64::from(listener.limit) * 9
}

/// Those whose queue it was, as far as one can see: nearly full ones, else those where somebody waits, else the smallest.
pub fn suspects(all: &[Listener]) -> Vec<&Listener> {
    let those = |wanted: &dyn Fn(&&Listener) -> bool| all.iter().filter(wanted).collect::<Vec<_>>();
    let least = all.iter().map(|one| one.limit).min();
    let groups = [
        those(&nearly_full),
        those(&|one| one.waiting > 0),
        those(&|one| Some(one.limit) == least),
    ];
    groups.into_iter().find(|group| !group.is_empty()).unwrap_or_default()
}

/// Names them, and says what bounds their queues: the lesser of what the program asked for and net.core.somaxconn, at
/// listen(2). `ss -ltn` shows it as Send-Q.
pub fn with_remedy(
    facts: &Facts,
    mut outcome: Outcome,
    suspects: &[&Listener],
) -> Result<Outcome, Unknown> {
    let most = facts.sysctl(KEY)?;
    for Listener { address, port, waiting, limit } in suspects.iter().take(NAMED) {
        let socket = SocketAddr::new(*address, *port);
        let whose = if i64::from(*limit) < most {
            "below net.core.somaxconn"
        } else {
            "no less than net.core.somaxconn"
        };
        outcome = outcome.saw(
            format!("ss -ltn, Recv-Q of Send-Q of {socket}"),
            format!("{waiting} of {limit} ({whose})"),
        );
    }
    if suspects.len() > NAMED {
        outcome = outcome.saw("ss -ltn, more of them", suspects.len() - NAMED);
    }
    let outcome = outcome.saw(format!("/proc/sys/{KEY}"), most);
    let own = suspects.iter().filter(|one| i64::from(one.limit) < most).count();
    if suspects.is_empty() {
        return Ok(outcome
            .advice("nobody listens any more: `ss -ltn` shows who it was while it goes wrong"));
    }
    if own == suspects.len() {
        return Ok(outcome.advice(format!(
            "accept faster, or have the program ask for a larger backlog in listen(2) and start it again: its own is \
             the limit here, net.core.somaxconn ({most}) allows more (now, if not when it began to listen)"
        )));
    }
    if most >= DEFAULT {
        return Ok(outcome.advice("accept faster: more threads or processes that call accept(2); the queue is long enough"));
    }
    let mut advice = "then start the programs again: what counts is the limit when one begins to listen, and that it asks \
                      for as much in listen(2)"
        .to_owned();
    if own > 0 {
        advice += "; those with a backlog of their own have to ask for more";
    }
    advice += "; a longer queue helps with bursts alone: else accept faster";
    Ok(outcome.change(facts.set(KEY, DEFAULT)?).advice(advice))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Machine;

    fn listener(port: u16, waiting: u32, limit: u32) -> Listener {
        Listener { address: [10, 0, 0, 1].into(), port, waiting, limit }
    }

    #[test]
    fn the_lesser_of_two_limits() {
        let machine = Machine::healthy().put("/proc/sys/net/core/somaxconn", "128");
        let outcome = |limits: &[u32]| {
            let all: Vec<Listener> = limits.iter().map(|limit| listener(80, 9, *limit)).collect();
            let all: Vec<&Listener> = all.iter().collect();
            with_remedy(&machine.facts(), Outcome::warn("", ""), &all).unwrap()
        };
        // The program asked for no more than that.
        assert!(outcome(&[5, 127]).changes.is_empty() && outcome(&[]).changes.is_empty());
        assert!(outcome(&[5]).advice.unwrap().contains("its own is the limit"));
        assert_eq!(
            outcome(&[5, 128]).changes[0].fix.to_string(),
            "sysctl -w net.core.somaxconn=4096"
        );
        assert!(outcome(&[5; 20]).evidence.iter().any(|one| one.value == "12"));
    }

    #[test]
    fn whose_queue_it_was() {
        let all =
            [listener(1, 0, 4096), listener(2, 0, 5), listener(3, 1, 100), listener(4, 90, 100)];
        let ports = |all: &[Listener]| suspects(all).iter().map(|l| l.port).collect::<Vec<_>>();
        assert_eq!((ports(&all), ports(&all[..3]), ports(&all[..2])), (vec![4], vec![3], vec![2]));
        assert!(ports(&[]).is_empty());
    }
}
