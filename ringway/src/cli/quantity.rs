//! Numbers with prefixes and units, as they are typed.

/// A number with a decimal prefix: 5000, 100k, 2.5M; none where it is not one.
pub fn number(text: &str) -> Option<f64> {
    const PREFIXES: [(&str, f64); 5] = [("k", 1e3), ("M", 1e6), ("G", 1e9), ("T", 1e12), ("", 1.0)];
    let (number, by) =
        PREFIXES.iter().find_map(|(prefix, by)| Some((text.strip_suffix(prefix)?, by)))?;
    let number = number.trim_end().parse::<f64>().ok()? * by;
    number.is_finite().then_some(number)
}

/// A number of bytes with its unit.
pub fn bytes(text: &str) -> Result<u64, String> {
    const UNITS: [(&str, u64); 9] = [
        ("KiB", 1 << 10),
        ("MiB", 1 << 20),
        ("GiB", 1 << 30),
        ("TiB", 1 << 40),
        ("kB", 1000),
        ("MB", 1_000_000),
        ("GB", 1_000_000_000),
        ("TB", 1_000_000_000_000),
        ("B", 1),
    ];
    let wrong = || "write a whole number and its unit: 500kB, 64MiB, 1GB, 2TiB".to_owned();
    let found = UNITS.iter().find_map(|(unit, bytes)| Some((text.strip_suffix(unit)?, bytes)));
    let (number, unit) = found.ok_or_else(wrong)?;
    let number: u64 = number.trim_end().parse().map_err(|_| wrong())?;
    number.checked_mul(*unit).filter(|bytes| *bytes > 0).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        assert_eq!(bytes("64MiB"), Ok(64 << 20));
        assert_eq!(bytes("100 MB"), Ok(100_000_000));
        assert_eq!(bytes("2TiB"), Ok(2 << 40));
        for wrong in ["", "5", "MB", "0B", "-1kB", "1.5GB", "99999999999GiB"] {
            assert!(bytes(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn numbers_have_prefixes() {
        assert_eq!(number("5000"), Some(5000.0));
        assert_eq!(number("2.5M"), Some(2_500_000.0));
        for wrong in ["", "k", "1kk", "nan", "inf", "ten"] {
            assert_eq!(number(wrong), None, "{wrong}");
        }
    }
}
