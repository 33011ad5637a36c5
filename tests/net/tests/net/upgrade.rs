//! `ringway check --upgrade`, beside a running daemon.

use anyhow::{Result, ensure};
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use ringway_net_tests::{Gateway, Site, WEB, get, needs_root, ringway};

#[test]
fn it_says_what_is_kept_before_anything_changes() -> Result<()> {
    needs_root!();
    let site = Site::new(1)?;
    let gateway =
        Gateway::start(&site.net.gateway, &site.configuration(&site.service("web", WEB, "")))?;

    let ran = gateway.ringway(&["check", "--upgrade", "-o", "json"])?;
    let report = ran.json()?;
    ensure!(ran.code == 0 && report["takes_over"] == true, "{}", ran.said());
    ensure!(report["schema"] == "ringway.upgrade/1" && report["daemon_runs"] == true, "{report}");
    ensure!(report["interfaces"] == serde_json::json!(["eth0", "eth1"]), "{report}");
    let tables = report["tables"].as_array().cloned().unwrap_or_default();
    let kept = tables.iter().filter(|table| table["fate"] == "kept").count();
    ensure!(kept > 20 && kept == tables.len(), "{report:#}");
    // From another network namespace it is not the version's fault.
    let file = gateway.configuration().to_string_lossy().into_owned();
    let elsewhere = ringway(site.client(), &["check", "--upgrade", "-c", &file])?;
    ensure!(elsewhere.code == 3, "{elsewhere:?}");
    for words in
        ["not from this network namespace", "of another network namespace", "ip netns exec"]
    {
        ensure!(elsewhere.out.contains(words), "{words:?} not in {elsewhere:?}");
    }
    ensure!(!elsewhere.out.contains("this version"), "{elsewhere:?}");
    let text = gateway.ringway(&["check", "--upgrade"])?;
    ensure!(text.out.contains("this version takes over"), "{}", text.said());

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
