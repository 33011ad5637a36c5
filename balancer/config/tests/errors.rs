//! What is wrong, and the message it gets: line, column, and what to write instead.

#![allow(clippy::unwrap_used)]

mod common;

use common::{check_table, messages};
use ringway_config::parse;

/// A configuration that is right, one key a line, for tests to break.
const GOOD: &str = r#"[node]
name = "gw1"
interfaces = ["eth0", "eth1"]
[nat]
ports = "10000-29999"
[[service]]
name = "web"
address = "203.0.113.10"
port = 80
check = { type = "http" }
backends = [{ address = "10.0.0.2" }, { address = "10.0.0.3" }]
[metrics]
listen = "127.0.0.1:9810"
"#;

/// [`GOOD`] with one line replaced.
fn broken(line: &str, instead: &str) -> String {
    assert!(GOOD.lines().any(|good| good == line), "no line {line:?}");
    GOOD.replace(&format!("{line}\n"), &format!("{instead}\n"))
}

/// The table of what `line` is replaced by, and the messages.
fn check(line: &str, table: &str) {
    check_table(table, |lines| broken(line, lines));
}

#[test]
fn node_name() {
    let table = r#"
=> 1:1: [node] has no name: add name = "gw1"
name = 1
=> 2:8: name = 1 in [node] is an integer: write up to 32 letters, digits, "-" and "_", such as "gw1"
name = ""
=> 2:8: name = "" in [node] is not usable as the name of a directory: write up to 32 letters, digits, "-" and "_", such as "gw1"
name = "a/b"
=> 2:8: name = "a/b" in [node] is not usable as the name of a directory: write up to 32 letters, digits, "-" and "_", such as "gw1"
name = ".."
=> 2:8: name = ".." in [node] is not usable as the name of a directory: write up to 32 letters, digits, "-" and "_", such as "gw1"
name = "a123456789a123456789a123456789abc"
=> 2:8: name = "a123456789a123456789a123456789abc" in [node] is too long: write up to 32 letters, digits, "-" and "_", such as "gw1"
naem = "gw1"
=> 2:1: unknown key "naem" in [node]: did you mean "name"?
name = "gw1"
name = "gw2"
=> 3:1: not TOML: duplicate key (name): remove one of the two
name = gw1
=> 2:8: not TOML: string values must be quoted (gw1): put text, addresses and quantities in double quotes
"#;
    check("name = \"gw1\"", table);
    let keys = r#"
colour = 1
=> 3:1: unknown key "colour" in [node]: remove it; known here: name, interfaces, xdp_mode, allow_default_route, on_pass, state
state = "var"
=> 3:9: state = "var" in [node] is not the absolute path of a directory: write an absolute path such as "/var/lib/ringway/gw1"
on_pass = "mine"
=> 3:11: on_pass = "mine" in [node] is not the absolute path of a file: write where an XDP program is pinned, such as "/sys/fs/bpf/mine"
xdp_mode = "fast"
=> 3:12: xdp_mode = "fast" in [node] is not known: write "auto", "native" or "generic"
allow_default_route = "yes"
=> 3:23: allow_default_route = "yes" in [node] is a string: write true or false, without quotes
"#;
    check_table(keys, |keys| broken("name = \"gw1\"", &format!("name = \"gw1\"\n{keys}")));
}

#[test]
fn interfaces() {
    let table = r#"
=> 1:1: [node] has no interfaces: add interfaces = ["eth0"]
interfaces = []
=> 3:14: interfaces = [] in [node] is empty: write interfaces = ["eth0"]
interfaces = "eth0"
=> 3:14: interfaces = "eth0" in [node] is a string: write interfaces = ["eth0"]
interfaces = ["eth0", 1]
=> 3:23: 1 in interfaces of [node] is an integer: write a name as `ip link` shows it, such as "eth0"
interfaces = ["eth0", "eth0"]
=> 3:23: "eth0" is twice in interfaces of [node]: remove one
interfaces = ["a123456789a12345"]
=> 3:15: "a123456789a12345" in interfaces of [node] is longer than the 15 characters of an interface name: write a name as `ip link` shows it, such as "eth0"
interfaces = ["eth 0"]
=> 3:15: "eth 0" in interfaces of [node] is not an interface name: write a name as `ip link` shows it, such as "eth0"
interfaces = ["eth0",
  ""]
=> 4:3: "" in interfaces of [node] is not an interface name: write a name as `ip link` shows it, such as "eth0"
interfaces = ["eth1", { name = "eth0", faces = "client" }]
=> 3:48: faces = "client" in interface 2 of [node] is not known: write "both", "clients" or "backends"
interfaces = [{ faces = "clients" }]
=> 3:15: interface 1 of [node] has no name: add name = "eth0"
interfaces = [{ name = "eth0", face = "clients" }]
=> 3:32: unknown key "face" in interface 1 of [node]: did you mean "faces"?
interfaces = ["eth0", { name = "eth0" }]
=> 3:32: "eth0" is twice in interfaces of [node]: remove one
interfaces = [{ name = "eth 0" }]
=> 3:24: name = "eth 0" in interface 1 of [node] is not an interface name: write a name as `ip link` shows it, such as "eth0"
"#;
    check("interfaces = [\"eth0\", \"eth1\"]", table);
    let many: Vec<String> = (0..65).map(|i| format!("\"eth{i}\"")).collect();
    let text =
        broken("interfaces = [\"eth0\", \"eth1\"]", &format!("interfaces = [{}]", many.join(", ")));
    let expected =
        "3:14: interfaces of [node] has 65 elements: keep the 64 that carry services or backends";
    assert_eq!(messages(&text), [expected]);
}

