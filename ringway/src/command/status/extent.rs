//! How much of a status a screen takes.

use ringway_api::documents::status::{Backend, Service, Status};
use ringway_api::text::counted;

/// Rows of a table that is shown whole.
const WHOLE: usize = 16;
/// Rows of one that is not.
const ROWS: usize = 10;
/// Backends of a service that are shown then.
const BACKENDS: usize = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    Whole,
    /// What a screen takes: long tables have what is worth a look, and their sums.
    Short,
}

impl Extent {
    /// How many rows of so many are shown.
    pub fn rows(self, all: usize) -> usize {
        if self == Extent::Whole || all <= WHOLE { all } else { ROWS }
    }
}

/// Services for a table, and how many are left out.
#[derive(Debug, Default)]
pub struct Shown<'s> {
    /// Each with those of its backends that are shown.
    pub services: Vec<(&'s Service, Vec<&'s Backend>)>,
    /// All of the others are healthy.
    hidden_healthy: (usize, usize),
    /// No daemon runs: that is what was known last.
    last_known: bool,
    /// Some backend of each is worth a look, and there is no room.
    hidden_notable: usize,
    /// Backends that are left out of the services that are shown.
    hidden_backends: usize,
}

/// All services, or those that need attention: first those that nobody serves, else in their order.
pub fn services(status: &Status, extent: Extent) -> Shown<'_> {
    let rows: usize = status.services.iter().map(|service| 1 + service.backends.len()).sum();
    if extent.rows(rows) == rows {
        let whole = status.services.iter().map(|one| (one, one.backends.iter().collect()));
        return Shown { services: whole.collect(), ..Shown::default() };
    }
    let mut shown = Shown { last_known: status.from_pins, ..Shown::default() };
    let (mut notable, healthy): (Vec<&Service>, Vec<&Service>) =
        status.services.iter().partition(|service| is_notable(service));
    notable.sort_by_key(|service| service.serving() > 0);
    let mut taken = 0;
    for service in notable {
        let about = service.backends.iter().filter(|backend| tells(backend));
        let about: Vec<&Backend> = about.take(BACKENDS).collect();
        taken += 1 + about.len();
        match taken <= WHOLE {
            true => {
                shown.hidden_backends += service.backends.len() - about.len();
                shown.services.push((service, about));
            }
            false => shown.hidden_notable += 1,
        }
    }
    let backends = healthy.iter().map(|service| service.backends.len()).sum();
    shown.hidden_healthy = (healthy.len(), backends);
    shown
}

impl Shown<'_> {
    /// The omitted part; `None` where there is none.
    pub fn rest(&self) -> Option<String> {
        let (services, backends) = self.hidden_healthy;
        let mut parts = Vec::new();
        if self.hidden_notable > 0 {
            let services = counted(self.hidden_notable, "service");
            parts.push(format!("{services} that need attention"));
        }
        if services > 0 {
            let all = format!("{}, {}", counted(services, "service"), counted(backends, "backend"));
            let healthy = if self.last_known { "all up when last known" } else { "all healthy" };
            parts.push(format!("{all}, {healthy}"));
        }
        if parts.is_empty() && self.hidden_backends > 0 {
            parts.push(format!("{} of these", counted(self.hidden_backends, "other backend")));
        }
        (!parts.is_empty()).then(|| format!("… and {} (`--all`)", parts.join("; and ")))
    }
}

fn is_notable(service: &Service) -> bool {
    service.serving() == 0 || service.backends.iter().any(tells)
}

/// It gets no traffic, or another share than the file says.
fn tells(backend: &Backend) -> bool {
    let idle = backend.withheld().is_some() && backend.file_weight.is_none() && !backend.drained;
    let lacks = !backend.serves() && !idle;
    lacks || backend.file_weight.is_some() || backend.slow_start_percent.is_some()
}
