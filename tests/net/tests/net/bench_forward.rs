//! `ringway-lab bench forward` and `bench compare`, as short as they can be: what they say and refuse.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use ringway_net_tests::{
    Ran, SOON, lab_binary, module_is_loaded, needs_root, not_tested, ringway_lab,
};
use ringway_testnet::{
    Child, End, Namespace, Signal, VethOptions, bridge, enable_napi, veth, wait_for,
};
use serde_json::Value;

/// For a throughput: trials of a second, many more of them on a busy machine.
const MEASURED: Duration = Duration::from_secs(180);

fn forward(namespace: &Namespace, arguments: &[&str]) -> Result<Child> {
    let mut command = namespace.command(lab_binary()?);
    command.args(["bench", "forward", "--size", "64"]).args(arguments);
    Ok(namespace.spawn(command)?)
}

fn report(folder: &Path) -> Result<Value> {
    Ok(serde_json::from_slice(&std::fs::read(folder.join("report.json"))?)?)
}

/// Interrupted after its first test, it keeps that; and a run compared with itself is the same.
#[test]
fn what_was_measured_is_kept_and_compared() -> Result<()> {
    needs_root!();
    let place = Namespace::new("place")?;
    let folder = place.directory().join("before");
    let before = folder.display().to_string();
    let mut bench = forward(&place, &["--road", "linux-bridge", "--folder", &before])?;
    bench.wait_for_log("throughput", MEASURED)?;
    bench.signal(Signal::INT)?;
    let ended = bench.wait(SOON)?;
    ensure!(!ended.status.success(), "{}", ended.log);
    let mut again = forward(&place, &["--road", "linux-bridge", "--folder", &before])?;
    let refused = again.wait(SOON)?;
    ensure!(refused.log.contains("is there already; write another"), "{}", refused.log);
    let mut found = report(&folder)?;
    let cell = &found["cells"][0];
    ensure!(cell["road"] == "linux-bridge" && cell["size"] == 64, "{found}");
    ensure!(cell["throughput"]["upper"].is_f64() && cell["recovery"].is_null(), "{found}");
    ensure!(std::fs::read_to_string(folder.join("trials.csv"))?.lines().count() > 5, "{before}");

    let compare = |after: &str, arguments: &[&str]| -> Result<Ran> {
        ringway_lab(&place, &[&["bench", "compare", &before, after], arguments].concat())
    };
    compare(&before, &["--fail-on-worse"])?.says(0, &["0 better, 0 worse"])?;
    for bound in ["lower", "upper"] {
        found["cells"][0]["rounds"][0]["throughput"][bound] = 10.into();
    }
    let slow = place.directory().join("slow.json").display().to_string();
    std::fs::write(&slow, found.to_string())?;
    let worse = compare(&slow, &["-o", "json"])?;
    ensure!(worse.code == 0 && worse.json()?["changes"][0]["verdict"] == "worse", "{worse:?}");
    ensure!(compare(&slow, &["--fail-on-worse"])?.code == 3);
    compare("/nowhere", &[])?.complains(1, &["name the folder of a run"])?;
    Ok(())
}

/// Two interfaces whose other ends are joined by a bridge elsewhere.
fn joined(tester: &Namespace) -> Result<Namespace> {
    let device = Namespace::new("outside")?;
    bridge(&device, "br0", &[])?;
    for side in 0..2 {
        let near = End::new(tester, &format!("p{side}"));
        let far = End::new(&device, &format!("f{side}")).port_of("br0");
        veth(&near, &far, &VethOptions::default())?;
        // Frames that XDP sends arrive only where there is NAPI.
        enable_napi(&device, &format!("f{side}"))?;
    }
    Ok(device)
}

#[test]
fn interfaces_that_cannot_be_are_refused() -> Result<()> {
    needs_root!();
    let tester = Namespace::new("tester")?;
    let _device = joined(&tester)?;
    tester.ip("link add d0 type veth peer name d1\nlink set d0 up\nlink set d1 up\n")?;
    tester.ip("route add default dev d0\nlink add idle type veth peer name other\n")?;
    for (interfaces, says) in [
        ("p0,p0", "two different interfaces"),
        ("p0", "two different interfaces"),
        ("p0,eth77", "nsenter --net=/run/netns/NAME"),
        ("p0,d0", "interface d0: it carries the default route"),
        ("p0,idle", "`ip link set idle up`"),
        ("p0,lo", "no Ethernet interface"),
    ] {
        let ended = forward(&tester, &["--interfaces", interfaces])?.wait(SOON)?;
        ensure!(ended.status.code() == Some(1) && ended.log.contains(says), "{}", ended.log);
    }
    ringway_testnet::attach_generic_pass(&tester, "p1")?;
    let ended = forward(&tester, &["--interfaces", "p0,p1"])?.wait(SOON)?;
    ensure!(
        ended.status.code() == Some(1)
            && ended.log.contains("is attached")
            && ended.log.contains("xdp off"),
        "{}",
        ended.log
    );
    Ok(())
}

/// Namespaces of devices that a bench has made, by name.
fn devices_of(bench: &Child) -> Vec<String> {
    let own = format!("rw-device-{}-", bench.pid());
    let names = std::fs::read_dir("/run/netns").into_iter().flatten().flatten();
    let names = names.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| name.starts_with(&own)).collect()
}

