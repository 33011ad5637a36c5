//! The node of a file and its daemon's socket: known even while the file is being written.

use std::path::{Path, PathBuf};

use toml::de::{DeTable, DeValue};

use crate::DEFAULT_SOCKET;

/// Node and socket that a configuration names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// `[node] name`, where there is one.
    pub node: Option<String>,
    /// `[api] socket`, or the default.
    pub socket: PathBuf,
}

/// Reads these two out of a file, right or wrong in everything else. A file that cannot be read
/// says nothing.
pub fn identity(path: &Path) -> Identity {
    identity_of(&std::fs::read_to_string(path).unwrap_or_default())
}

fn identity_of(text: &str) -> Identity {
    let (document, _) = DeTable::parse_recoverable(text);
    let value = |section: &str, key: &str| -> Option<String> {
        let DeValue::Table(section) = document.get_ref().get(section)?.get_ref() else {
            return None;
        };
        match section.get(key)?.get_ref() {
            DeValue::String(text) => Some(text.to_string()),
            _ => None,
        }
    };
    let socket = value("api", "socket").map_or_else(|| DEFAULT_SOCKET.into(), PathBuf::from);
    Identity { node: value("node", "name"), socket }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_half_written_file_still_tells() {
        let text = "[api]\nsocket = \"/run/a.sock\"\n[node]\nname = \"gw1\"\n[[service]]\naddr";
        let want = Identity { node: Some("gw1".into()), socket: "/run/a.sock".into() };
        assert_eq!(identity_of(text), want);
        let nothing = Identity { node: None, socket: DEFAULT_SOCKET.into() };
        assert_eq!(identity_of("]["), nothing);
        assert_eq!(identity_of("node = 7\napi = [1]\n"), nothing);
        assert_eq!(identity(Path::new("/no/such/file")), nothing);
    }
}
