//! Turns bpf/abi/abi.h into Rust. Structures keep their C names (`raw::rw_ledger`); the
//! enumerations become proper Rust enums, so that a match over one fails to compile when
//! abi.h gains a value.

use std::env;
use std::path::{Path, PathBuf};

use bindgen::callbacks::{
    DeriveInfo, EnumVariantCustomBehavior, EnumVariantValue, ItemInfo, ParseCallbacks, TypeKind,
};

/// Enumerations that become Rust enums: C name, Rust name, prefix of the C variants, and the
/// last C variant, which only counts the others.
const ENUMS: [(&str, &str, &str, &str); 12] = [
    ("rw_slot", "Slot", "RW_SLOT_", "RW_SLOTS"),
    ("rw_verdict", "Verdict", "RW_", "RW_VERDICTS"),
    ("rw_reason", "Reason", "RW_REASON_", "RW_REASONS"),
    ("rw_forward", "Forward", "RW_FORWARD_", "RW_FORWARDS"),
    ("rw_loss", "Loss", "RW_LOSS_", "RW_LOSSES"),
    ("rw_flow_state", "FlowState", "RW_FLOW_", "RW_FLOW_STATES"),
    ("rw_shield_mode", "ShieldMode", "RW_SHIELD_", "RW_SHIELD_MODES"),
    ("rw_rule_action", "RuleAction", "RW_RULE_", "RW_RULE_ACTIONS"),
    ("rw_accept", "Accept", "RW_ACCEPT_", "RW_ACCEPTS"),
    ("rw_limit", "Limit", "RW_LIMIT_", "RW_LIMITS"),
    ("rw_forward_mode", "ForwardMode", "RW_FORWARDING_", "RW_FORWARDING_MODES"),
    ("rw_exemption", "Exemption", "RW_EXEMPT_", "RW_EXEMPTIONS"),
];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let header = Path::new("abi.h").canonicalize()?;
    println!("cargo:rerun-if-changed={}", header.display());
    for part in ["shield.h", "accept.h", "forward.h"] {
        println!("cargo:rerun-if-changed={}", header.with_file_name(part).display());
    }

    let wrapper = format!("#include <linux/types.h>\n#include \"{}\"\n", header.display());
    let mut builder = bindgen::builder()
        .header_contents("abi-wrapper.h", &wrapper)
        .allowlist_item("(rw|RW)_.*")
        .prepend_enum_name(false)
        .derive_default(false)
        .derive_partialeq(true)
        .derive_eq(true)
        .layout_tests(true)
        .clang_arg("-fparse-all-comments")
        .parse_callbacks(Box::new(Naming));
    for (name, ..) in ENUMS {
        builder = builder.rustified_enum(name);
    }
    let out = PathBuf::from(env::var("OUT_DIR")?).join("abi.rs");
    builder.generate()?.write_to_file(out)?;
    Ok(())
}

#[derive(Debug)]
struct Naming;

impl ParseCallbacks for Naming {
    fn item_name(&self, item: ItemInfo) -> Option<String> {
        let (_, rust, ..) = ENUMS.iter().find(|(c, ..)| *c == item.name)?;
        Some((*rust).to_owned())
    }

    fn enum_variant_behavior(
        &self,
        _enum: Option<&str>,
        variant: &str,
        _value: EnumVariantValue,
    ) -> Option<EnumVariantCustomBehavior> {
        let counts = ENUMS.iter().any(|(.., last)| *last == variant);
        counts.then_some(EnumVariantCustomBehavior::Hide)
    }

    fn enum_variant_name(
        &self,
        name: Option<&str>,
        variant: &str,
        _value: EnumVariantValue,
    ) -> Option<String> {
        let name = name?.trim_start_matches("enum ");
        let (.., prefix, _) = ENUMS.iter().find(|(c, rust, ..)| *c == name || *rust == name)?;
        Some(camel(variant.strip_prefix(prefix)?))
    }

    fn add_derives(&self, info: &DeriveInfo<'_>) -> Vec<String> {
        let derives: &[&str] = match info.kind {
            TypeKind::Enum => &["zerocopy::TryFromBytes", "PartialOrd", "Ord"],
            _ => &[
                "zerocopy::FromBytes",
                "zerocopy::IntoBytes",
                "zerocopy::KnownLayout",
                "zerocopy::Immutable",
            ],
        };
        let order: &[&str] = if info.name.ends_with("_key") || info.name == "rw_shield_prefix" {
            &["PartialOrd", "Ord"]
        } else {
            &[]
        };
        derives.iter().chain(order).map(|d| (*d).to_owned()).collect()
    }
}

/// `NO_SERVICE` -> `NoService`
fn camel(upper: &str) -> String {
    let word = |w: &str| match w.split_at_checked(1) {
        Some((first, rest)) => first.to_owned() + &rest.to_lowercase(),
        None => String::new(),
    };
    upper.split('_').map(word).collect()
}
