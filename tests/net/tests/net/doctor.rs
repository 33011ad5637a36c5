//! `ringway doctor`: settings made wrong in a namespace are found, set right by the script that it
//! writes, gone, and wrong again once the undo has been run.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use ringway_net_tests::{Ran, binary, needs_root, ringway};
use ringway_testnet::{End, Namespace, VethOptions, attach_pass, veth, wait_for, wait_until};
use serde_json::Value;

/// A namespace to make ill.
pub struct Patient {
    pub ns: Namespace,
}

impl Patient {
    pub fn new(hint: &str) -> Result<Patient> {
        Ok(Patient { ns: Namespace::new(hint)? })
    }

    fn file(&self, name: &str) -> String {
        self.ns.directory().join(name).to_string_lossy().into_owned()
    }

    /// With the sysfs of the namespace, as `ip netns exec` mounts it.
    pub fn inside(&self, program: impl AsRef<Path>, arguments: &[&str]) -> Result<Ran> {
        let mut command = self.ns.command("ip");
        command.args(["netns", "exec", self.ns.name()]).arg(program.as_ref()).args(arguments);
        Ok(command.output()?.into())
    }

    pub fn sh(&self, script: &str) -> Result<()> {
        let ran = self.inside("sh", &["-ec", script])?;
        ensure!(ran.code == 0, "{script}: {ran:?}");
        Ok(())
    }

    pub fn doctor(&self, arguments: &[&str]) -> Result<Value> {
        let all = [&["doctor", "-o", "json"], arguments].concat();
        let ran = self.inside(binary()?, &all)?;
        ensure!(matches!(ran.code, 0 | 3), "{ran:?}");
        let document = ran.json()?;
        ensure!((ran.code == 3) == (document["crit"] != 0), "{ran:?}");
        Ok(document)
    }

    /// What a check finds wrong, by subject.
    pub fn symptoms(&self, check: &str, interval: &str) -> Result<Vec<Value>> {
        Ok(symptoms(&self.doctor(&["--only", check, "--interval", interval])?))
    }

    /// Found, and its own script is run.
    pub fn treat(&self, check: &str, interval: &str) -> Result<Vec<Value>> {
        let script = self.file("fix.sh");
        let only = ["--only", check, "--interval", interval];
        let found =
            self.doctor(&[&only[..], &["--fix-script", &script, "--overwrite"]].concat())?;
        self.sh(&format!("sh {script}"))?;
        Ok(symptoms(&found))
    }

    /// Found, fixed by its own script, told as fixed, and back with the undo.
    pub fn cure(&self, check: &str, subject: &str, interval: &str) -> Result<()> {
        let (script, before) = (self.file("fix.sh"), self.file("before.json"));
        let looks = ["--only", check, "--interval", interval];
        let about = |all: &[Value]| all.iter().any(|one| one["subject"] == subject);
        // What the kernel counts may begin to go wrong a moment later.
        let ill = |more: &[&str]| {
            wait_for(format!("{check} of {subject}"), ringway_net_tests::SOON, || {
                let found =
                    self.doctor(&[&looks[..], more].concat()).map_err(|e| format!("{e:#}"))?;
                if about(&symptoms(&found)) { Ok(found) } else { Err(format!("{found:#}")) }
            })
        };
        let found = ill(&["--fix-script", &script, "--overwrite"])?;
        std::fs::write(&before, found.to_string())?;
        self.sh(&format!("sh {script}"))?;
        let now = self.doctor(&[&looks[..], &["--since", &before]].concat())?;
        let fixed = now["changes"]["fixed"].as_array().context("no changes")?;
        ensure!(about(fixed) && symptoms(&now).is_empty(), "{check}: {now:#}");
        self.sh(&format!("sh {script}.undo"))?;
        ill(&[]).context("undone")?;
        Ok(())
    }
}

/// A patient's `va`, and a neighbour's `vb`: 10.9.0.1 and .2.
pub fn pair(hint: &str) -> Result<(Patient, Namespace)> {
    let (patient, far) = (Patient::new(hint)?, Namespace::new("far")?);
    let near = End::new(&patient.ns, "va").address("10.9.0.1/24");
    veth(&near, &End::new(&far, "vb").address("10.9.0.2/24"), &VethOptions::default())?;
    Ok((patient, far))
}

pub fn symptoms(document: &Value) -> Vec<Value> {
    let all = document["findings"].as_array().cloned().unwrap_or_default();
    let ill =
        |finding: &Value| matches!(finding["severity"].as_str(), Some("info" | "warn" | "crit"));
    all.into_iter().filter(ill).collect()
}

const SOON: &str = "0.1";

