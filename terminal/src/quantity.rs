//! Numbers with prefixes and units, as they are typed.

use std::ops::RangeInclusive;

/// A number with a decimal prefix: 5000, 100k, 2.5M; none where it is not one.
pub fn number(text: &str) -> Option<f64> {
    const PREFIXES: [(&str, f64); 5] = [("k", 1e3), ("M", 1e6), ("G", 1e9), ("T", 1e12), ("", 1.0)];
    let (number, by) =
        PREFIXES.iter().find_map(|(prefix, by)| Some((text.strip_suffix(prefix)?, by)))?;
    let number = number.trim_end().parse::<f64>().ok()? * by;
    number.is_finite().then_some(number)
}

/// Reads whole numbers within a range: 6000, 20k, 1.5M.
pub fn whole<T: TryFrom<u64>>(
    range: RangeInclusive<u64>,
) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static {
    move |text| {
        let found = number(text).filter(|n| n.fract() == 0.0 && (0.0..=1e15).contains(n));
        let found = found.map(|n| n as u64).filter(|n| range.contains(n));
        found.and_then(|n| T::try_from(n).ok()).ok_or_else(|| {
            let (least, most) = (range.start(), range.end());
            format!("write a whole number from {least} to {most}, as 6000, 20k or 1.5M")
        })
    }
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
    let wrong = || "write a number and its unit: 500kB, 64MiB, 1.5GB, 2TiB".to_owned();
    let found = UNITS.iter().find_map(|(unit, bytes)| Some((text.strip_suffix(unit)?, bytes)));
    let (number, unit) = found.ok_or_else(wrong)?;
    let number = number.trim_end();
    let bytes = match number.parse::<u64>() {
        Ok(whole) => whole.checked_mul(*unit),
        // Bytes have no fraction.
        Err(_) => number
            .parse::<f64>()
            .ok()
            .map(|part| part * *unit as f64)
            .filter(|bytes| (1.0..9e15).contains(bytes) && bytes.fract() == 0.0)
            .map(|bytes| bytes as u64),
    };
    bytes.filter(|bytes| *bytes > 0).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        assert_eq!(bytes("64MiB"), Ok(64 << 20));
        assert_eq!(bytes("100 MB"), Ok(100_000_000));
        assert_eq!(bytes("2TiB"), Ok(2 << 40));
        assert_eq!(bytes("1.5GB"), Ok(1_500_000_000));
        assert_eq!(bytes("0.5KiB"), Ok(512));
        for wrong in
            ["", "5", "MB", "0B", "-1kB", "1.5B", "nanB", "infGB", "99999999999GiB", "1e300TB"]
        {
            assert!(bytes(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn whole_numbers_within_a_range() {
        let read = whole::<u32>(1..=1_000_000);
        for (text, number) in [("1", 1), ("20k", 20_000), ("1M", 1_000_000), ("1.5k", 1500)] {
            assert_eq!(read(text), Ok(number), "{text}");
        }
        for wrong in ["0", "1.5", "2M", "-1", "1G", "", "k", "nan"] {
            let said = read(wrong).unwrap_err();
            assert!(said.contains("from 1 to 1000000"), "{wrong}: {said}");
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
