//! Version and commit of this binary, for people and for bug reports.

/// The commit it was built from; `None`: the source was no checkout, and nobody said.
pub fn commit() -> Option<&'static str> {
    Some(env!("RINGWAY_COMMIT")).filter(|commit| !commit.is_empty())
}

/// `0.1.0 (0123456789ab)`, or the version alone.
pub const TEXT: &str = env!("RINGWAY_VERSION");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_commit_stands_behind_the_version() {
        let text = TEXT;
        assert!(text.starts_with(env!("CARGO_PKG_VERSION")), "{text}");
        if let Some(commit) = commit() {
            assert!(text.ends_with(&format!(" ({commit})")), "{text}");
            let digits = commit.chars().all(|letter| letter.is_ascii_hexdigit());
            assert!(digits && commit.len() >= 7, "{text}");
        }
    }
}
