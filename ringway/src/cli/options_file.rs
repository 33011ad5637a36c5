//! `ringway engine --config FILE`: options in a file, in the place of the option that names it.

use std::ffi::OsString;
use std::fs;
use std::path::Path;

use ringway_terminal::error::Error;

/// What was typed, and behind each `--config FILE` of an engine the options that the file has.
///
/// # Errors
/// A file that cannot be read, or that has something else than options of this program.
pub fn expand(
    typed: impl IntoIterator<Item = OsString>,
    command: fn() -> clap::Command,
) -> Result<Vec<OsString>, Error> {
    let mut typed = typed.into_iter();
    let mut all: Vec<OsString> = typed.by_ref().take(3).collect();
    let word = |at: usize| all.get(at).and_then(|word| word.to_str());
    let [Some("engine"), Some(app)] = [word(1), word(2)] else {
        all.extend(typed);
        return Ok(all);
    };
    let command = command();
    let engine = command.find_subcommand("engine");
    let app = engine.and_then(|engine| engine.find_subcommand(app)).cloned();
    while let Some(argument) = typed.next() {
        let path = match argument.to_str() {
            Some("--config") => typed.next(),
            Some(text) => text.strip_prefix("--config=").map(Into::into),
            None => None,
        };
        match (path, &app) {
            (Some(path), Some(app)) => {
                let read = options(Path::new(&path), app)?;
                all.extend(["--config".into(), path]);
                all.extend(read);
            }
            _ => all.push(argument),
        }
    }
    Ok(all)
}

fn options(path: &Path, app: &clap::Command) -> Result<Vec<OsString>, Error> {
    let wrong = |what: String| {
        let remedy = format!("`--help` behind {} lists its options", app.get_name());
        Error::configuration(format!("{}: {what}", path.display()), remedy)
    };
    let text = fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
    let table: toml::Table = text.parse().map_err(|error| wrong(format!("{error}")))?;
    let mut all = Vec::new();
    for (name, value) in table {
        let known = app.get_arguments().any(|known| known.get_long() == Some(&name));
        if !known || name == "config" {
            return Err(wrong(format!("`{name}` is no option that a file may have")));
        }
        let values = if let toml::Value::Array(values) = value { values } else { vec![value] };
        for value in values {
            all.push(match value {
                toml::Value::Boolean(true) => format!("--{name}").into(),
                toml::Value::Boolean(false) => continue,
                toml::Value::Integer(number) => format!("--{name}={number}").into(),
                toml::Value::String(text) => format!("--{name}={text}").into(),
                other => return Err(wrong(format!("`{name}` cannot be {other}"))),
            });
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory as _, Parser as _};

    use super::*;
    use crate::cli::{Cli, Command, EngineApp, WorkArgs};

    fn work(words: &str) -> WorkArgs {
        let words = expand(words.split(' ').map(Into::into), Cli::command).unwrap();
        let cli = Cli::try_parse_from(words).unwrap();
        let Command::Engine(engine) = cli.command else { panic!("{cli:?}") };
        let EngineApp::L2fwd(args) = engine.app else { panic!("{engine:?}") };
        args.work
    }

    #[test]
    fn a_file_stands_in_the_place_of_its_option() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("engine.toml");
        let words = |rest: &str| format!("ringway engine l2fwd --config {}{rest}", path.display());
        let text = "ring = 256\nburst = 32\nlatency = true\nport = ['null:64', 'null:60']\n";
        fs::write(&path, text).unwrap();
        let found = work(&words(" --burst 16"));
        assert_eq!((found.ring, found.burst, found.latency), (Some(256), 16, true));
        assert_eq!(found.port.len(), 2);
        let before = work(&words("").replace("--config ", "--burst 16 --config="));
        assert_eq!(before.burst, 32);
        for (text, says) in [
            ("rings = 256", "`rings` is no option"),
            ("config = 'x'", "`config` is no option"),
            ("burst = 1.5", "`burst` cannot be 1.5"),
            ("burst", "TOML"),
        ] {
            fs::write(&path, text).unwrap();
            let words = words("");
            let refused = expand(words.split(' ').map(Into::into), Cli::command).unwrap_err();
            let refused = refused.to_string();
            assert!(refused.contains(says), "{refused}");
            assert!(refused.contains("`--help` behind l2fwd"), "{refused}");
        }
        fs::write(&path, "burst = 0").unwrap();
        let words = expand(words("").split(' ').map(Into::into), Cli::command).unwrap();
        assert!(Cli::try_parse_from(words).unwrap_err().to_string().contains("'0' for '--burst"));
    }
}
