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

/// Whoever reads the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reader {
    /// A gateway: the first one makes the secret.
    Gateway,
    /// A backend, which needs the gateways'.
    Backend,
}

impl Reader {
    /// What names the file.
    const fn key(self) -> &'static str {
        match self {
            Reader::Gateway => "secret of [shield.syn]",
            Reader::Backend => "--secret",
        }
    }

    /// How to get a file that can be used.
    fn remedy(self, path: &Path) -> String {
        let path = path.display();
        match self {
            Reader::Gateway => format!(
                "make one: (umask 077; openssl rand -hex 16 >{path}), and copy it to all nodes"
            ),
            Reader::Backend => {
                format!("copy the file of the gateways' secret to {path}, mode 0600")
            }
        }
    }
}

/// Of a configuration; `None`: it names no file.
///
/// # Errors
/// As [`read`].
pub fn of(config: &Config) -> Result<Option<ChallengeKey>, Error> {
    let path = config.shield.iter().find_map(|shield| shield.syn.secret.as_ref());
    path.map(|path| read(Reader::Gateway, path)).transpose()
}

/// The key in a file.
///
/// # Errors
/// It cannot be read, others may read it, or what it has is no key.
pub fn read(reader: Reader, path: &Path) -> Result<ChallengeKey, Error> {
    let wrong = |why: String, remedy: String| {
        let what = reader.key();
        Error::configuration(format!("{what}, {}: {why}", path.display()), remedy)
    };
    let make = || reader.remedy(path);
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
    key(text.trim()).map_err(|why| wrong(why, make()))
}

/// Of more than 128 bits all count.
fn key(text: &str) -> Result<ChallengeKey, String> {
    if !DIGITS.contains(&text.len()) || !text.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        let (least, most) = (DIGITS.start(), DIGITS.end());
        return Err(format!("it has to have {least} to {most} hexadecimal digits"));
    }
    let mut key = [0; 2];
    for (n, digits) in text.as_bytes().chunks(16).enumerate() {
        let digits = std::str::from_utf8(digits).unwrap_or_default();
        // At most 16 hexadecimal digits.
        key[n % 2] ^= u64::from_str_radix(digits, 16).unwrap_or_default();
    }
    match key {
        [0, 0] => Err("it is not random: its digits are 0, or cancel each other".into()),
        key => Ok(ChallengeKey(key)),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};

    use super::*;

    #[test]
    fn a_key_is_128_bits_or_more() {
        let of = |text: &str| key(text).map(|key| key.0);
        let want = Ok([0x0123_4567_89ab_cdef, 0xfedc_ba98_7654_3210]);
        assert_eq!(of("0123456789abcdeffedcba9876543210"), want);
        let want = Ok([0x3333_3333_3333_3333; 2]);
        assert_eq!(of(&format!("{}{}", "1".repeat(32), "2".repeat(32))), want);
        for wrong in ["", "0123456789abcdef", &"1".repeat(31), &"g".repeat(32), &"1".repeat(129)] {
            let why = of(wrong).expect_err(wrong);
            assert!(why.contains("32 to 128 hexadecimal digits"), "{wrong}: {why}");
        }
        for zero in ["0".repeat(32), "12".repeat(32)] {
            assert!(of(&zero).is_err_and(|why| why.contains("it is not random")), "{zero}");
        }
    }

    #[test]
    fn a_file_that_others_may_read_is_refused() {
        let place = tempfile::tempdir().expect("a directory");
        let file = place.path().join("secret");
        let why = |path: &Path| read(Reader::Gateway, path).expect_err("refused").to_string();
        assert!(why(&file).contains("No such file"), "{}", why(&file));
        assert!(why(place.path()).contains("it is no file"));
        fs::write(&file, format!("{}\n", "5".repeat(32))).expect("written");
        let set = |mode| fs::set_permissions(&file, Permissions::from_mode(mode)).expect("a mode");
        set(0o640);
        assert!(why(&file).contains("(mode 0640)"), "{}", why(&file));
        set(0o600);
        assert_eq!(read(Reader::Gateway, &file).expect("a key").0, [0x5555_5555_5555_5555; 2]);
        fs::write(&file, "secret\n").expect("written");
        assert!(why(&file).contains("32 to 128 hexadecimal digits"), "{}", why(&file));
    }
}