#[test]
fn nat() {
    let table = r#"
ports = 10000
=> 5:9: ports = 10000 in [nat] is an integer: write a range of at least 1024 ports from 1024 to 65535, such as "10000-29999"
ports = "10000"
=> 5:9: ports = "10000" in [nat] is not a range of ports: write a range of at least 1024 ports from 1024 to 65535, such as "10000-29999"
ports = "10000-10100"
=> 5:9: ports = "10000-10100" in [nat] is too narrow: write a range of at least 1024 ports from 1024 to 65535, such as "10000-29999"
ports = "29999-10000"
=> 5:9: ports = "29999-10000" in [nat] ends before it begins: write "10000-29999"
ports = "80-29999"
=> 5:9: ports = "80-29999" in [nat] reaches below port 1024: write a range of at least 1024 ports from 1024 to 65535, such as "10000-29999"
ports = "10000-70000"
=> 5:9: ports = "10000-70000" in [nat] is out of range: write a range of at least 1024 ports from 1024 to 65535, such as "10000-29999"
ports = "+10000-20000"
=> 5:9: ports = "+10000-20000" in [nat] is not a range of ports: write a range of at least 1024 ports from 1024 to 65535, such as "10000-29999"
flows = 1000
=> 5:9: flows = 1000 in [nat] is out of range: write a whole number from 1024 to 16777216
flows = "1M"
=> 5:9: flows = "1M" in [nat] is a string: write a whole number from 1024 to 16777216
flows = 1.5
=> 5:9: flows = 1.5 in [nat] is a float: write a whole number from 1024 to 16777216
timeouts = { syn = 10 }
=> 5:20: syn = 10 in timeouts of [nat] is a bare number where a unit belongs: write "10s" if seconds are meant
timeouts = { syn = "10" }
=> 5:20: syn = "10" in timeouts of [nat] lacks its unit: write "10s" if seconds are meant
timeouts = { syn = "1500ms" }
=> 5:20: syn = "1500ms" in timeouts of [nat] is not whole seconds: write "2s"
timeouts = { syn = "0s" }
=> 5:20: syn = "0s" in timeouts of [nat] is out of range: write a number and its unit (ms, s, m, h, d), from "1s" to "7d"
timeouts = { syn = "10 seconds" }
=> 5:20: syn = "10 seconds" in timeouts of [nat] has the unknown unit "seconds": write a number and its unit (ms, s, m, h, d), from "1s" to "7d"
timeouts = { syn = "1.5s" }
=> 5:20: syn = "1.5s" in timeouts of [nat] is not a length of time: write a number and its unit (ms, s, m, h, d), from "1s" to "7d"
timeouts = { syn = "soon" }
=> 5:20: syn = "soon" in timeouts of [nat] is not a length of time: write a number and its unit (ms, s, m, h, d), from "1s" to "7d"
timeouts = { syn = "99999999999999999999d" }
=> 5:20: syn = "99999999999999999999d" in timeouts of [nat] is out of range: write a number and its unit (ms, s, m, h, d), from "1s" to "7d"
timeouts = { etablished = "1h" }
=> 5:14: unknown key "etablished" in timeouts of [nat]: did you mean "established"?
timeouts = "1h"
=> 5:12: timeouts = "1h" in [nat] is a string: write a table, timeouts = { ... }
addresses = ["10.0.0.1", "10.0.0.1"]
=> 5:26: 10.0.0.1 is twice in addresses of [nat]: remove one
addresses = ["2001:db8::1"]
=> 5:14: addresses of [nat] has no IPv4 address, and service "web" is IPv4: add one of the node's, or leave addresses out
addresses = "10.0.0.1"
=> 5:13: addresses = "10.0.0.1" in [nat] is a string: write addresses = ["10.0.0.1"]
"#;
    check("ports = \"10000-29999\"", table);
}

#[test]
fn flows() {
    let table = r#"
[flows]
tracked = 10
[nat]
=> 5:11: tracked = 10 in [flows] is out of range: write a whole number from 1024 to 16777216
[flows]
new_per_prefix = 4000
[nat]
=> 5:18: new_per_prefix = 4000 in [flows] is a bare number where a unit belongs: write "4000/s" if flows per second are meant
[flows]
new_per_prefix = "4000"
[nat]
=> 5:18: new_per_prefix = "4000" in [flows] is not a rate: write flows per second from "1/s" to "1000000/s"
[flows]
new_per_prefix = "0/s"
[nat]
=> 5:18: new_per_prefix = "0/s" in [flows] is out of range: write flows per second from "1/s" to "1000000/s"
[flows]
new_per_prefix = true
[nat]
=> 5:18: new_per_prefix = true in [flows] is a boolean: write flows per second from "1/s" to "1000000/s"
[flows]
tracked = 10000000
new_per_prefix = "10/s"
[nat]
=>
"#;
    check("[nat]", table);
}

/// A configuration whose `[shield]`, in line 5, is this.
fn shield(text: &str) -> Vec<String> {
    messages(&broken("[nat]", &format!("[shield]\n{text}\n[nat]")))
}

