//! Finds libpcap's filter compiler, which packaging/libpcap builds, and links it in.

use std::env;
use std::path::{Path, PathBuf};

fn main() -> Result<(), String> {
    println!("cargo:rerun-if-env-changed=RINGWAY_LIBPCAP");
    let here = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").ok_or("run by cargo only")?);
    let given = env::var_os("RINGWAY_LIBPCAP").map(PathBuf::from);
    let dir = given.unwrap_or_else(|| here.join("../target/libpcap"));
    let library = dir.join("libpcap.a");
    println!("cargo:rerun-if-changed={}", library.display());
    if !library.is_file() {
        return Err(missing(&library));
    }
    println!("cargo:rustc-link-search=native={}", dir.display());
    println!("cargo:rustc-link-lib=static=pcap");
    Ok(())
}

fn missing(library: &Path) -> String {
    format!(
        "there is no {}: run `packaging/bootstrap`, which fetches and builds it, \
         or set RINGWAY_LIBPCAP to the directory where packaging/libpcap has put it",
        library.display()
    )
}
