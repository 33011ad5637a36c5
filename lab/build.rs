//! Compiles bpf/*.bpf.c and generates their skeletons, as kernel does for the gateway.

use std::env;
use std::error::Error;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use libbpf_cargo::SkeletonBuilder;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-env-changed=CLANG");
    for name in [
        "arrive",
        "bare",
        "calibrate",
        "end",
        "feed",
        "live",
        "load",
        "replay",
        "shield",
        "sockmap",
        "syn",
    ] {
        build(name)?;
    }
    Ok(())
}

fn build(name: &str) -> Result<(), Box<dyn Error>> {
    let source = Path::new("bpf").join(format!("{name}.bpf.c"));
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("OUT_DIR is not set: run by cargo only")?);
    println!("cargo:rerun-if-changed={}", source.display());

    let mut builder = SkeletonBuilder::new();
    if let Some(clang) = env::var_os("CLANG") {
        builder.clang(PathBuf::from(clang));
    }
    // Debian keeps <asm/types.h> in a directory per architecture, which clang does not search when
    // it compiles for bpf.
    let multiarch = format!("/usr/include/{}-linux-gnu", env::var("CARGO_CFG_TARGET_ARCH")?);
    let args = ["-mcpu=v3", "-Wall", "-Wextra", "-Werror", "-idirafter", &multiarch];
    builder
        .source(&source)
        .clang_args(args.map(OsString::from))
        .build_and_generate(out.join(format!("{name}.skel.rs")))?;
    Ok(())
}