#[test]
fn the_shield() {
    const NAME: &str = "write up to 63 letters, digits, \"-\", \"_\" and \".\"";
    const RATE: &str = "write packets per second from \"1pps\" to \"100Mpps\", such as \"10kpps\"";
    let single = RATE.replace("100Mpps", "1Mpps");
    let table = r#"
=>
mode = "off"
=> 5:8: mode = "off" in [shield] is not known: write "enforce" or "observe"
protect = "all"
=> 5:11: protect = "all" in [shield] is not known: write "services" or "host"
sanity = "yes"
=> 5:10: sanity = "yes" in [shield] is a string: write true or false, without quotes
lists = []
=> 5:1: unknown key "lists" in [shield]: did you mean "list"?
list = "drop"
=> 5:8: list = "drop" in [shield] is a string: write list = [{ name = "drop", file = "/etc/ringway/drop.txt", action = "block" }]
[shield.list]
=> 5:1: list of [shield] is one table: write its header in double brackets, once for each
[[shield.list]]
=> 5:1: list 1 of [shield] has no name: add name = "drop"
=> 5:1: list 1 of [shield] has no file: add file = "/etc/ringway/drop.txt"
=> 5:1: list 1 of [shield] has no action: add action = "block"
list = [{ name = "a b", file = "drop.txt", action = "drop", bad_lines = "no" }]
=> 5:18: name = "a b" in list 1 of [shield] cannot be a list's name: NAME
=> 5:32: file = "drop.txt" in list 1 of [shield] is not the absolute path of a file: write a path such as "/etc/ringway/drop.txt"
=> 5:53: action = "drop" in list 1 of [shield] is not known: write "block" or "allow"
=> 5:73: bad_lines = "no" in list 1 of [shield] is not known: write "refuse" or "skip"
list = [{ name = "a", file = "/a", action = "block" }, { name = "a", file = "/b", action = "allow" }]
=> 5:65: "a" is the name of an earlier list of [shield]: write another, name = "a-2"
rule = [{ action = "drop" }]
=> 5:9: rule 1 of [shield] has no match: add match = "udp src port 19"
rule = [{ match = "", action = "drop" }]
=> 5:19: match = "" in rule 1 of [shield] is empty, which every packet matches: write an expression as for tcpdump, such as "udp src port 19"
rule = [{ match = "tcp", action = "drop" }, { match = "udp and src prot 53", action = "drop" }]
=> 5:68: match of rule 2 of [shield]: the filter is not understood: unknown host 'prot'; names are not looked up: write the address
rule = [{ match = "udp and", action = "drop" }]
=> 5:27: match of rule 1 of [shield]: the filter is not understood: syntax error (the language is that of tcpdump: see pcap-filter(7))
# Places in a value with escapes are not known.
rule = [{ match = "udp\u0020src prot 53", action = "drop" }]
=> 5:19: match of rule 1 of [shield]: the filter is not understood: unknown host 'prot'; names are not looked up: write the address
rule = [{ match = "host example.com", action = "drop" }]
=> 5:25: match of rule 1 of [shield]: the filter is not understood: unknown host 'example.com'; names are not looked up: write the address
rule = [{ match = "tcp and udp", action = "drop" }]
=> 5:19: match of rule 1 of [shield]: no packet can ever match the filter "tcp and udp": its conditions contradict each other, or a length or value is out of range; correct the expression
rule = [{ match = "vlan 5 and udp", action = "drop" }]
=> 5:19: match of rule 1 of [shield]: no packet that the shield judges can ever match: those are IPv4 and IPv6, without their VLAN tags; write it without vlan
rule = [{ match = "inbound", action = "drop" }]
=> 5:19: match of rule 1 of [shield]: the filter "inbound" uses `inbound`, `outbound` or `ifindex`, which are not part of a packet: filter by what is in the packet, such as its addresses
rule = [{ match = "tcp", preset = "udp-flood", action = "count" }]
=> 5:35: rule 1 of [shield] has match and preset: remove one
rule = [{ preset = "smurf", action = "drop" }]
=> 5:20: preset = "smurf" in rule 1 of [shield] is not known: write "dns-amplification", "ntp-amplification", "ssdp-amplification", "memcached-amplification", "chargen-amplification", "ipv6-extension", "udp-flood" or "icmp-flood"
rule = [{ preset = "udp-flood", action = "drop" }]
=> 5:42: preset = "udp-flood" of rule 1 of [shield] matches what clients send in peace, too: write action = "limit" and rate = "10kpps"
rule = [{ match = "tcp", action = "limit" }]
=> 5:9: rule 1 of [shield] has no rate: add rate = "10kpps"
rule = [{ match = "tcp", action = "drop", rate = "1kpps", burst = 5 }]
=> 5:50: rate of rule 1 of [shield] has no effect without action = "limit": remove it, or write that
=> 5:67: burst of rule 1 of [shield] has no effect without action = "limit": remove it, or write that
rule = [{ match = "tcp", action = "limit", rate = "10k", burst = 0 }]
=> 5:51: rate = "10k" in rule 1 of [shield] is not a rate: RATE
=> 5:66: burst = 0 in rule 1 of [shield] is out of range: write a whole number from 1 to 100000000
rule = [{ match = "tcp", action = "limit", rate = 10 }]
=> 5:51: rate = 10 in rule 1 of [shield] is a bare number where a unit belongs: write "10pps" if packets per second are meant
rule = [{ match = "tcp", action = "limit", rate = "pps" }]
=> 5:51: rate = "pps" in rule 1 of [shield] is not a rate: RATE
rule = [{ match = "tcp", action = "limit", rate = "0pps" }]
=> 5:51: rate = "0pps" in rule 1 of [shield] is out of range: RATE
rule = [{ match = "tcp", action = "limit", rate = "101Mpps" }]
=> 5:51: rate = "101Mpps" in rule 1 of [shield] is out of range: RATE
rule = [{ preset = "ntp-amplification", action = "count" }, { preset = "ntp-amplification", action = "drop" }]
=> 5:72: "ntp-amplification" is the name of an earlier rule of [shield]: write another, name = "ntp-amplification-2"
limits = {}
=>
limits = "10kpps"
=> 5:10: limits = "10kpps" in [shield] is a string: write a table, limits = { ... }
[[shield.limits]]
=> 5:1: [[limits]] is a list: write [limits], once
[shield.limits]
packet = "1kpps"
new_flows = 20
=> 6:1: unknown key "packet" in [shield.limits]: did you mean "packets"?
=> 7:13: new_flows = 20 in [shield.limits] is a bare number where a unit belongs: write "20pps" if packets per second are meant
[shield.limits]
new-flow = "20kpps"
new-flows = "20kpps"
=> 6:1: unknown key "new-flow" in [shield.limits]: did you mean "new_flows"?
=> 7:1: unknown key "new-flows" in [shield.limits]: did you mean "new_flows"?
limits = { packets = "101Mpps", destination = "10 kpps", new_flows = "none" }
=> 5:22: packets = "101Mpps" in [shield.limits] is out of range: RATE
=> 5:47: destination = "10 kpps" in [shield.limits] is not a rate: RATE
=> 5:70: new_flows = "none" in [shield.limits] is not a rate: RATE
limits = { source = "1001kpps", flow_rate = "2Mpps", allow_rate = "0pps" }
=> 5:21: source = "1001kpps" in [shield.limits] is out of range: SINGLE
=> 5:45: flow_rate = "2Mpps" in [shield.limits] is out of range: SINGLE
=> 5:67: allow_rate = "0pps" in [shield.limits] is out of range: SINGLE
limits = { source_prefix_v4 = 7, source_prefix_v6 = 129 }
=> 5:31: source_prefix_v4 = 7 in [shield.limits] is out of range: write a whole number from 8 to 32
=> 5:53: source_prefix_v6 = 129 in [shield.limits] is out of range: write a whole number from 16 to 128
mitigation = 8
=> 5:14: mitigation = 8 in [shield] is an integer: write a table, mitigation = { ... }
mitigation = { for = "10m" }
=> 5:14: [shield.mitigation] has no threshold: add packets = "300kpps", new_flows = "20kpps" or above_baseline = 8
mitigation = { packets = "1pps", minimum = "1pps" }
=> 5:44: minimum of [shield.mitigation] has no effect without above_baseline: remove it, or write above_baseline = 8
mitigation = { packets = "101Mpps", new_flows = 7, above_baseline = 1, minimum = "5" }
=> 5:26: packets = "101Mpps" in [shield.mitigation] is out of range: RATE
=> 5:49: new_flows = 7 in [shield.mitigation] is a bare number where a unit belongs: write "7pps" if packets per second are meant
=> 5:69: above_baseline = 1 in [shield.mitigation] is out of range: write a whole number from 2 to 1000
=> 5:82: minimum = "5" in [shield.mitigation] is not a rate: RATE
mitigation = { above_baseline = 8, for = "25h", limits = { source = "2Mpps", rate = 1 } }
=> 5:42: for = "25h" in [shield.mitigation] is out of range: write a number and its unit (ms, s, m, h, d), from "1s" to "1d"
=> 5:69: source = "2Mpps" in limits of [shield.mitigation] is out of range: SINGLE
=> 5:78: unknown key "rate" in limits of [shield.mitigation]: remove it; known here: packets, destination, new_flows, source
mitigation = { above_baseline = 8, run = "announce --rtbh" }
=> 5:42: run = "announce --rtbh" in [shield.mitigation] is a string, and no shell splits it: write run = ["/usr/local/lib/announce", "argument"]
mitigation = { packets = "1pps", run_after = "0s" }
=> 5:46: run_after of [shield.mitigation] has no effect without run: remove it, or write run = ["/usr/local/lib/announce", "argument"]
mitigation = { packets = "1pps", run = ["/bin/a"], run_after = "11m" }
=> 5:64: run_after = "11m" in [shield.mitigation] is out of range: write a number and its unit (ms, s, m, h, d), from "0ms" to "10m"
mitigation = { above_baseline = 8, run = ["announce"] }
=> 5:42: run = ["announce"] in [shield.mitigation] does not begin with the absolute path of a program: write run = ["/usr/local/lib/announce", "argument"]
"#;
    let table = table.replace("NAME", NAME).replace("RATE", RATE).replace("SINGLE", &single);
    check_table(&table, |lines| broken("[nat]", &format!("[shield]\n{lines}\n[nat]")));
}

