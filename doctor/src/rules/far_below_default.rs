//! Settings that somebody once set far below what the kernel starts with.

use crate::{Facts, Looked, Outcome, Rule, Unknown, each};

/// A number far below what the kernel starts with is a mistake, or was right long ago.
pub const RULE: Rule = Rule {
    number: 79,
    name: "far-below-default",
    rule: "no limit is far below the kernel's own default",
    source: "heuristic of Ringway: an eighth of the default or less",
    why: "Such a limit bites at the first burst, long before anything else is full.",
    profiles: &[],
    check,
};

/// Which of a setting's numbers, what Linux 6.1 starts with on a machine with some memory, and below
/// what it is told.
type Floor = (usize, i64, i64);

/// Of a send buffer's first size a page is too little: it holds no segment and its overhead.
const FLOORS: [(&str, &[Floor]); 13] = [
    ("net/core/somaxconn", &[(0, 4096, 128)]),
    ("net/core/netdev_max_backlog", &[(0, 1000, 126)]),
    ("net/core/netdev_budget", &[(0, 300, 38)]),
    ("net/core/dev_weight", &[(0, 64, 9)]),
    ("net/core/rmem_max", &[(0, 212_992, 32_768)]),
    ("net/core/wmem_max", &[(0, 212_992, 32_768)]),
    ("net/core/optmem_max", &[(0, 20_480, 4096)]),
    ("net/ipv4/tcp_max_syn_backlog", &[(0, 1024, 128)]),
    ("net/ipv4/tcp_max_tw_buckets", &[(0, 131_072, 4096)]),
    ("net/ipv4/tcp_max_orphans", &[(0, 65_536, 1024)]),
    ("net/ipv4/tcp_rmem", &[(1, 131_072, 16_385), (2, 6_291_456, 524_288)]),
    ("net/ipv4/tcp_wmem", &[(1, 16_384, 4097), (2, 4_194_304, 262_144)]),
    ("net/netfilter/nf_conntrack_max", &[(0, 262_144, 8192)]),
];
const PORTS: &str = "net/ipv4/ip_local_port_range";

fn check(facts: &Facts) -> Looked {
    let mut found = each([PORTS], |key| (*key).to_owned(), |_| ports(facts));
    found.extend(each(FLOORS, |(key, ..)| (*key).to_owned(), |row| limit(facts, *row)));
    Ok(found)
}

/// Many are of the first network namespace alone, or of a module that is not loaded.
fn limit(facts: &Facts, (key, places): (&str, &[Floor])) -> Result<Outcome, Unknown> {
    let path = format!("/proc/sys/{key}");
    let text = facts.text(&path)?;
    let mut wanted: Vec<String> = text.split_ascii_whitespace().map(str::to_owned).collect();
    let mut low = Vec::new();
    for &(place, default, floor) in places {
        let value: Option<i64> = wanted.get(place).and_then(|word| word.parse().ok());
        let value = value.ok_or_else(|| crate::facts::strange(&path, text))?;
        if value < floor {
            low.push(format!("{value}, and the kernel starts with about {default}"));
            wanted[place] = default.to_string();
        }
    }
    if low.is_empty() {
        return Ok(Outcome::ok(key, format!("{text}, not far below the default")));
    }
    let outcome = Outcome::warn(key, format!("{key} is {}", low.join("; "))).saw(path, text);
    Ok(outcome.change(facts.set(key, wanted.join(" "))?))
}

fn ports(facts: &Facts) -> Result<Outcome, Unknown> {
    let [first, last] = facts.sysctls(PORTS)?;
    let ports = last - first + 1;
    if ports >= 3500 {
        return Ok(Outcome::ok(PORTS, format!("{ports} local ports")));
    }
    let said =
        format!("connections of this host have {ports} ports, and the kernel starts with 28232");
    let seen =
        Outcome::warn(PORTS, said).saw(format!("/proc/sys/{PORTS}"), format!("{first} {last}"));
    Ok(seen.change(facts.set(PORTS, "32768 60999")?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Severity;
    use crate::testing::Machine;

    #[test]
    fn each_limit_by_itself() {
        assert_eq!(Machine::healthy().worst(&RULE), Severity::Ok);
        for (key, text, fix, undo) in [
            ("core/somaxconn", "16", "core.somaxconn=4096", "core.somaxconn=16"),
            (
                "ipv4/tcp_max_tw_buckets",
                "10",
                "ipv4.tcp_max_tw_buckets=131072",
                "ipv4.tcp_max_tw_buckets=10",
            ),
            (
                "ipv4/ip_local_port_range",
                "40000\t40099",
                "ipv4.ip_local_port_range=\"32768 60999\"",
                "ipv4.ip_local_port_range=\"40000 40099\"",
            ),
            (
                "ipv4/tcp_rmem",
                "4096\t8192\t16384",
                "ipv4.tcp_rmem=\"4096 131072 6291456\"",
                "ipv4.tcp_rmem=\"4096 8192 16384\"",
            ),
            (
                "ipv4/tcp_rmem",
                "4096\t16384\t6291456",
                "ipv4.tcp_rmem=\"4096 131072 6291456\"",
                "ipv4.tcp_rmem=\"4096 16384 6291456\"",
            ),
            (
                "ipv4/tcp_wmem",
                "4096\t4096\t4194304",
                "ipv4.tcp_wmem=\"4096 16384 4194304\"",
                "ipv4.tcp_wmem=\"4096 4096 4194304\"",
            ),
        ] {
            let machine = Machine::healthy().put(&format!("/proc/sys/net/{key}"), text);
            assert_eq!(machine.worst(&RULE), Severity::Warn, "{key}");
            assert_eq!(machine.fixes(&RULE), [format!("sysctl -w net.{fix}")]);
            assert_eq!(machine.undos(&RULE), [format!("sysctl -w net.{undo}")]);
        }
        let strange = Machine::healthy().put("/proc/sys/net/core/somaxconn", "many");
        assert_eq!(strange.worst(&RULE), Severity::Unknown);
    }
}
