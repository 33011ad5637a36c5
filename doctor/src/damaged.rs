//! Collections that were damaged, or made to do damage: whatever is in one, it is refused or
//! judged, in bounded memory.

use std::io::{self, Read};

use proptest::prelude::*;
use proptest::sample::{Index, select};

use crate::testing::healthy;
use crate::{Collection, Error, Facts, Profile, judge, rules, scripts};

fn archive() -> Vec<u8> {
    let mut bytes = Vec::new();
    healthy().collection.write(&mut bytes).unwrap();
    bytes
}

/// Every rule, whatever the machine is to be good at.
fn judged(collection: &Collection) {
    let profiles = [None, Some(Profile::Throughput), Some(Profile::Balancer)];
    for profile in profiles {
        let facts = Facts::new(collection, profile);
        let report = judge(rules::ALL, &facts);
        assert!(report.findings.len() >= rules::ALL.len());
        scripts(&report, &facts.origin());
    }
}

fn read(bytes: &[u8]) {
    match Collection::read(bytes) {
        Ok(collection) => judged(&collection),
        Err(error) => {
            let said = error.to_string();
            assert!(said.len() < 400 && !said.contains(char::is_control), "{said:?}");
        }
    }
}

#[derive(Debug, Clone)]
enum Damage {
    Flip(Index, u8),
    Cut(Index),
    /// Bytes of one place at another.
    Copy(Index, Index, usize),
    Insert(Index, Vec<u8>),
}

fn damage() -> impl Strategy<Value = Damage> {
    let place = any::<Index>;
    prop_oneof![
        (place(), any::<u8>()).prop_map(|(at, bit)| Damage::Flip(at, bit)),
        place().prop_map(Damage::Cut),
        (place(), place(), 1..1024_usize).prop_map(|(to, from, n)| Damage::Copy(to, from, n)),
        (place(), prop::collection::vec(any::<u8>(), 1..600))
            .prop_map(|(at, b)| Damage::Insert(at, b)),
    ]
}

fn apply(bytes: &mut Vec<u8>, damage: &Damage) {
    if bytes.is_empty() {
        return;
    }
    match damage {
        Damage::Flip(at, bit) => {
            let at = at.index(bytes.len());
            bytes[at] ^= 1 << (bit % 8);
        }
        Damage::Cut(at) => bytes.truncate(at.index(bytes.len())),
        Damage::Copy(to, from, count) => {
            let from = from.index(bytes.len());
            let part = bytes[from..(from + count).min(bytes.len())].to_vec();
            let to = to.index(bytes.len());
            let end = (to + part.len()).min(bytes.len());
            bytes[to..end].copy_from_slice(&part[..end - to]);
        }
        Damage::Insert(at, more) => {
            let at = at.index(bytes.len());
            bytes.splice(at..at, more.iter().copied());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn bytes_that_are_no_archive(bytes in prop::collection::vec(any::<u8>(), 0..4096)) {
        read(&bytes);
    }

    #[test]
    fn an_archive_that_was_damaged(damages in prop::collection::vec(damage(), 1..4)) {
        let mut bytes = archive();
        damages.iter().for_each(|one| apply(&mut bytes, one));
        read(&bytes);
    }

    /// A whole archive around files that no kernel wrote.
    #[test]
    fn files_that_make_no_sense(
        changes in prop::collection::vec((any::<Index>(), any::<Index>(), select(&WORDS[..]), any::<bool>()), 1..30),
    ) {
        let mut machine = healthy();
        let paths: Vec<String> = machine.collection.after.files().keys().cloned().collect();
        for (file, word, with, both) in changes {
            let path = &paths[file.index(paths.len())];
            let text = machine.collection.after.files()[path].clone();
            // In place of a word: numbers, names, brackets.
            let words: Vec<(usize, &str)> = text.match_indices(|c: char| c.is_ascii_alphanumeric()).collect();
            let text = match words.get(word.index(words.len().max(1))) {
                Some((at, _)) => {
                    let rest = text[*at..].trim_start_matches(|c: char| c.is_ascii_alphanumeric());
                    format!("{}{with}{rest}", &text[..*at])
                }
                None => with.to_owned(),
            };
            machine = if both { machine.put(path, &text) } else { machine.then(path, &text) };
        }
        let mut bytes = Vec::new();
        machine.collection.write(&mut bytes).unwrap();
        judged(&Collection::read(bytes.as_slice()).unwrap());
    }
}

const WORDS: [&str; 16] = [
    "",
    "0",
    "-1",
    "4294967295",
    "4294967296",
    "9223372036854775807",
    "-9223372036854775808",
    "18446744073709551615",
    "1e308",
    "0-4294967295",
    "null",
    "[]",
    "{}",
    "\u{1b}[2J",
    "$(reboot)",
    "ffffffff,ffffffff",
];

fn header(path: &str, kind: tar::EntryType, size: u64) -> tar::Header {
    let mut header = tar::Header::new_gnu();
    // set_path refuses what is asked for here.
    let name = &mut header.as_old_mut().name;
    name[..path.len()].copy_from_slice(path.as_bytes());
    header.set_entry_type(kind);
    header.set_size(size);
    header.set_cksum();
    header
}

#[test]
fn what_no_collection_holds() {
    use tar::EntryType;
    let said = |header: &tar::Header| {
        let mut bytes = header.as_bytes().to_vec();
        bytes.extend([0; 2048]);
        Collection::read(bytes.as_slice()).unwrap_err().to_string()
    };
    for kind in [EntryType::Symlink, EntryType::Link, EntryType::Char, EntryType::Fifo] {
        let words = said(&header("after/proc/version", kind, 0));
        assert!(words.contains("no plain file"), "{words}");
    }
    // More than any file of a collection, and more than there is.
    for size in [1 << 40, (64 << 20) + 1] {
        let words = said(&header("after/proc/version", EntryType::Regular, size));
        assert!(words.contains("no collection is as large"), "{words}");
    }
    let words = said(&header("after/proc/version", EntryType::Regular, 60 << 20));
    assert!(words.contains("damaged"), "{words}");
    // Nothing is written anywhere: a path is but a name.
    let words = said(&header("../../etc/passwd", EntryType::Regular, 0));
    assert!(words.contains("not in it"), "{words}");
    let words = said(&header("after/\u{1b}[2J", EntryType::Symlink, 0));
    assert!(!words.contains('\u{1b}'), "{words}");
}

/// As much as is asked for, of nothing.
struct Endless(u64);

impl Read for Endless {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0 += buffer.len() as u64;
        buffer.fill(b'a');
        Ok(buffer.len())
    }
}

#[test]
fn an_archive_without_end_is_left() {
    // A name that goes on and on: GNU's long names are read whole.
    let long = header("././@LongLink", tar::EntryType::GNULongName, 1 << 40);
    let mut endless = Endless(0);
    let said = Collection::read(long.as_bytes().chain(&mut endless)).unwrap_err();
    assert!(matches!(said, Error::Damaged(_)), "{said}");
    assert!(endless.0 < 1 << 30, "{} bytes were read", endless.0);
}
