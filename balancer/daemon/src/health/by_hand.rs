//! The command by which a person asks as a check does, and sees more than the check tells.

use std::net::{IpAddr, SocketAddr};

use ringway_config::{Check, CheckKind, HttpCheck, TlsCheck, endpoint_text};

/// Asks this address as the check does.
pub fn command(check: &Check, address: SocketAddr) -> String {
    let (ip, port) = (address.ip(), address.port());
    let limit = check.timeout.as_secs().max(1);
    match &check.kind {
        CheckKind::Tcp => format!("nc -zv -w {limit} {ip} {port}"),
        CheckKind::Http(http) => {
            let host =
                http.host.as_ref().map_or_else(String::new, |host| format!(" -H 'Host: {host}'"));
            let at = endpoint_text(address);
            format!("curl -iv -m {limit} --noproxy '*'{host} 'http://{at}{}'", http.path)
        }
        CheckKind::Https(http, tls) => https(http, tls, address, limit),
        CheckKind::Udp(_) => format!("tcpdump -c 10 -ni any host {ip} and udp port {port}"),
        CheckKind::Dns(dns) => {
            let name = if dns.query.is_empty() { "." } else { &dns.query };
            format!("dig @{ip} -p {port} +time={limit} +tries=1 {name} {}", dns.record)
        }
        CheckKind::Exec(exec) => exec.command.join(" "),
    }
}

/// -v shows the certificate: whose it is, who issued it, until when it holds.
fn https(http: &HttpCheck, tls: &TlsCheck, address: SocketAddr, limit: u64) -> String {
    let trust = match (&tls.ca_file, tls.verify) {
        (_, false) => " -k".to_owned(),
        (Some(file), true) => format!(" --cacert {}", file.display()),
        (None, true) => String::new(),
    };
    let host = http.host.as_ref().map_or_else(String::new, |host| format!(" -H 'Host: {host}'"));
    let (ip, port) = (address.ip(), address.port());
    let named = tls.sni.as_deref().or(http.host.as_deref().and_then(name));
    let (host, to) = match named {
        Some(name) => {
            let ip = if ip.is_ipv6() { format!("[{ip}]") } else { ip.to_string() };
            let host = if tls.sni.is_some() { host } else { String::new() };
            (format!("{host} --connect-to ::{ip}:{port}"), format!("{name}:{port}"))
        }
        None => (host, endpoint_text(address)),
    };
    format!("curl -iv -m {limit} --noproxy '*'{trust}{host} 'https://{to}{}'", http.path)
}

/// The name in a Host header, without its port; an address is none.
fn name(host: &str) -> Option<&str> {
    let name = host.split(':').next().filter(|name| !name.is_empty() && !name.starts_with('['))?;
    name.parse::<IpAddr>().is_err().then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::gateway;

    fn asked(check: &str, address: &str) -> String {
        let config = gateway("", &format!("check = {{ {check} }}"));
        let check = config.services[0].check.clone().expect("a check");
        command(&check, address.parse().expect("an address"))
    }

    #[test]
    fn as_the_check_asks() {
        let v4 = "10.0.0.2:80";
        for (check, address, want) in [
            ("type = \"tcp\"", v4, "nc -zv -w 1 10.0.0.2 80"),
            (
                "type = \"http\", path = \"/up?a\", host = \"web\"",
                "[fd00::2]:80",
                "curl -iv -m 1 --noproxy '*' -H 'Host: web' 'http://[fd00::2]:80/up?a'",
            ),
            (
                "type = \"https\", path = \"/\", ca_file = \"/etc/ca.pem\", sni = \"web.example\"",
                v4,
                "curl -iv -m 1 --noproxy '*' --cacert /etc/ca.pem --connect-to ::10.0.0.2:80 'https://web.example:80/'",
            ),
            (
                "type = \"https\", path = \"/\", tls_verify = false",
                v4,
                "curl -iv -m 1 --noproxy '*' -k 'https://10.0.0.2:80/'",
            ),
            (
                "type = \"dns\", query = \"example.com\", record = \"AAAA\"",
                "10.0.0.2:53",
                "dig @10.0.0.2 -p 53 +time=1 +tries=1 example.com AAAA",
            ),
            ("type = \"exec\", command = [\"/bin/up\", \"-x\"]", v4, "/bin/up -x"),
        ] {
            assert_eq!(asked(check, address), want, "{check}");
        }
    }
}