#[test]
fn limits_far_below_their_defaults() -> Result<()> {
    needs_root!();
    let patient = Patient::new("limits")?;
    for (key, value) in [
        ("net/core/somaxconn", "16"),
        ("net/ipv4/ip_local_port_range", "40000 40099"),
        ("net/ipv4/tcp_max_tw_buckets", "10"),
        ("net/ipv4/tcp_max_syn_backlog", "16"),
        ("net/ipv4/tcp_rmem", "4096 8192 16384"),
        ("net/ipv4/tcp_wmem", "4096 8192 16384"),
    ] {
        let path = format!("/proc/sys/{key}");
        let was = patient.ns.run(|| std::fs::read_to_string(&path))??;
        patient.ns.sysctl(key, value)?;
        patient.cure("far-below-default", key, SOON)?;
        patient.ns.sysctl(key, was.trim())?;
    }
    Ok(())
}

#[test]
fn settings_of_tcp() -> Result<()> {
    needs_root!();
    let patient = Patient::new("settings")?;
    for value in ["0", "2"] {
        patient.ns.sysctl("net/ipv4/tcp_syncookies", value)?;
        patient.cure("tcp-syncookies", "this machine", SOON)?;
    }
    patient.ns.sysctl("net/ipv4/tcp_slow_start_after_idle", "1")?;
    patient.cure("slow-start-after-idle", "this machine", SOON)?;
    for key in ["net/ipv4/tcp_sack", "net/ipv4/tcp_window_scaling", "net/ipv4/tcp_timestamps"] {
        patient.ns.sysctl(key, "0")?;
        patient.cure("tcp-options", key, SOON)?;
        patient.ns.sysctl(key, "1")?;
    }
    let key = "net/ipv4/tcp_moderate_rcvbuf";
    patient.ns.sysctl(key, "0")?;
    patient.cure("sysctl-bounds", key, SOON)
}

/// `ip netns exec` hides it, and what is mounted then is gone with the command: nothing that could
/// be pasted helps.
#[test]
fn no_place_for_pins() -> Result<()> {
    needs_root!();
    let patient = Patient::new("pins")?;
    let found = patient.symptoms("bpffs", SOON)?;
    ensure!(found.len() == 1 && found[0]["changes"] == serde_json::json!([]), "{found:?}");
    let advice = found[0]["advice"].as_str().unwrap_or_default();
    ensure!(
        advice.contains(&format!("nsenter --net=/run/netns/{}", patient.ns.name())),
        "{found:?}"
    );
    Ok(())
}

#[test]
fn a_backend_that_is_not_quiet() -> Result<()> {
    needs_root!();
    let patient = Patient::new("dsr")?;
    patient.ns.ip("link add va type veth peer name vb\nlink set va up\nlink set vb up\naddress add 203.0.113.10/32 dev lo\n")?;
    patient.cure("dsr-quiet", "203.0.113.10", SOON)
}

#[test]
fn pairs_that_do_not_fit() -> Result<()> {
    needs_root!();
    let patient = Patient::new("pairs")?;
    let ns = &patient.ns;
    veth(&End::new(ns, "va"), &End::new(ns, "vb"), &VethOptions::default())?;
    // All offloads are off.
    patient.cure("offloads", "va", SOON)?;
    // The kernel keeps what is asked for off without scatter-gather.
    patient.sh("ethtool -K va tx on gso on tso on; ethtool -K va sg off")?;
    patient.cure("offloads", "va", SOON)?;
    patient.sh("ip link set dev vb mtu 9000")?;
    patient.cure("mtu", "va", SOON)?;
    ensure!(patient.symptoms("xdp-mtu", SOON)?.len() == 1, "MTU 9000 is not told");
    patient.sh("ip link set dev vb mtu 1500; ethtool -K vb tx on gro off")?;
    attach_pass(ns, "va")?;
    patient.cure("veth-checksum", "vb", SOON)
}

#[test]
fn queues_in_sysfs() -> Result<()> {
    needs_root!();
    let patient = Patient::new("queues")?;
    let ns = &patient.ns;
    let queues = std::thread::available_parallelism()?.get().max(2) as u32;
    let options = VethOptions { queues, ..VethOptions::default() };
    veth(&End::new(ns, "va"), &End::new(ns, "vb"), &options)?;
    patient.cure("xps", "va", SOON)?;
    patient.sh("echo 3 > /sys/class/net/va/queues/rx-0/rps_cpus")?;
    patient.cure("rps-needless", "va", SOON)?;
    patient.sh("echo 20000 > /sys/class/net/va/gro_flush_timeout")?;
    patient.cure("napi-defer", "va", SOON)?;
    // On veth NAPI is there with GRO.
    patient.sh("ethtool -K va gro on; echo 1 > /sys/class/net/va/threaded")?;
    patient.cure("threaded-napi", "va", SOON)?;
    // Without the namespace's own sysfs none of it is known, and none of it is well.
    let ran = ringway(ns, &["doctor", "-o", "json", "--only", "napi-defer", "--interval", SOON])?;
    ensure!(ran.json()?["unknown"] == 2 && ran.out.contains("ip netns exec"), "{ran:?}");
    Ok(())
}

