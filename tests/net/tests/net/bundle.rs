//! `ringway bundle`: what a bug report needs is in it, with and without a daemon; secrets are not.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use ringway_net_tests::{ECHO, Gateway, Line, SERVICE_V4, Site, binary, needs_root};

const SECRET: &str = "hunter2-hunter2";

/// One file of an archive; names end in it.
fn member(archive: &Path, name: &str) -> Result<String> {
    let ran = Command::new("tar")
        .arg("-xOf")
        .arg(archive)
        .args(["--wildcards", &format!("*/{name}")])
        .output()?;
    ensure!(ran.status.success(), "{name}: {}", String::from_utf8_lossy(&ran.stderr));
    Ok(String::from_utf8(ran.stdout)?)
}

fn everything(archive: &Path) -> Result<String> {
    let ran = Command::new("tar").arg("-xOf").arg(archive).output()?;
    ensure!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    Ok(String::from_utf8(ran.stdout)?)
}

#[test]
fn holds_what_is_needed_and_no_secret() -> Result<()> {
    needs_root!();
    let site = Site::new(2)?;
    let _echo = site.echo(SERVICE_V4, 7)?;
    let check = format!(
        "check = {{ type = \"exec\", command = [\"/bin/sh\", \"-c\", \"echo {SECRET}\"] }}\n"
    );
    let text = site.configuration(&site.service("echo", ECHO, &check)) + "# once it was " + SECRET;
    let mut gateway = Gateway::start(&site.net.gateway, &(text + "\n"))?;
    let mut line = Line::open(site.client(), ECHO)?;
    line.ask("who")?;
    let client = line.local()?.to_string();
    let here = site.net.gateway.directory().to_owned();
    let file = |name: &str| here.join(name);
    let bundle = |gateway: &Gateway, file: &Path, more: &[&str]| {
        gateway.ringway(&[&["bundle", &file.to_string_lossy()], more].concat())
    };

    // The client is a neighbour that the kernel knows.
    let client_address = site.net.client.addresses()[0].to_string();
    let known = "lladdr 02:00:00:00:00:99 dev eth0 nud stale";
    site.net.gateway.ip(&format!("neigh replace {client_address} {known}\n"))?;
    let first = file("first.tar");
    bundle(&gateway, &first, &[])?.says(0, &["read it before you send it"])?;
    let manifest = member(&first, "MANIFEST.txt")?;
    for name in [
        "versions.txt",
        "status.json",
        "shield.json",
        "memory.json",
        "programs.json",
        "check.json",
        "network.json",
        "configuration.toml",
    ] {
        ensure!(!manifest.contains(&format!("{name}: not had")), "{manifest}");
        ensure!(!member(&first, name)?.is_empty(), "{name}");
    }
    ensure!(manifest.contains("flows.json: left out"), "{manifest}");
    let status: serde_json::Value = serde_json::from_str(&member(&first, "status.json")?)?;
    ensure!(status["daemon"]["running"] == true, "{status}");
    let programs = member(&first, "programs.json")?;
    ensure!(
        programs.contains("ringway_root") && programs.contains("ringway_balance"),
        "{programs}"
    );
    let configuration = member(&first, "configuration.toml")?;
    ensure!(configuration.contains("command = \"[removed]\""), "{configuration}");
    ensure!(configuration.contains("10.2.0."), "{configuration}");
    let all = everything(&first)?;
    ensure!(!all.contains(SECRET), "a secret is in it");
    ensure!(!all.contains(&client), "a client is in it");
    ensure!(
        !member(&first, "network.json")?.contains(&format!("\"{client_address}\"")),
        "a client"
    );

    bundle(&gateway, &first, &[])?.complains(1, &["--overwrite"])?;
    bundle(&gateway, &first, &["--overwrite"])?.done()?;
    // The daemon knows which file it runs by.
    let unnamed = file("unnamed.tar");
    let words = ["bundle", &unnamed.to_string_lossy(), "--node", gateway.node()];
    let ran = gateway.plain(&words)?;
    ensure!(ran.code == 0 && member(&unnamed, "configuration.toml")? == configuration, "{ran:?}");
    ensure!(!everything(&unnamed)?.contains(SECRET), "a secret is in it");
    bundle(&gateway, &file("with.tar"), &["--with-flows"])?.done()?;
    ensure!(member(&file("with.tar"), "flows.json")?.contains(&client), "no flow of {client}");

    // Without a daemon, and with a file that is no TOML: what is left, and why not more.
    gateway.kill()?;
    let last = file("last.tar");
    gateway.rewrite(&format!("[node]\nname = \"{}\"\n[{SECRET}\n", gateway.node()))?;
    bundle(&gateway, &last, &[])?.says(0, &["without configuration.toml"])?;
    ensure!(!member(&last, "memory.json")?.is_empty(), "no memory");
    ensure!(!everything(&last)?.contains(SECRET), "a secret is in it");
    let manifest = member(&last, "MANIFEST.txt")?;
    for words in ["configuration.toml: not had", "check.json: not had", "secrets are not known"] {
        ensure!(manifest.contains(words), "no {words:?} in {manifest}");
    }
    Ok(())
}

/// A disk that is full, and a reader that goes away.
#[test]
fn ends_well_where_it_cannot_be_written() -> Result<()> {
    needs_root!();
    let site = Site::new(1)?;
    let gateway = site.start(&site.service("echo", ECHO, ""))?;
    gateway
        .ringway(&["bundle", "/no/such/directory/x.tar"])?
        .complains(1, &["make its directory"])?;
    let shell = |line: &str| -> Result<(i32, String)> {
        let mut command = site.net.gateway.command("sh");
        command.arg("-c").arg(line).arg("sh").arg(binary()?).arg(gateway.configuration());
        let ran = command.output()?;
        let said = [ran.stdout, ran.stderr].concat();
        Ok((ran.status.code().context("a signal")?, String::from_utf8_lossy(&said).into_owned()))
    };
    let (code, said) = shell("\"$1\" bundle - -c \"$2\" > /dev/full")?;
    ensure!(code == 1 && said.contains("No space left"), "{code} {said}");
    let (code, said) = shell("\"$1\" bundle - -c \"$2\" | true; echo")?;
    ensure!(code == 0 && said.trim().is_empty(), "{code} {said}");
    let (code, said) = shell("\"$1\" flows -n 0 -c \"$2\" > /dev/full")?;
    ensure!(code == 1 && said.contains("No space left"), "{code} {said}");
    Ok(())
}