#[test]
fn lists_and_rules_of_the_shield_are_bounded() {
    let many = |of: &dyn Fn(usize) -> String, count| {
        shield(&(0..count).map(of).collect::<String>()).join("\n")
    };
    let list =
        |n| format!("[[shield.list]]\nname = \"l{n}\"\nfile = \"/l{n}\"\naction = \"block\"\n");
    let rule = |n| format!("[[shield.rule]]\nmatch = \"port {}\"\naction = \"pass\"\n", n + 1);
    let count = |n| rule(n).replace("pass", "count");
    assert_eq!(many(&list, 64), "");
    assert_eq!(many(&list, 65), "5:1: [shield] has 65 lists: keep at most 64");
    assert_eq!(many(&rule, 256), "");
    assert_eq!(many(&rule, 257), "5:1: [shield] has 257 rules: keep at most 256");
    assert_eq!(many(&count, 48), "");
    let message = "5:1: 49 rules of [shield] have action = \"count\": keep at most 48";
    assert_eq!(many(&count, 49), message);
}

#[test]
fn a_service_without_a_shield_has_no_mode() {
    let table = r#"
shield = "off"
=> 7:8: shield of service "web" has no effect without [shield]: remove it, or add [shield]
"#;
    check_table(table, |own| broken("port = 80", &format!("port = 80\n{own}")));
}

#[test]
fn the_shield_of_a_service() {
    let table = r#"
shield = {}
=>
shield = "off"
=>
shield = "no"
=> 11:10: shield = "no" in service "web" is not known: write "enforce", "observe" or "off"
shield = { mode = "off", packets = "none", new_flows = "1pps", source = "none" }
=>
shield = { mode = "drop" }
=> 11:19: mode = "drop" in shield of service "web" is not known: write "enforce", "observe" or "off"
shield = { sources = "1kpps" }
=> 11:12: unknown key "sources" in shield of service "web": did you mean "source"?
shield = { source = "2Mpps" }
=> 11:21: source = "2Mpps" in shield of service "web" is out of range: RATE
shield = { source = "off" }
=> 11:21: source = "off" in shield of service "web" is not a rate: RATE
shield = { destination = "2Mpps" }
=> 11:26: destination is of an address, which may have several services: write it in [shield.limits]
"#;
    let rate =
        "write packets per second from \"1pps\" to \"1Mpps\", such as \"10kpps\", or \"none\"";
    check_table(&table.replace("RATE", rate), |own| {
        broken("port = 80", &format!("port = 80\n{own}")).replace("[nat]", "[shield]\n[nat]")
    });
}

#[test]
fn service_keys() {
    let table = r#"
=> 6:1: [[service]] number 1 has no name: add name = "web"
name = "web page"
=> 7:8: name = "web page" in [[service]] number 1 cannot be a service's name: write up to 63 letters, digits, "-", "_" and "."
"#;
    check("name = \"web\"", table);
    let table = r#"
affinity = "cookie"
=> 8:12: affinity = "cookie" in service "web" is not known: write "5-tuple" or "source"
forward = "bridge"
=> 8:11: forward = "bridge" in service "web" is not known: write "nat", "dsr-l2", "dsr-ipip" or "dsr-gue"
source = "clinet"
=> 8:10: source = "clinet" in service "web" is not known: write "node" or "client"
announce = true
=> 8:12: announce = true in service "web" is a boolean: write "arp" or "routed"
when_none_healthy = "wait"
=> 8:21: when_none_healthy = "wait" in service "web" is not known: write "reset", "drop" or "all"
on_down = "drain"
=> 8:11: on_down = "drain" in service "web" is not known: write "keep" or "reset"
on_down = "reset"
keep_for = "1m"
=> 9:12: keep_for in service "web" has no effect with on_down = "reset": remove it, or write on_down = "keep"
protocol = "sctp"
=> 8:12: protocol = "sctp" in service "web" is not a known protocol: write "tcp", "udp" or ["tcp", "udp"]
protocol = []
=> 8:12: protocol = [] in service "web" is empty: write "tcp", "udp" or ["tcp", "udp"]
protocol = ["tcp", "tcp"]
=> 8:12: protocol = ["tcp", "tcp"] in service "web" names a protocol twice: write "tcp", "udp" or ["tcp", "udp"]
protocol = 6
=> 8:12: protocol = 6 in service "web" is an integer: write "tcp", "udp" or ["tcp", "udp"]
backend = []
=> 8:1: unknown key "backend" in service "web": did you mean "backends"?
# The key is the nearest fault, and its value without quotes hides it no more; a port
# there is already.
prot = udp
=> 8:1: unknown key "prot" in service "web": did you mean "protocol"?
=> 8:8: not TOML: string values must be quoted (udp): put text, addresses and quantities in double quotes
"#;
    check_table(table, |keys| broken("name = \"web\"", &format!("name = \"web\"\n{keys}")));
}

