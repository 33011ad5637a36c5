//! `include`: services in files of their own.
//!
//! A pattern is relative to the file it is written in; `*` and `?` stand for any characters of one
//! file's or directory's name, but a leading dot. Files come in the order of the list, those of one
//! pattern by name. An included file holds `[[service]]` and `include`, nothing else: what is the
//! node's stays in one place.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::{fs, io};

use toml::de::{DeTable, DeValue};

use crate::files::{MAX_FILE, read_text};
use crate::model::{Service, Tunnel};
use crate::reader::diagnostics::Diagnostics;
use crate::reader::located::Located;
use crate::reader::section::Section;
use crate::reader::syntax;
use crate::reader::value::{Read, text};
use crate::sections::service;

/// Files read for one configuration.
const MAX_FILES: usize = 10_000;
/// Files that include each other in a row.
const MAX_DEPTH: usize = 16;
/// Tables and lists that belong to the node.
const OF_THE_NODE: [&str; 9] =
    ["node", "nat", "flows", "tunnel", "shield", "forward", "metrics", "api", "log"];

/// The patterns of a file.
pub(crate) fn patterns(file: &mut Section) -> Vec<Located<String>> {
    const EXAMPLE: &str = "include = [\"services.d/*.toml\"]";
    file.list("include", EXAMPLE, pattern).map(Located::into_inner).unwrap_or_default()
}

fn pattern(value: &DeValue) -> Read<String> {
    const REMEDY: &str = "write a path such as \"services.d/*.toml\"";
    let pattern = text(value, REMEDY)?;
    if pattern.is_empty() || pattern.ends_with('/') || pattern.contains('\0') {
        return Err(format!("is not the path of a file: {REMEDY}"));
    }
    if pattern.contains("**") {
        return Err(format!("has \"**\", which is not supported: {REMEDY}"));
    }
    Ok(pattern.into())
}

/// Reads what is included, and what that includes.
pub(crate) struct Includes<'r> {
    report: &'r Diagnostics,
    tunnel: &'r Tunnel,
    /// From the main file to the one that is being read.
    chain: Vec<Link>,
    /// By the file's own path: where it was included.
    seen: HashMap<PathBuf, String>,
    bytes: u64,
    services: Vec<Service>,
}

#[derive(Clone)]
struct Link {
    name: String,
    /// Without links and dots; `None` for a text that is no file.
    file: Option<PathBuf>,
}

impl<'r> Includes<'r> {
    /// For the main file of this name.
    pub(crate) fn new(report: &'r Diagnostics, tunnel: &'r Tunnel, main: &str) -> Includes<'r> {
        let link = Link { name: main.into(), file: fs::canonicalize(main).ok() };
        let (chain, seen, services) = (vec![link], HashMap::new(), Vec::new());
        Includes { report, tunnel, chain, seen, bytes: 0, services }
    }

    /// All services of all files that the main file's patterns lead to.
    pub(crate) fn read(mut self, patterns: &[Located<String>]) -> Vec<Service> {
        self.follow(patterns);
        self.services
    }

    fn follow(&mut self, patterns: &[Located<String>]) {
        let Some(from) = self.chain.last().cloned() else { return };
        let directory = Path::new(&from.name).parent().unwrap_or(Path::new(""));
        for pattern in patterns {
            match expand(&directory.join(pattern.as_str())) {
                Ok(files) => files.iter().for_each(|file| self.file(pattern, file)),
                Err((place, error)) => self.complain(
                    pattern,
                    &format!(
                        "cannot be followed: {}: {error}: make the directory, or correct the pattern",
                        place.display()
                    ),
                ),
            }
        }
    }

    fn complain(&self, pattern: &Located<String>, complaint: &str) {
        self.report.error(pattern.span(), format!("include {:?} {complaint}", **pattern));
    }

    fn file(&mut self, pattern: &Located<String>, path: &Path) {
        let name = path.display().to_string();
        let file = match fs::canonicalize(path) {
            Ok(file) => file,
            Err(error) => {
                return self
                    .complain(pattern, &format!("cannot be read ({error}): correct the path"));
            }
        };
        if let Some(place) = self.chain.iter().position(|link| link.file.as_ref() == Some(&file)) {
            let round: Vec<&str> = self.chain[place..].iter().map(|l| l.name.as_str()).collect();
            let round = format!("{} includes {name}", round.join(" includes "));
            return self.complain(pattern, &format!("goes in a circle: {round}: remove one"));
        }
        if let Some(before) = self.seen.get(&file) {
            let complaint = format!("reads {name} again, which {before} has included: remove one");
            return self.complain(pattern, &complaint);
        }
        if self.chain.len() > MAX_DEPTH || self.seen.len() >= MAX_FILES {
            let complaint = format!(
                "is too much: a configuration is read from {MAX_FILES} files, {MAX_DEPTH} deep, \
                 at most"
            );
            return self.complain(pattern, &complaint);
        }
        self.seen.insert(file.clone(), self.report.place(pattern.span().start));
        let text = match read_text(path, MAX_FILE - self.bytes) {
            Ok(text) => text,
            Err(error) => return self.report.error_of(&name, error),
        };
        self.bytes += text.len() as u64;
        self.chain.push(Link { name: name.clone(), file: Some(file) });
        self.text(&name, &text);
        self.chain.pop();
    }

    fn text(&mut self, name: &str, text: &str) {
        let base = self.report.add(name, text);
        let Some(document) = syntax::parse(self.report, text, base) else { return };
        let document = document.get_ref();
        let mut file = Section::file(self.report, base, document);
        self.only_services(&mut file, document);
        let patterns = patterns(&mut file);
        self.services.append(&mut service::read_any(&mut file, self.tunnel));
        file.finish();
        self.follow(&patterns);
    }

    fn only_services(&self, file: &mut Section, document: &DeTable) {
        for key in OF_THE_NODE.iter().filter(|key| document.contains_key(**key)) {
            let main = self.chain.first().map_or("", |link| &link.name);
            file.refuse(
                key,
                &format!(
                    "[{key}] is in an included file, which holds [[service]] and include only: \
                     move it to {main}"
                ),
            );
        }
    }
}

