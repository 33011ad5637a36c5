//! `ringway check --host` on real interfaces: what is wrong is found, and gone once the printed
//! command has been run.

use anyhow::{Context, Result, ensure};
use ringway_net_tests::{SERVICE_V4, SOON, Site, WEB, needs_root, ringway, tool};
use ringway_testnet::{Namespace, attach_pass, detach_pass, wait_for};
use serde_json::Value;

/// A gateway's namespace with a configuration, and no daemon.
struct Checked<'a> {
    namespace: &'a Namespace,
    file: String,
}

impl<'a> Checked<'a> {
    fn new(namespace: &'a Namespace, text: &str) -> Result<Checked<'a>> {
        let file = namespace.directory().join("checked.toml");
        std::fs::write(&file, text)?;
        Ok(Checked { namespace, file: file.to_string_lossy().into_owned() })
    }

    /// All findings of this check about a subject that contains this.
    fn findings(&self, check: &str, subject: &str) -> Result<Vec<Value>> {
        let ran = ringway(self.namespace, &["check", "--host", "-c", &self.file, "-o", "json"])?;
        of(&ran.json()?["findings"], check, subject)
    }

    /// What the doctor says of the machine itself, on the same occasion.
    fn host(&self, check: &str, subject: &str) -> Result<Value> {
        let ran = ringway(self.namespace, &["check", "--host", "-c", &self.file, "-o", "json"])?;
        let document = ran.json()?;
        ensure!((document["host"]["crit"] == 0) || ran.code == 3, "{ran:?}");
        let found = of(&document["host"]["findings"], check, subject)?;
        found.into_iter().next().with_context(|| format!("no {check} {subject}: {document:#}"))
    }

    /// Finds it in this state, and returns what is to be done.
    fn fix(&self, check: &str, subject: &str, state: &str) -> Result<String> {
        let findings = self.findings(check, subject)?;
        let found = findings.iter().find(|finding| finding["state"] == state);
        let found = found.with_context(|| format!("no {state} of {check}: {findings:?}"))?;
        ensure!(found["reason"].as_str().is_some_and(|reason| !reason.is_empty()), "{found}");
        Ok(found["fix"].as_str().unwrap_or_default().to_owned())
    }

    fn is_ok(&self, check: &str, subject: &str) -> Result<()> {
        let findings = self.findings(check, subject)?;
        let well = findings.iter().all(|finding| finding["state"] == "ok");
        ensure!(well && !findings.is_empty(), "{findings:?}");
        Ok(())
    }
}

fn of(findings: &Value, check: &str, subject: &str) -> Result<Vec<Value>> {
    let all = findings.as_array().context("no findings")?;
    let fits = |finding: &&Value| {
        finding["check"] == check
            && finding["subject"].as_str().is_some_and(|found| found.contains(subject))
    };
    Ok(all.iter().filter(fits).cloned().collect())
}

/// Runs a command as an administrator would type it.
fn type_in(namespace: &Namespace, command: &str) -> Result<()> {
    tool(namespace, "sh", &["-ec", command])?.done().map(drop).with_context(|| command.to_owned())
}

#[test]
fn a_machine_in_order_and_what_is_wrong_with_it() -> Result<()> {
    needs_root!();
    let site = Site::new(1)?;
    let ns = &site.net.gateway;
    let checked = Checked::new(ns, &site.configuration(&site.service("web", WEB, "")))?;
    for (check, subject) in [
        ("xdp-mode", "eth0"),
        ("route", "web"),
        ("link-reset", "eth0"),
        ("firewall", "this machine"),
        ("foreign-xdp", "eth1"),
    ] {
        checked.is_ok(check, subject)?;
    }
    for (check, subject) in
        [("bpf-jit", "bpf_jit_enable"), ("kernel", ""), ("btf", ""), ("veth-checksum", "eth1")]
    {
        let found = checked.host(check, subject)?;
        ensure!(found["severity"] == "ok", "{found}");
    }
    let runbook = include_str!("../../../../docs/runbook.md");
    let arguments = ["check", "--host", "-c", &checked.file, "-o", "json"];
    let document = ringway(checked.namespace, &arguments)?.json()?;
    for finding in document["findings"].as_array().into_iter().flatten() {
        let name = finding["check"].as_str().unwrap_or_default();
        ensure!(runbook.contains(&format!("`{name}`")), "docs/runbook.md lacks {name}");
    }

    // A firewall rule that sees nothing.
    type_in(
        ns,
        "nft add table inet mine
         nft add chain inet mine input '{ type filter hook input priority 0; }'
         nft add rule inet mine input tcp dport 22 accept
         nft add rule inet mine input ip daddr 10.1.0.80 tcp dport '{ 80, 443 }' drop",
    )?;
    let fix = checked.fix("firewall", "web", "warn")?;
    ensure!(fix.starts_with("nft delete rule inet mine input handle "), "{fix}");
    type_in(ns, &fix)?;
    checked.is_ok("firewall", "this machine")?;

    // A far end that does not poll.
    detach_pass(&site.net.switch, "gw")?;
    let found = checked.host("veth-checksum", "eth1")?;
    ensure!(found["severity"] == "warn", "{found}");
    let advice = found["advice"].as_str().context("no advice")?;
    let command = advice.strip_prefix("there: ").and_then(|rest| rest.split(';').next());
    let command = command.with_context(|| advice.to_owned())?;
    type_in(&site.net.switch, &command.replace("IFACE", "gw"))?;
    ensure!(checked.host("veth-checksum", "eth1")?["severity"] == "ok");

    // Somebody else's program.
    attach_pass(ns, "eth1")?;
    let fix = checked.fix("foreign-xdp", "eth1", "fail")?;
    ensure!(fix.contains("on_pass = "), "{fix}");
    let command = fix.split_once("or: ").and_then(|(_, rest)| rest.split(';').next());
    type_in(ns, command.with_context(|| fix.clone())?)?;
    checked.is_ok("foreign-xdp", "eth1")
}

#[test]
fn a_backend_that_answers_for_the_service_address() -> Result<()> {
    needs_root!();
    let site = Site::new(1)?;
    let ns = &site.net.gateway;
    let backend = &site.net.backends[0].ns;
    backend.ip(&format!("address add {SERVICE_V4}/32 dev lo\n"))?;
    // Known as a neighbour, as every backend is once a gateway runs.
    type_in(ns, "ping -c 1 -W 5 10.2.0.11")?;
    let text = site.configuration(&site.service("web", WEB, "forward = \"dsr-l2\"\n"));
    let checked = Checked::new(ns, &text)?;
    // It waits 300 ms for the answer, which a busy machine may need longer for.
    let fix = wait_for("the answer for the service address", SOON, || {
        checked.fix("arp-quiet", "web", "fail").map_err(|error| format!("{error:#}"))
    })?;
    let command = fix.strip_prefix("on the backend: ").and_then(|fix| fix.split("; with").next());
    type_in(backend, command.with_context(|| fix.clone())?)?;
    checked.is_ok("arp-quiet", "web")
}

#[test]
fn no_room_for_a_tunnel() -> Result<()> {
    needs_root!();
    let site = Site::new(1)?;
    let ns = &site.net.gateway;
    let more = "forward = \"dsr-gue\"\nprotocol = \"udp\"\n";
    let checked = Checked::new(ns, &site.configuration(&site.service("web", WEB, more)))?;
    let fix = checked.fix("mtu", "web", "warn")?;
    let command = fix.split(" (also").next().unwrap_or_default();
    ensure!(command == "ip link set dev eth1 mtu 1528", "{fix}");
    type_in(ns, command)?;
    checked.is_ok("mtu", "web")
}

/// One rule set: what the doctor says of this machine as a balancer, about the interfaces of the
/// file.
#[test]
fn the_host_is_the_doctors() -> Result<()> {
    needs_root!();
    let site = Site::new(1)?;
    let ns = &site.net.gateway;
    let checked = Checked::new(ns, &site.configuration(&site.service("web", WEB, "")))?;
    ns.sysctl("net/core/somaxconn", "16")?;
    let found = checked.host("far-below-default", "somaxconn")?;
    let doctor = ["doctor", "--profile", "balancer", "-o", "json", "--interval", "0.1"];
    let said = ringway(ns, &doctor)?.json()?;
    ensure!(of(&said["findings"], "far-below-default", "somaxconn")? == [found.clone()], "{found}");
    ns.ip("link add other type veth peer name rest\nlink set other up\n")?;
    ensure!(checked.host("xdp-mtu", "eth0").is_ok() && checked.host("xdp-mtu", "other").is_err());
    // Without a file, all of them; that nobody named one is no error.
    let ran = ringway(ns, &["check", "--host", "-o", "json"])?;
    if ran.json()?["file"].is_null() {
        let all = ran.json()?["host"]["findings"].clone();
        ensure!(!of(&all, "xdp-mtu", "other")?.is_empty() && ran.json()?["findings"].is_null());
    }
    let ran = ringway(ns, &["check", "--host"])?;
    ensure!(ran.out.contains("fix    sysctl -w net.core.somaxconn=4096"), "{ran:?}");
    ringway(ns, &["check", "--host", "-c", "/no/such/file"])?.complains(2, &[])?;
    Ok(())
}
