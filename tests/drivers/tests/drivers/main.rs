//! Ringway on real drivers, whose NICs QEMU emulates. Runs inside a guest of packaging/test-drivers
//! and nowhere else; elsewhere it says so. Words select cases by name; `quick` those that a run of
//! all tests has time for.

mod bench;
mod capabilities;
mod dpdk;
mod engine;
mod events;
mod gateway;
mod harness;
mod sockets;

use std::process::ExitCode;

use anyhow::Result;

use bench::{Bench, Nic};
use harness::Case;

type OfNic = fn(&Bench, &Nic) -> Result<()>;

/// Of each NIC.
const OF_NICS: [(&str, OfNic); 4] = [
    ("queues", capabilities::queues),
    ("hints", capabilities::hints),
    ("native-and-reset", capabilities::native_and_reset),
    ("frags", capabilities::frags),
];

/// Of each NIC, with all of its queues.
const OF_QUEUES: [(&str, OfNic); 7] = [
    ("copy", sockets::copy),
    ("zero-copy", sockets::zero_copy),
    ("icmp", engine::icmp),
    ("take-over-and-when-dead", engine::take_over_and_when_dead),
    ("generator", engine::generator),
    ("passing", engine::passing),
    ("closed-under-load", sockets::closed_under_load),
];

type OfTwo = fn(&Bench, &Nic, &Nic) -> Result<()>;

/// Of a NIC and one of another driver.
const OF_TWO: [(&str, &str, &str, OfTwo); 9] = [
    ("arming", "igb", "virtio-net", gateway::arming),
    ("forward", "igb", "virtio-net", engine::forward),
    ("forward", "vmxnet3", "virtio-net", engine::forward),
    ("generic", "igb", "virtio-net", events::generic),
    ("unbind-and-bind", "igb", "virtio-net", events::unbind_and_bind),
    ("unbind-and-bind", "virtio-net", "igb", events::unbind_and_bind),
    ("unbind-and-bind", "vmxnet3", "igb", events::unbind_and_bind),
    ("virtual-function-appears", "igb", "virtio-net", events::virtual_function_appears),
    ("bond", "igb", "virtio-net", events::bond),
];

/// What takes too long for a quick run.
const LONG: [&str; 11] = [
    "closed-under-load",
    "passing",
    "stopped-reader",
    "attach-and-detach",
    "vlan",
    "unbind-and-bind",
    "virtual-function",
    "bond",
    "generator",
    "generic",
    "virtio-net::gateway",
];

fn main() -> ExitCode {
    let words: Vec<String> =
        std::env::args().skip(1).filter(|word| !word.starts_with("--")).collect();
    match test(words) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            println!("test result: FAILED. 0 passed; 1 failed; 0 ignored; {error:?}");
            ExitCode::FAILURE
        }
    }
}

fn test(mut words: Vec<String>) -> Result<bool> {
    if let [first, phase] = &*words
        && first == "dpdk"
    {
        return dpdk::test(phase);
    }
    let quick = words.iter().any(|word| word == "quick");
    words.retain(|word| word != "quick");
    let Some(bench) = Bench::find(quick)? else {
        println!(
            "SKIPPED: no NIC of packaging/test-drivers here\ntest result: ok. 0 passed; 0 failed; 0 ignored"
        );
        return Ok(true);
    };
    let (bench, mut cases) = (&bench, Vec::new());
    for nic in &bench.nics {
        for (name, run) in OF_NICS {
            let name = format!("{}::{name}", nic.row);
            cases.push(Case { name, run: Box::new(move || run(bench, nic)) });
        }
        for (name, run) in OF_QUEUES {
            let name = format!("{}::{name}", nic.row);
            let run = move || {
                nic.use_all_queues(true)?;
                let done = run(bench, nic);
                nic.use_all_queues(false).and(done)
            };
            cases.push(Case { name, run: Box::new(run) });
        }
    }
    cases.extend(gateway::cases(bench));
    for (name, first, second, run) in OF_TWO {
        if let (Some(one), Some(other)) = (bench.nic(first), bench.nic(second)) {
            let name = format!("{first}::{name}-with-{second}");
            cases.push(Case { name, run: Box::new(move || run(bench, one, other)) });
        }
    }
    cases.push(Case {
        name: "all::attach-and-detach".into(),
        run: Box::new(|| events::attach_and_detach(bench)),
    });
    cases.push(Case {
        name: "all::stopped-reader".into(),
        run: Box::new(|| sockets::stopped_reader(bench)),
    });
    cases.retain(|case| !quick || LONG.iter().all(|long| !case.name.contains(long)));
    let good = harness::run(&cases, &words);
    for row in bench.rows() {
        println!("RINGWAY-ROW {row}");
    }
    Ok(good)
}
