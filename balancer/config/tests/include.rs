//! A configuration of several files.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::PathBuf;

use ringway_config::load;
use tempfile::TempDir;

const NODE: &str = "[node]\nname = \"gw1\"\ninterfaces = [\"eth0\"]\n";

/// A service of one backend; `last` makes its address.
fn service(name: &str, last: u8) -> String {
    format!(
        "[[service]]\nname = \"{name}\"\naddress = \"203.0.113.{last}\"\nport = 80\n\
         backends = [{{ address = \"10.0.0.2\" }}]\n"
    )
}

/// Files in a directory of their own.
struct Files(TempDir);

impl Files {
    fn new(files: &[(&str, &str)]) -> Files {
        let made = Files(tempfile::tempdir().unwrap());
        for (name, text) in files {
            let path = made.path(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        made
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Names of the services, or the errors without the name of the directory.
    fn load(&self) -> Result<Vec<String>, String> {
        let directory = format!("{}/", self.0.path().display());
        match load(&self.path("gw.toml")) {
            Ok(config) => Ok(config.services.iter().map(|s| s.name.to_string()).collect()),
            Err(errors) => Err(errors.to_string().replace(&directory, "")),
        }
    }

    /// The first lines of the errors.
    fn complaints(&self) -> Vec<String> {
        let errors = self.load().expect_err("wrong");
        let first = |line: &&str| !line.starts_with(' ') && !line.ends_with(" errors");
        errors.lines().filter(first).map(str::to_owned).collect()
    }
}

#[test]
fn services_come_in_the_order_of_files_and_names() {
    let files = Files::new(&[
        (
            "gw.toml",
            &format!("include = [\"more.toml\", \"d/*.toml\"]\n{NODE}{}", service("main", 1)),
        ),
        ("more.toml", &service("more", 2)),
        ("d/20.toml", &service("twenty", 4)),
        ("d/10.toml", &format!("include = [\"deep/?.toml\"]\n{}", service("ten", 3))),
        ("d/deep/x.toml", &service("deep", 5)),
        ("d/empty.toml", "# nothing yet\n"),
        ("d/.hidden.toml", "not even TOML"),
        ("d/web.toml~", "not even TOML"),
    ]);
    assert_eq!(files.load().unwrap(), ["main", "more", "ten", "deep", "twenty"]);
}

#[test]
fn one_main_file_needs_no_service_of_its_own() {
    let main = format!("include = [\"d/*.toml\"]\n{NODE}");
    let files = Files::new(&[("gw.toml", &main), ("d/web.toml", &service("web", 1))]);
    assert_eq!(files.load().unwrap(), ["web"]);
    fs::remove_file(files.path("d/web.toml")).unwrap();
    let want = "gw.toml:1:12: neither the file nor what it includes has a service: add [[service]]";
    assert_eq!(files.complaints(), [want]);
    fs::remove_dir(files.path("d")).unwrap();
    assert!(
        files.complaints()[0]
            .starts_with("gw.toml:1:12: include \"d/*.toml\" cannot be followed: d: "),
        "{:?}",
        files.complaints()
    );
}

#[test]
fn errors_are_placed_in_the_right_file() {
    let files = Files::new(&[
        ("gw.toml", &format!("include = [\"d/*.toml\"]\n{NODE}colour = 1\n")),
        ("d/a.toml", "# a comment\n\n[[service]]\nname = \"a\"\naddress = \"1.2.3\"\nport = 80\n"),
        // Half written.
        ("d/b.toml", "[[service]]\nname = \"b\"\naddress = \"203.0"),
        ("d/c.toml", &format!("{}wieght = 3\n", service("c", 3))),
        ("d/d.toml", "[api]\nsocket = \"/x\"\n"),
    ]);
    assert_eq!(
        files.complaints(),
        [
            "gw.toml:5:1: unknown key \"colour\" in [node]: remove it; known here: name, \
             interfaces, xdp_mode, allow_default_route, on_pass, state",
            "d/a.toml:3:1: service \"a\" has no backends: add backends = [{ address = \"10.0.0.2\" }]",
            "d/a.toml:5:11: address = \"1.2.3\" in service \"a\" is not an address: write an IPv4 \
             or IPv6 address such as \"10.0.0.2\" or \"2001:db8::2\"",
            "d/b.toml:3:17: not TOML: invalid basic string: end the text with a double quote on \
             the same line",
            "d/c.toml:6:1: unknown key \"wieght\" in service \"c\": remove it; known here: name, \
             address, port, protocol, forward, gue_port, mss_clamp, source, affinity, announce, \
             when_none_healthy, on_down, keep_for, max_unhealthy, slow_start, syn, shield, check, \
             backends",
            "d/d.toml:1:1: [api] is in an included file, which holds [[service]] and include \
             only: move it to gw.toml",
        ]
    );
    let errors = files.load().unwrap_err();
    assert!(errors.contains("    5 | address = \"1.2.3\"\n      |           ^^^^^^^"), "{errors}");
}

#[test]
fn errors_found_later_are_placed_in_the_right_file() {
    let files = Files::new(&[
        ("gw.toml", &format!("include = [\"web.toml\"]\n{NODE}")),
        ("web.toml", &service("web", 1)),
    ]);
    let config = load(&files.path("gw.toml")).unwrap();
    let error = config.error_at(&config.services[0].address, "nobody answers");
    assert_eq!((error.line, error.column), (3, 11));
    assert!(error.file.ends_with("/web.toml"), "{error}");
}

#[test]
fn one_service_in_two_files_is_told_with_both_places() {
    let files = Files::new(&[
        ("gw.toml", &format!("include = [\"d/*\"]\n{NODE}{}", service("main", 1))),
        ("d/a", &service("web", 2)),
        ("d/b", &format!("\n{}{}", service("web", 3), service("other", 1))),
    ]);
    assert_eq!(
        files.complaints(),
        [
            "d/b:3:8: name = \"web\" is the name of an earlier service (d/a:2:8): write another, \
             such as \"web-2\"",
            "d/b:9:11: service \"other\" has the address, port and protocol of service \"main\" \
             (gw.toml:6:8) (203.0.113.1, 80, tcp): change one of them, or move the backends into \
             one service",
        ]
    );
}

#[test]
fn circles_are_refused_with_their_chain() {
    let main = format!("include = [\"a.toml\"]\n{NODE}{}", service("main", 1));
    let files = Files::new(&[
        ("gw.toml", &main),
        ("a.toml", "include = [\"d/b.toml\"]\n"),
        ("d/b.toml", "include = [\"../a.toml\"]\n"),
    ]);
    let want = "d/b.toml:1:12: include \"../a.toml\" goes in a circle: a.toml includes d/b.toml \
                includes d/../a.toml: remove one";
    assert_eq!(files.complaints(), [want]);
    fs::write(files.path("d/b.toml"), "include = [\"../*.toml\"]\n").unwrap();
    let complaints = files.complaints();
    assert!(
        complaints.iter().any(|line| line.contains(
            "gw.toml includes a.toml includes d/b.toml includes d/../gw.toml: remove one"
        )),
        "{complaints:?}"
    );
    // The same by another name.
    fs::write(files.path("a.toml"), "include = [\"link.toml\"]\n").unwrap();
    std::os::unix::fs::symlink(files.path("gw.toml"), files.path("link.toml")).unwrap();
    assert!(files.complaints()[0].contains("goes in a circle"), "{:?}", files.complaints());
}

#[test]
fn what_cannot_be_followed_is_told() {
    let with = |include: &str| format!("include = {include}\n{NODE}{}", service("main", 1));
    let files = Files::new(&[("gw.toml", ""), ("a.toml", &service("a", 2))]);
    let deep: Vec<(String, String)> =
        (0..20).map(|n| (format!("{n}.x"), format!("include = [\"{}.x\"]", n + 1))).collect();
    for (name, text) in deep {
        fs::write(files.path(&name), text).unwrap();
    }
    fs::write(files.path("latin.toml"), b"# \xe4\n").unwrap();
    fs::create_dir(files.path("directory")).unwrap();
    for (include, want) in [
        ("\"a.toml\"", "gw.toml:1:11: include = \"a.toml\" in the file is a string: write include"),
        ("[\"\"]", "gw.toml:1:12: \"\" in include of the file is not the path of a file"),
        ("[\"**/x\"]", "gw.toml:1:12: \"**/x\" in include of the file has \"**\""),
        ("[\"no.toml\"]", "gw.toml:1:12: include \"no.toml\" cannot be read (No such file"),
        (
            "[\"a.toml\", \"*.toml\"]",
            "include \"*.toml\" reads a.toml again, which gw.toml:1:12 has",
        ),
        ("[\"0.x\"]", "15.x:1:12: include \"16.x\" is too much"),
        ("[\"latin.toml\"]", "latin.toml: is not UTF-8 in line 1"),
        ("[\"directory\"]", "directory: is not a regular file"),
    ] {
        fs::write(files.path("gw.toml"), with(include)).unwrap();
        let complaints = files.complaints();
        assert!(complaints.iter().any(|line| line.contains(want)), "{include}: {complaints:#?}");
    }
}
