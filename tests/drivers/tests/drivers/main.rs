//! Ringway on real drivers, whose NICs QEMU emulates. Runs inside a guest of packaging/test-drivers
//! and nowhere else; elsewhere it says so. Words select cases by name; `quick` those that a run of
//! all tests has time for.

mod bench;
mod capabilities;
mod gateway;
mod harness;
mod sockets;

use std::process::ExitCode;

use anyhow::Result;

use bench::{Bench, Nic};
use harness::Case;

type OfNic = fn(&Bench, &Nic) -> Result<()>;

/// Of each NIC.
const OF_NICS: [(&str, OfNic); 7] = [
    ("queues", capabilities::queues),
    ("hints", capabilities::hints),
    ("native-and-reset", capabilities::native_and_reset),
    ("frags", capabilities::frags),
    ("copy", sockets::copy),
    ("zero-copy", sockets::zero_copy),
    ("closed-under-load", sockets::closed_under_load),
];

/// What takes too long for a quick run.
const LONG: [&str; 3] = ["closed-under-load", "stopped-reader", "attach-detach"];

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with("--")).collect();
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
    let Some(bench) = Bench::find()? else {
        println!("SKIPPED: no NIC of packaging/test-drivers here\ntest result: ok. 0 passed; 0 failed; 0 ignored");
        return Ok(true);
    };
    let quick = words.iter().any(|word| word == "quick");
    words.retain(|word| word != "quick");
    let (bench, mut cases) = (&bench, Vec::new());
    for nic in &bench.nics {
        for (name, run) in OF_NICS {
            let name = format!("{}::{name}", nic.row);
            cases.push(Case { name, run: Box::new(move || run(bench, nic)) });
        }
    }
    cases.extend(gateway::cases(bench));
    cases.push(Case {
        name: "stopped-reader".into(),
        run: Box::new(|| sockets::stopped_reader(bench)),
    });
    cases.retain(|case| !quick || LONG.iter().all(|long| !case.name.contains(long)));
    let good = harness::run(&cases, &words);
    for row in bench.rows() {
        println!("RINGWAY-ROW {row}");
    }
    Ok(good)
}
