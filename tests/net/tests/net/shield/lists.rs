//! Lists of prefixes: they block, allow, and follow their files while packets flow.

use std::fmt::Write as _;
use std::fs;
use std::io;

use anyhow::{Result, ensure};
use ringway_net_tests::{Load, SOON, WEB, needs_root};
use ringway_testnet::wait_until;
use serde_json::Value;

use super::{World, packets, shield, tells};

const FOLLOWS: [(&str, &str); 2] = [("10.1.0.3", "blocked"), ("10.1.0.2", "answered")];

#[test]
fn lists_block_allow_and_follow_their_files() -> Result<()> {
    needs_root!();
    let shield_of = |world: &World, bad_lines: &str| {
        let list = |name: &str, action: &str, more: &str| {
            let file = world.file(name);
            format!("{{ name = {name:?}, file = {file:?}, action = {action:?}{more} }}, ")
        };
        let more = format!(", bad_lines = {bad_lines:?}");
        let lists = list("drop", "block", &more) + &list("good", "allow", "");
        format!("[shield]\nlist = [{lists}]\n")
    };
    let world = World::new("")?;
    fs::write(world.file("good"), "10.1.0.4 ; ours\nfd01::4/128\n")?;
    fs::write(world.file("drop"), "# junk\n10.1.0.3\n10.1.0.4\nfd01::3\nfd01::4/127\n")?;
    world.reload(&shield_of(&world, "refuse"))?;
    let both = [
        ("10.1.0.2", "answered"),
        ("10.1.0.3", "blocked"),
        ("10.1.0.4", "answered"),
        ("fd01::2", "answered"),
        ("fd01::3", "blocked"),
        ("fd01::4", "answered"),
    ];
    world.is("both lists", &both)?;
    let counted = shield(&world.gateway)?;
    ensure!(packets(&counted, "lists", "drop")? == 2, "{counted}");
    ensure!(packets(&counted, "lists", "good")? == 2, "{counted}");
    ensure!(world.curl("10.1.0.2", WEB, true)? && world.curl("10.1.0.3", WEB, false)?, "curl");

    let drop = world.file("drop");
    let renamed = |text: &str| -> io::Result<()> {
        fs::write(world.file("new"), text)?;
        fs::rename(world.file("new"), &drop)
    };
    fs::write(&drop, "10.1.0.2/32\n")?;
    world.becomes("changed", &[("10.1.0.2", "blocked"), ("10.1.0.3", "answered")])?;
    renamed("10.1.0.3\n")?;
    world.becomes("renamed", &FOLLOWS)?;

    // What cannot be used is told, and what was in force stays.
    let stays = |what: &str, words: &[&str]| -> Result<()> {
        let told = |status: &Value| tells(status, "shield-list", words);
        world.gateway.wait_status(what, |status| told(status) && status["healthy"] == false)?;
        world.is(what, &FOLLOWS)
    };
    let ends = |what: &str| -> Result<()> {
        world.gateway.wait_status(what, |status| status["healthy"] == true)?;
        world.is(what, &FOLLOWS)
    };
    fs::write(&drop, "10.1.0.2\n10.1.0.")?;
    stays("truncated in a line", &["line 2", "10.1.0."])?;
    renamed("10.1.0.3\n192.0.2.0/24\n")?;
    ends("whole again")?;
    fs::remove_file(&drop)?;
    stays("vanished", &["drop", "No such file"])?;
    fs::write(&drop, "10.1.0.3\n")?;
    ends("there again")?;
    fs::write(&drop, "10.1.0.2\n192.0.2.1/40\nnonsense\n")?;
    stays("bad lines", &["line 2", "192.0.2.1/40", "1 bad line"])?;
    let bad = shield_of(&world, "refuse");
    let rule = "rule = [{ match = \"udp src port 4001\", action = \"drop\" }]\n";
    world.reload(&format!("{bad}{rule}"))?;
    world.is("a rule", &[("10.1.0.2:4001", "rule")])?;
    stays("bad lines after a reload", &["line 2", "192.0.2.1/40", "1 prefix of before"])?;
    // The other list follows its file.
    fs::write(world.file("good"), "10.1.0.3\n")?;
    world.becomes("the other list", &[("10.1.0.3", "answered"), ("10.1.0.4", "answered")])?;
    fs::write(world.file("good"), "10.1.0.4\n")?;
    world.becomes("the other list again", &FOLLOWS)?;
    let new = bad.replace("\"drop\"", "\"newer\"");
    world.gateway.rewrite(&format!("{}{new}", world.plain))?;
    world.gateway.ringway(&["reload"])?.complains(2, &["line 2", "mend the file"])?;
    ensure!(fs::read_to_string(world.gateway.configuration())?.ends_with(&new), "rewritten");

    world.reload(&shield_of(&world, "skip"))?;
    world.is("skipped", &[("10.1.0.2", "blocked"), ("10.1.0.3", "answered")])?;
    world.gateway.wait_status("skipped lines are told", |status| {
        status["healthy"] == true && tells(status, "shield-list-lines", &["drop", "2 lines"])
    })?;
    let spamhaus = "{\"cidr\":\"10.1.0.3/32\",\"sblid\":\"SBL1\",\"rir\":\"ripencc\"}\n\
        {\"cidr\":\"fd01::3/128\",\"sblid\":\"SBL2\",\"rir\":\"arin\"}\n\
        {\"type\":\"metadata\",\"timestamp\":1764000000,\"size\":1,\"records\":2}\n";
    renamed(spamhaus)?;
    world.becomes("DROP", &[FOLLOWS[0], FOLLOWS[1], ("fd01::3", "blocked")])?;
    let quiet = |status: &Value| !tells(status, "shield-list-lines", &[]);
    world.gateway.wait_status("no line is skipped", quiet)?;
    fs::write(&drop, "")?;
    world.becomes("empty", &[("10.1.0.3", "answered"), ("fd01::3", "answered")])
}

