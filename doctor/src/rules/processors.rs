//! Processors: their softirqs, backlogs and clock.

use crate::facts::Softnet;
use crate::outcome::MACHINE;
use crate::{Facts, Looked, Outcome, Profile, Rule, Severity, Unknown, each};

pub const FLOW_LIMIT: Rule = Rule {
    number: 20,
    name: "flow-limit",
    rule: "where a backlog overflows, flow_limit_cpu_bitmap is set",
    source: "kernel documentation, networking/scaling, RPS flow limit",
    why: "When one flow fills more than half of a backlog, all others lose packets with it.",
    profiles: &[],
    check: flow_limit,
};

const FLOW_LIMIT_CPUS: &str = "net/core/flow_limit_cpu_bitmap";

fn flow_limit(facts: &Facts) -> Looked {
    let softnet = facts.softnet()?;
    let dropped: u64 = softnet.iter().map(|cpu| cpu.dropped.delta).fold(0, u64::saturating_add);
    let bitmap = facts.text(&format!("/proc/sys/{FLOW_LIMIT_CPUS}"))?;
    let off = bitmap.chars().all(|c| matches!(c, '0' | ','));
    if dropped == 0 || !off {
        return Outcome::ok(MACHINE, format!("{dropped} packets found a backlog full")).into();
    }
    let mask = super::steering::cpu_mask(&facts.cpus()?);
    Outcome::info(MACHINE, format!("{dropped} packets found a backlog full, of whichever flow"))
        .saw("/proc/net/softnet_stat, column 2", dropped)
        .sets(facts.set(FLOW_LIMIT_CPUS, mask.as_str())?)
        .into()
}

pub const SOFTNET_BACKLOG: Rule = Rule {
    number: 23,
    name: "softnet-backlog",
    rule: "no packet is dropped at the backlog (column 2 of softnet_stat)",
    source: "kernel documentation, admin-guide/sysctl/net, netdev_max_backlog",
    why: "The processor that a queue, RPS or a veth hands packets to does not keep up, and what comes then is lost.",
    profiles: &[],
    check: softnet_backlog,
};

const BACKLOG: &str = "net/core/netdev_max_backlog";

fn softnet_backlog(facts: &Facts) -> Looked {
    let cpus = facts.softnet()?;
    let lossy: Vec<&Softnet> = cpus.iter().filter(|cpu| cpu.dropped.delta > 0).collect();
    if lossy.is_empty() {
        return Outcome::ok(MACHINE, format!("no drop on {} processors", cpus.len())).into();
    }
    Ok(each(lossy, |cpu| format!("processor {}", cpu.cpu), |cpu| lossy_processor(facts, cpu)))
}

fn lossy_processor(facts: &Facts, cpu: &Softnet) -> Result<Outcome, Unknown> {
    let (dropped, of) = (cpu.dropped.delta, cpu.processed.delta + cpu.dropped.delta);
    let said =
        format!("{dropped} of {of} packets found its backlog full in {:.0} s", facts.seconds);
    let outcome = Outcome::warn(format!("processor {}", cpu.cpu), said)
        .saw("/proc/net/softnet_stat, column 2", dropped);
    // Seen in the first network namespace alone.
    match facts.sysctl(BACKLOG) {
        Ok(now) => Ok(outcome.sets(facts.set(BACKLOG, now * 2)?)),
        Err(_) => Ok(outcome
            .advice("in the machine's first network namespace: raise net.core.netdev_max_backlog")),
    }
}

/// It is polled on later: no packet is lost by that alone.
pub const TIME_SQUEEZE: Rule = Rule {
    number: 24,
    name: "time-squeeze",
    rule: "column 3 of softnet_stat grows by 10 at most; more is no harm while nothing is dropped",
    source: "netdata, alarm 1min_netdev_budget_ran_outs; kernel documentation, admin-guide/sysctl/net, netdev_budget",
    why: "A processor has more to do in softirqs than one round allows; the two limits only work together.",
    profiles: &[],
    check: time_squeeze,
};

const BUDGET: &str = "net/core/netdev_budget";
const MICROSECONDS: &str = "net/core/netdev_budget_usecs";

fn time_squeeze(facts: &Facts) -> Looked {
    let softnet = facts.softnet()?;
    let squeezed: u64 = softnet.iter().map(|cpu| cpu.squeezed.delta).fold(0, u64::saturating_add);
    let dropped: u64 = softnet.iter().map(|cpu| cpu.dropped.delta).fold(0, u64::saturating_add);
    if squeezed <= 10 {
        return Outcome::ok(MACHINE, format!("{squeezed} rounds ended early")).into();
    }
    let severity = if dropped > 0 { Severity::Warn } else { Severity::Info };
    let said =
        format!("{squeezed} rounds ended with packets left over, {dropped} packets were dropped");
    let mut outcome =
        Outcome::new(severity, MACHINE, said).saw("/proc/net/softnet_stat, column 3", squeezed);
    // Seen in the first network namespace alone.
    for key in [BUDGET, MICROSECONDS] {
        if let Ok(now) = facts.sysctl(key) {
            outcome = outcome.sets(facts.set(key, now * 2)?);
        }
    }
    outcome.into()
}

pub const SOFTIRQ_LOAD: Rule = Rule {
    number: 26,
    name: "softirq-load",
    rule: "no processor spends more than 90 % of its time in softirqs",
    source: "heuristic of Ringway",
    why: "It can take no more packets, and programs on it starve, while the load average stays low: softirqs are no \
          processes.",
    profiles: &[],
    check: softirq_load,
};

