//! Processors: how busy they are, and which interrupts they get.

use super::{Facts, MOST, strange};
use crate::{Outcome, Unknown};

/// How a processor spent the time between the samples, in percent.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Busy {
    pub cpu: u32,
    pub softirq: f64,
}

/// An interrupt line of a queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Irq {
    pub number: u32,
    /// The driver's name for it.
    pub name: String,
    /// How often it came between the samples, on whichever processor.
    pub delta: u64,
    /// The processors where it may come.
    pub cpus: Vec<u32>,
}

impl Facts {
    /// Processors that are at work.
    pub fn cpus(&self) -> Result<Vec<u32>, Unknown> {
        let path = "/sys/devices/system/cpu/online";
        let text = self.text(path)?;
        cpu_list(text).ok_or_else(|| strange(path, text))
    }

    pub fn busy(&self) -> Result<Vec<Busy>, Unknown> {
        let path = "/proc/stat";
        let (before, after) = self.texts(path)?;
        let (before, after) = (times(before), times(after));
        let mut found = Vec::new();
        for (cpu, now) in after {
            let Some((_, was)) = before.iter().find(|(was, _)| *was == cpu) else { continue };
            let delta = |at: usize| now[at].saturating_sub(was[at]);
            let all: u64 = (0..8).map(delta).fold(0, u64::saturating_add);
            if all > 0 {
                // user, nice, system, idle, iowait, irq, softirq, steal.
                found.push(Busy { cpu, softirq: delta(6) as f64 * 100.0 / all as f64 });
            }
        }
        let none = || Unknown(format!("{path}: the samples are too close together"));
        if found.is_empty() { Err(none()) } else { Ok(found) }
    }

    /// Interrupts of an interface's queues: those that carry its name, or belong to its device and
    /// receive.
    pub fn irqs(&self, interface: &str) -> Result<Vec<Irq>, Unknown> {
        let (before, after) = self.texts("/proc/interrupts")?;
        let own =
            self.list(&format!("/sys/class/net/{interface}/device/msi_irqs")).unwrap_or_default();
        let of_queue = |number: u32, name: &str| {
            let named = name.split(['-', '@', ':', '.']).any(|part| part == interface);
            let receives = ["input", "rx", "Rx", "comp"].iter().any(|word| name.contains(word));
            named && name != interface || own.contains(&number.to_string()) && receives
        };
        let lines =
            after.lines().filter_map(irq).filter(|(number, name, _)| of_queue(*number, name));
        let found = lines.map(|(number, name, total)| {
            let was = before.lines().filter_map(irq).find(|(n, ..)| *n == number);
            let delta = total.saturating_sub(was.map_or(total, |(.., was)| was));
            // The second file tells where it really comes; some lack it.
            let where_to =
                |which: &str| self.text(&format!("/proc/irq/{number}/{which}_affinity_list"));
            let list = where_to("effective").ok().filter(|list| !list.is_empty());
            let list = list.map_or_else(|| where_to("smp"), Ok)?;
            let cpus = cpu_list(list).ok_or_else(|| strange("smp_affinity_list", list))?;
            Ok(Irq { number, name: name.to_owned(), delta, cpus })
        });
        let none = || Unknown(format!("/proc/interrupts: no line is known to be of {interface}"));
        match found.collect::<Result<Vec<Irq>, Unknown>>()? {
            irqs if irqs.is_empty() => Err(none()),
            irqs => Ok(irqs),
        }
    }

    /// The outcome, with moving an interrupt to these processors (`2`, `0-3,8`) as its fix.
    pub fn moved(&self, outcome: Outcome, irq: u32, to: &str) -> Result<Outcome, Unknown> {
        let path = format!("/proc/irq/{irq}/smp_affinity_list");
        let now = self.text(&path)?;
        Ok(outcome.write(&path, to, now).advice(
            "read it back afterwards: some drivers refuse in silence, irqbalance changes it again",
        ))
    }
}

/// Lines `cpuN` of /proc/stat.
fn times(text: &str) -> Vec<(u32, Vec<u64>)> {
    let line = |line: &str| {
        let mut words = line.strip_prefix("cpu")?.split_ascii_whitespace();
        let cpu = words.next().filter(|_| !line.starts_with("cpu "))?.parse().ok()?;
        let times: Vec<u64> = words.map_while(|word| word.parse().ok()).collect();
        (times.len() >= 8).then_some((cpu, times))
    };
    text.lines().filter_map(line).collect()
}

/// ` 40:   1   2  PCI-MSIX-0000:01:00.0 0-edge   eth0-TxRx-0`
fn irq(line: &str) -> Option<(u32, &str, u64)> {
    let (number, rest) = line.split_once(':')?;
    let counts = rest.split_ascii_whitespace().map_while(|word| word.parse::<u64>().ok());
    Some((
        number.trim().parse().ok()?,
        rest.split_ascii_whitespace().last()?,
        counts.fold(0, u64::saturating_add).min(MOST as u64),
    ))
}

/// More than any kernel is built for: a file that was damaged is not to cost memory.
const MOST_CPUS: u32 = 65_536;

/// `0-3,8`
pub fn cpu_list(text: &str) -> Option<Vec<u32>> {
    let mut all = Vec::new();
    for part in text.trim().split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let last = last.parse().ok().filter(|last| *last < MOST_CPUS)?;
        all.extend(first.parse::<u32>().ok()?..=last);
    }
    (all.len() <= MOST_CPUS as usize).then_some(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::healthy;

    #[test]
    fn lists_and_lines() {
        assert_eq!(cpu_list("0-2,8"), Some(vec![0, 1, 2, 8]));
        assert_eq!((cpu_list(""), cpu_list("a")), (Some(vec![]), None));
        assert_eq!(cpu_list("0-4294967295"), None);
        let line = " 40:  5   6  PCI-MSIX-0000:01:00.0 0-edge   eth0-TxRx-0";
        assert_eq!(irq(line), Some((40, "eth0-TxRx-0", 11)));
        assert_eq!(irq("LOC: 1 2 Local timer interrupts"), None);
    }

    #[test]
    fn queues_of_a_healthy_card() {
        let facts = healthy().facts();
        let irqs = facts.irqs("eth0").unwrap();
        assert_eq!(irqs.len(), 4);
        assert_eq!((irqs[2].number, irqs[2].delta, irqs[2].cpus.as_slice()), (42, 2000, &[2][..]));
        assert!(facts.irqs("eth").is_err());
        assert_eq!(facts.busy().unwrap().len(), 4);
    }
}
