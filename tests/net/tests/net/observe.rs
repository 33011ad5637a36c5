//! `ringway status` with rates and `--memory`: what happens now, and what it takes.

use anyhow::{Context, Result, ensure};
use ringway_net_tests::{Gateway, Load, SERVICE_V4, Site, WEB, needs_root};
use serde_json::Value;

/// Under load every rate that should be there is; without a daemon none is made up.
#[test]
fn rates_under_load_and_none_without_a_daemon() -> Result<()> {
    needs_root!();
    let site = Site::new(2)?;
    let mut gateway = site.start(&site.service("web", WEB, ""))?;
    let load = Load::start_closing(site.client(), &format!("http://{SERVICE_V4}/"), 10, 60)?;
    let above = |value: &Value| value.as_f64() > Some(0.0);
    let status = gateway.wait_status("rates", |status| {
        let service = &status["services"][0];
        let backends = service["backends"].as_array();
        let all = ["rate_pps", "rate_bps", "reply_rate_pps", "reply_rate_bps", "new_flows_per_s"];
        all.iter().all(|key| above(&service["rates"][key]))
            && backends.is_some_and(|all| all.iter().all(|one| above(&one["rates"]["rate_pps"])))
            && above(&status["interfaces"][0]["rate_pps"])
    })?;
    let service = &status["services"][0];
    let (whole, parts) = (&service["rates"]["rate_pps"], service["backends"].as_array());
    let sum: f64 =
        parts.context("backends")?.iter().filter_map(|b| b["rates"]["rate_pps"].as_f64()).sum();
    ensure!((whole.as_f64().unwrap_or_default() - sum).abs() < 1.0, "{whole} is not {sum}");
    let forward = |c: &&Value| c["reason"] == "nat-forward" && c["interface"] == "eth0";
    let counter = status["counters"].as_array().and_then(|all| all.iter().find(forward));
    ensure!(counter.is_some_and(|counter| above(&counter["rate_pps"])), "{counter:?}");
    gateway.wait_status("flows of each backend", |status| {
        status["services"][0]["current_flows"].as_u64() > Some(0)
    })?;
    load.stop()?;

    let flows = |status: &Value| status["services"][0]["backends"][0]["flows"].as_u64();
    let alive = flows(&gateway.status()?);
    gateway.kill()?;
    let status = gateway.status()?;
    ensure!(flows(&status) == alive && alive > Some(0), "{alive:?}: {status}");
    ensure!(status["daemon"]["running"] == false && status["healthy"] == false, "{status}");
    let since = status["daemon"]["since"].as_str();
    ensure!(since.is_some_and(|since| since.ends_with('Z')), "{status}");
    let eth0 = &status["interfaces"][0];
    ensure!(eth0["attached"] == true && eth0["mode"] == "native", "{eth0}");
    ensure!(status["services"][0]["rates"].is_null(), "{}", status["services"][0]);
    ensure!(status["interfaces"][0]["rate_pps"].is_null(), "{}", status["interfaces"][0]);
    // Nobody checks them.
    let backend = &status["services"][0]["backends"][0];
    ensure!(backend["health"] == "unknown" && backend["last_health"] == "up", "{backend}");
    ensure!(status["from_pins"] == true && status["degraded"] == true, "{status}");
    ensure!(status["daemon"]["uptime_s"].is_null(), "{}", status["daemon"]);
    ensure!(status["unready"][0]["kind"] == "daemon-not-running", "{}", status["unready"]);
    let ran = gateway.ringway(&["status"])?;
    ensure!(ran.code == 3 && ran.out.contains("packets/s"), "{ran:?}");
    ensure!(
        ran.out.contains("last known: up") && ran.out.contains("last known: 2/2 up"),
        "{ran:?}"
    );
    memory_of_every_map(&gateway)
}

/// Every map is there, with its bytes, and the sum is theirs.
fn memory_of_every_map(gateway: &Gateway) -> Result<()> {
    let said = gateway.ringway(&["status", "--memory", "-o", "json"])?;
    ensure!(said.code == 0, "{said:?}");
    let said = said.json()?;
    ensure!(said["schema"] == "ringway.memory/1" && said["node"] == gateway.node(), "{said}");
    let maps = said["maps"].as_array().context("no maps")?;
    let pinned = std::fs::read_dir(gateway.pins().join("maps"))?;
    for name in pinned.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())) {
        let name: String = name.map_err(|error: std::io::Error| error)?;
        let map = maps.iter().find(|map| map["name"] == name.as_str());
        let map = map.with_context(|| format!("{name} is not listed"))?;
        // A trie has memory for what is in it alone.
        let is_empty = name.starts_with("runtime_");
        ensure!(map["bytes"].as_u64() > Some(0) || is_empty, "{map}");
        ensure!(map["max_entries"].as_u64() > Some(0), "{map}");
        ensure!(
            map["when_full"].as_str() > Some("") && map["purpose"].as_str() > Some(""),
            "{map}"
        );
    }
    for own in ["answer_due", "other_senders"] {
        ensure!(maps.iter().any(|map| map["name"] == own && map["pinned"] == false), "no {own}");
    }
    let used = |name: &str| maps.iter().find(|m| m["name"] == name).map(|m| &m["used_entries"]);
    ensure!(used("backends") == Some(&2.into()) && used("rings") == Some(&1.into()), "{said}");
    let room = maps.iter().find(|map| map["name"] == "flows").map(|map| &map["max_entries"]);
    let status = gateway.status()?;
    ensure!(room == Some(&status["flow_table"]["capacity_flows"]), "{room:?}: {status}");
    let sum: u64 = maps.iter().filter_map(|map| map["bytes"].as_u64()).sum();
    ensure!(said["sum_bytes"] == sum && sum > 1 << 20, "{sum}: {said}");
    let text = gateway.ringway(&["status", "--memory"])?;
    for word in ["flow-table-full", "MiB in", "cannot be"] {
        ensure!(text.out.contains(word), "no {word:?} in {text:?}");
    }
    Ok(())
}
