//! Compiles bpf/*/*.bpf.c into objects that src/load/ embeds. libbpf's own headers
//! come with libbpf-cargo; the kernel's from linux-libc-dev. No skeletons are generated: they would
//! repeat abi.h's structures, which ringway-abi already has.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use libbpf_cargo::SkeletonBuilder;

const SOURCES: [&str; 9] = [
    "gateway/root",
    "gateway/gateway",
    "gateway/rings",
    "capture/capture",
    "decap/decap",
    "probe/probe",
    "steer/steer",
    "trace/redirect_errors",
    "trace/drop_reasons",
];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let source = Path::new("../bpf").canonicalize()?;
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("OUT_DIR is not set: run by cargo only")?);
    // The directory itself: a header that is added or edited counts too.
    println!("cargo:rerun-if-changed={}", source.display());
    println!("cargo:rerun-if-env-changed=CLANG");

    for path in SOURCES {
        let name = path.rsplit('/').next().unwrap_or(path);
        let mut builder = SkeletonBuilder::new();
        if let Some(clang) = env::var_os("CLANG") {
            builder.clang(PathBuf::from(clang));
        }
        builder
            .source(source.join(format!("{path}.bpf.c")))
            .clang_args(clang_args(&source)?)
            .obj(out.join(format!("{name}.bpf.o")))
            .build()?;
    }
    Ok(())
}

/// v3 instructions (32-bit jumps, compare-and-swap): every kernel since 5.12 has them.
fn clang_args(source: &Path) -> Result<Vec<OsString>, Box<dyn std::error::Error>> {
    let mut args: Vec<OsString> =
        ["-mcpu=v3", "-Wall", "-Wextra", "-Werror", "-I"].into_iter().map(OsString::from).collect();
    args.push(source.into());
    // Debian keeps <asm/types.h> in a directory per architecture, which clang does not search
    // when it compiles for bpf.
    let arch = env::var("CARGO_CFG_TARGET_ARCH")?;
    let multiarch = format!("/usr/include/{arch}-linux-gnu");
    if Path::new(&multiarch).is_dir() {
        args.push("-idirafter".into());
        args.push(multiarch.into());
    }
    Ok(args)
}
