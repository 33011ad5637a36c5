//! What is overridden, kept, told and cleared.

use super::*;

fn config() -> Config {
    let text = "[node]\nname = \"gw\"\ninterfaces = [\"eth0\"]\n\
        [[service]]\nname = \"web\"\naddress = \"203.0.113.9\"\nport = 80\nbackends = [\n\
        { address = \"10.0.0.2\" }, { address = \"10.0.0.3\", weight = 0 },\n\
        { address = \"10.0.0.4\", port = 1 }, { address = \"10.0.0.4\", port = 2 }]\n\
        [[service]]\nname = \"six\"\naddress = \"2001:db8::9\"\nport = 80\n\
        backends = [{ address = \"fd00::2\" }]\n";
    ringway_config::parse(text, "ringway.toml").expect("valid")
}

fn weights(config: &Config) -> Vec<u16> {
    config.services.iter().flat_map(|s| &s.backends).map(|b| b.weight).collect()
}

fn drain(backend: &str) -> OverrideChange {
    OverrideChange::Drain { service: "web".into(), backend: backend.into() }
}

fn undrain(backend: &str) -> OverrideChange {
    OverrideChange::Undrain { service: "web".into(), backend: backend.into() }
}

fn weight(service: &str, backend: &str, weight: u16) -> OverrideChange {
    OverrideChange::Weight { service: service.into(), backend: backend.into(), weight }
}

/// One change after another; the weights at the end, or the first error.
fn after(changes: &[OverrideChange]) -> Result<Vec<u16>, String> {
    let config = config();
    let mut overrides = Overrides::default();
    for change in changes {
        overrides = overrides
            .with(change, &config, Timestamp::default())
            .map_err(|error| format!("{}: {}", error.what, error.remedy))?;
    }
    Ok(weights(&overrides.apply(&config)))
}

#[test]
fn a_backend_of_every_port_is_its_address() {
    let text = "[node]\nname = \"gw\"\ninterfaces = [\"eth0\"]\n\
        [[service]]\nname = \"all\"\naddress = \"203.0.113.9\"\nport = \"*\"\n\
        backends = [{ address = \"10.2.1.2\" }, { address = \"10.2.1.3\" }]\n";
    let config = ringway_config::parse(text, "ringway.toml").expect("valid");
    let with = |change| Overrides::default().with(&change, &config, Timestamp::default());
    let change =
        |backend: &str| OverrideChange::Drain { service: "all".into(), backend: backend.into() };
    let drained = with(change("10.2.1.2")).expect("known");
    assert_eq!(weights(&drained.apply(&config)), [0, 1]);
    assert_eq!(drained.overrides[0].shown(), "10.2.1.2");
    let why = ": 10.2.1.2 is drained (`ringway backend undrain all 10.2.1.2`), by an operator";
    assert_eq!((drained.withheld("all").as_str(), drained.withheld("web").as_str()), (why, ""));
    let error = with(change("10.2.1.9")).expect_err("unknown");
    assert_eq!(error.remedy.to_string(), "it has 10.2.1.2, 10.2.1.3");
    let backend = "10.2.1.3".into();
    let error =
        with(OverrideChange::Undrain { service: "all".into(), backend }).expect_err("not drained");
    assert_eq!(error.what, "backend 10.2.1.3 of service all is not drained");
}

#[test]
fn they_win_over_the_file_until_they_are_cleared() {
    assert_eq!(after(&[]).expect("none"), [1, 0, 1, 1, 1]);
    assert_eq!(after(&[drain("10.0.0.2")]).expect("known"), [0, 0, 1, 1, 1]);
    assert_eq!(after(&[drain("10.0.0.2:80"), undrain("10.0.0.2")]).expect("known")[0], 1);
    // A weight does not end a drain; it counts afterwards.
    let while_drained = [drain("10.0.0.2"), weight("web", "10.0.0.2", 5)];
    assert_eq!(after(&while_drained).expect("known")[0], 0);
    let undrained = [&while_drained[..], &[undrain("10.0.0.2")]].concat();
    assert_eq!(after(&undrained).expect("known")[0], 5);
    let five = weight("web", "10.0.0.4:2", 5);
    assert_eq!(after(&[five]).expect("known"), [1, 0, 1, 5, 1]);
    for text in ["fd00::2", "[fd00::2]", "[fd00::2]:80", "fd00:0::2"] {
        assert_eq!(after(&[weight("six", text, 7)]).expect(text)[4], 7, "{text}");
    }
    // A weight that was set before it was drained is there again.
    let changes = [weight("web", "10.0.0.2", 5), drain("10.0.0.2"), undrain("10.0.0.2")];
    assert_eq!(after(&changes).expect("known")[0], 5);
    let clear = |service: Option<&str>, backend: Option<&str>| OverrideChange::Clear {
        service: service.map(str::to_owned),
        backend: backend.map(str::to_owned),
    };
    let both = [drain("10.0.0.2"), weight("six", "fd00::2", 3)];
    for (service, backend, want) in
        [(None, None, (1, 1)), (Some("web"), None, (1, 3)), (Some("six"), Some("fd00::2"), (0, 1))]
    {
        let changes = [both.to_vec(), vec![clear(service, backend)]].concat();
        let weights = after(&changes).expect("known");
        assert_eq!((weights[0], weights[4]), want, "{service:?} {backend:?}");
    }
    for (service, backend, words) in [
        (None, None, "there is no override to clear"),
        (Some("web"), None, "service web has no override"),
        (Some("web"), Some("10.0.0.2"), "service web backend 10.0.0.2 has no override"),
    ] {
        let error = after(&[clear(service, backend)]).expect_err("nothing to clear");
        assert!(error.starts_with(words), "{error}");
    }
    // One backend's is answered as any other word about it.
    let (file, one) = (config(), clear(Some("web"), Some("10.0.0.2")));
    let told = Overrides::default().backend_after(&one, &file).expect("a backend");
    assert_eq!((told.drained, told.weight, told.port), (false, 1, 80));
    assert_eq!(Overrides::default().backend_after(&clear(Some("web"), None), &file), None);
}

