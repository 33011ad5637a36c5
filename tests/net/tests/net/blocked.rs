//! Prefixes that are blocked and allowed at run time, and the shield's mode for a time: what is
//! told of them, and how long they last.

use std::fs;
use std::path::Path;

use anyhow::{Result, ensure};
use ringway_net_tests::{Gateway, METRICS, SOON, Site, WEB, http, needs_root};
use ringway_testnet::wait_for;
use serde_json::{Value, json};

/// Prefixes and what was said of them.
fn blocked(gateway: &Gateway) -> Result<Vec<(String, String)>> {
    let listed = gateway.document(&["blocked"])?;
    ensure!(listed["schema"] == "ringway.blocked/1" && listed["in_force"] == true, "{listed}");
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let entries = listed["entries"].as_array().into_iter().flatten();
    Ok(entries.map(|entry| (text(&entry["prefix"]), text(&entry["action"]))).collect())
}

#[test]
fn what_is_typed_about_the_shield_lasts_for_its_time() -> Result<()> {
    needs_root!();
    let site = Site::new(1)?;
    let list = site.net.gateway.directory().join("drop.txt");
    fs::write(&list, "# test\n198.51.100.0/24\n")?;
    let plain = site.configuration(&site.service("web", WEB, ""));
    let shield =
        format!("[shield]\nlist = [{{ name = \"drop\", file = {list:?}, action = \"block\" }}]\n");
    let mut gateway = Gateway::start(&site.net.gateway, &plain)?;
    gateway
        .ringway(&["block", "192.0.2.0/24"])?
        .complains(2, &["has no [shield]", "ringway reload"])?;
    gateway.rewrite(&format!("{plain}{shield}"))?;
    let would = gateway.document(&["reload", "--dry-run"])?;
    ensure!(
        would["settings"] == json!(["shield"]) && would["shield"] == json!(["added"]),
        "{would}"
    );
    gateway.ringway(&["reload"])?.done()?;

    gateway
        .ringway(&["block", "192.0.2.0/24", "--reason", "scans"])?
        .says(0, &["192.0.2.0/24 is blocked: scans"])?;
    gateway.ringway(&["allow", "2001:db8::7", "--for", "1h"])?.done()?;
    gateway.ringway(&["shield", "off", "--for", "15m"])?.done()?;
    let logged = gateway.log();
    ensure!(logged.contains("192.0.2.0/24 is blocked: scans (by user 0)"), "{logged}");
    gateway.ringway(&["unblock", "192.0.2.1"])?.complains(2, &["192.0.2.0/24 covers it"])?;
    gateway
        .ringway(&["unblock", "198.51.100.0/24"])?
        .complains(2, &["list drop", "drop.txt has it in line 2"])?;

    let of = |prefix: &str, action: &str| (prefix.to_owned(), action.to_owned());
    let both = [of("192.0.2.0/24", "block"), of("2001:db8::7/128", "allow")];
    let lasts = |gateway: &Gateway, when: &str| -> Result<()> {
        let found = blocked(gateway)?;
        ensure!(found == both, "{when}: {found:?}");
        let status = gateway.document(&["shield", "status"])?;
        let modes = (&status["mode"], &status["configured_mode"]);
        ensure!(modes == (&json!("off"), &json!("enforce")), "{when}: {status}");
        Ok(())
    };
    lasts(&gateway, "at once")?;
    gateway.terminate()?;
    let without = gateway.document(&["blocked"])?;
    ensure!(
        without["in_force"] == false && without["entries"][1]["action"] == "allow",
        "{without}"
    );
    gateway.start_healthy()?;
    lasts(&gateway, "started again")?;
    gateway.kill()?;
    gateway.start_healthy()?;
    lasts(&gateway, "killed")?;

    gateway
        .ringway(&["allow", "192.0.2.0/24"])?
        .says(0, &["was blocked until `ringway unblock`; now 192.0.2.0/24 is a"])?;
    gateway.ringway(&["block", "192.0.2.0/24"])?.says(0, &["was allowed until", "is blocked"])?;
    gateway
        .ringway(&["shield", "enforce"])?
        .says(0, &["rules and limits say: mode = \"enforce\""])?;
    let status = gateway.document(&["shield", "status"])?;
    ensure!(status["mode"] == "enforce" && status["mode_override"] == Value::Null, "{status}");
    gateway
        .ringway(&["unblock", "192.0.2.0/24"])?
        .says(0, &["192.0.2.0/24 is no longer blocked"])?;
    gateway.ringway(&["block", "203.0.113.64/26", "--for", "1s"])?.done()?;
    let only = [of("2001:db8::7/128", "allow")];
    wait_for("its time is over", SOON, || match blocked(&gateway) {
        Ok(found) if found == only => Ok(()),
        other => Err(format!("{other:?}")),
    })?;
    ensure!(gateway.log().contains("no longer blocked, as the time is over: 203.0.113.64/26"));
    without_a_shield(&gateway, &plain)
}

