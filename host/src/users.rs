//! Users of the machine, as /etc/passwd has them.

/// The numbers of a user and of its group; `None`: there is none of this name.
pub fn ids(name: &str) -> Option<(u32, u32)> {
    let users = std::fs::read_to_string("/etc/passwd").ok()?;
    users.lines().find_map(|line| {
        let mut fields = line.split(':');
        let found = fields.next() == Some(name);
        let mut number = |skipped| fields.nth(skipped)?.parse().ok();
        found.then(|| Some((number(1)?, number(0)?)))?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_found_by_name() {
        assert_eq!(ids("root"), Some((0, 0)));
        assert_eq!(ids("roo"), None);
    }
}
