//! `check`: how a service's backends are asked whether they are well.

use std::time::Duration;

use toml::de::DeValue;

use crate::model::{Check, CheckKind};
use crate::section::Section;
use crate::value::{Read, choice, duration, integer, port, text, written};

const MIN_INTERVAL: Duration = Duration::from_millis(10);
const MAX_INTERVAL: Duration = Duration::from_secs(3600);
const DEFAULT_INTERVAL: Duration = Duration::from_secs(1);
const DEFAULT_TIMEOUT: Duration = Duration::from_millis(500);
const MAX_TIMES: u32 = 100;
const MAX_PATH: usize = 1024;

/// `None` when the service has none.
pub(crate) fn read(service: &mut Section) -> Option<Check> {
    let mut section = service.table("check", format!("check of {}", service.place))?;
    let tcp = section.required("type", "type = \"tcp\" or type = \"http\"", |v| {
        choice(v, &[("tcp", true), ("http", false)])
    });
    let path = section.optional("path", path);
    let port = section.optional("port", port).map(|port| *port);
    let interval =
        section.or("interval", DEFAULT_INTERVAL, |v| duration(v, MIN_INTERVAL..=MAX_INTERVAL));
    let default_timeout = DEFAULT_TIMEOUT.min(*interval);
    let timeout =
        section.or("timeout", default_timeout, |v| duration(v, MIN_INTERVAL..=MAX_INTERVAL));
    let rise = *section.or("rise", 2, |v| integer(v, 1..=MAX_TIMES));
    let fall = *section.or("fall", 2, |v| integer(v, 1..=MAX_TIMES));
    if *timeout > *interval {
        let message = format!(
            "timeout = {:?} in {} is longer than the interval: write at most {:?}",
            written(*timeout),
            section.place,
            written(*interval)
        );
        section.report.error(timeout.span(), message);
    }
    if let (Some(tcp), Some(path)) = (&tcp, &path)
        && **tcp
    {
        let message = format!(
            "path = {:?} in {} says nothing to a tcp check: remove it, or write type = \"http\"",
            **path, section.place
        );
        section.report.error(path.span(), message);
    }
    section.finish();
    let kind = match *tcp? {
        true => CheckKind::Tcp,
        false => CheckKind::Http { path: path.map_or("/".into(), |path| path.into_inner()) },
    };
    Some(Check { kind, port, interval: *interval, timeout: *timeout, rise, fall })
}

/// What may follow `GET ` as it is (RFC 9112, 3.2.1).
fn path(value: &DeValue) -> Read<String> {
    const REMEDY: &str = "write one that begins with \"/\", such as \"/healthz\"";
    let path = text(value, REMEDY)?;
    if !path.starts_with('/') {
        return Err(format!("is not an absolute path: {REMEDY}"));
    }
    if path.len() > MAX_PATH || !path.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(format!(
            "has a space, a character that is not ASCII, or more than {MAX_PATH} of them: write \
             it percent-encoded, \"%20\" for a space"
        ));
    }
    Ok(path.into())
}