/// What was typed outlives `[shield]`, and can be taken back.
fn without_a_shield(gateway: &Gateway, plain: &str) -> Result<()> {
    gateway.rewrite(plain)?;
    gateway.ringway(&["reload"])?.done()?;
    let idle = gateway.document(&["blocked"])?;
    ensure!(idle["in_force"] == false && idle["configured"] == false, "{idle}");
    gateway
        .ringway(&["blocked"])?
        .says(0, &["not in force, as the configuration has no [shield]"])?;
    gateway
        .ringway(&["unblock", "2001:db8::7"])?
        .says(0, &["2001:db8::7/128 is no longer allowed"])?;
    gateway.ringway(&["unblock", "2001:db8::7"])?.complains(2, &["has no [shield]"])?;
    let idle = gateway.document(&["blocked"])?;
    ensure!(idle["entries"] == json!([]), "{idle}");
    Ok(())
}

/// Whoever blocks what passes nevertheless is told why. The packet path has it while no daemon
/// runs, and a file that was damaged takes nothing away.
#[test]
fn a_block_without_effect_is_told_and_outlives_its_file() -> Result<()> {
    needs_root!();
    let site = Site::new(1)?;
    let list = site.net.gateway.directory().join("good.txt");
    fs::write(&list, "192.0.2.0/25\n")?;
    let plain = site.configuration(&site.service("web", WEB, ""));
    let shield =
        format!("[shield]\nlist = [{{ name = \"good\", file = {list:?}, action = \"allow\" }}]\n");
    let mut gateway = Gateway::start(&site.net.gateway, &format!("{plain}{shield}"))?;
    let told = |words: &str| -> Result<(String, Value)> {
        let args: Vec<&str> = words.split(' ').collect();
        let ran = gateway.ringway(&args)?.done()?;
        let warnings = ran.json()?["warnings"].clone();
        Ok((ran.err, warnings))
    };
    let (err, warnings) = told("block 192.0.2.7 --reason scans -o json")?;
    ensure!(
        err.starts_with("warning: 192.0.2.7/32 passes nevertheless: list good allows"),
        "{err}"
    );
    ensure!(warnings.as_array().is_some_and(|all| all.len() == 1), "{warnings}");
    let (err, warnings) = told("block 2001:db8::/32 --for 1h -o json")?;
    ensure!(err.is_empty() && warnings == json!([]), "{err} {warnings}");
    gateway.ringway(&["shield", "off", "--for", "15m"])?.done()?;
    let off = |status: &Value| {
        let finding = &status["findings"][0];
        finding["kind"] == "shield-mode" && finding["error"].to_string().contains("is off until")
    };
    gateway.wait_status("a finding", off)?;
    let (err, _) = told("block 198.51.100.7 -o json")?;
    ensure!(err.contains("nothing is dropped: the shield is off until"), "{err}");

    gateway.ringway(&["allow", "198.51.100.7"])?.done()?;
    gateway.ringway(&["shield", "observe", "--for", "1h"])?.done()?;
    let file = site.net.gateway.directory().join("state/shield.json");
    let kept = |words: &str| {
        let look = || match fs::read_to_string(&file) {
            Ok(text) if text.contains(words) => Ok(()),
            other => Err(format!("{other:?}")),
        };
        wait_for("it is kept", SOON, look)
    };
    kept("observe")?;
    let before = blocked(&gateway)?;
    gateway.kill()?;
    fs::write(&file, "{ \"schema\": \"ringway.shie")?;
    gateway.start_healthy()?;
    ensure!(before.len() == 3 && blocked(&gateway)? == before, "{before:?}");
    let listed = gateway.document(&["blocked"])?;
    let entry = |n: usize| &listed["entries"][n];
    ensure!(entry(0)["until"] == Value::Null && entry(2)["until"].is_string(), "{listed}");
    let status = gateway.document(&["shield", "status"])?;
    ensure!(status["mode"] == "observe", "{status}");
    ensure!(gateway.log().contains("the packet path still has 3 prefixes"), "{}", gateway.log());
    kept("192.0.2.7/32")?;
    kept("observe")?;
    Ok(())
}

