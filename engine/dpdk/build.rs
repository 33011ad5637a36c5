//! Compiles DPDK's inline functions, and links its libraries by what pkg-config says of them.

use std::env;
use std::error::Error;
use std::process::Command;

/// The libraries whose functions are called; drivers are loaded when the program starts.
const LIBRARIES: [&str; 4] = ["rte_eal", "rte_ethdev", "rte_mbuf", "rte_mempool"];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=shim.c");
    println!("cargo:rerun-if-env-changed=PKG_CONFIG_PATH");
    if env::var_os("CARGO_FEATURE_DPDK").is_none() {
        return Ok(());
    }
    let mut shim = cc::Build::new();
    shim.flag("-Werror=implicit-function-declaration");
    for flag in pkg_config("--cflags")?.split_whitespace() {
        shim.flag(flag);
    }
    // Its threads, and devices that come and go, are experimental in 22.11.
    shim.define("ALLOW_EXPERIMENTAL_API", None).file("shim.c").try_compile("ringway-dpdk-shim")?;
    for path in pkg_config("--libs-only-L")?.split_whitespace() {
        println!("cargo:rustc-link-search=native={}", path.trim_start_matches("-L"));
    }
    for library in LIBRARIES {
        println!("cargo:rustc-link-lib=dylib={library}");
    }
    Ok(())
}

fn pkg_config(what: &str) -> Result<String, Box<dyn Error>> {
    let ran = Command::new("pkg-config").args([what, "libdpdk"]).output();
    let ran = ran.map_err(|error| format!("pkg-config: {error}; install pkg-config"))?;
    if !ran.status.success() {
        let why = String::from_utf8_lossy(&ran.stderr).into_owned();
        return Err(format!("{why}DPDK is missing: install libdpdk-dev").into());
    }
    Ok(String::from_utf8(ran.stdout)?)
}
