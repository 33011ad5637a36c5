use super::*;

/// What `ipvsadm-save -n` of 1.31 prints, and more.
const LIST: &str = "\
-A -t 192.0.2.1:80 -s wrr
-a -t 192.0.2.1:80 -r 10.0.0.1:8080 -m -w 3
-a -t 192.0.2.1:80 -r 10.0.0.2:8080 -m -w 0
-A -u 192.0.2.1:53 -s sh -b sh-port
-a -u 192.0.2.1:53 -r 10.0.0.1:53 -g -w 1
-A -t [2001:db8::1]:443 -s lc -p 360 -M 64
-a -t [2001:db8::1]:443 -r [2001:db8:1::1]:443 -i -w 5 --tun-type gue --tun-port 6080 --tun-nocsum
-A -t 192.0.2.9:0 -s rr -p 300
-a -t 192.0.2.9:0 -r 10.0.0.9:0 -i -w 1 -x 0 -y 0
-A -f 7 -s rr
-a -f 7 -r 10.0.0.1:0 -g -w 1
";

fn ports(name: &str, _: Protocol) -> Option<u16> {
    (name == "http").then_some(80)
}

fn convert(list: &str) -> (String, Vec<String>) {
    let options = ImportOptions { node: "gw1".into(), interfaces: vec!["eth0".into()] };
    write(&read(list, &ports).unwrap(), &options)
}

/// One service of these options, with a server of these.
fn one(service: &str, server: &str) -> (crate::Service, Vec<String>) {
    let list =
        format!("-A -t 192.0.2.1:http {service}\n-a -t 192.0.2.1:http -r 10.0.0.1 {server}\n");
    let (text, warnings) = convert(&list);
    let mut config = crate::parse(&text, "imported").unwrap_or_else(|e| panic!("{e}\n{text}"));
    (config.services.remove(0), warnings)
}

#[test]
fn what_is_written_is_a_configuration() {
    let (text, warnings) = convert(LIST);
    let config = crate::parse(&text, "imported").unwrap_or_else(|error| panic!("{error}\n{text}"));
    let shown = config.services.iter().map(|service| {
        let backends = service.backends.iter();
        let backends = backends.map(|b| format!("{}*{}", b.endpoint(), b.weight));
        format!(
            "{} {} {:?} {:?} {}",
            *service.name,
            service.forward,
            service.affinity,
            service.source,
            backends.collect::<Vec<_>>().join(" ")
        )
    });
    assert_eq!(
        shown.collect::<Vec<_>>(),
        [
            "tcp-192.0.2.1-80 nat FiveTuple Client 10.0.0.1:8080*3 10.0.0.2:8080*0",
            "udp-192.0.2.1-53 dsr-l2 FiveTuple Client 10.0.0.1:53*1",
            "tcp-2001-db8--1-443 dsr-gue Source Client [2001:db8:1::1]:443*1",
            "tcp-192.0.2.9-all dsr-ipip Source Client 10.0.0.9:0*1",
        ]
    );
    assert_eq!(config.services[2].gue_port, 6080);
    let of = |at: &str| warnings.iter().filter(|warning| warning.starts_with(at)).count();
    // Scheduler; scheduler, persistence, mask, weights, checksum; scheduler, persistence; left out.
    let counts = ["-t 192.0.2.1", "-u", "-t [2001", "-t 192.0.2.9", "-f"].map(of);
    assert_eq!(counts, [1, 0, 5, 2, 1], "{warnings:#?}");
    for warning in &warnings {
        let (_, note) = warning.split_once(": ").unwrap();
        assert!(text.contains(&format!("# {note}\n")), "{warning}");
    }
}

#[test]
fn schedulers_become_affinities() {
    use crate::Affinity::{FiveTuple, Source};
    for (options, want, warned) in [
        ("-s rr", FiveTuple, 1),
        ("", FiveTuple, 1),
        ("-s lblc", FiveTuple, 1),
        ("-s dh", FiveTuple, 1),
        ("-s sh", Source, 0),
        ("-s mh", Source, 0),
        ("-s mh -b mh-fallback,mh-port", FiveTuple, 0),
        ("-s sh -p", Source, 1),
        ("-s sh -p 60 -M 255.255.255.255", Source, 1),
        ("-s sh -o", Source, 1),
        ("-s sh --pe sip", Source, 1),
    ] {
        let (service, warnings) = one(options, "-g");
        assert_eq!((service.affinity, warnings.len()), (want, warned), "{options}: {warnings:?}");
    }
}

