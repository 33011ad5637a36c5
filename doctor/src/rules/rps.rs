//! What rules about RPS and RFS share: receive queues in sysfs.

use crate::{Facts, Unknown};

/// A receive queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Queue {
    pub path: String,
    /// As it was read.
    pub mask: String,
    pub flows: i64,
    pub flows_path: String,
}

impl Queue {
    /// Whether packets are spread.
    pub fn is_on(&self) -> bool {
        self.mask.chars().any(|c| c.is_ascii_hexdigit() && c != '0')
    }
}

/// Of an interface.
pub fn queues(facts: &Facts, name: &str) -> Result<Vec<Queue>, Unknown> {
    let directory = format!("/sys/class/net/{name}/queues");
    let names = facts.list(&directory)?.into_iter().filter(|queue| queue.starts_with("rx-"));
    let queue = |queue: String| {
        let path = format!("{directory}/{queue}/rps_cpus");
        let flows_path = format!("{directory}/{queue}/rps_flow_cnt");
        Ok(Queue {
            mask: facts.text(&path)?.into(),
            flows: facts.number(&flows_path)?,
            path,
            flows_path,
        })
    };
    let found: Result<Vec<Queue>, Unknown> = names.map(queue).collect();
    match found {
        Ok(none) if none.is_empty() => Err(Unknown(format!("{directory}: not collected"))),
        found => found,
    }
}

/// `f`, or `1,00000000` above 32: groups of eight digits, the highest first.
pub fn mask(cpus: &[u32]) -> String {
    let most = cpus.iter().copied().max().unwrap_or(0) / 32;
    let group = |group: u32| {
        let own = cpus.iter().filter(|cpu| **cpu / 32 == group);
        own.fold(0_u32, |bits, cpu| bits | 1 << (cpu % 32))
    };
    let rest = (0..most).rev().map(|n| format!(",{:08x}", group(n))).collect::<String>();
    format!("{:x}{rest}", group(most))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_as_the_kernel_takes_them() {
        for (cpus, wanted) in [
            (&[0, 1, 2, 3][..], "f"),
            (&[1], "2"),
            (&[32], "1,00000000"),
            (&[0, 63], "80000000,00000001"),
            (&[64, 1], "1,00000000,00000002"),
        ] {
            assert_eq!(mask(cpus), wanted);
        }
    }
}
