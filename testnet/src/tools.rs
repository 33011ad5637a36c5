//! Programs of other people: on PATH, or unpacked (not installed) from Debian packages.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{Error, Result};

/// A program found on this machine.
#[derive(Debug, Clone)]
pub struct Tool {
    pub path: PathBuf,
    /// Directories with shared libraries that were unpacked beside it; empty for installed
    /// programs.
    pub libraries: Vec<PathBuf>,
}

impl Tool {
    /// Lets the command find its unpacked libraries.
    pub fn set_environment(&self, command: &mut Command) {
        if let Ok(paths) = env::join_paths(&self.libraries)
            && !self.libraries.is_empty()
        {
            command.env("LD_LIBRARY_PATH", paths);
        }
        // Where iptables has what it loads.
        let mut extensions = self.libraries.iter().map(|directory| directory.join("xtables"));
        if let Some(directory) = extensions.find(|directory| directory.is_dir()) {
            command.env("XTABLES_LIBDIR", directory);
        }
    }
}

/// Finds a program on PATH, in the system's sbin directories, or under [`peers`].
pub fn find(name: &str) -> Result<Tool> {
    let path = env::var_os("PATH").unwrap_or_default();
    let sbin = ["/usr/sbin", "/sbin", "/usr/local/sbin"].map(PathBuf::from);
    let installed = env::split_paths(&path).chain(sbin).map(|d| d.join(name)).find(|p| p.is_file());
    if let Some(path) = installed {
        return Ok(Tool { path, libraries: Vec::new() });
    }
    let peers = peers();
    for directory in ["usr/sbin", "usr/bin", "sbin", "bin"] {
        let path = peers.join(directory).join(name);
        if path.is_file() {
            return Ok(Tool { path, libraries: library_directories(&peers) });
        }
    }
    Err(Error::NoTool {
        tool: name.into(),
        package: package_of(name).into(),
        peers: peers.display().to_string(),
    })
}

/// The directory that Debian packages are unpacked into: RINGWAY_PEERS, else `target/peers` of the
/// build this program comes from, else of the current directory.
pub fn peers() -> PathBuf {
    if let Some(peers) = env::var_os("RINGWAY_PEERS") {
        return peers.into();
    }
    let executable = env::current_exe().unwrap_or_default();
    let current = env::current_dir().unwrap_or_default();
    executable
        .ancestors()
        .map(|d| d.join("peers"))
        .chain(current.ancestors().map(|d| d.join("target/peers")))
        .find(|p| p.join("usr").is_dir())
        .unwrap_or_else(|| current.join("target/peers"))
}

/// usr/lib, lib and their multiarch subdirectories.
pub fn library_directories(root: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for lib in ["usr/lib", "lib"].map(|l| root.join(l)) {
        let Ok(entries) = fs::read_dir(&lib) else { continue };
        found.push(lib);
        found.extend(
            entries
                .flatten()
                .map(|e| e.path())
                .filter(|p| p.is_dir() && p.to_string_lossy().contains("-linux-gnu")),
        );
    }
    found
}

fn package_of(tool: &str) -> &str {
    match tool {
        "dig" => "bind9-dnsutils",
        "dpdk-testpmd" => "dpdk-dev",
        "ip" | "tc" | "ss" | "bridge" => "iproute2",
        "nft" => "nftables",
        tool if tool.starts_with("iptables") => "iptables",
        "nsenter" => "util-linux",
        "ping" => "iputils-ping",
        "arping" => "iputils-arping",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_what_every_machine_has() {
        let tool = find("sh").unwrap();
        assert!(tool.path.is_absolute() && tool.libraries.is_empty());
    }

    #[test]
    fn names_the_package() {
        let error = package_of("dig");
        assert_eq!(error, "bind9-dnsutils");
        let error = find("no-such-tool-anywhere").unwrap_err().to_string();
        assert!(error.contains("install the Debian package"), "{error}");
    }
}
