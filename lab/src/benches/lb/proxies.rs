//! Balancers that terminate TCP: nginx and HAProxy, each with one core's worth of threads.

use std::path::{Path, PathBuf};
use std::time::Duration;

use ringway_testnet::{OneBridge, join_cgroup, tools};

use super::balancer::{Balancer, PORT, v4, write};
use crate::{Error, Result};

const PATIENCE: Duration = Duration::from_secs(10);

/// In a control group of version 2, if that is named.
pub(super) fn nginx_stream(net: &OneBridge, cgroup: Option<&Path>) -> Result<Balancer> {
    let node = &net.balancer;
    let address = v4(node.v4);
    let directory = node.ns.directory();
    let servers: String =
        net.backends.iter().map(|b| format!("        server {}:{PORT};\n", v4(b.v4))).collect();
    let configuration = format!(
        "load_module {};\ndaemon off;\nmaster_process off;\nworker_processes 1;\npid {}/pid;\n\
         error_log stderr warn;\nevents {{ worker_connections 16384; multi_accept on; }}\n\
         stream {{\n    upstream backends {{\n{servers}    }}\n    \
         server {{ listen {address}:{PORT} backlog=4096; proxy_pass backends; }}\n}}\n",
        stream_module()?.display(),
        directory.display(),
    );
    let file = write(&node.ns, "nginx-stream.conf", &configuration)?;
    let mut command = node.ns.tool("nginx")?;
    command.arg("-e").arg("stderr").arg("-p").arg(directory).arg("-c").arg(file);
    if let Some(cgroup) = cgroup {
        join_cgroup(&mut command, cgroup)?;
    }
    let mut child = node.ns.spawn(command)?;
    child.wait_for_port((address, PORT).into(), PATIENCE)?;
    Ok(Balancer { address, configuration, child: Some(child), _xdp: None })
}

/// Beside the nginx that was found: unpacked or installed.
fn stream_module() -> Result<PathBuf> {
    let nginx = tools::find("nginx")?.path;
    let beside = nginx.ancestors().nth(3).unwrap_or(Path::new("/"));
    [beside, Path::new("/")]
        .iter()
        .map(|root| root.join("usr/lib/nginx/modules/ngx_stream_module.so"))
        .find(|module| module.is_file())
        .ok_or_else(|| {
            Error::Unavailable(format!(
                "{} has no stream module beside it; install the package libnginx-mod-stream",
                nginx.display()
            ))
        })
}

pub(super) fn haproxy(net: &OneBridge) -> Result<Balancer> {
    let node = &net.balancer;
    let address = v4(node.v4);
    let servers: String = net
        .backends
        .iter()
        .enumerate()
        .map(|(n, b)| format!("    server b{n} {}:{PORT}\n", v4(b.v4)))
        .collect();
    let configuration = format!(
        "global\n    nbthread 1\n    maxconn 4000\n\
         defaults\n    mode tcp\n    timeout connect 10s\n    timeout client 1h\n    timeout server 1h\n\
         listen web\n    bind {address}:{PORT} backlog 4096\n    balance roundrobin\n{servers}"
    );
    let file = write(&node.ns, "haproxy.cfg", &configuration)?;
    let mut command = node.ns.tool("haproxy")?;
    command.arg("-db").arg("-f").arg(file);
    let mut child = node.ns.spawn(command)?;
    child.wait_for_port((address, PORT).into(), PATIENCE)?;
    Ok(Balancer { address, configuration, child: Some(child), _xdp: None })
}
