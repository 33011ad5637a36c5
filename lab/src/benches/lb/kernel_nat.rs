//! Balancers in the kernel's own stack: nftables and IPVS.

use ringway_testnet::{Namespace, OneBridge};

use super::balancer::{Balancer, PORT, v4, write};
use crate::{Error, Result, programs};

pub(super) fn nftables(net: &OneBridge) -> Result<Balancer> {
    let address = v4(net.balancer.v4);
    let count = net.backends.len();
    let map: Vec<String> =
        net.backends.iter().enumerate().map(|(n, b)| format!("{n} : {}", v4(b.v4))).collect();
    let rules = format!(
        "table ip balancer {{\n\
        \x20   chain in {{\n        type nat hook prerouting priority dstnat\n\
        \x20       ip daddr {address} tcp dport {PORT} dnat to numgen inc mod {count} map {{ {} }}\n    }}\n\
        \x20   chain out {{\n        type nat hook postrouting priority srcnat\n        masquerade\n    }}\n}}\n",
        map.join(", ")
    );
    let ns = &net.balancer.ns;
    let sysctls = forward(ns)?;
    let file = write(ns, "balancer.nft", &rules)?;
    programs::run(ns, "nft", &["-f", &file.to_string_lossy()])?;
    Ok(Balancer { address, configuration: format!("{sysctls}{rules}"), child: None, _xdp: None })
}

pub(super) fn ipvs(net: &OneBridge) -> Result<Balancer> {
    let ns = &net.balancer.ns;
    // The module is not loaded from here: it would stay.
    if !ns.run(|| std::path::Path::new("/proc/thread-self/net/ip_vs").exists())? {
        return Err(Error::Unavailable(
            "this kernel has no IPVS, or it is not loaded: `modprobe ip_vs` includes it".into(),
        ));
    }
    let address = v4(net.balancer.v4);
    let mut rules = format!("-A -t {address}:{PORT} -s rr\n");
    for backend in &net.backends {
        rules += &format!("-a -t {address}:{PORT} -r {}:{PORT} -m\n", v4(backend.v4));
    }
    let masquerade = "table ip balancer {\n    chain out {\n        type nat hook postrouting priority srcnat\n        \
                      masquerade\n    }\n}\n";
    let sysctls = forward(ns)?;
    ns.sysctl("net.ipv4.vs.conntrack", "1")?;
    for line in rules.lines() {
        let mut ipvsadm = ns.tool("ipvsadm").map_err(|e| Error::Unavailable(e.to_string()))?;
        ipvsadm.args(line.split(' '));
        programs::feed(ipvsadm, "ipvsadm", "")?;
    }
    let file = write(ns, "balancer.nft", masquerade)?;
    programs::run(ns, "nft", &["-f", &file.to_string_lossy()])?;
    let configuration = format!("{sysctls}net.ipv4.vs.conntrack=1\n{rules}{masquerade}");
    Ok(Balancer { address, configuration, child: None, _xdp: None })
}

/// Makes the balancer a router that keeps quiet about shorter ways.
fn forward(ns: &Namespace) -> Result<String> {
    let settings = [
        ("net.ipv4.ip_forward", "1"),
        ("net.ipv4.conf.all.send_redirects", "0"),
        ("net.ipv4.conf.eth0.send_redirects", "0"),
    ];
    for (key, value) in settings {
        ns.sysctl(key, value)?;
    }
    Ok(settings.map(|(key, value)| format!("{key}={value}\n")).concat())
}
