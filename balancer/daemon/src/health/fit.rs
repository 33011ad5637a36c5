//! Files that checks need on this machine: authorities, programs.

use std::collections::HashMap;
use std::fs;
use std::path::PathBuf;

use ringway_config::{CheckKind, Config, Error, ExecCheck, Service, TlsCheck};
use rustix::fs::{Access, access};

use super::trust;

/// Missing files, each with the place in the configuration that asks for it.
pub fn unfit(config: &Config) -> Vec<Error> {
    // Many services name the same file: each is read once.
    let mut read = HashMap::new();
    let error = |service: &Service| match &service.check.as_ref()?.kind {
        CheckKind::Https(_, tls) if tls.verify => authorities(config, service, tls, &mut read),
        CheckKind::Exec(check) => program(config, check),
        _ => None,
    };
    config.services.iter().filter_map(error).collect()
}

fn authorities(
    config: &Config,
    service: &Service,
    tls: &TlsCheck,
    read: &mut HashMap<PathBuf, Option<String>>,
) -> Option<Error> {
    let message = match trust::authorities(tls) {
        Ok(file) => read.entry(file).or_insert_with_key(|file| trust::roots(file).err()).clone()?,
        Err(message) => message,
    };
    let message = format!("https check of service \"{}\": {message}", *service.name);
    Some(match &tls.ca_file {
        Some(file) => config.error_at(file, message),
        None => config.error_at(&service.name, message),
    })
}

fn program(config: &Config, check: &ExecCheck) -> Option<Error> {
    let program = check.command.first()?;
    let regular = fs::metadata(program).map(|found| found.is_file());
    let executable = access(program.as_str(), Access::EXEC_OK).map_err(std::io::Error::from);
    let what = match (regular, executable) {
        (Err(error), _) => format!("{error}: install it, or write the path of another"),
        (Ok(false), _) => "it is no file: write the path of a program".to_owned(),
        (_, Err(error)) => format!("{error}: chmod +x {program}"),
        (Ok(true), Ok(())) => return None,
    };
    Some(config.error_at(&check.command, format!("program {program} cannot be run: {what}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::gateway;
    use std::os::unix::fs::PermissionsExt;

    fn errors(check: &str) -> Vec<String> {
        let config = gateway("", &format!("check = {check}"));
        let shown = |error: Error| format!("{}:{}: {}", error.line, error.column, error.message);
        unfit(&config).into_iter().map(shown).collect()
    }

    #[test]
    fn files_of_authorities() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("ca.pem");
        let check = format!("{{ type = \"https\", ca_file = {file:?} }}");
        let found = errors(&check);
        let words = "9:37: https check of service \"web\": authorities /";
        assert!(found[0].starts_with(words), "{found:?}");
        assert!(found[0].contains("No such file"), "{found:?}");
        fs::write(&file, "no certificate").expect("written");
        assert!(errors(&check)[0].contains("it has no certificate; PEM is expected"));
        fs::write(&file, "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n")
            .expect("written");
        assert!(errors(&check)[0].contains("no certificate in it can be parsed"));
        let key = rcgen::KeyPair::generate().expect("a key");
        let own = rcgen::CertificateParams::default().self_signed(&key).expect("a certificate");
        fs::write(&file, own.pem()).expect("written");
        assert_eq!(errors(&check), [""; 0]);
        assert_eq!(errors("{ type = \"https\", tls_verify = false }"), [""; 0]);
    }

    #[test]
    fn programs() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("check");
        let check = format!("{{ type = \"exec\", command = [{file:?}] }}");
        assert!(errors(&check)[0].contains("No such file or directory (os error 2): install it"));
        fs::write(&file, "#!/bin/sh\n").expect("written");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).expect("mode");
        assert!(errors(&check)[0].contains("Permission denied (os error 13): chmod +x"));
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).expect("mode");
        assert_eq!(errors(&check), [""; 0]);
        assert!(errors("{ type = \"exec\", command = [\"/tmp\"] }")[0].contains("it is no file"));
    }
}
