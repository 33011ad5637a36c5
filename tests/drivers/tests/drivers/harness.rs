//! Cases by name, one after the other; their results in the words of cargo's own harness, which
//! packaging/guest counts.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use anyhow::{Result, anyhow};

pub struct Case<'a> {
    pub name: String,
    pub run: Box<dyn Fn() -> Result<()> + 'a>,
}

/// Runs those whose name has one of the words in it; all, without words. Whether all of them passed.
pub fn run(cases: &[Case], words: &[String]) -> bool {
    let wanted =
        |case: &&Case| words.is_empty() || words.iter().any(|word| case.name.contains(word));
    let (mut passed, mut failed) = (0, 0);
    for case in cases.iter().filter(wanted) {
        let start = Instant::now();
        let result =
            catch_unwind(AssertUnwindSafe(&case.run)).unwrap_or_else(|panic| Err(said(&*panic)));
        let seconds = start.elapsed().as_secs_f32();
        match result {
            Ok(()) => {
                passed += 1;
                println!("test {} ... ok ({seconds:.1} s)", case.name);
            }
            Err(error) => {
                failed += 1;
                println!("test {} ... FAILED ({seconds:.1} s)\n  {error:?}", case.name);
            }
        }
    }
    let word = if failed == 0 { "ok" } else { "FAILED" };
    println!(
        "\ntest result: {word}. {passed} passed; {failed} failed; 0 ignored; 0 measured; 0 filtered out"
    );
    failed == 0
}

fn said(panic: &(dyn Any + Send)) -> anyhow::Error {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    anyhow!(
        "panicked: {}",
        text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("without a word")
    )
}
