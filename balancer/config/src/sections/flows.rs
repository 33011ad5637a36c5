//! `[flows]`: records of the flows of dsr services while their rings change.

use toml::de::DeValue;

use crate::model::Flows;
use crate::reader::section::Section;
use crate::reader::value::{Read, integer, text, wrong_type};

/// 26 bytes each: 430 MB at the upper end.
const TRACKED: std::ops::RangeInclusive<u32> = 1024..=16_777_216;
const DEFAULT_TRACKED: u32 = 1_048_576;
const DEFAULT_NEW_PER_PREFIX: u32 = 4000;

pub(crate) fn read(file: &mut Section) -> Flows {
    let mut section = file.table_or_empty("flows", "[flows]".into());
    let flows = Flows {
        tracked: *section.or("tracked", DEFAULT_TRACKED, |v| integer(v, TRACKED)),
        new_per_prefix: *section.or("new_per_prefix", DEFAULT_NEW_PER_PREFIX, per_second),
    };
    section.finish();
    flows
}

/// "4000/s"
fn per_second(value: &DeValue) -> Read<u32> {
    const REMEDY: &str = "write flows per second from \"1/s\" to \"1000000/s\"";
    if let Some(number) = value.as_integer() {
        return Err(format!(
            "is a bare number where a unit belongs: write \"{}/s\" if flows per second are meant",
            number.as_str()
        ));
    }
    let text = text(value, REMEDY).map_err(|_| wrong_type(value, REMEDY))?;
    let digits = text.strip_suffix("/s").unwrap_or_default();
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(format!("is not a rate: {REMEDY}"));
    }
    match digits.parse() {
        Ok(rate @ 1..=1_000_000) => Ok(rate),
        _ => Err(format!("is out of range: {REMEDY}")),
    }
}