#[test]
fn addresses() {
    let table = r#"
=> 6:1: service "web" has no address: add address = "203.0.113.10"
address = 10
=> 8:11: address = 10 in service "web" is an integer: write an IPv4 or IPv6 address such as "10.0.0.2" or "2001:db8::2"
address = "example.com"
=> 8:11: address = "example.com" in service "web" is not an address: write an IPv4 or IPv6 address such as "10.0.0.2" or "2001:db8::2"
address = "203.0.113.10/32"
=> 8:11: address = "203.0.113.10/32" in service "web" is a prefix: write the address alone, "203.0.113.10"
address = "203.0.113.10:80"
=> 8:11: address = "203.0.113.10:80" in service "web" has a port in it: write the address alone and the port as port = ...
address = "203.0.113.256"
=> 8:11: address = "203.0.113.256" in service "web" is not an address: write an IPv4 or IPv6 address such as "10.0.0.2" or "2001:db8::2"
address = "0.0.0.0"
=> 8:11: address = "0.0.0.0" in service "web" is the unspecified address: write an IPv4 or IPv6 address such as "10.0.0.2" or "2001:db8::2"
address = "0.0.0.1"
=> 8:11: address = "0.0.0.1" in service "web" is in 0.0.0.0/8, which no machine can have: write an IPv4 or IPv6 address such as "10.0.0.2" or "2001:db8::2"
address = "127.0.0.1"
=> 8:11: address = "127.0.0.1" in service "web" is a loopback address, which no packet on a link carries: write an IPv4 or IPv6 address such as "10.0.0.2" or "2001:db8::2"
address = "224.0.0.1"
=> 8:11: address = "224.0.0.1" in service "web" is a multicast address: write an IPv4 or IPv6 address such as "10.0.0.2" or "2001:db8::2"
address = "255.255.255.255"
=> 8:11: address = "255.255.255.255" in service "web" is the broadcast address: write an IPv4 or IPv6 address such as "10.0.0.2" or "2001:db8::2"
address = "::ffff:203.0.113.10"
=> 8:11: address = "::ffff:203.0.113.10" in service "web" is an IPv4 address in IPv6 form: write "203.0.113.10"
address = "fe80::1"
=> 8:11: address = "fe80::1" in service "web" is link-local, which does not say on which link: write an IPv4 or IPv6 address such as "10.0.0.2" or "2001:db8::2"
address = 203.0.113.10
=> 8:16: not TOML: invalid float (.113.10): put text, addresses and quantities in double quotes
"#;
    check("address = \"203.0.113.10\"", table);
}

#[test]
fn ports() {
    let table = r#"
=> 6:1: service "web" has no port: add port = 80
port = 0
=> 9:8: port = 0 in service "web" is out of range: write a whole number from 1 to 65535
port = 65536
=> 9:8: port = 65536 in service "web" is out of range: write a whole number from 1 to 65535
port = -1
=> 9:8: port = -1 in service "web" is out of range: write a whole number from 1 to 65535
port = 99999999999999999999999999999999999999999999999
=> 9:8: port = 9999999999999999999999999999999999999999... in service "web" is out of range: write a whole number from 1 to 65535
port = [80, 443]
=> 9:8: port = [80, 443] in service "web" is an array: write a port from 1 to 65535, a range such as "8000-8100", or "*"
port = "80"
=> 9:8: port = "80" in service "web" is a string: write port = 80, without quotes
port = "8100-8000"
=> 9:8: port = "8100-8000" in service "web" ends before it begins: write "8000-8100"
port = "80-80"
=> 9:8: port = "80-80" in service "web" is one port: write port = 80
port = "0-80"
=> 9:8: port = "0-80" in service "web" is not a port: write a port from 1 to 65535, a range such as "8000-8100", or "*"
port = "http"
=> 9:8: port = "http" in service "web" is not a port: write a port from 1 to 65535, a range such as "8000-8100", or "*"
port = 12000
=> 9:8: port 12000 of service "web" is one of the ports of [nat] (10000-29999), possibly on the same address: write another range, such as ports = "20000-32767", or addresses of [nat] that are no service's
"#;
    check("port = 80", table);
}

