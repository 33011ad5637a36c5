//! The state directory: what must survive the daemon and is not packets'. Named JSON documents,
//! each replaced as a whole.
//!
//! Nothing depends on it: where it cannot be used, the daemon and its traffic go on, and
//! [`StateDir::problems`] says what is wrong.

use std::collections::BTreeMap;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use ringway_host::users;
use rustix::fs::{Access, OFlags, access};
use rustix::process::geteuid;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::documents::status::Problem;
use crate::error::Error;
use crate::problem_kind::ProblemKind;

/// User that the daemon may run as, whose directory root uses as well.
pub const USER: &str = "ringway";
/// Longest document that is read, bytes.
const LIMIT: u64 = 64 << 20;

/// Fields of every document.
#[derive(Deserialize)]
struct Schema {
    schema: String,
}

/// A state directory. It is made and looked at when a document is read or written, so one that
/// becomes usable is used.
#[derive(Debug)]
pub struct StateDir {
    directory: PathBuf,
    /// The last error of each document.
    trouble: Mutex<BTreeMap<String, Error>>,
    /// Its file is new each time: one at a time makes it.
    probing: Mutex<()>,
    /// The disk does not answer: what writes waits.
    #[cfg(any(test, feature = "testing"))]
    #[doc(hidden)]
    pub hangs: std::sync::atomic::AtomicBool,
}

impl StateDir {
    /// In this directory, which need not exist yet.
    pub fn new(directory: impl Into<PathBuf>) -> StateDir {
        StateDir {
            directory: directory.into(),
            trouble: Mutex::default(),
            probing: Mutex::default(),
            #[cfg(any(test, feature = "testing"))]
            hangs: Default::default(),
        }
    }

    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The document of this name (a plain word, without ".json") and schema; `None`: it has never
    /// been written.
    ///
    /// # Errors
    /// The directory cannot be used, or what is written there is no such document.
    pub fn read<T: DeserializeOwned>(&self, name: &str, schema: &str) -> Result<Option<T>, Error> {
        self.note(name, self.read_now(name, schema))
    }

    /// Writes the document of this name, atomically: after a crash there is the old one or the
    /// new one. Waits for the disk.
    ///
    /// # Errors
    /// The directory cannot be used; the old document is still there.
    pub fn write<T: Serialize>(&self, name: &str, document: &T) -> Result<(), Error> {
        self.note(name, self.write_now(name, document))
    }

    /// Whether a document of this name could be written now, without writing it.
    ///
    /// # Errors
    /// It could not.
    pub fn probe(&self, name: &str) -> Result<(), Error> {
        let _alone = self.probing.lock().unwrap_or_else(PoisonError::into_inner);
        let unfinished = self.directory.join(".probe.new");
        let written = self.open().and_then(|()| {
            let text = [b' '; 4096];
            self.write_file(&unfinished, &text).map_err(|error| self.failed(&error))
        });
        let _ = fs::remove_file(&unfinished);
        self.note(name, written)
    }

