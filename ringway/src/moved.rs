//! Commands that are the other program's now: who types them is told what to type.

use std::ffi::OsString;

use ringway_terminal::error::Error;

/// Commands of `ringway-lab`.
const OF_THE_LAB: [&str; 4] = ["demo", "bench", "gen", "size"];

/// Where the words after `ringway` begin with one of them: what to type instead.
pub fn to_the_lab(words: impl Iterator<Item = OsString>) -> Option<Error> {
    let words: Vec<String> = words.map(|word| word.to_string_lossy().into_owned()).collect();
    let command = words.first().filter(|word| OF_THE_LAB.contains(&word.as_str()))?;
    let typed = shlex::try_join(words.iter().map(String::as_str));
    let typed = typed.unwrap_or_else(|_| words.join(" "));
    Some(Error::configuration(
        format!(
            "{command} is a command of ringway-lab, the program that measures (Debian package: ringway-lab)"
        ),
        format!("ringway-lab {typed}"),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_new_command_has_the_same_words() {
        let told = |line: &str| {
            let words = shlex::split(line).unwrap();
            to_the_lab(words.into_iter().map(Into::into)).map(|error| error.to_string())
        };
        let lb = told("bench lb --html 'a page.html' --help").unwrap();
        let want = "\n  to do: ringway-lab bench lb --html 'a page.html' --help";
        assert!(lb.ends_with(want), "{lb}");
        assert!(lb.starts_with("bench is a command of ringway-lab"), "{lb}");
        for own in ["", "status", "--help", "detach bench"] {
            assert_eq!(told(own), None, "{own}");
        }
    }
}