#[test]
fn checks() {
    let table = r#"
max_unhealthy = 50
=> 10:17: max_unhealthy in service "web" has no effect without check: remove it, or write check = { type = "tcp" }
check = "http"
=> 10:9: check = "http" in service "web" is a string: write a table, check = { ... }
check = {}
=> 10:9: check of service "web" has no type: add type = "tcp", or "http", "https", "udp", "dns" or "exec"
check = { type = "icmp" }
=> 10:18: type = "icmp" in check of service "web" is not known: write "tcp", "http", "https", "udp", "dns" or "exec"
check = { type = "http", path = "healthz" }
=> 10:33: path = "healthz" in check of service "web" is not an absolute path: write one that begins with "/", such as "/healthz"
check = { type = "http", path = "/a b" }
=> 10:33: path = "/a b" in check of service "web" has a space, a character that is not ASCII, or more than 1024 of them: write it percent-encoded, "%20" for a space
check = { type = "tcp", path = "/" }
=> 10:32: path = "/" in check of service "web" has no effect on a tcp check: remove it, or write type = "http" or "https"
check = { type = "https", port = 443, send = "x" }
=> 10:46: send = "x" in check of service "web" has no effect on an https check: remove it, or write type = "udp"
check = { type = "exec", sni = "a", command = ["/bin/true"] }
=> 10:32: sni = "a" in check of service "web" has no effect on an exec check: remove it, or write type = "https"
check = { type = "dns", expect = 200, query = "a" }
=> 10:34: expect = 200 in check of service "web" has no effect on a dns check: remove it, or write type = "http" or "https" or "udp"
check = { type = "http", host = "a/b" }
=> 10:33: host = "a/b" in check of service "web" is no host: write a name such as "www.example.com", with a port if need be
check = { type = "http", expect = 99 }
=> 10:35: expect = 99 in check of service "web" is out of range: write a status from 100 to 599, a range such as "200-299", or a list of them
check = { type = "http", expect = [200, "299-200"] }
=> 10:35: expect = [200, "299-200"] in check of service "web" is no HTTP status: write a status from 100 to 599, a range such as "200-299", or a list of them
check = { type = "http", expect = "ok" }
=> 10:35: expect = "ok" in check of service "web" is no HTTP status: write a status from 100 to 599, a range such as "200-299", or a list of them
check = { type = "https", tls_verify = "no" }
=> 10:40: tls_verify = "no" in check of service "web" is a string: write true or false, without quotes
check = { type = "https", ca_file = "ca.pem" }
=> 10:37: ca_file = "ca.pem" in check of service "web" is not the absolute path of a file: write an absolute path such as "/etc/ringway/ca.pem"
check = { type = "https", ca_file = "/ca.pem", tls_verify = false }
=> 10:37: ca_file in check of service "web" has no effect with tls_verify = false: remove one of the two
check = { type = "https", sni = "10.0.0.2" }
=> 10:33: sni = "10.0.0.2" in check of service "web" is an address, and TLS asks by name: remove it (then the certificate must be for the address asked), or write the name that the certificate is for
check = { type = "https", sni = "a b" }
=> 10:33: sni = "a b" in check of service "web" is no host name: write the name that the certificate is for, such as "www.example.com"
check = { type = "udp" }
=> 10:9: check of service "web" has no send: add send = "ping", or send = "hex:01ff"
check = { type = "udp", send = "" }
=> 10:32: send = "" in check of service "web" is empty: write text, or bytes such as "hex:01ff"
check = { type = "udp", send = "hex:0g", expect = "hex:012" }
=> 10:32: send = "hex:0g" in check of service "web" has 'g' among its hexadecimal digits: write two of 0-9, a-f for each byte
=> 10:51: expect = "hex:012" in check of service "web" has 3 hexadecimal digits, an odd number: write two for each byte
check = { type = "dns" }
=> 10:9: check of service "web" has no query: add query = "example.com"
check = { type = "dns", query = "a..b" }
=> 10:33: query = "a..b" in check of service "web" is no domain name: write a name such as "example.com"
check = { type = "dns", query = "müller.example" }
=> 10:33: query = "müller.example" in check of service "web" has characters that are not ASCII: write its xn-- form
check = { type = "dns", query = "a", record = "ANY" }
=> 10:47: record = "ANY" in check of service "web" is not known: write "A", "NS", "CNAME", "SOA", "PTR", "MX", "TXT", "AAAA", "SRV" or "HTTPS"
check = { type = "dns", query = "a", rcode = [] }
=> 10:46: rcode = [] in check of service "web" is empty: write rcode = "NOERROR" or several codes
check = { type = "exec" }
=> 10:9: check of service "web" has no command: add command = ["/usr/local/lib/check", "argument"]
check = { type = "exec", command = "/bin/check x" }
=> 10:36: command = "/bin/check x" in check of service "web" is a string, and no shell splits it: write command = ["/usr/local/lib/check", "argument"]
check = { type = "exec", command = ["check"] }
=> 10:36: command = ["check"] in check of service "web" does not begin with the absolute path of a program: write command = ["/usr/local/lib/check", "argument"]
check = { type = "exec", command = ["/bin/check", 1] }
=> 10:36: command = ["/bin/check", 1] in check of service "web" has an element that is no string: write command = ["/usr/local/lib/check", "argument"]
forward = "dsr-l2"
check = { type = "exec", command = ["/bin/check"] }
=> 11:18: type = "exec" in check of service "web" cannot check forward = "dsr-l2": a program's packets do not take that path: write another type, or forward = "nat"
check = { type = "tcp", log_checks = 1 }
=> 10:38: log_checks = 1 in check of service "web" is an integer: write true or false, without quotes
check = { type = "tcp", interval = 1 }
=> 10:36: interval = 1 in check of service "web" is a bare number where a unit belongs: write "1s" if seconds are meant
check = { type = "tcp", interval = 0.5 }
=> 10:36: interval = 0.5 in check of service "web" is a float: write a number and its unit (ms, s, m, h, d), from "10ms" to "1h"
check = { type = "tcp", interval = "1us" }
=> 10:36: interval = "1us" in check of service "web" has the unknown unit "us": write a number and its unit (ms, s, m, h, d), from "10ms" to "1h"
check = { type = "tcp", interval = "1ms" }
=> 10:36: interval = "1ms" in check of service "web" is out of range: write a number and its unit (ms, s, m, h, d), from "10ms" to "1h"
check = { type = "tcp", timeout = "2s" }
=> 10:35: timeout = "2s" in check of service "web" is longer than the interval: write at most "1s"
check = { type = "tcp", rise = 0 }
=> 10:32: rise = 0 in check of service "web" is out of range: write a whole number from 1 to 100
check = { type = "tcp", fall = 101 }
=> 10:32: fall = 101 in check of service "web" is out of range: write a whole number from 1 to 100
check = { type = "tcp", address = "10.0.0.9:90" }
=> 10:35: address = "10.0.0.9:90" in check of service "web" has a port in it: write the address alone and the port as port = ...
check = { type = "tcp", address = "203.0.113.10" }
=> 10:35: address 203.0.113.10 of a check of service "web" is itself the address of a service, where no backend can be asked: write an address of the backend's own, or remove it
check = { type = "tcp", port = 0 }
=> 10:32: port = 0 in check of service "web" is out of range: write a whole number from 1 to 65535
check = { type = "tcp", inteval = "1s" }
=> 10:25: unknown key "inteval" in check of service "web": did you mean "interval"?
"#;
    check("check = { type = \"http\" }", table);
}

#[test]
fn a_backend_alone_is_not_checked() {
    let text = GOOD.replace("check = { type = \"http\" }\n", "");
    let text = text.replace("10.0.0.3\" }", "10.0.0.3\", check = { port = 81 } }");
    let want = "10:39: check of backend 2 of service \"web\" has no effect where service \"web\" has none: write \
                check = { type = \"tcp\" } there too, or remove it";
    assert_eq!(messages(&text), [want]);
}