/// Files that fit, by name. What has no `*` or `?` in it fits whether or not it exists.
pub(crate) fn expand(pattern: &Path) -> Result<Vec<PathBuf>, (PathBuf, io::Error)> {
    let mut found = vec![PathBuf::new()];
    let mut wild = false;
    for part in pattern.components() {
        let name = part.as_os_str().to_string_lossy();
        if !name.contains(['*', '?']) {
            found.iter_mut().for_each(|path| path.push(part));
            if wild {
                found.retain(|path| path.exists());
            }
            continue;
        }
        let mut next = Vec::new();
        for directory in &found {
            match fitting(directory, &name) {
                Ok(names) => next.extend(names),
                // A file beside the directories that were meant.
                Err(error) if wild && error.kind() == io::ErrorKind::NotADirectory => {}
                Err(error) => return Err((directory.clone(), error)),
            }
        }
        (found, wild) = (next, true);
    }
    Ok(found)
}

fn fitting(directory: &Path, pattern: &str) -> io::Result<Vec<PathBuf>> {
    let here = if directory.as_os_str().is_empty() { Path::new(".") } else { directory };
    let mut names = Vec::new();
    for entry in fs::read_dir(here)? {
        let name = entry?.file_name();
        let text = name.to_string_lossy();
        if text.starts_with('.') == pattern.starts_with('.')
            && fits(text.as_bytes(), pattern.as_bytes())
        {
            names.push(directory.join(name));
        }
    }
    names.sort();
    Ok(names)
}

/// Tries the last `*` again with one more character until it fits.
fn fits(name: &[u8], pattern: &[u8]) -> bool {
    let (mut n, mut p) = (0, 0);
    let mut star = None;
    while n < name.len() {
        match pattern.get(p) {
            Some(b'*') => {
                star = Some((p, n));
                p += 1;
            }
            Some(byte) if *byte == b'?' || *byte == name[n] => {
                n += 1;
                p += 1;
            }
            _ => {
                let Some((place, taken)) = star else { return false };
                star = Some((place, taken + 1));
                (p, n) = (place + 1, taken + 1);
            }
        }
    }
    pattern[p..].iter().all(|byte| *byte == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_fit_names() {
        for (name, pattern, want) in [
            ("web.toml", "*.toml", true),
            ("web.toml~", "*.toml", false),
            ("web.toml", "web.toml", true),
            ("web.toml", "w?b.*", true),
            ("wb.toml", "w?b.*", false),
            ("a.toml.toml", "*.toml", true),
            ("", "*", true),
            ("", "?", false),
            ("abcabc", "*abc", true),
            ("abcab", "*abc", false),
            ("aXbXc", "a*b*c", true),
        ] {
            assert_eq!(fits(name.as_bytes(), pattern.as_bytes()), want, "{name} {pattern}");
        }
    }
}
