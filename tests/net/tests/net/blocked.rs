//! Prefixes that are blocked and allowed at run time, and the shield's mode for a time: what is
//! told of them, and how long they last.

use std::fs;

use anyhow::{Result, ensure};
use ringway_net_tests::{Gateway, SOON, Site, WEB, needs_root};
use ringway_testnet::wait_for;
use serde_json::{Value, json};

fn done(gateway: &Gateway, arguments: &[&str]) -> Result<String> {
    let ran = gateway.ringway(arguments)?;
    ensure!(ran.code == 0, "{arguments:?}: {ran:?}");
    Ok(ran.out)
}

fn document(gateway: &Gateway, arguments: &[&str]) -> Result<Value> {
    Ok(serde_json::from_str(&done(gateway, &[arguments, &["-o", "json"]].concat())?)?)
}

/// Refused, with these words.
fn refused(gateway: &Gateway, arguments: &[&str], words: &[&str]) -> Result<()> {
    let ran = gateway.ringway(arguments)?;
    let told = words.iter().all(|words| ran.err.contains(words));
    ensure!(ran.code == 2 && told, "{arguments:?}: {ran:?}");
    Ok(())
}

/// Prefixes and what was said of them.
fn blocked(gateway: &Gateway) -> Result<Vec<(String, String)>> {
    let listed = document(gateway, &["blocked"])?;
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
    refused(&gateway, &["block", "192.0.2.0/24"], &["has no [shield]", "ringway reload"])?;
    gateway.rewrite(&format!("{plain}{shield}"))?;
    let would = document(&gateway, &["reload", "--dry-run"])?;
    ensure!(
        would["settings"] == json!(["shield"]) && would["shield"] == json!(["added"]),
        "{would}"
    );
    done(&gateway, &["reload"])?;

    let told = done(&gateway, &["block", "192.0.2.0/24", "--reason", "scans"])?;
    ensure!(told.contains("192.0.2.0/24 is blocked: scans"), "{told}");
    done(&gateway, &["allow", "2001:db8::7", "--for", "1h"])?;
    done(&gateway, &["shield", "off", "--for", "15m"])?;
    let logged = gateway.log();
    ensure!(logged.contains("192.0.2.0/24 is blocked: scans (by user 0)"), "{logged}");
    refused(&gateway, &["unblock", "192.0.2.1"], &["192.0.2.0/24 covers it"])?;
    refused(
        &gateway,
        &["unblock", "198.51.100.0/24"],
        &["list drop", "drop.txt has it in line 2"],
    )?;

    let of = |prefix: &str, action: &str| (prefix.to_owned(), action.to_owned());
    let both = [of("192.0.2.0/24", "block"), of("2001:db8::7/128", "allow")];
    let lasts = |gateway: &Gateway, when: &str| -> Result<()> {
        let found = blocked(gateway)?;
        ensure!(found == both, "{when}: {found:?}");
        let status = document(gateway, &["shield", "status"])?;
        let modes = (&status["mode"], &status["configured_mode"]);
        ensure!(modes == (&json!("off"), &json!("enforce")), "{when}: {status}");
        Ok(())
    };
    lasts(&gateway, "at once")?;
    gateway.terminate()?;
    let without = document(&gateway, &["blocked"])?;
    ensure!(
        without["in_force"] == false && without["entries"][1]["action"] == "allow",
        "{without}"
    );
    gateway.start_again()?;
    gateway.wait_healthy()?;
    lasts(&gateway, "started again")?;
    gateway.kill()?;
    gateway.start_again()?;
    gateway.wait_healthy()?;
    lasts(&gateway, "killed")?;

    done(&gateway, &["shield", "enforce"])?;
    let status = document(&gateway, &["shield", "status"])?;
    ensure!(status["mode"] == "enforce" && status["mode_override"] == Value::Null, "{status}");
    let told = done(&gateway, &["unblock", "192.0.2.0/24"])?;
    ensure!(told.contains("192.0.2.0/24 is no longer blocked"), "{told}");
    done(&gateway, &["block", "203.0.113.64/26", "--for", "1s"])?;
    let only = [of("2001:db8::7/128", "allow")];
    wait_for("its time is over", SOON, || match blocked(&gateway) {
        Ok(found) if found == only => Ok(()),
        other => Err(format!("{other:?}")),
    })?;
    Ok(())
}