#[test]
fn backends() {
    let table = r#"
=> 6:1: service "web" has no backends: add backends = [{ address = "10.0.0.2" }]
backends = []
=> 11:12: backends = [] in service "web" is empty: write backends = [{ address = "10.0.0.2" }]
backends = "10.0.0.2"
=> 11:12: backends = "10.0.0.2" in service "web" is a string: write backends = [{ address = "10.0.0.2" }]
backends = ["10.0.0.2"]
=> 11:13: "10.0.0.2" in backends of service "web" is a string: write { address = "10.0.0.2" }
backends = [{ port = 80 }]
=> 11:13: backend 1 of service "web" has no address: add address = "10.0.0.2"
backends = [{ address = "10.0.0" }]
=> 11:25: address = "10.0.0" in backend 1 of service "web" is not an address: write an IPv4 or IPv6 address such as "10.0.0.2" or "2001:db8::2"
backends = [{ address = "10.0.0.2", weight = 1001 }]
=> 11:46: weight = 1001 in backend 1 of service "web" is out of range: write a whole number from 0 to 1000
backends = [{ address = "10.0.0.2", weight = -1 }]
=> 11:46: weight = -1 in backend 1 of service "web" is out of range: write a whole number from 0 to 1000
backends = [{ address = "10.0.0.2", weigth = 1 }]
=> 11:37: unknown key "weigth" in backend 1 of service "web": did you mean "weight"?
backends = [{ address = "10.0.0.2", check = { type = "tcp" } }]
=> 11:47: unknown key "type" in check of backend 1 of service "web": remove it; known here: address, port
backends = [{ address = "10.0.0.2", check = { address = "203.0.113.10" } }]
=> 11:57: address 203.0.113.10 of a check of service "web" is itself the address of a service, where no backend can be asked: write an address of the backend's own, or remove it
backends = [{ address = "10.0.0.2" }, { address = "10.0.0.2", port = 80 }]
=> 11:51: 10.0.0.2 port 80 is twice among the backends of service "web": remove one, and give the other the weight of both
backends = [{ address = "2001:db8::2" }]
=> 11:25: backend 2001:db8::2 of service "web" is IPv6 and the service IPv4, which nat does not translate: write the backend's IPv4 address
backends = [{ address = "203.0.113.10" }]
=> 11:25: backend 203.0.113.10 of service "web" is itself the address of a service, a loop: write the address of the machine that serves
"#;
    check("backends = [{ address = \"10.0.0.2\" }, { address = \"10.0.0.3\" }]", table);
}

#[test]
fn the_daemon() {
    let table = r#"
listen = 9810
=> 13:10: listen = 9810 in [metrics] is an integer: write an address and port such as "127.0.0.1:9810", or "off"
listen = ":9810"
=> 13:10: listen = ":9810" in [metrics] is not an address and port: write an address and port such as "127.0.0.1:9810", or "off"
listen = "127.0.0.1:0"
=> 13:10: listen = "127.0.0.1:0" in [metrics] has port 0: write an address and port such as "127.0.0.1:9810", or "off"
[api]
socket = "api.sock"
=> 14:10: socket = "api.sock" in [api] is not the absolute path of a file: write an absolute path such as "/run/ringway/api.sock"
[log]
level = "loud"
=> 14:9: level = "loud" in [log] is not known: write "error", "warn", "info", "debug" or "trace"
[apis]
=> 13:2: unknown key "apis" in the file: did you mean "api"?
[service]
=> 13:2: not TOML: duplicate key (service): remove one of the two
"#;
    check("listen = \"127.0.0.1:9810\"", table);
    let long = format!("[api]\nsocket = \"/{}\"", "a".repeat(107));
    let found = messages(&broken("listen = \"127.0.0.1:9810\"", &long)).concat();
    let words = "... in [api] is longer than the 107 bytes a Unix socket's path";
    assert!(found.contains(words), "{found}");
}

#[test]
fn services_among_each_other() {
    let table = r#"
name = "b"
address = "203.0.113.10"
port = 80
=> 17:11: service "b" has the address, port and protocol of service "web" (203.0.113.10, 80, tcp): change one of them, or move the backends into one service
name = "b"
address = "203.0.113.10"
port = 80
protocol = ["udp", "tcp"]
=> 17:11: service "b" has the address, port and protocol of service "web" (203.0.113.10, 80, tcp): change one of them, or move the backends into one service
name = "b"
address = "203.0.113.10"
port = 80
protocol = "udp"
=>
name = "web"
address = "203.0.113.11"
port = 80
=> 16:8: name = "web" is the name of an earlier service: write another, such as "web-2"
name = "b"
address = "10.0.0.3"
port = 81
=> 11:51: backend 10.0.0.3 of service "web" is itself the address of a service, a loop: write the address of the machine that serves
"#;
    check_table(table, |second| {
        format!("{GOOD}[[service]]\nbackends = [{{ address = \"10.0.0.2\" }}]\n{second}\n")
    });
}

#[test]
fn missing_sections() {
    let no_node =
        "the file has no node: add [node] with name = \"gw1\" and interfaces = [\"eth0\"]";
    let no_service =
        "the file has no service: add [[service]] with name, address, port and backends";
    assert_eq!(messages(""), [format!("1:1: {no_node}"), format!("1:1: {no_service}")]);
    let node = "node = 1 in the file is an integer: write a table, node = { ... }";
    let service = "service = [] in the file is empty: write [[service]] with name, address, port \
                   and backends";
    let want = [format!("1:11: {service}"), format!("2:8: {node}")];
    assert_eq!(messages("service = []\nnode = 1"), want);
    let want = "1:1: [[node]] is a list: write [node], once";
    assert_eq!(messages(&GOOD.replace("[node]", "[[node]]")), [want]);
    let want =
        "6:1: service of the file is one table: write its header in double brackets, once for each";
    assert_eq!(messages(&GOOD.replace("[[service]]", "[service]")), [want]);
}

/// Source = "client" needs no nat address, and its family none.
#[test]
fn families_without_nat_need_no_address() {
    let table = r#"
source = "node"
=> 5:14: addresses of [nat] has no IPv6 address, and service "six" is IPv6: add one of the node's, or leave addresses out
source = "client"
=>
"#;
    let v6 = "[[service]]\nname = \"six\"\naddress = \"2001:db8::1\"\nport = 80\n\
              backends = [{ address = \"2001:db8::2\" }]\n";
    let text = broken("ports = \"10000-29999\"", "addresses = [\"10.0.0.1\"]") + v6;
    check_table(table, |source| format!("{text}{source}\n"));
}

/// A nat port may be a service's where the addresses differ.
#[test]
fn nat_ports_and_service_ports() {
    let high = broken("port = 80", "port = 12000");
    let with = |address: &str| {
        messages(&high.replace("[nat]", &format!("[nat]\naddresses = [\"{address}\"]")))
    };
    assert_eq!(with("10.0.0.1"), Vec::<String>::new());
    assert!(with("203.0.113.10").concat().contains("port 12000 of service \"web\" is one of the"));
}

