//! Frames kept from earlier runs: one a line, interface slot and bytes in hexadecimal, with any
//! comment behind `#`.

use std::fs;
use std::io;
use std::path::Path;

use ringway_bpf_tests::seeds::Seed;

/// Every frame in the directory's `.hex` files, in the order of their names.
pub fn load(directory: &Path) -> io::Result<Vec<Seed>> {
    let mut files: Vec<_> = fs::read_dir(directory)?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "hex"))
        .collect();
    files.sort();
    let mut all = Vec::new();
    for file in files {
        for (n, line) in fs::read_to_string(&file)?.lines().enumerate() {
            let line = line.split('#').next().unwrap_or_default().trim();
            if line.is_empty() {
                continue;
            }
            let bad = || io::Error::other(format!("{}:{}: not a frame", file.display(), n + 1));
            all.push(parse(line).ok_or_else(bad)?);
        }
    }
    Ok(all)
}

fn parse(line: &str) -> Option<Seed> {
    let (slot, hex) = line.split_once(' ')?;
    let digits = hex.as_bytes().chunks(2);
    let bytes = digits.map(|pair| u8::from_str_radix(str::from_utf8(pair).ok()?, 16).ok());
    let bytes: Vec<u8> = bytes.collect::<Option<_>>()?;
    let slot = slot.parse().ok().filter(|slot| *slot < 2)?;
    (bytes.len() >= 14).then_some((slot, bytes))
}

/// The same, as a line.
pub fn line((slot, frame): &Seed) -> String {
    let hex: String = frame.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{slot} {hex}")
}

#[cfg(test)]
mod tests {
    #[test]
    fn lines_are_read_as_written() {
        let seed = (1, (0..20).collect());
        assert_eq!(super::parse(&super::line(&seed)), Some(seed));
        for bad in ["", "0", "2 000000000000000000000000000000", "0 00", "0 zz"] {
            assert_eq!(super::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn the_saved_corpus_is_read() {
        let directory = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
        assert!(!super::load(&directory).unwrap().is_empty());
    }
}
