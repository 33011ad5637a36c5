//! Compiles bpf/*/*.bpf.c into objects, and generates their skeletons, which src/objects.rs
//! includes. A skeleton repeats the structures of abi.h; they are taken out of it, for those of
//! ringway-abi. libbpf's own headers come with libbpf-cargo; the kernel's from linux-libc-dev.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::{env, fs};

use libbpf_cargo::SkeletonBuilder;

const SOURCES: [&str; 14] = [
    "accept/accept",
    "forward/forward",
    "gateway/root",
    "gateway/gateway",
    "gateway/rings",
    "capture/capture",
    "capture/capture_forward",
    "capture/capture_shield",
    "decap/decap",
    "probe/probe",
    "shield/shield",
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

    let abi = ["abi/abi.h", "abi/shield.h", "abi/accept.h", "abi/forward.h"];
    let abi = abi.map(|header| fs::read_to_string(source.join(header)));
    let abi = abi.into_iter().collect::<Result<String, _>>()?;
    for path in SOURCES {
        let name = path.rsplit('/').next().unwrap_or(path);
        let skeleton = out.join(format!("{name}.skel.rs"));
        let mut builder = SkeletonBuilder::new();
        if let Some(clang) = env::var_os("CLANG") {
            builder.clang(PathBuf::from(clang));
        }
        builder
            .source(source.join(format!("{path}.bpf.c")))
            .clang_args(clang_args(&source)?)
            .obj(out.join(format!("{name}.o")))
            .reference_obj(true)
            .build_and_generate(&skeleton)?;
        let text = without_structures_of(&abi, fs::read_to_string(&skeleton)?);
        fs::write(skeleton, text)?;
    }
    Ok(())
}

fn without_structures_of(abi: &str, mut skeleton: String) -> String {
    let names = abi.lines().filter_map(|line| line.strip_prefix("struct ")?.strip_suffix(" {"));
    for name in names {
        for item in [format!("pub struct {name} {{"), format!("impl Default for {name} {{")] {
            let Some(at) = skeleton.find(&item) else { continue };
            let attributes = skeleton[..at].rfind("#[derive(").filter(|_| item.starts_with("pub"));
            let mut depth = 0;
            let end = skeleton[at..].find(|character| {
                depth += i32::from(character == '{') - i32::from(character == '}');
                character == '}' && depth == 0
            });
            let end = end.map_or(skeleton.len(), |end| at + end + 1);
            skeleton.replace_range(attributes.unwrap_or(at)..end, "");
        }
    }
    skeleton
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