    /// Whether the document could not be read or written last.
    pub fn trouble(&self, name: &str) -> bool {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner).contains_key(name)
    }

    /// Errors of the last reading or writing of each document; equal ones appear once.
    pub fn problems(&self) -> Vec<Problem> {
        let trouble = self.trouble.lock().unwrap_or_else(PoisonError::into_inner);
        let mut problems: Vec<Problem> = Vec::new();
        for problem in trouble.values().cloned().map(|error| ProblemKind::State.because(error)) {
            if !problems.contains(&problem) {
                problems.push(problem);
            }
        }
        problems
    }

    /// Remembers an error until the next success.
    fn note<T>(&self, name: &str, outcome: Result<T, Error>) -> Result<T, Error> {
        let mut trouble = self.trouble.lock().unwrap_or_else(PoisonError::into_inner);
        match &outcome {
            Ok(_) => trouble.remove(name),
            Err(error) => trouble.insert(name.to_owned(), error.clone()),
        };
        outcome
    }

    /// Reads a directory that may not be writable.
    fn read_now<T: DeserializeOwned>(&self, name: &str, schema: &str) -> Result<Option<T>, Error> {
        match fs::metadata(&self.directory) {
            Ok(found) => self.trusted(&found)?,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(self.failed(&error)),
        }
        let path = self.path(name);
        let mut text = Vec::new();
        let Some(file) = self.open_document(&path)? else { return Ok(None) };
        file.take(LIMIT).read_to_end(&mut text).map_err(|error| self.failed(&error))?;
        let wrong = |error| {
            Error::failed(
                format!("{} cannot be understood: {error}", path.display()),
                "correct it, or delete it to start without its contents",
            )
        };
        let written: Schema = serde_json::from_slice(&text).map_err(wrong)?;
        if written.schema != schema {
            return Err(Error::failed(
                format!("{} is {:?}, not {schema:?}", path.display(), written.schema),
                "run the version of ringway that wrote it, or remove it",
            ));
        }
        serde_json::from_slice(&text).map(Some).map_err(wrong)
    }

    /// `None`: there is none. The daemon's user may write into the directory and root reads there:
    /// a FIFO would have its opener wait for ever.
    fn open_document(&self, path: &Path) -> Result<Option<File>, Error> {
        let how = flags(OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC);
        let file = OpenOptions::new().read(true).custom_flags(how).open(path);
        match file.and_then(|file| Ok((file.metadata()?.is_file(), file))) {
            Ok((true, file)) => Ok(Some(file)),
            Ok((false, _)) => Err(Error::failed(
                format!("{} is not a regular file: it is not read", path.display()),
                format!("find out who has put that there, then: rm -r {}", path.display()),
            )),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(self.failed(&error)),
        }
    }

    fn write_now<T: Serialize>(&self, name: &str, document: &T) -> Result<(), Error> {
        self.open()?;
        let mut text = serde_json::to_vec_pretty(document).map_err(|error| {
            Error::failed(format!("{name} cannot be written as JSON: {error}"), "")
        })?;
        text.push(b'\n');
        let unfinished = self.directory.join(format!(".{name}.json.new"));
        self.replace(&unfinished, &self.path(name), &text).map_err(|error| {
            // What is left of it would take room that is perhaps lacking.
            let _ = fs::remove_file(&unfinished);
            self.failed(&error)
        })
    }

    fn replace(&self, unfinished: &Path, path: &Path, text: &[u8]) -> io::Result<()> {
        self.write_file(unfinished, text)?;
        fs::rename(unfinished, path)?;
        // The new name, too, must be on the disk.
        File::open(&self.directory)?.sync_all()
    }

    /// Into a new file: what lies there already may be a FIFO, or a link.
    fn write_file(&self, path: &Path, text: &[u8]) -> io::Result<()> {
        #[cfg(any(test, feature = "testing"))]
        while self.hangs.load(std::sync::atomic::Ordering::Relaxed) {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        match fs::remove_file(path) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o640).open(path)?;
        file.write_all(text)?;
        file.sync_all()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.join(format!("{name}.json"))
    }

    /// Makes the directory where there is none, and refuses what others could write into.
    fn open(&self) -> Result<(), Error> {
        let made = fs::DirBuilder::new().recursive(true).mode(0o750).create(&self.directory);
        let found = made.and_then(|()| fs::metadata(&self.directory));
        let found = found.map_err(|error| self.failed(&error))?;
        self.trusted(&found)?;
        // So that a directory that is read-only is told before something is to be kept.
        access(&self.directory, Access::WRITE_OK | Access::EXEC_OK)
            .map_err(|error| self.failed(&error.into()))
    }

    fn trusted(&self, found: &Metadata) -> Result<(), Error> {
        let shown = self.directory.display();
        let me = geteuid().as_raw();
        let known = [me, 0].contains(&found.uid())
            || users::ids(USER).map(|ids| ids.0) == Some(found.uid());
        if !known {
            return Err(Error::failed(
                format!(
                    "state directory {shown} belongs to user {}, not to the daemon's user {me} or \
                     root: its contents are ignored, and nothing is kept",
                    found.uid()
                ),
                format!("chown {me} {shown}, or name another directory with state in [node]"),
            ));
        }
        if found.mode() & 0o002 != 0 {
            return Err(Error::failed(
                format!(
                    "state directory {shown} can be written by everybody: its contents are ignored, \
                     and nothing is kept"
                ),
                format!("chmod o-w {shown}"),
            ));
        }
        Ok(())
    }

    fn failed(&self, error: &io::Error) -> Error {
        let shown = self.directory.display();
        let (why, remedy) = match error.kind() {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
                ("no room is left".to_owned(), format!("make room: df {shown}"))
            }
            ErrorKind::ReadOnlyFilesystem => (
                "its file system is read-only".to_owned(),
                "mount it writable, or name another directory with state in [node]".to_owned(),
            ),
            ErrorKind::PermissionDenied => (
                "permission denied".to_owned(),
                format!("give it to the daemon's user: chown {} {shown}", geteuid().as_raw()),
            ),
            ErrorKind::NotADirectory | ErrorKind::AlreadyExists => (
                "something else than a directory is there".to_owned(),
                "remove it, or name another directory with state in [node]".to_owned(),
            ),
            _ => (
                error.to_string(),
                "mend it, or name another directory with state in [node]".to_owned(),
            ),
        };
        Error::failed(
            format!(
                "state directory {shown}: {why}: overrides, health and blocked prefixes would not survive a restart"
            ),
            remedy,
        )
    }
}

