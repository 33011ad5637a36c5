//! Where and when a sample was taken.

use std::fmt;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use ringway_host::Host;
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::Sample;

const ORIGIN: &str = "/tools/origin.json";
/// Where ip-netns(8) keeps names of network namespaces.
const NAMES: &str = "/run/netns";

/// Where and when. What an older version collected does not tell the time.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// As `uname -n` prints it.
    pub host: Option<String>,
    /// As `uname -r` prints it.
    pub kernel: Option<String>,
    /// RFC 3339, UTC.
    pub collected: Option<String>,
    /// Absent: the machine's first one.
    pub namespace: Option<Namespace>,
}

/// A network namespace that is not the machine's first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Namespace {
    /// Such as `net:[4026532281]`.
    pub id: String,
    /// As `ip netns` calls it; absent: nobody has named it, as a container's.
    pub name: Option<String>,
}

impl Namespace {
    /// The beginning of a command that runs in it.
    pub fn enter(&self) -> String {
        match &self.name {
            Some(name) => format!("ip netns exec {name}"),
            None => "nsenter --target PID --net".into(),
        }
    }
}

impl Origin {
    /// This machine, and the network namespace of the calling thread.
    pub fn here() -> Self {
        let word = |name: &str| {
            let text = fs::read_to_string(Path::new("/proc/sys/kernel").join(name)).ok()?;
            Some(text.trim().to_owned())
        };
        let (host, kernel) = (word("hostname"), word("osrelease"));
        Self { host, kernel, collected: None, namespace: namespace() }
    }

    /// Whether it may be the same place, at another time. A namespace that was made anew under its
    /// name is the same.
    pub fn is_where(&self, other: &Self) -> bool {
        let hosts = self.host.as_ref().zip(other.host.as_ref());
        let same = match (&self.namespace, &other.namespace) {
            (Some(one), Some(another)) => match (&one.name, &another.name) {
                (Some(one), Some(another)) => one == another,
                _ => one.id == another.id,
            },
            (one, another) => one.is_some() == another.is_some(),
        };
        same && hosts.is_none_or(|(one, another)| one == another)
    }
}

impl fmt::Display for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "network namespace {}", self.name.as_ref().unwrap_or(&self.id))
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = |word: &Option<String>| word.clone().unwrap_or_else(|| "not told".into());
        write!(f, "host {}, Linux {}", word(&self.host), word(&self.kernel))?;
        if let Some(namespace) = &self.namespace {
            write!(f, ", {namespace}")?;
        }
        match &self.collected {
            Some(when) => write!(f, ", looked at {when}"),
            None => Ok(()),
        }
    }
}

#[derive(Serialize, Deserialize)]
struct OriginFile {
    collected: String,
    namespace: Option<Namespace>,
}

/// Adds what no file tells.
pub fn add(sample: &mut Sample) {
    let now = OffsetDateTime::now_utc();
    let now = now.replace_nanosecond(0).unwrap_or(now);
    let told =
        now.format(&Rfc3339).map(|collected| OriginFile { collected, namespace: namespace() });
    sample.put_json(ORIGIN, told.map_err(|error| error.to_string()));
}

fn namespace() -> Option<Namespace> {
    const OWN: &str = "/proc/thread-self/ns/net";
    if Host::live().first_network_namespace() {
        return None;
    }
    let inode = |path: &Path| fs::metadata(path).ok().map(|about| (about.dev(), about.ino()));
    let own = inode(Path::new(OWN))?;
    let named = fs::read_dir(NAMES).into_iter().flatten().flatten();
    let mut named = named.filter(|entry| inode(&entry.path()) == Some(own));
    let name = named.next().map(|entry| entry.file_name().to_string_lossy().into_owned());
    Some(Namespace { id: fs::read_link(OWN).ok()?.to_string_lossy().into_owned(), name })
}

impl Origin {
    /// Where and when a sample was taken.
    pub fn of(sample: &Sample) -> Self {
        let word = |path: &str| sample.files().get(path).map(|text| text.trim_end().to_owned());
        let told = word(ORIGIN).and_then(|text| serde_json::from_str::<OriginFile>(&text).ok());
        let (collected, namespace) =
            told.map_or((None, None), |told| (Some(told.collected), told.namespace));
        Self {
            host: word("/proc/sys/kernel/hostname"),
            kernel: word("/proc/sys/kernel/osrelease"),
            collected,
            namespace,
        }
    }
}