#[test]
fn a_list_of_200_000_prefixes_is_swapped_and_no_packet_is_lost() -> Result<()> {
    needs_root!();
    let world = World::new("")?;
    let mut many = String::new();
    for n in 0..200_000u32 {
        let [_, high, middle, low] = (n << 4).to_be_bytes();
        let _ = writeln!(many, "100.{high}.{middle}.{low}/28");
    }
    let file = world.file("drop");
    // By turns these two are blocked.
    let write = |turn: u32| fs::write(&file, format!("{many}10.1.0.{}\n", 3 + turn % 2));
    write(0)?;
    let list =
        format!("[shield]\nlist = [{{ name = \"d\", file = {file:?}, action = \"block\" }}]\n");
    world.reload(&list)?;
    let (numbered, transfer) = (world.numbered()?, world.transfer()?);
    let load = Load::start(world.site.client(), &format!("http://{WEB}/"), 2, 60)?;
    for turn in 1..=4 {
        write(turn)?;
        let told = |log: &str| log.matches("lists read again").count() as u32;
        let read = || told(&world.gateway.log()) == turn;
        wait_until(format!("swap {turn}"), SOON, read)?;
        let (blocked, free) = (3 + turn % 2, 4 - turn % 2);
        let sources = [format!("10.1.0.{blocked}"), format!("10.1.0.{free}")];
        world.is("swapped", &[(&sources[0], "blocked"), (&sources[1], "answered")])?;
    }
    let (datagrams, bytes) = (numbered.finish()?, transfer.finish()?);
    ensure!(datagrams > 1000 && bytes > 1 << 20, "{datagrams} datagrams, {bytes} bytes");
    let outcome = load.stop()?;
    ensure!(outcome.errors == 0 && outcome.requests > 1000, "{outcome:?}");
    let status = world.gateway.status()?;
    ensure!(status["ledger"]["difference_packets"] == 0, "{}", status["ledger"]);
    Ok(())
}
