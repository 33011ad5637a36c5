//! The file with the key of challenges and SYN cookies: `secret` of `[shield.syn]`, and what
//! `ringway accept` is given.

use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;

use ringway_config::Config;
use ringway_host::users;
use ringway_kernel::shield::ChallengeKey;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::geteuid;

use crate::error::Error;
use crate::state_dir::USER;

/// Hexadecimal digits: 128 to 512 bits.
const DIGITS: std::ops::RangeInclusive<usize> = 32..=128;
const MAKE: &str = "make one: (umask 077; openssl rand -hex 16 >FILE), and copy it to all nodes";

/// Of a configuration; `None`: it names no file.
///
/// # Errors
/// As [`read`].
pub fn of(config: &Config) -> Result<Option<ChallengeKey>, Error> {
    let path = config.shield.iter().find_map(|shield| shield.syn.secret.as_ref());
    path.map(|path| read("secret of [shield.syn]", path)).transpose()
}

/// The key in a file. `what`: who names the file.
///
/// # Errors
/// It cannot be read, others may read it, or what it has is no key.
pub fn read(what: &str, path: &Path) -> Result<ChallengeKey, Error> {
    let wrong = |why: String, remedy: String| {
        Error::configuration(format!("{what}, {}: {why}", path.display()), remedy)
    };
    let make = || MAKE.replace("FILE", &path.display().to_string());
    // A FIFO would wait for somebody who writes.
    let open = rustix::fs::open(path, OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty());
    let own = geteuid().as_raw();
    let file = File::from(open.map_err(|errno| match errno {
        Errno::ACCESS => wrong(
            format!("{errno}: user {own}, who reads it, may not"),
            format!("chown {own} {}", path.display()),
        ),
        _ => wrong(errno.to_string(), make()),
    })?);
    let about = file.metadata().map_err(|error| wrong(error.to_string(), make()))?;
    if !about.is_file() {
        return Err(wrong("it is no file".into(), make()));
    }
    if about.permissions().mode() & 0o077 != 0 {
        let why = format!(
            "others than its owner may read or write it (mode {:04o})",
            about.mode() & 0o7777
        );
        return Err(wrong(
            why,
            format!("chmod 600 {}; if they may have read it, {}", path.display(), make()),
        ));
    }
    let owner = about.uid();
    // Whoever runs this by hand is another than the daemon of the packaged unit.
    let daemon = users::ids(USER).map(|(user, _)| user);
    if ![Some(0), Some(own), daemon].contains(&Some(owner)) {
        let why = format!("user {owner} owns it, who knows it and may replace it");
        return Err(wrong(why, format!("chown root {}; then {}", path.display(), make())));
    }
    let mut text = String::new();
    let read = file.take(*DIGITS.end() as u64 + 2).read_to_string(&mut text);
    read.map_err(|error| wrong(error.to_string(), make()))?;
    key(text.trim()).ok_or_else(|| {
        let why =
            format!("it has to have {} to {} hexadecimal digits", DIGITS.start(), DIGITS.end());
        wrong(why, make())
    })
}

/// Of more than 128 bits all count.
fn key(text: &str) -> Option<ChallengeKey> {
    if !DIGITS.contains(&text.len()) || !text.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    let mut key = [0; 2];
    for (n, digits) in text.as_bytes().chunks(16).enumerate() {
        let word = u64::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
        key[n % 2] ^= word;
    }
    (key != [0; 2]).then_some(ChallengeKey(key))
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};

    use super::*;

    #[test]
    fn a_key_is_128_bits_or_more() {
        let of = |text: &str| key(text).map(|key| key.0);
        assert_eq!(
            of("0123456789abcdeffedcba9876543210"),
            Some([0x0123_4567_89ab_cdef, 0xfedc_ba98_7654_3210])
        );
        assert_eq!(
            of(&format!("{}{}", "1".repeat(32), "2".repeat(32))),
            Some([0x3333_3333_3333_3333; 2])
        );
        for wrong in [
            "",
            "0123456789abcdef",
            &"0".repeat(32),
            &"1".repeat(31),
            &"g".repeat(32),
            &"1".repeat(129),
        ] {
            assert_eq!(of(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_file_that_others_may_read_is_refused() {
        let place = tempfile::tempdir().expect("a directory");
        let file = place.path().join("secret");
        let why = |path: &Path| read("secret", path).expect_err("refused").to_string();
        assert!(why(&file).contains("No such file"), "{}", why(&file));
        assert!(why(place.path()).contains("it is no file"));
        fs::write(&file, format!("{}\n", "5".repeat(32))).expect("written");
        let set = |mode| fs::set_permissions(&file, Permissions::from_mode(mode)).expect("a mode");
        set(0o640);
        assert!(why(&file).contains("(mode 0640)"), "{}", why(&file));
        set(0o600);
        assert_eq!(read("secret", &file).expect("a key").0, [0x5555_5555_5555_5555; 2]);
        fs::write(&file, "secret\n").expect("written");
        assert!(why(&file).contains("32 to 128 hexadecimal digits"), "{}", why(&file));
    }
}