#[test]
fn a_bridge_behind_iptables() -> Result<()> {
    needs_root!();
    let patient = Patient::new("bridge")?;
    patient.ns.ip("link add bridge0 type bridge\nlink set bridge0 up\n")?;
    let key = "net/bridge/bridge-nf-call-iptables";
    if patient.ns.sysctl(key, "1").is_err() {
        ringway_net_tests::not_tested("bridge-filter: br_netfilter is not loaded");
        return Ok(());
    }
    patient.cure("bridge-filter", key, SOON)
}

/// What Linux keeps elsewhere is told so, and set there.
#[test]
fn settings_of_the_first_namespace() -> Result<()> {
    needs_root!();
    let patient = Patient::new("child")?;
    let said = patient.doctor(&["--interval", SOON])?;
    ensure!(said["namespace"]["name"] == patient.ns.name(), "{said:#}");
    let all = said["findings"].as_array().context("no findings")?;
    let unknown: Vec<_> = all.iter().filter(|one| one["severity"] == "unknown").collect();
    ensure!(unknown.len() > 4, "{unknown:#?}");
    for one in unknown {
        let found = one["found"].as_str().unwrap_or_default();
        let told = ["first network namespace alone", "tcp_mtu_probing", "xsk_diag"];
        ensure!(told.iter().any(|cause| found.contains(cause)), "{one:#}");
    }
    Ok(())
}

#[test]
fn what_no_command_fixes() -> Result<()> {
    needs_root!();
    let patient = Patient::new("advice")?;
    let ns = &patient.ns;
    let rules = "add rule inet t c tcp dport 80 accept\n".repeat(60);
    let chain = "add table inet t\nadd chain inet t c { type filter hook input priority 0; }\n";
    let file = patient.file("rules.nft");
    std::fs::write(&file, format!("{chain}{rules}"))?;
    patient.sh(&format!("nft -f {file}"))?;
    let found = patient.symptoms("long-chains", SOON)?;
    ensure!(found.len() == 1 && found[0]["subject"] == "inet t c", "{found:?}");
    patient.sh("nft delete table inet t")?;
    ensure!(patient.symptoms("long-chains", SOON)?.is_empty());

    veth(&End::new(ns, "va").address("10.9.0.1/24"), &End::new(ns, "vb"), &VethOptions::default())?;
    let mut command = ns.command(binary()?);
    command.args(["decap", "-i", "va", "--mode", "generic"]);
    let decap = ns.spawn(command)?;
    let found = || patient.symptoms("xdp-generic", SOON).is_ok_and(|found| found.len() == 1);
    wait_until("generic XDP to be found", ringway_net_tests::SOON, found)?;
    // Detaches.
    drop(decap);
    ensure!(patient.symptoms("xdp-generic", SOON)?.is_empty());
    Ok(())
}

#[test]
fn a_collection_is_looked_at_elsewhere() -> Result<()> {
    needs_root!();
    let patient = Patient::new("collect")?;
    patient.ns.sysctl("net/core/somaxconn", "16")?;
    let file = patient.file("host.tar");
    ringway(&patient.ns, &["doctor", "--collect", &file, "--interval", SOON])?.done()?;
    let healthy = Patient::new("elsewhere")?;
    let said = healthy.doctor(&["--from", &file, "--only", "far-below-default"])?;
    let found = symptoms(&said);
    ensure!(found.len() == 1 && found[0]["subject"] == "net/core/somaxconn", "{said:#}");
    ensure!(healthy.symptoms("far-below-default", SOON)?.is_empty());
    // Its script runs in that namespace of that host, and nowhere else unless it is told to.
    let script = healthy.file("far.sh");
    let arguments = ["doctor", "--from", &file, "--only", "79", "--fix-script", &script];
    let ran = healthy.inside(binary()?, &arguments)?;
    let name = patient.ns.name();
    ensure!(ran.err.contains(name) && ran.err.contains("refused elsewhere"), "{ran:?}");
    healthy.inside("sh", &[&script])?.complains(2, &["nothing was done", name])?;
    ensure!(healthy.symptoms("far-below-default", SOON)?.is_empty());
    patient.sh(&format!("sh {script}"))?;
    ensure!(patient.symptoms("far-below-default", SOON)?.is_empty());
    healthy.sh(&format!("sh {script}.undo --force"))?;
    ensure!(healthy.symptoms("far-below-default", SOON)?.len() == 1);
    healthy.sh("sysctl -q -w net.core.somaxconn=4096")?;
    // Damaged on the way.
    let bytes = std::fs::read(&file)?;
    for (part, word) in [(&bytes[..bytes.len() / 2], "damaged"), (&b""[..], "no collection")] {
        std::fs::write(&file, part)?;
        ringway(&healthy.ns, &["doctor", "--from", &file])?.complains(2, &[word])?;
    }
    ringway(&healthy.ns, &["doctor", "--since", &file])?.complains(2, &["no report"])?;
    Ok(())
}
