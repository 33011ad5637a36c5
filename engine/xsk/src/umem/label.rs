//! Short names in shared memory, beside the numbers that stand for them.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// A name of up to 32 bytes of UTF-8, zeroes behind it. Written once, before the number is used; who reads it meanwhile reads half
/// a name, and nothing else goes wrong.
#[repr(transparent)]
#[derive(Debug, Default)]
pub(crate) struct Label([AtomicU64; 4]);

impl Label {
    /// What is longer than 32 bytes is cut.
    pub(crate) fn write(&self, name: &str) {
        let len = (0..=name.len().min(32)).rev().find(|n| name.is_char_boundary(*n)).unwrap_or(0);
        for (n, word) in self.0.iter().enumerate() {
            let byte = |k: usize| name.as_bytes()[..len].get(8 * n + k).copied().unwrap_or(0);
            word.store(u64::from_ne_bytes(std::array::from_fn(byte)), Relaxed);
        }
    }

    /// Whoever has the memory may have written it, so nothing in it moves a terminal's cursor.
    pub(crate) fn read(&self) -> String {
        let bytes: Vec<u8> =
            self.0.iter().flat_map(|word| word.load(Relaxed).to_ne_bytes()).collect();
        let len = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
        without_controls(&String::from_utf8_lossy(&bytes[..len]))
    }
}

/// What moves no terminal's cursor.
pub(crate) fn without_controls(text: &str) -> String {
    let shown = |c: char| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c };
    text.chars().map(shown).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let label = Label::default();
        assert_eq!(label.read(), "");
        for name in ["l2fwd: received", "x", "", "12345678901234567890123456789012"] {
            label.write(name);
            assert_eq!(label.read(), name);
        }
        label.write("\x1b]0;owned\x07\n\u{9b}2J");
        assert_eq!(label.read(), "\u{fffd}]0;owned\u{fffd}\u{fffd}\u{fffd}2J");
        label.write("1234567890123456789012345678901\u{e9}");
        assert_eq!(label.read(), "1234567890123456789012345678901");
    }
}
