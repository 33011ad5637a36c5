//! `[forward]`: what it says, and the messages of what is wrong with it.

#![allow(clippy::unwrap_used)]

mod common;

use std::path::Path;

use common::{check_table, messages};
use ringway_bpf_sys::XdpMode;
use ringway_config::{Config, ForwardMode, ForwardOptions, Setting, parse};

const NODE: &str = "[node]\nname = \"gw1\"\ninterfaces = [\"eth0\", { name = \"eth1\", faces = \"clients\" }, \"eth2\"]\n";

fn read(text: &str) -> Config {
    parse(&format!("{NODE}{text}"), "gw.toml").unwrap_or_else(|errors| panic!("{errors}"))
}

fn names(config: &Config) -> Vec<&str> {
    config.forward.as_ref().unwrap().interfaces.iter().map(|name| name.as_str()).collect()
}

#[test]
fn a_bridge_needs_no_service() {
    let config = read("[forward]\nmode = \"bridge\"\n");
    let forward = config.forward.as_ref().unwrap();
    assert_eq!((forward.mode, forward.bypass_firewall), (ForwardMode::Bridge, false));
    assert_eq!(names(&config), ["eth0", "eth1", "eth2"]);
    assert!(config.services.is_empty());
    let some = read(
        "[forward]\nmode = \"route\"\ninterfaces = [\"eth2\"]\nbypass_firewall = true\n[[service]]\n\
         name = \"web\"\naddress = \"203.0.113.10\"\nport = 80\nbackends = [{ address = \"10.0.0.2\" }]\n",
    );
    let forward = some.forward.as_ref().unwrap();
    assert_eq!((forward.mode, forward.bypass_firewall), (ForwardMode::Route, true));
    assert_eq!((names(&some), some.services.len()), (vec!["eth2"], 1));
    assert_ne!(config, read("[forward]\nmode = \"route\"\n"));
}

/// Also where services are said to lie in files of which there is none.
#[test]
fn included_files_may_be_missing() {
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("gw.toml");
    let include = "include = [\"*.conf\"]\n";
    std::fs::write(&file, format!("{include}{NODE}[forward]\nmode = \"bridge\"\n")).unwrap();
    assert!(ringway_config::load(&file).is_ok());
    std::fs::write(&file, format!("{include}{NODE}")).unwrap();
    let error = ringway_config::load(&file).unwrap_err().to_string();
    assert!(error.contains("neither the file nor what it includes has a service"), "{error}");
    std::fs::write(place.path().join("a.conf"), "[forward]\nmode = \"bridge\"\n").unwrap();
    let error = ringway_config::load(&file).unwrap_err().to_string();
    assert!(error.contains("[forward] is in an included file"), "{error}");
}

#[test]
fn what_is_wrong_is_told_with_its_place() {
    let table = r#"
=> 4:1: [forward] has no mode: add mode = "bridge" or mode = "route"
mode = "switch"
=> 5:8: mode = "switch" in [forward] is not known: write "bridge" or "route"
mode = "bridge"
speed = 9
=> 6:1: unknown key "speed" in [forward]: remove it; known here: mode, interfaces, bypass_firewall
mode = "bridge"
bypass_firewal = true
=> 6:1: unknown key "bypass_firewal" in [forward]: did you mean "bypass_firewall"?
mode = "bridge"
bypass_firewall = "yes"
=> 6:19: bypass_firewall = "yes" in [forward] is a string: write true or false, without quotes
mode = "bridge"
interfaces = "eth0"
=> 6:14: interfaces = "eth0" in [forward] is a string: write interfaces = ["eth0", "eth1"]
mode = "route"
interfaces = []
=> 6:14: interfaces = [] in [forward] is empty: remove it, which means all of [node], or write those that packets go between
mode = "bridge"
interfaces = ["eth0"]
=> 6:14: interfaces of [forward] has one element, and mode = "bridge" takes two or more: add another, or write mode = "route"
mode = "bridge"
interfaces = ["eth0", "eth0", "eth7"]
=> 6:23: "eth0" is twice in interfaces of [forward]: remove one
=> 6:31: "eth7" in interfaces of [forward] is not one of interfaces of [node]: add it there, or remove it here
mode = "bridge"
interfaces = ["eth0", "eth/1"]
=> 6:23: "eth/1" in interfaces of [forward] is not an interface name: write a name as `ip link` shows it, such as "eth0"
"#;
    check_table(table, |lines| format!("{NODE}[forward]\n{lines}\n"));
    let one = "[node]\nname = \"gw1\"\ninterfaces = [\"eth0\"]\n";
    let want = "5:8: mode = \"bridge\" in [forward] takes two interfaces or more, and [node] has one: add another to interfaces of [node], or write mode = \"route\"";
    assert_eq!(messages(&format!("{one}[forward]\nmode = \"bridge\"\n")), [want]);
    assert!(parse(&format!("{one}[forward]\nmode = \"route\"\n"), "gw.toml").is_ok());
    let want = "4:1: [[forward]] is a list: write [forward], once";
    assert_eq!(messages(&format!("{NODE}[[forward]]\nmode = \"route\"\n")), [want]);
}

