//! Who is found, and what is said where nobody answers.

use super::*;
use crate::node::netns_hint::Netns;

#[test]
fn a_node_is_found_by_configuration_or_name() {
    let place = tempfile::tempdir().expect("a directory");
    let file = place.path().join("ringway.toml");
    std::fs::write(&file, "[api]\nsocket = \"/run/a.sock\"\n[node]\nname = \"gw-a\"\n[")
        .expect("written");
    let of = |config, node| NodeSelector { config, node }.find_beside(&file).expect("found");
    let socket = PathBuf::from("/run/a.sock");
    let named = of(Some(file.as_path()), None);
    assert_eq!((named.node.as_str(), &named.sockets[0]), ("gw-a", &socket));
    assert_eq!(named.file, Some(file.clone()));
    assert_eq!(of(None, Some("gw-a")).sockets[0], socket);
    assert_eq!(of(None, None).sockets[0], socket);
    let other = of(None, Some("gw-b"));
    assert_eq!(other.sockets, [PathBuf::from(ringway_config::DEFAULT_SOCKET)]);
    let nowhere = NodeSelector { config: Some(Path::new("/no/such/file")), node: None }.find();
    assert!(nowhere.is_err());
}

#[test]
fn who_mistypes_a_node_is_told_which_there_are() {
    let said = |known: &[&str]| {
        let known: Vec<String> = known.iter().map(|name| (*name).to_owned()).collect();
        not_loaded("gw9", &known, false, |_| Place::Here).to_string()
    };
    assert!(said(&["gw1"]).contains("no node \"gw9\" on this machine; there is \"gw1\""));
    assert!(said(&["gw1"]).contains("--node gw1") && said(&["a", "b"]).contains("there are a, b"));
    assert!(said(&[]).contains("nothing is loaded"));
    let away = || Place::Elsewhere(Netns::Unnamed { inode: 9, pid: 7 });
    let elsewhere = not_loaded("gw9", &["gw1".to_owned()], false, |_| away());
    assert!(elsewhere.what.ends_with("there is \"gw1\", of network namespace 9"));
    assert!(
        elsewhere.remedy.to_string().starts_with("`nsenter -t 7 -n ringway status --node gw1`")
    );
    let place = |node: &str| if node == "b" { away() } else { Place::Here };
    let several = not_loaded("gw9", &["a".to_owned(), "b".to_owned()], false, place).what;
    let told = "there are a, b (of network namespace 9: `nsenter -t 7 -n ringway ...`)";
    assert!(several.ends_with(told), "{several}");
    assert!(
        not_loaded("gw9", &[], true, |_| Place::Here).to_string().contains("cannot be seen here")
    );
}

/// To be sent to the node that was asked for would lead in a circle.
#[test]
fn a_node_whose_start_is_not_complete_is_not_said_to_be_missing() {
    for known in [&["gw1"][..], &["gw0", "gw1"]] {
        let known: Vec<String> = known.iter().map(|name| (*name).to_owned()).collect();
        let said = not_loaded("gw1", &known, false, |_| Place::Here);
        assert!(said.what.starts_with("a start of node gw1 was cut short"), "{said}");
        assert!(said.remedy.to_string().contains("`ringway run`"), "{said}");
        assert!(!said.to_string().contains("status --node"), "{said}");
    }
    let starting = unfinished("gw1", true);
    assert_eq!(starting.what, "the daemon of node gw1 is starting");
    assert_eq!(starting.remedy.to_string(), "ask again in a moment");
    let waits = super::starting("gw1", "waiting for eth1").what;
    assert_eq!(waits, "the daemon of node gw1 is starting: waiting for eth1");
}

#[test]
fn an_order_without_a_name_is_not_for_a_node_of_another_namespace() {
    let target = NodeTarget {
        enter_netns: Some("nsenter -t 7 -n".into()),
        ..NodeTarget::new("gw1", Some("/no/such/socket".into()))
    };
    let refused = target.daemon().expect_err("not the one").to_string();
    assert!(refused.contains("gw1, is of another network namespace: nothing"), "{refused}");
    assert!(refused.contains("`nsenter -t 7 -n ringway status`"), "{refused}");
}

#[test]
fn a_daemon_that_runs_is_not_told_to_be_started() {
    let elsewhere = silent("gw1", Some(7)).to_string();
    assert!(elsewhere.contains("process 7 with another API socket"), "{elsewhere}");
    assert!(silent("gw1", None).what.contains("does not run"));
}
