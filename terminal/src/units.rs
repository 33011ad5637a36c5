//! Numbers for people: three digits and a decimal prefix, bytes in binary ones.

/// Something per second, such as `12.5`, `1.25 k` or `3.40 M`; `-` where it is not known.
pub fn rate(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), decimal)
}

/// A number with a decimal prefix.
pub fn decimal(value: f64) -> String {
    let (number, prefix) = scaled(value);
    if prefix.is_empty() { number } else { format!("{number} {prefix}") }
}

/// The same with a unit: `12.3 Mbit/s`, `999 bit/s`.
pub fn decimal_of(value: f64, unit: &str) -> String {
    let (number, prefix) = scaled(value);
    format!("{number} {prefix}{unit}")
}

fn scaled(value: f64) -> (String, &'static str) {
    const PREFIXES: [&str; 5] = ["", "k", "M", "G", "T"];
    // A sum of nothing is -0.0.
    let mut value = value + 0.0;
    let mut prefix = 0;
    // 999.95 would be shown as 1000.0.
    while value >= 999.5 && prefix + 1 < PREFIXES.len() {
        value /= 1000.0;
        prefix += 1;
    }
    let digits = match value {
        v if v == 0.0 || v >= 99.95 => 0,
        _ if prefix == 0 => 1,
        v if v >= 9.995 => 1,
        _ => 2,
    };
    (format!("{value:.digits$}"), PREFIXES[prefix])
}

/// A number of bytes: `512 B`, `1.5 KiB`, `80.0 MiB`.
pub fn bytes(value: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    if value < 1024 {
        return format!("{value} B");
    }
    let mut shown = value as f64;
    let mut unit = 0;
    while shown >= 1023.95 && unit + 1 < UNITS.len() {
        shown /= 1024.0;
        unit += 1;
    }
    format!("{shown:.1} {}", UNITS[unit])
}

/// How long ago something was, in one unit: `45 s`, `12 min`, `3 h`, `5 days`.
pub fn age(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        7200..172_800 => format!("{} h", seconds / 3600),
        _ => format!("{} days", seconds / 86_400),
    }
}

/// A number that may not be known.
pub fn count(value: Option<u64>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_digits_and_a_prefix() {
        for (value, want) in [
            (0.0, "0"),
            (-0.0, "0"),
            (0.5, "0.5"),
            (12.34, "12.3"),
            (99.96, "100"),
            (999.0, "999"),
            (999.6, "1.00 k"),
            (1250.0, "1.25 k"),
            (12_340.0, "12.3 k"),
            (123_400.0, "123 k"),
            (3.4e6, "3.40 M"),
            (1e13, "10.0 T"),
            (1e17, "100000 T"),
        ] {
            assert_eq!(decimal(value), want, "{value}");
        }
        for (value, want) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1536, "1.5 KiB"),
            (83_886_080, "80.0 MiB"),
            (1_048_575, "1.0 MiB"),
        ] {
            assert_eq!(bytes(value), want, "{value}");
        }
        assert_eq!(decimal_of(1250.0, "bit/s"), "1.25 kbit/s");
        assert_eq!(decimal_of(12.0, "bit/s"), "12.0 bit/s");
        assert_eq!((rate(None), count(None)), ("-".to_owned(), "-".to_owned()));
    }
}