fn flags(flags: OFlags) -> i32 {
    flags.bits().cast_signed()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use serde_json::{Value, json};

    const SCHEMA: &str = "numbers/1";

    fn numbers(numbers: &[u32]) -> Value {
        json!({ "schema": SCHEMA, "numbers": numbers })
    }

    fn read(state: &StateDir) -> Result<Option<Value>, Error> {
        state.read("numbers", SCHEMA)
    }

    #[test]
    fn documents_come_back_and_are_replaced_as_a_whole() {
        let place = tempfile::tempdir().expect("a directory");
        let state = StateDir::new(place.path().join("ringway/gw1"));
        assert_eq!(read(&state), Ok(None));
        state.write("numbers", &numbers(&[1, 2])).expect("written");
        state.write("numbers", &numbers(&[3])).expect("written");
        assert_eq!(read(&state), Ok(Some(numbers(&[3]))));
        let names: Vec<_> = fs::read_dir(state.directory())
            .expect("listed")
            .map(|entry| entry.expect("entry").file_name())
            .collect();
        assert_eq!(names, ["numbers.json"]);
        let mode = |path: &Path| fs::metadata(path).expect("there").mode() & 0o7777;
        assert_eq!(mode(state.directory()) & 0o007, 0);
        assert_eq!(mode(&state.path("numbers")) & 0o007, 0);
    }

    #[test]
    fn what_is_wrong_is_shown_until_it_is_right() {
        let place = tempfile::tempdir().expect("a directory");
        let state = StateDir::new(place.path());
        fs::write(state.path("numbers"), "[1, ").expect("written");
        let error = read(&state).expect_err("half a document");
        assert!(error.what.contains("numbers.json cannot be understood"), "{error}");
        assert_eq!(state.problems(), [ProblemKind::State.because(error)]);
        state.probe("numbers").expect("room");
        assert!(!state.trouble("numbers") && read(&state).is_err());
        state.write("numbers", &numbers(&[1])).expect("written");
        assert!(state.problems().is_empty());

        let file = StateDir::new(place.path().join("numbers.json"));
        let error = file.write("numbers", &[1]).expect_err("no directory");
        assert!(error.what.contains("something else than a directory"), "{error}");
    }

    #[test]
    fn a_document_of_another_schema_is_not_read_and_stays_wrong() {
        let place = tempfile::tempdir().expect("a directory");
        let state = StateDir::new(place.path());
        state.write("numbers", &json!({ "schema": "numbers/2" })).expect("written");
        let error = read(&state).expect_err("another");
        let words = "/numbers.json is \"numbers/2\", not \"numbers/1\"";
        assert!(error.what.ends_with(words), "{error}");
        let words = "the version of ringway that wrote it";
        assert!(error.remedy.to_string().contains(words), "{error}");
        assert_eq!(state.problems(), [ProblemKind::State.because(error)]);
    }

    #[test]
    fn nobody_elses_directory_is_trusted() {
        let place = tempfile::tempdir().expect("a directory");
        let state = StateDir::new(place.path());
        fs::set_permissions(place.path(), fs::Permissions::from_mode(0o777)).expect("opened");
        let error = state.write("numbers", &numbers(&[1])).expect_err("everybody's");
        assert!(error.what.contains("by everybody"), "{error}");
        assert!(error.remedy.to_string().contains("o-w"), "{error}");
        fs::set_permissions(place.path(), fs::Permissions::from_mode(0o750)).expect("closed");
        // Only root can give a directory away.
        if std::os::unix::fs::chown(place.path(), Some(54321), None).is_ok() {
            let error = state.write("numbers", &numbers(&[1])).expect_err("foreign");
            assert!(error.what.contains("belongs to user 54321"), "{error}");
        }
    }

    #[test]
    fn a_fifo_hangs_nobody() {
        let place = tempfile::tempdir().expect("a directory");
        let state = StateDir::new(place.path());
        let fifo = |name: &str| {
            let (mode, kind) = (rustix::fs::Mode::RWXU, rustix::fs::FileType::Fifo);
            let path = place.path().join(name);
            rustix::fs::mknodat(rustix::fs::CWD, &path, kind, mode, 0).expect("made");
        };
        ["numbers.json", ".numbers.json.new", ".probe.new"].into_iter().for_each(fifo);
        let refused = read(&state).expect_err("no document").to_string();
        assert!(refused.contains("not a regular file") && refused.contains("rm -r"), "{refused}");
        state.probe("numbers").expect("room");
        state.write("numbers", &numbers(&[1])).expect("both are replaced");
        assert_eq!(read(&state), Ok(Some(numbers(&[1]))));
    }

    #[test]
    fn a_link_in_the_place_of_a_document_is_not_followed() {
        let place = tempfile::tempdir().expect("a directory");
        let state = StateDir::new(place.path().join("state"));
        state.write("other", &1).expect("written");
        fs::write(place.path().join("secret"), "2").expect("written");
        symlink(place.path().join("secret"), state.path("numbers")).expect("linked");
        assert!(read(&state).is_err());
        state.write("numbers", &3).expect("the link is replaced");
        assert_eq!(fs::read_to_string(place.path().join("secret")).expect("read"), "2");
    }
}
