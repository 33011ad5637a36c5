//! `ringway check --upgrade` beside a running daemon, and what it foretells: the previous release,
//! this one, and back.

use std::path::Path;

use anyhow::{Result, ensure};
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use ringway_net_tests::{
    Gateway, Site, WEB, binary, get, needs_root, not_tested, previous, ringway,
};

use super::restart::under_load_of;

/// What `systemctl restart` does once another binary is in place.
fn restart_as(gateway: &mut Gateway, version: &Path) -> Result<()> {
    gateway.terminate()?;
    gateway.change_binary(version);
    gateway.start_again()
}

fn goes_on_as(gateway: &mut Gateway, version: &Path) -> Result<()> {
    restart_as(gateway, version)?;
    gateway.wait_healthy()?;
    let log = gateway.log();
    ensure!(log.contains("took over the running packet path"), "{}: {log}", version.display());
    Ok(())
}

/// Asked of the version that would take over, beside the daemon of the one that runs.
fn foretold(gateway: &mut Gateway, running: &Path, next: &Path) -> Result<bool> {
    gateway.change_binary(next);
    let ran = gateway.ringway(&["check", "--upgrade", "-o", "json"])?;
    gateway.change_binary(running);
    let report = ran.json()?;
    ensure!(report["daemon_runs"] == true, "{}", ran.said());
    let takes_over = report["takes_over"] == true;
    ensure!(ran.code == if takes_over { 0 } else { 3 }, "{}", ran.said());
    let same = report["layout"] == report["own_layout"];
    ensure!(takes_over || !same, "refused, though the layout is the same: {}", ran.said());
    Ok(takes_over)
}

/// A version with other tables ends at once, and says what to do; traffic and the tables stay as
/// they are.
fn is_refused(gateway: &mut Gateway, running: &Path, next: &Path) -> Result<()> {
    restart_as(gateway, next)?;
    let (code, said) = gateway.refusal()?;
    ensure!(code == 1 && said.contains("ringway detach"), "exit code {code}: {said}");
    gateway.change_binary(running);
    gateway.start_healthy()
}

#[test]
fn the_previous_release_this_one_and_back_fail_no_request() -> Result<()> {
    needs_root!();
    let Some(old) = previous()? else {
        not_tested("upgrade from the previous release: there is no release yet");
        return Ok(());
    };
    let new = binary()?;
    under_load_of(old.clone(), |gateway, _| {
        if !foretold(gateway, &old, &new)? {
            return is_refused(gateway, &old, &new);
        }
        goes_on_as(gateway, &new)?;
        ensure!(foretold(gateway, &new, &old)?, "there is no way back");
        goes_on_as(gateway, &old)
    })
}

#[test]
fn it_says_what_is_kept_before_anything_changes() -> Result<()> {
    needs_root!();
    let site = Site::new(1)?;
    let gateway = site.start(&site.service("web", WEB, ""))?;

    let ran = gateway.ringway(&["check", "--upgrade", "-o", "json"])?;
    let report = ran.json()?;
    ensure!(ran.code == 0 && report["takes_over"] == true, "{}", ran.said());
    ensure!(report["schema"] == "ringway.upgrade/1" && report["daemon_runs"] == true, "{report}");
    ensure!(
        report["version"].is_string() && report["version"] == report["own_version"],
        "{report}"
    );
    ensure!(report["interfaces"] == serde_json::json!(["eth0", "eth1"]), "{report}");
    let tables = report["tables"].as_array().cloned().unwrap_or_default();
    let with = |fate: &str| tables.iter().filter(|table| table["fate"] == fate).count();
    ensure!(with("kept") > 8 && with("rebuilt") > 8, "{report:#}");
    ensure!(with("kept") + with("rebuilt") == tables.len(), "{report:#}");
    // From another network namespace it is not the version's fault.
    let file = gateway.configuration().to_string_lossy().into_owned();
    let elsewhere = ringway(site.client(), &["check", "--upgrade", "-c", &file])?;
    ensure!(elsewhere.code == 3, "{elsewhere:?}");
    for words in
        ["not from this network namespace", "of another network namespace", "nsenter --net="]
    {
        ensure!(elsewhere.out.contains(words), "{words:?} not in {elsewhere:?}");
    }
    ensure!(!elsewhere.out.contains("this version"), "{elsewhere:?}");
    let text = gateway.ringway(&["check", "--upgrade"])?;
    ensure!(text.out.contains("this version takes over"), "{}", text.said());
    ensure!(text.out.contains("which the running daemon is, to "), "{}", text.said());

    // As a version with other tables has left them.
    let settings = MapHandle::from_pinned_path(gateway.pins().join("maps/settings"))?;
    let before = settings.lookup(&[0; 4], MapFlags::ANY)?.unwrap_or_default();
    let mut other = before.clone();
    other[..4].copy_from_slice(&99u32.to_ne_bytes());
    settings.update(&[0; 4], &other, MapFlags::ANY)?;
    let ran = gateway.ringway(&["check", "--upgrade"])?;
    settings.update(&[0; 4], &before, MapFlags::ANY)?;
    ensure!(ran.code == 3, "{}", ran.said());
    for said in ["layout 99", "lost", "cannot take over", "ringway detach --node"] {
        ensure!(ran.out.contains(said), "no {said:?} in {}", ran.said());
    }
    get(site.client(), WEB)?;
    Ok(())
}