#[test]
fn a_node_without_services_says_so() {
    let text = "[node]\nname = \"gw\"\ninterfaces = [\"eth0\"]\n[forward]\nmode = \"route\"\n";
    let config = ringway_config::parse(text, "ringway.toml").expect("valid");
    let change = weight("web", "10.0.0.2", 1);
    let error =
        Overrides::default().with(&change, &config, Timestamp::default()).expect_err("none");
    assert!(error.to_string().contains("the node has none"), "{error}");
}

#[test]
fn what_is_not_there_is_told_with_what_is() {
    for (change, want) in [
        (drain("10.0.0.9"), "service web has no backend 10.0.0.9: it has 10.0.0.2:80, 10.0.0.3:80"),
        (drain("10.0.0.2:81"), "service web has no backend 10.0.0.2:81: it has"),
        (drain("nonsense"), "service web has no backend nonsense: it has"),
        (drain("10.0.0.4"), "several backends 10.0.0.4: say which: 10.0.0.4:1, 10.0.0.4:2"),
        (weight("wbe", "10.0.0.2", 1), "there is no service \"wbe\": did you mean \"web\"?"),
        (weight("mail", "10.0.0.2", 1), "there is no service \"mail\": there are web, six"),
        (weight("web", "10.0.0.2", 1001), "weight 1001 is out of range"),
        (
            undrain("10.0.0.2"),
            "backend 10.0.0.2:80 of service web is not drained: `ringway status`",
        ),
        (undrain("10.0.0.3"), "is not drained: its weight is 0: `ringway backend weight web"),
    ] {
        let error = after(std::slice::from_ref(&change)).expect_err("wrong");
        assert!(error.contains(want), "{change:?}: {error}");
    }
}

#[test]
fn those_of_what_is_gone_are_known() {
    let mut config = config();
    let overrides = Overrides::default().with(&drain("10.0.0.2"), &config, Timestamp::default());
    let overrides = overrides.expect("known");
    assert_eq!(overrides.orphans(&config).count(), 0);
    config.services[0].backends.remove(0);
    assert_eq!(overrides.orphans(&config).count(), 1);
    let clear =
        OverrideChange::Clear { service: Some("web".into()), backend: Some("10.0.0.2".into()) };
    assert_eq!(overrides.with(&clear, &config, Timestamp::default()).expect("there").overrides, []);
}

#[test]
fn they_are_kept() {
    let place = tempfile::tempdir().expect("a directory");
    let state = StateDir::new(place.path());
    assert_eq!(Overrides::load(&state), Ok(Overrides::default()));
    let one = Overrides::default().with(&drain("10.0.0.2"), &config(), Timestamp::default());
    let one = one.expect("known");
    let document = r#"{"schema":"ringway.overrides/1","overrides":[{"service":"web","address":"10.0.0.2","port":80,"drained":true,"weight":null,"since":"1970-01-01T00:00:00Z"}]}"#;
    assert_eq!(serde_json::to_string(&one).expect("JSON"), document);
    state.write(DOCUMENT, &one).expect("written");
    assert_eq!(Overrides::load(&state), Ok(one));
    state
        .write(DOCUMENT, &Overrides { schema: "other/9".into(), ..Overrides::default() })
        .expect("written");
    assert!(Overrides::load(&state).expect_err("another version").what.contains("other/9"));
}
