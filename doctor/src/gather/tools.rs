//! What only a tool tells: the rules of nftables.

use std::process::{Command, Stdio};

use crate::Sample;
use crate::sample::ROOT_ALONE;

/// `nft -j -t list ruleset`, without the elements of sets.
pub const RULES: &str = "/tools/nft.json";
/// More than this nobody wants to carry about.
const MOST: usize = 32 << 20;

/// Adds them, or why not.
pub fn rules(sample: &mut Sample) {
    // Not on the PATH of plain users, and of some services.
    let path = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin:/sbin";
    let mut command = Command::new("nft");
    command.args(["-j", "-t", "list", "ruleset"]).env("PATH", path).stdin(Stdio::null());
    match command.output() {
        Ok(said) if said.status.success() && said.stdout.len() <= MOST => {
            sample.put(RULES, String::from_utf8_lossy(&said.stdout));
        }
        Ok(said) if said.status.success() => sample.miss(RULES, "more rules than can be collected"),
        Ok(said) => {
            let why = String::from_utf8_lossy(&said.stderr);
            match why.lines().next().unwrap_or("no answer") {
                why if why.contains("must be root") => sample.miss(RULES, ROOT_ALONE),
                why => sample.miss(RULES, format!("nft: {why}")),
            }
        }
        Err(error) => sample.miss(RULES, format!("nft cannot be run: {error}")),
    }
}