/// Lines of the log with these words.
fn logged(gateway: &Gateway, words: &str) -> usize {
    gateway.log().lines().filter(|line| line.contains(words)).count()
}

/// Replaces a file as a whole, so that the daemon never reads a part of it.
fn replace(file: &Path, text: &str) -> Result<()> {
    let new = file.with_extension("new");
    fs::write(&new, text)?;
    Ok(fs::rename(new, file)?)
}

/// A list that cannot follow its file is told once, and so is the end of that; so are lines that
/// are skipped.
#[test]
fn what_is_wrong_with_a_list_is_in_the_log() -> Result<()> {
    needs_root!();
    let site = Site::new(1)?;
    let [drop, more] = ["drop.txt", "more.txt"].map(|name| site.net.gateway.directory().join(name));
    fs::write(&drop, "198.51.100.0/24\n")?;
    fs::write(&more, "192.0.2.0/24\nno prefix\n")?;
    let shield = format!(
        "[shield]\nlist = [{{ name = \"drop\", file = {drop:?}, action = \"block\" }},\n\
         {{ name = \"more\", file = {more:?}, action = \"block\", bad_lines = \"skip\" }}]\n"
    );
    let text = site.configuration(&site.service("web", WEB, "")) + &shield;
    let gateway = Gateway::start(&site.net.gateway, &text)?;
    let told = |words: &str| {
        wait_for(words, SOON, || match logged(&gateway, words) {
            1 => Ok(()),
            times => Err(format!("told {times} times: {}", gateway.log())),
        })
    };
    told("list more: skipped 1 line of its file")?;
    gateway.ringway(&["check"])?.says(0, &["line 2: \"no prefix\""])?;
    let metrics = http(gateway.namespace(), METRICS, "/metrics")?;
    for line in [
        "ringway_shield_mode{mode=\"enforce\"} 1",
        "ringway_shield_list_prefixes{list=\"more\",action=\"block\"} 1",
        "ringway_shield_list_skipped_lines{list=\"more\",action=\"block\"} 1",
        "ringway_shield_list_packets_total{list=\"drop\",action=\"block\"} 0",
    ] {
        ensure!(metrics.lines().any(|found| found == line), "no {line} in {metrics}");
    }

    replace(&drop, "198.51.100.0/24\nx\n")?;
    told("line 2: \"x\"")?;
    // A start would begin all the same.
    gateway
        .ringway(&["check"])?
        .says(0, &["warning: list \"drop\"", "line 2: \"x\", no IPv4", "bad_lines = \"skip\""])?;
    // As bad as before.
    replace(&drop, "#\n198.51.100.0/24\nx\n")?;
    wait_for("it is read again", SOON, || {
        let ran = gateway.ringway(&["status"]).map_err(|error| error.to_string())?;
        if ran.out.contains("line 3: \"x\"") { Ok(()) } else { Err(ran.out) }
    })?;
    replace(&more, "192.0.2.0/24\n")?;
    replace(&drop, "198.51.100.0/25\n")?;
    told("over: list \"drop\"")?;
    told("over: list more: skipped")?;
    ensure!(logged(&gateway, "WARN list \"drop\"") == 1, "{}", gateway.log());
    ensure!(gateway.log().contains("lists read again"), "{}", gateway.log());
    Ok(())
}
