//! `check`: how a service's backends are asked whether they are well.

mod kind;
mod text;

use std::time::Duration;

pub use crate::model::check::*;

use crate::model::{Forward, Log, Service};
use crate::reader::section::Section;
use crate::reader::value::{boolean, duration, integer, port, unicast, written};

const MIN_INTERVAL: Duration = Duration::from_millis(10);
const MAX_INTERVAL: Duration = Duration::from_secs(3600);
const DEFAULT_INTERVAL: Duration = Duration::from_secs(1);
const DEFAULT_TIMEOUT: Duration = Duration::from_millis(500);
const MAX_TIMES: u32 = 100;

/// `None` when the service has none.
pub(crate) fn read(service: &mut Section, forward: Forward) -> Option<Check> {
    let mut section = service.table("check", format!("check of {}", service.place))?;
    let kind = kind::read(&mut section, forward);
    let CheckAt { address, port } = place(&mut section);
    let interval =
        section.or("interval", DEFAULT_INTERVAL, |v| duration(v, MIN_INTERVAL..=MAX_INTERVAL));
    let default_timeout = DEFAULT_TIMEOUT.min(*interval);
    let timeout =
        section.or("timeout", default_timeout, |v| duration(v, MIN_INTERVAL..=MAX_INTERVAL));
    let rise = *section.or("rise", 2, |v| integer(v, 1..=MAX_TIMES));
    let fall = *section.or("fall", 2, |v| integer(v, 1..=MAX_TIMES));
    let log_checks = *section.or("log_checks", false, boolean);
    if *timeout > *interval {
        let message = format!(
            "timeout = {:?} in {} is longer than the interval: write at most {:?}",
            written(*timeout),
            section.place,
            written(*interval)
        );
        section.report.error(timeout.span(), message);
    }
    section.finish();
    let (interval, timeout) = (*interval, *timeout);
    Some(Check { kind: kind?, address, port, interval, timeout, rise, fall, log_checks })
}

/// `check` of a backend: where it is asked, and no more.
pub(crate) fn read_at(backend: &mut Section) -> CheckAt {
    let Some(mut section) = backend.table("check", format!("check of {}", backend.place)) else {
        return CheckAt::default();
    };
    let at = place(&mut section);
    section.finish();
    at
}

fn place(section: &mut Section) -> CheckAt {
    let address = section.optional("address", unicast);
    CheckAt { address, port: section.optional("port", port).map(|port| *port) }
}

/// `[log] log_checks` is for every check.
pub(crate) fn log_all(services: &mut [Service], log: &Log) {
    for check in services.iter_mut().filter_map(|service| service.check.as_mut()) {
        check.log_checks |= log.log_checks;
    }
}