fn softirq_load(facts: &Facts) -> Looked {
    let busy = facts.busy()?;
    let load = facts.text("/proc/loadavg")?.split(' ').next().unwrap_or_default();
    Ok(each(
        busy,
        |one| format!("processor {}", one.cpu),
        |one| {
            let subject = format!("processor {}", one.cpu);
            if one.softirq <= 90.0 {
                return Ok(Outcome::ok(subject, format!("{:.0} % in softirqs", one.softirq)));
            }
            Ok(Outcome::warn(subject, format!("{:.0} % in softirqs, while the load average is {load}", one.softirq))
            .saw("/proc/stat, softirq", format!("{:.0} %", one.softirq))
            .saw("/proc/loadavg", load)
            .advice("see the checks queue-count, irq-on-first and rps-missing; or do less for each packet"))
        },
    ))
}

pub const CPU_GOVERNOR: Rule = Rule {
    number: 32,
    name: "cpu-governor",
    rule: "the governor of every processor is performance",
    source: "TuneD, profiles network-latency and throughput-performance",
    why: "The first packets of a burst meet a slow processor.",
    profiles: &[Profile::Throughput, Profile::Latency, Profile::Balancer, Profile::Bypass],
    check: cpu_governor,
};

fn cpu_governor(facts: &Facts) -> Looked {
    let mut outcome = Outcome::warn(MACHINE, "processors slow down when there is little to do");
    for cpu in facts.cpus()? {
        let path = format!("/sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_governor");
        // In a virtual machine the host decides.
        let governor = facts.text(&path)?;
        if governor != "performance" {
            outcome = outcome.write(&path, "performance", governor);
        }
    }
    outcome.or_ok("performance everywhere").into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Severity::{self, Info, Unknown, Warn};
    use crate::testing::{healthy, table};

    #[test]
    fn an_overflow_without_a_limit() {
        let line = |dropped: u32| format!("0000000a {dropped:08x} 0 0 0 0 0 0 0 0 0 0 00000000");
        let lossy = healthy().put("/proc/net/softnet_stat", &line(0));
        let lossy = lossy.then("/proc/net/softnet_stat", &line(4));
        assert_eq!(lossy.fixes(&FLOW_LIMIT), ["sysctl -w net.core.flow_limit_cpu_bitmap=f"]);
        let limited = lossy.clone().put(&format!("/proc/sys/{FLOW_LIMIT_CPUS}"), "f");
        table(&FLOW_LIMIT, [(lossy, Info), (limited, Severity::Ok)]);
    }

    const LINE: &str =
        "00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000";

    #[test]
    fn the_processor_is_named_by_its_own_column() {
        let machine = |was: &str, is: &str| {
            let line = |columns: &str| {
                let (packets, dropped) = columns.split_once(' ').unwrap();
                format!(
                    "{packets} {dropped} {} 00000000 00000000 00000000 00000003 00000000 00000000",
                    &LINE[18..]
                )
            };
            let path = "/proc/net/softnet_stat";
            healthy()
                .put("/proc/sys/net/core/netdev_max_backlog", "1000")
                .put(path, &line(was))
                .then(path, &line(is))
        };
        assert_eq!(
            machine("0000000a 00000001", "0000000b 00000001").worst(&SOFTNET_BACKLOG),
            Severity::Ok
        );
        let lossy = machine("0000000a 00000001", "0000000c 00000005");
        let [outcome] = lossy.outcomes(&SOFTNET_BACKLOG).try_into().unwrap();
        assert!(outcome.found.starts_with("4 of 6 packets"), "{outcome:?}");
        assert_eq!((outcome.severity, outcome.subject.as_str()), (Warn, "processor 3"));
        assert_eq!(lossy.fixes(&SOFTNET_BACKLOG), ["sysctl -w net.core.netdev_max_backlog=2000"]);
        assert_eq!(healthy().remove("/proc/net/softnet_stat").worst(&SOFTNET_BACKLOG), Unknown);
    }

    #[test]
    fn noise_unless_something_is_lost() {
        let line = |dropped: u32, squeezed: u32| {
            format!("0000000a {dropped:08x} {squeezed:08x} 0 0 0 0 0 0 0 0 0 00000000")
        };
        let machine = |dropped, squeezed| {
            let path = "/proc/net/softnet_stat";
            healthy().put(path, &line(0, 0)).then(path, &line(dropped, squeezed))
        };
        let both =
            ["sysctl -w net.core.netdev_budget=600", "sysctl -w net.core.netdev_budget_usecs=4000"];
        assert_eq!(machine(1, 11).fixes(&TIME_SQUEEZE), both);
        let rows = [(machine(0, 10), Severity::Ok), (machine(0, 11), Info), (machine(1, 11), Warn)];
        table(&TIME_SQUEEZE, rows);
    }

    #[test]
    fn nine_tenths() {
        let spent = |idle: u32, softirq: u32| {
            let line = |idle, softirq| format!("cpu0 0 0 0 {idle} 0 0 {softirq} 0 0 0");
            healthy().put("/proc/stat", &line(0, 0)).then("/proc/stat", &line(idle, softirq))
        };
        let rows = [(spent(10, 90), Severity::Ok), (spent(9, 91), Warn), (spent(0, 0), Unknown)];
        table(&SOFTIRQ_LOAD, rows);
    }

    #[test]
    fn one_that_saves_power() {
        let path = "/sys/devices/system/cpu/cpu2/cpufreq/scaling_governor";
        let saves = healthy().put(path, "powersave");
        assert_eq!(saves.undos(&CPU_GOVERNOR), [format!("echo powersave > {path}")]);
        table(&CPU_GOVERNOR, [(saves, Warn), (healthy().remove(path), Unknown)]);
    }
}