#[test]
fn servers_keep_port_and_weight() {
    for (options, want, warned) in [
        ("-m", ("nat", 80, 1), 0),
        ("", ("dsr-l2", 80, 1), 0),
        ("-i", ("dsr-ipip", 80, 1), 0),
        ("-i --tun-type gue --tun-port 7000", ("dsr-gue", 80, 1), 0),
        ("--masquerading --weight 5", ("nat", 80, 5), 0),
        ("-m -w 65535", ("nat", 80, 1000), 1),
        ("-m -x 10 -y 5", ("nat", 80, 1), 2),
    ] {
        let (service, warnings) = one("-s sh", options);
        let backend = &service.backends[0];
        let found = (service.forward.to_string(), backend.endpoint().port(), backend.weight);
        assert_eq!((found.0.as_str(), found.1, found.2), want, "{options}");
        assert_eq!(warnings.len(), warned, "{options}: {warnings:?}");
    }
}

#[test]
fn what_cannot_be_is_left_out_and_said() {
    for (list, said) in [
        ("-A -f 1 -s rr", "firewall marks"),
        ("-A --sctp-service 192.0.2.1:9 -s rr", "SCTP"),
        ("-A -t 192.0.2.1:80 -s rr", "no server"),
        ("-A -t 192.0.2.1:80\n-a -t 192.0.2.1:80 -r 10.0.0.1:80 -i --tun-type gre", "neither IPIP"),
        (
            "-A -t 192.0.2.1:80\n-a -t 192.0.2.1:80 -r 10.0.0.1:80 -g\n\
             -a -t 192.0.2.1:80 -r 10.0.0.2:80 -m",
            "line 3) are forwarded in different ways",
        ),
    ] {
        let (text, warnings) = convert(list);
        assert!(!text.contains("[[service]]\nname"), "{text}");
        assert!(warnings.iter().any(|warning| warning.contains(said)), "{list}: {warnings:?}");
    }
}

#[test]
fn lines_that_say_nothing_are_passed_over() {
    let list = "# a comment\n\n-C\nipvsadm -A -t 192.0.2.1:80 -s sh\n\
                /sbin/ipvsadm --add-server --tcp-service 192.0.2.1:80 -r 10.0.0.1:80 -m\n";
    assert_eq!(convert(list).1, [] as [String; 0]);
}

#[test]
fn errors_name_line_and_remedy() {
    for (list, want) in [
        ("\nfoo bar", "line 2: \"foo\" begins no line"),
        (
            "-A -t www.example.com:80",
            "line 1: \"www.example.com\" is not an address; names are not",
        ),
        ("-A -t 192.0.2.1:https", "\"https\" is not a port, nor in /etc/services"),
        ("-A -t 192.0.2.1", "\"192.0.2.1\" has no port; expected ADDRESS:PORT"),
        ("-A -t [2001:db8::1]", "has no port"),
        ("-A -s rr", "-A names no service"),
        ("-A -t 192.0.2.1:80 -s", "-s has no value; the line is cut short"),
        ("-A -t 192.0.2.1:80 -z", "\"-z\" is not known here"),
        (
            "-A -t 192.0.2.1:80\n-A -t 192.0.2.1:80",
            "line 2: service -t 192.0.2.1:80 is there already",
        ),
        ("-a -t 192.0.2.1:80 -r 10.0.0.1:80 -g", "no service -t 192.0.2.1:80; write its -A line"),
        ("-A -t 192.0.2.1:80\n-a -t 192.0.2.1:80 -g", "-a names no server"),
        (
            "-A -t 192.0.2.1:80\n-a -t 192.0.2.1:80 -r 10.0.0.1 -w many",
            "\"many\" is no number for -w",
        ),
        ("-A -f x", "\"x\" is no number for -f"),
    ] {
        let errors = read(list, &ports).unwrap_err();
        assert!(errors.iter().any(|error| error.to_string().contains(want)), "{list}: {errors:?}");
    }
    assert_eq!(read("x\ny\n", &ports).unwrap_err().len(), 2);
}

#[test]
fn without_interfaces_the_check_says_where() {
    let list = "-A -t 192.0.2.1:80 -s sh\n-a -t 192.0.2.1:80 -r 10.0.0.1:80 -m\n";
    let options = ImportOptions { node: "gw1".into(), interfaces: Vec::new() };
    let (text, _) = write(&read(list, &ports).unwrap(), &options);
    let errors = crate::parse(&text, "imported").unwrap_err();
    let line = text.lines().position(|line| line == "interfaces = []").unwrap() as u32 + 1;
    let only = errors.iter().collect::<Vec<_>>();
    assert!(only.len() == 1 && only[0].line == line as _, "{errors}");
}