/// What a command prints in a namespace that somebody else has made.
fn run_in(namespace: &str, command: &str) -> Result<String> {
    let mut ip = Command::new("ip");
    let output = ip.args(["netns", "exec", namespace]).args(command.split(' ')).output()?;
    ensure!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

mod long {
    use super::*;

    /// Received by one of the device's interfaces while the forward chain is watched.
    const FRAMES: u64 = 5_000;

    /// dpdk-testpmd forwards; of a road that this machine lacks something for is said what.
    #[test]
    fn roads_of_others() -> Result<()> {
        needs_root!();
        if let Err(why) = ringway_testnet::tools::find("dpdk-testpmd") {
            ringway_testnet::skip("roads_of_others", why);
            return Ok(());
        }
        let place = Namespace::new("place")?;
        let folder = place.directory().join("others");
        let path = folder.display().to_string();
        let roads = ["--road", "dpdk-testpmd,linux-flowtable", "--only", "throughput"];
        let ended =
            forward(&place, &[&roads[..], &["--folder", &path]].concat())?.wait(MEASURED)?;
        let found = report(&folder)?;
        let skipped = found["skipped"].to_string();
        ensure!(ended.status.success() && found["failed"].as_array().is_some_and(Vec::is_empty));
        let testpmd = &found["cells"][0];
        ensure!(testpmd["throughput"]["lower"].as_f64() > Some(1000.0), "{found}");
        ensure!(!skipped.contains("flowtable") || skipped.contains("modprobe -a nft_flow_offload"));
        Ok(())
    }

    /// The flowtable has the flows: next to none of their frames go by the forward chain.
    #[test]
    fn a_flowtable_has_the_flows() -> Result<()> {
        needs_root!();
        if !module_is_loaded("nft_flow_offload") {
            not_tested("this kernel has no nft_flow_offload, or has not loaded it");
            return Ok(());
        }
        let place = Namespace::new("place")?;
        let folder = place.directory().join("flowtable");
        let path = folder.display().to_string();
        let roads = ["--road", "linux-route,linux-flowtable", "--only", "throughput"];
        let mut bench = forward(&place, &[&roads[..], &["--folder", &path]].concat())?;
        bench.wait_for_log("linux-route, 64", MEASURED)?;
        let device = wait_for("a device with a flowtable", MEASURED, || {
            let has_table = |name: &String| run_in(name, "nft list table inet lab").is_ok();
            devices_of(&bench).into_iter().find(has_table).ok_or("there is none")
        })?;
        run_in(
            &device,
            "nft add table inet seen { chain c { type filter hook forward priority 1; counter; }; }",
        )?;
        let received = || -> Result<u64> {
            Ok(run_in(&device, "cat /sys/class/net/f0/statistics/rx_packets")?.trim().parse()?)
        };
        let before = received()?;
        wait_for("frames at the device", MEASURED, || {
            let came = received().map_err(|error| format!("{error:#}"))? - before;
            if came >= FRAMES { Ok(()) } else { Err(format!("{came} came")) }
        })?;
        let counter = run_in(&device, "nft list table inet seen")?;
        let flows = run_in(&device, "cat /proc/net/nf_conntrack").unwrap_or_default();
        let seen = counter.split(' ').skip_while(|word| *word != "packets").nth(1);
        let seen: u64 = seen.context(counter.clone())?.parse()?;
        ensure!(seen < FRAMES / 10, "{seen} by the forward chain; {flows}");
        let ended = bench.wait(MEASURED)?;
        let found = report(&folder)?;
        ensure!(ended.status.success(), "{}", ended.log);
        for (place, road) in ["linux-route", "linux-flowtable"].into_iter().enumerate() {
            let cell = &found["cells"][place];
            let forwarded = cell["throughput"]["lower"].as_f64() > Some(0.0);
            ensure!(cell["road"] == road && forwarded, "{found}");
        }
        Ok(())
    }

    /// What joins them outside is measured, until one of them is gone.
    #[test]
    fn interfaces_of_the_machine_are_measured() -> Result<()> {
        needs_root!();
        let tester = Namespace::new("tester")?;
        let _device = joined(&tester)?;
        let folder = tester.directory().join("outside");
        let path = folder.display().to_string();
        let mut bench = forward(&tester, &["--interfaces", "p0,p1", "--folder", &path])?;
        bench.wait_for_log("outside, 64", MEASURED)?;
        tester.ip("link del p1\n")?;
        let ended = bench.wait(MEASURED)?;
        ensure!(
            ended.status.code() == Some(1) && ended.log.contains("it is gone"),
            "{}",
            ended.log
        );
        let found = report(&folder)?;
        ensure!(found["cells"][0]["road"] == "outside", "{found}");
        ensure!(found["cells"][0]["throughput"]["lower"].is_f64(), "{found}");
        ensure!(
            found["failed"][0]["reason"].as_str().is_some_and(|why| why.contains("p1")),
            "{found}"
        );
        Ok(())
    }

    /// A setting that was measured is kept when the run is interrupted.
    #[test]
    fn a_setting_is_kept() -> Result<()> {
        needs_root!();
        let place = Namespace::new("place")?;
        let folder = place.directory().join("tune");
        let path = folder.display().to_string();
        let mut bench = forward(&place, &["--tune", "--road", "af_xdp", "--folder", &path])?;
        bench.wait_for_log("--ring=64 ", MEASURED)?;
        bench.signal(Signal::INT)?;
        ensure!(!bench.wait(SOON)?.status.success());
        let curve = std::fs::read_to_string(folder.join("tune-af_xdp-64.csv"))?;
        ensure!(curve.contains("\nring,64,64,16384,0,"), "{curve}");
        let found = report(&folder)?;
        ensure!(found["cells"][0]["curve"][0]["ring"] == 64, "{found}");
        let none = forward(&place, &["--tune", "--road", "linux-bridge"])?.wait(SOON)?;
        ensure!(none.log.contains("`--tune --road af_xdp`"), "{}", none.log);
        Ok(())
    }
}
