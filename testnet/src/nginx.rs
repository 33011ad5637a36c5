//! nginx as a backend that says its name.

use std::fmt::Write;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::{Child, Error, Namespace, Result, Signal, join_cgroup};

/// A single-process nginx that answers every request with 200 and one short body.
pub struct Nginx {
    child: Child,
    listen: Vec<SocketAddr>,
}

impl Nginx {
    /// Starts nginx on `listen`; ready when each address accepts. One process without a master, so
    /// that killing it kills the backend and nothing goes on serving.
    pub fn start(namespace: &Namespace, listen: &[SocketAddr], body: &str) -> Result<Self> {
        Self::start_in(namespace, listen, body, None)
    }

    /// [`Nginx::start`] in a control group of version 2, named by its directory.
    pub fn start_in(
        namespace: &Namespace,
        listen: &[SocketAddr],
        body: &str,
        cgroup: Option<&Path>,
    ) -> Result<Self> {
        static COUNTER: AtomicU32 = AtomicU32::new(0);
        let number = COUNTER.fetch_add(1, Ordering::Relaxed);
        let directory = namespace.directory().join(format!("nginx-{number}"));
        fs::create_dir_all(&directory)
            .map_err(|e| Error::file("creating", directory.as_path(), e))?;
        let file = directory.join("nginx.conf");
        fs::write(&file, configuration(&directory, listen, body))
            .map_err(|e| Error::file("writing", file.as_path(), e))?;
        let mut command = namespace.tool("nginx")?;
        command.arg("-e").arg("stderr").arg("-p").arg(&directory).arg("-c").arg(&file);
        if let Some(cgroup) = cgroup {
            join_cgroup(&mut command, cgroup)?;
        }
        let mut nginx = Self { child: namespace.spawn(command)?, listen: listen.to_vec() };
        for address in listen {
            nginx.child.wait_for_port(*address, Duration::from_secs(10))?;
        }
        Ok(nginx)
    }

    pub fn listen(&self) -> &[SocketAddr] {
        &self.listen
    }

    pub fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    /// SIGKILL: the kernel resets its connections, as when a backend's process dies.
    pub fn kill(&mut self) -> Result<()> {
        self.child.kill()
    }

    /// SIGSTOP: connections hang, as when a backend's machine stalls. [`Nginx::thaw`] undoes it.
    pub fn freeze(&mut self) -> Result<()> {
        self.child.signal(Signal::STOP)
    }

    /// SIGCONT.
    pub fn thaw(&mut self) -> Result<()> {
        self.child.signal(Signal::CONT)
    }
}

fn configuration(directory: &Path, listen: &[SocketAddr], body: &str) -> String {
    let mut listens = String::new();
    for address in listen {
        let only = if address.is_ipv6() { " ipv6only=on" } else { "" };
        let _ = writeln!(listens, "        listen {address} backlog=4096{only};");
    }
    let body = body.replace('\\', "\\\\").replace('"', "\\\"").replace('$', "");
    let d = directory.display();
    format!(
        "daemon off;\nmaster_process off;\nworker_processes 1;\npid {d}/pid;\nerror_log stderr warn;\n\
         events {{ worker_connections 16384; multi_accept on; }}\n\
         http {{\n    access_log off;\n    default_type text/plain;\n    \
         keepalive_requests 1000000000;\n    keepalive_timeout 1h;\n    \
         client_body_temp_path {d}/body;\n    proxy_temp_path {d}/proxy;\n    \
         fastcgi_temp_path {d}/fastcgi;\n    uwsgi_temp_path {d}/uwsgi;\n    scgi_temp_path {d}/scgi;\n    \
         server {{\n{listens}        location / {{ return 200 \"{body}\\n\"; }}\n    }}\n}}\n"
    )
}