#[test]
fn limits() {
    let services = |count: usize, backends: usize| {
        let backends: Vec<String> = (0..backends)
            .map(|i| format!("{{address=\"10.1.{}.{}\"}}", i / 250, i % 250))
            .collect();
        let backends = backends.join(",");
        let service = |i: usize| {
            format!(
                "[[service]]\nname=\"s{i}\"\naddress=\"203.0.113.11\"\nport={}\n\
                 protocol=[\"tcp\",\"udp\"]\nbackends=[{backends}]\n",
                i + 1
            )
        };
        messages(&(GOOD.to_string() + &(0..count).map(service).collect::<String>())).concat()
    };
    assert_eq!(services(2047, 1), "");
    assert!(services(2048, 1).contains("this is service number 4097 (each protocol counts)"));
    assert_eq!(services(64, 1023), "");
    assert!(services(66, 1000).contains("brings the backends to 132002 (each protocol counts)"));
    assert!(services(1, 1025).contains("service \"s0\" has 1025 backends: keep at most 1024"));
}

/// All at once, in the order of the file, each under its line.
#[test]
fn several_errors_at_once() {
    let text = "[node]\nname = \"gw 1\"\ninterfaces = []\n[[service]]\n\tport = 0 # \u{e9}\n\
                \tname = \"w\u{e9}b\"\n";
    let shown = parse(text, "etc/gw.toml").unwrap_err().to_string();
    let expected = "\
etc/gw.toml:2:8: name = \"gw 1\" in [node] is not usable as the name of a directory: write up to 32 letters, digits, \"-\" and \"_\", such as \"gw1\"
    2 | name = \"gw 1\"
      |        ^^^^^^
etc/gw.toml:3:14: interfaces = [] in [node] is empty: write interfaces = [\"eth0\"]
    3 | interfaces = []
      |              ^^
etc/gw.toml:4:1: [[service]] number 1 has no address: add address = \"203.0.113.10\"
    4 | [[service]]
      | ^^^^^^^^^^^
etc/gw.toml:4:1: [[service]] number 1 has no backends: add backends = [{ address = \"10.0.0.2\" }]
    4 | [[service]]
      | ^^^^^^^^^^^
etc/gw.toml:5:9: port = 0 in [[service]] number 1 is out of range: write a whole number from 1 to 65535
    5 | \tport = 0 # \u{e9}
      | \t       ^
etc/gw.toml:6:9: name = \"w\u{e9}b\" in [[service]] number 1 cannot be a service's name: write up to 63 letters, digits, \"-\", \"_\" and \".\"
    6 | \tname = \"w\u{e9}b\"
      | \t       ^^^^^
6 errors";
    assert_eq!(shown, expected);
}

#[test]
fn long_lines_are_cut() {
    let many: Vec<String> = (0..60).map(|i| format!("\"eth{i}\"")).collect();
    let instead = format!("interfaces = [{}, \"e/0\", \"last\"]", many.join(", "));
    let text = broken("interfaces = [\"eth0\", \"eth1\"]", &instead);
    let shown = parse(&text, "gw.toml").unwrap_err().to_string();
    let lines: Vec<&str> = shown.lines().collect();
    let caret = lines[2].find('^').unwrap();
    assert_eq!(&lines[1][caret..caret + 5], "\"e/0\"", "{shown}");
    assert!(lines[1].len() < 120, "{shown}");
}

/// A file with a thousand errors does not scroll away the first.
#[test]
fn many_errors_are_counted() {
    let wrong: String = (0..1000).map(|i| format!("key{i} = 1\n")).collect();
    let shown = parse(&(wrong + GOOD), "gw.toml").unwrap_err().to_string();
    assert!(shown.ends_with("1000 errors, the first 20 shown"), "{shown}");
}

/// The log and `ringway status` have a line for it, not a page.
#[test]
fn errors_on_one_line_have_no_excerpts() {
    let text = "[node]\nnaem = \"gw1\"\ninterfaces = [\"eth0\"]\ncolour = \"| 3\"\n";
    let errors = ringway_config::parse(text, "gw.toml").expect_err("wrong");
    assert!(errors.to_string().lines().count() > 3, "{errors}");
    let line = errors.brief();
    assert!(!line.contains(['\n', '^', '|']), "{line}");
    assert!(line.contains("gw.toml:2:1: unknown key \"naem\" in [node]: did you mean \"name\"?; "));
    assert!(line.contains("; gw.toml:4:1: unknown key \"colour\"") && line.ends_with(" errors"));
}

#[test]
fn answers_to_syns_need_something_that_arms_them() {
    let with = |service: &str, more: &str| {
        messages(&(broken("port = 80", &format!("port = 80\n{service}")) + more))
    };
    let challenge = "syn = \"challenge\"";
    let told = |service: &str, more: &str, what: &str| {
        let said = with(service, more);
        assert!(said.len() == 1 && said[0].contains(what), "{said:?}");
    };
    told(challenge, "", "of service \"web\" is a part of the shield: write [shield]");
    told(challenge, "[shield]\n", "nothing tells what one is: write [shield.mitigation]");
    told("syn = \"prox\"", "[shield]\n", "\"challenge\", \"proxy\" or \"backend\"");
    let always = "[shield]\nsyn = { always = true }\n";
    let dsr = "syn = \"proxy\"\nforward = \"dsr-ipip\"";
    told(dsr, always, "does not pass the gateway with forward = \"dsr-ipip\"");
    told("syn = \"backend\"", always, "forward = \"nat\" rewrites: write syn = \"proxy\"");
    let dsr = "syn = \"backend\"\nforward = \"dsr-ipip\"";
    told(dsr, always, "takes a key that they have, too: write [shield.syn] with secret");
    for not_a_path in ["syn.secret", "0123456789abcdef0123456789abcdef"] {
        let secret = always.replace("true", &format!("true, secret = {not_a_path:?}"));
        told(dsr, &secret, "absolute path");
    }
    let udp = format!("{challenge}\nprotocol = \"udp\"");
    told(&udp, "[shield]\nsyn = { always = true }\n", "has no effect without TCP");
    told(challenge, "[shield]\nsyn = { always = true, secret = \"a\" }\n", "absolute path");
    for arms in ["syn = { always = true }", "mitigation = { new_flows = \"20kpps\" }"] {
        assert_eq!(with(challenge, &format!("[shield]\n{arms}\n")), Vec::<String>::new());
    }
}
