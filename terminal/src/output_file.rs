//! Files that commands write for their user: captures, bundles.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use crate::error::Error;

/// A new file, which its owner alone may read: it may hold what clients sent. What is there already
/// is replaced only with `overwrite`; a device or a pipe holds nothing that could be lost, and is
/// written to.
///
/// # Errors
/// There is such a file, or it cannot be made.
pub fn create(path: &Path, overwrite: bool) -> Result<File, Error> {
    let special = fs::metadata(path).is_ok_and(|about| !about.is_file());
    let mut options = OpenOptions::new();
    options.write(true).mode(0o600);
    match overwrite || special {
        true => options.create(true).truncate(true),
        false => options.create_new(true),
    };
    options.open(path).map_err(|error| refused(path, &error))
}

/// Says at once what [`create`] would refuse later: before somebody waits for what is to be
/// written.
///
/// # Errors
/// There is such a file, or no directory for it.
pub fn check(path: &Path, overwrite: bool) -> Result<(), Error> {
    let there = fs::metadata(path).is_ok_and(|about| about.is_file());
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    match directory.is_some_and(|directory| !directory.exists()) {
        true => Err(refused(path, &ErrorKind::NotFound.into())),
        false if there && !overwrite => Err(refused(path, &ErrorKind::AlreadyExists.into())),
        false => Ok(()),
    }
}

fn refused(path: &Path, error: &io::Error) -> Error {
    let path = path.display();
    let (why, fix) = match error.kind() {
        ErrorKind::AlreadyExists => {
            ("it is there already".to_owned(), "choose another name, or replace it: --overwrite")
        }
        ErrorKind::NotFound => (error.to_string(), "make its directory first"),
        _ => (error.to_string(), "choose a place that can be written"),
    };
    Error::failed(format!("{path} cannot be made: {why}"), fix)
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn what_is_there_stays_unless_told() {
        let place = tempfile::tempdir().expect("a directory");
        let path = place.path().join("capture.pcapng");
        create(&path, false).expect("new").write_all(b"evidence").expect("written");
        assert_eq!(path.metadata().expect("there").permissions().mode() & 0o777, 0o600);
        let refused = create(&path, false).expect_err("there").to_string();
        assert!(refused.contains("--overwrite") && refused.contains("capture.pcapng"), "{refused}");
        assert_eq!(fs::read(&path).expect("read"), b"evidence");
        assert_eq!(check(&path, false).expect_err("there").to_string(), refused);
        check(&path, true).expect("may be replaced");
        create(&path, true).expect("replaced");
        assert_eq!(fs::read(&path).expect("read"), b"");
    }

    #[test]
    fn devices_are_written_to_and_what_cannot_be_is_told() {
        create(Path::new("/dev/null"), false).expect("a device");
        let place = tempfile::tempdir().expect("a directory");
        for (path, words) in [
            (place.path().to_owned(), "a place that can be written"),
            (place.path().join("none/x"), "make its directory first"),
        ] {
            let refused = create(&path, false).expect_err(words).to_string();
            assert!(refused.contains("cannot be made") && refused.contains(words), "{refused}");
            let early = check(&path, false).err().map(|error| error.to_string());
            assert!(early.is_none_or(|early| early.contains(words)));
        }
    }
}