fn options(interfaces: &[&str], mode: ForwardMode) -> ForwardOptions {
    ForwardOptions {
        name: "forward".into(),
        interfaces: interfaces.iter().map(|name| (*name).to_owned()).collect(),
        mode,
        bypass_firewall: false,
        xdp_mode: None,
        allow_default_route: false,
        socket: ringway_config::DEFAULT_SOCKET.into(),
        metrics: ringway_config::DEFAULT_METRICS.to_string(),
    }
}

#[test]
fn options_mean_what_a_file_says() {
    let file = |text: &str| parse(text, "gw.toml").unwrap_or_else(|errors| panic!("{errors}"));
    let node = "[node]\nname = \"forward\"\ninterfaces = [\"eth0\", \"eth1\"]\n";
    // But for the words of a remedy.
    let forwarding = |options: &ForwardOptions| {
        let mut config = Config::forwarding(options).unwrap();
        assert!(std::mem::take(&mut config.forward.as_mut().unwrap().by_options));
        config
    };
    let bridge = forwarding(&options(&["eth0", "eth1"], ForwardMode::Bridge));
    let written = file(&format!("{node}[forward]\nmode = \"bridge\"\n"));
    assert_eq!(bridge, written);
    assert_eq!((bridge.file(), written.file()), (None, Some(Path::new("gw.toml"))));
    let all = ForwardOptions {
        name: "lab".into(),
        bypass_firewall: true,
        xdp_mode: Some(XdpMode::Generic),
        allow_default_route: true,
        socket: "/run/lab.sock".into(),
        metrics: "off".into(),
        ..options(&["eth0"], ForwardMode::Route)
    };
    let written = file(
        "[node]\nname = \"lab\"\ninterfaces = [\"eth0\"]\nxdp_mode = \"generic\"\n\
         allow_default_route = true\n[forward]\nmode = \"route\"\nbypass_firewall = true\n[metrics]\n\
         listen = \"off\"\n[api]\nsocket = \"/run/lab.sock\"\n",
    );
    assert_eq!(forwarding(&all), written);
}

#[test]
fn what_is_wrong_names_the_option() {
    let wrong = |options: ForwardOptions, wanted: &str| {
        let errors = Config::forwarding(&options).expect_err(wanted);
        let said: Vec<String> = errors.iter().map(ToString::to_string).collect();
        assert_eq!(said, [format!("command line: {wanted}")]);
        assert!(errors.iter().all(|error| error.line == 0));
    };
    let too_few = "--interface names too few interfaces: a bridge takes two or more, such as \
                   --interface eth0,eth1; with --route one is enough";
    wrong(options(&["eth0"], ForwardMode::Bridge), too_few);
    assert!(Config::forwarding(&options(&["eth0"], ForwardMode::Route)).is_ok());
    wrong(options(&[], ForwardMode::Route), too_few);
    wrong(
        options(&["eth0", "eth1", "eth0"], ForwardMode::Bridge),
        "--interface \"eth0\" is there twice: remove one",
    );
    wrong(
        options(&[""], ForwardMode::Route),
        "--interface \"\" is not an interface name: write a name as `ip link` shows it, such as \"eth0\"",
    );
    let names: Vec<String> = (0..100).map(|n| format!("eth{n}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    wrong(
        options(&names, ForwardMode::Bridge),
        "--interface names 100 interfaces: a node takes at most 64",
    );
    let good = || options(&["eth0", "eth1"], ForwardMode::Bridge);
    wrong(
        ForwardOptions { name: "a/b".into(), ..good() },
        "--name \"a/b\" is not usable as the name of a directory: write up to 32 letters, digits, \"-\" and \"_\", such as \"gw1\"",
    );
    wrong(
        ForwardOptions { socket: "api.sock".into(), ..good() },
        "--socket \"api.sock\" is not the absolute path of a file: write an absolute path such as \"/run/ringway/api.sock\"",
    );
    wrong(
        ForwardOptions { metrics: "9810".into(), ..good() },
        "--metrics \"9810\" is not an address and port: write an address and port such as \"127.0.0.1:9810\", or \"off\"",
    );
}

#[test]
fn remedies_name_the_key_or_the_option() {
    let forwarding = Config::forwarding(&options(&["eth0"], ForwardMode::Route)).unwrap();
    let file = read("[forward]\nmode = \"bridge\"\n");
    for (setting, key, option) in [
        (
            Setting::AllowDefaultRoute,
            "write allow_default_route = true under [node]",
            "add --allow-default-route",
        ),
        (
            Setting::XdpMode(&["auto", "generic"]),
            "write xdp_mode = \"auto\" or \"generic\" under [node]",
            "use --xdp-mode auto or generic",
        ),
        (
            Setting::Socket,
            "choose another [api] socket",
            "add --socket with another path, such as /run/ringway/forward.sock",
        ),
        (
            Setting::MetricsAddress,
            "choose another [metrics] listen, or \"off\"",
            "add --metrics ADDRESS:PORT, or --metrics off",
        ),
    ] {
        assert_eq!((file.to_set(setting), forwarding.to_set(setting)), (key.into(), option.into()));
    }
    let error = forwarding.error_at(&forwarding.node.interfaces[0], "it is down").to_string();
    assert_eq!(error, "command line: it is down");
}
