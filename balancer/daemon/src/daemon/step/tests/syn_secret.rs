//! A secret of answers to SYNs that cannot be used is a finding until a reload takes it.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use ringway_api::problem_kind::ProblemKind;
use ringway_config::Config;

use super::super::{Shield, Survey};
use super::world::World;
use crate::daemon::shield_plan::{SecretReading, ShieldPlan, Unreadable};
use crate::testing::gateway;

fn config(secret: &Path) -> Config {
    let syn = format!("[shield]\nsyn = {{ always = true, secret = {secret:?} }}");
    gateway(&syn, "syn = \"challenge\"")
}

#[test]
fn a_start_without_a_secret_that_can_be_used_is_a_finding() {
    let place = tempfile::tempdir().expect("a directory");
    let file = place.path().join("syn.secret");
    let found = || {
        let config = config(&file);
        let secret = SecretReading::at_start(&config);
        let plan = ShieldPlan::read(&config, Unreadable::Empty, secret).expect("it starts");
        let mut world = World::new();
        world.state.shield = Shield::new(None, plan);
        let mut findings = world.state.findings(&Survey::default());
        findings.retain(|found| found.kind == ProblemKind::SynSecretUnusable);
        findings.pop().map(|found| format!("{}; to do: {}", found.error, found.remedy))
    };
    let mode = |mode| fs::set_permissions(&file, Permissions::from_mode(mode)).expect("a mode");
    let missing = found().expect("it is missing");
    for words in ["syn.secret: No such file", "a key of this node's own", "; then: ringway reload"]
    {
        assert!(missing.contains(words), "{missing}");
    }
    fs::write(&file, "0123456789abcdef0123456789abcdef\n").expect("written");
    mode(0o644);
    assert!(found().is_some_and(|found| found.contains("(mode 0644)")));
    mode(0o600);
    assert_eq!(found(), None);
    fs::write(&file, "0123\n").expect("written");
    assert!(found().is_some_and(|found| found.contains("32 to 128 hexadecimal digits")));
}

#[test]
fn whoever_checks_the_file_hears_what_a_reload_and_a_start_do() {
    let secret = SecretReading::at_start(&config(Path::new("/nowhere/syn.secret")));
    let told = secret.unusable().expect("there is no file");
    for words in ["refuses a reload", "a daemon that starts answers SYNs", "make one: "] {
        assert!(told.contains(words), "{told}");
    }
}
