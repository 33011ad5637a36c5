//! Mutated prefix lists: whatever the text is, it is read or refused, and the tables have what was
//! read.

use std::net::IpAddr;
use std::panic::catch_unwind;

use ringway_bpf_tests::mutate::Random;
use ringway_plan::prefix_list::{ListTables, PrefixSet, parse};

/// Files of an episode: a small part of its time.
const FILES: u64 = 5_000;

/// The formats that are read.
const TEXTS: [&str; 3] = [
    "# a list\r\n192.0.2.0/24 ; SBL1\r\n198.51.100.7\n\n2001:db8::/32\n0.0.0.0/0\n::1\n\
     255.255.255.255\n10.0.0.0/8 # private\nfe80::/10\n",
    "{\"cidr\":\"192.0.2.0/24\",\"sblid\":\"SBL1\"}\n{\"cidr\":\"2001:db8::\\/32\"}\n\
     {\"cidr\":\"255.255.255.255\"}\n{\"type\":\"metadata\",\"records\":3}\n",
    "[{\"cidr\":\"192.0.2.0/24\"},\n{\"cidr\":\"::/0\"}, {\"cidr\":\"10.0.0.0/8\"},\n\
     {\"type\":\"metadata\"}]\n",
];

/// Parts that mean something to one of the formats, between spaces.
const PARTS: &[u8] =
    b"\n \r # ; / /0 /32 /128 . : :: ::ffff: %1 0 255 { } [ ] \"cidr\": \\u0000 \xef\xbb\xbf";

/// A text that broke a rule.
pub struct BrokenList {
    pub text: Vec<u8>,
    pub why: String,
}

/// Reads the mutated files of an episode; returns how many.
pub fn play(seed: u64, episode: u64) -> Result<u64, BrokenList> {
    let mut random = Random::new(!seed ^ episode.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    for _ in 0..FILES {
        let mut text = random.pick(&TEXTS).as_bytes().to_vec();
        for _ in 0..=random.below(6) {
            mutate(&mut random, &mut text);
        }
        let outcome = catch_unwind(|| check(&text));
        let outcome = outcome.unwrap_or_else(|_| Err("a panic".to_owned()));
        outcome.map_err(|why| BrokenList { text, why })?;
    }
    Ok(FILES)
}

fn mutate(random: &mut Random, text: &mut Vec<u8>) {
    let at = random.below(text.len() + 1);
    let end = at + random.below(text.len() + 1 - at).min(random.below(24));
    match random.below(6) {
        0 if at < text.len() => text[at] = random.word() as u8,
        1 if at < text.len() => text[at] ^= 1 << random.below(8),
        2 => text.truncate(at),
        3 => drop(text.drain(at..end)),
        4 => {
            let copy = text[at..end].to_vec();
            let to = random.below(text.len() + 1);
            drop(text.splice(to..to, copy));
        }
        _ => {
            let parts: Vec<&[u8]> = PARTS.split(|byte| *byte == b' ').collect();
            drop(text.splice(at..at, random.pick(&parts).iter().copied()));
        }
    }
}

fn check(text: &[u8]) -> Result<(), String> {
    let Ok(file) = parse(text) else { return Ok(()) };
    let lines = text.split(|byte| *byte == b'\n').count();
    let numbers = file.entries.iter().map(|entry| entry.line);
    if numbers.chain(file.bad.iter().map(|bad| bad.line)).any(|line| line as usize > lines) {
        return Err("a line behind the last one".to_owned());
    }
    let set = PrefixSet::new([(7, &file.entries[..])]).map_err(|error| error.to_string())?;
    let tables = ListTables::new(&PrefixSet::default(), &set);
    let edges = [IpAddr::from([0; 4]), [255; 4].into(), [0; 16].into(), [255; 16].into()];
    for addr in file.entries.iter().map(|entry| entry.prefix.addr()).chain(edges) {
        let holding = file.entries.iter().map(|entry| entry.prefix).filter(|p| p.contains(addr));
        let found = tables.blocked(addr).map(|listed| listed.prefix);
        if holding.min() != found {
            return Err(format!("{addr}: the tables have {found:?}"));
        }
    }
    for entry in &file.entries {
        let again =
            parse(entry.prefix.to_string().as_bytes()).map_err(|error| error.to_string())?;
        if again.entries.iter().map(|entry| entry.prefix).ne([entry.prefix]) {
            return Err(format!("{} is not read again", entry.prefix));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_or_refused() {
        for episode in 0..20 {
            if let Err(BrokenList { text, why }) = play(1, episode) {
                panic!("{why}: \"{}\"", text.escape_ascii());
            }
        }
    }
}
