//! The part of the backends' health that outlives the daemon.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::{Instant, SystemTime};

use ringway_api::clock;

use super::{BackendSet, Entry, Member};
use crate::health::{Health, Saved};

impl BackendSet {
    /// Every backend whose checks have had a result.
    pub fn saved(&self) -> Vec<Saved> {
        self.members().filter_map(|(entry, member)| member.saved(entry)).collect()
    }

    /// Since when and why backends are as they are, where that is how an earlier daemon left them.
    pub fn restore(&mut self, saved: Vec<Saved>, now: Instant, wall: SystemTime) {
        let key = |saved: &Saved| (saved.service.clone(), saved.address, saved.backend);
        let saved: HashMap<_, _> = saved.into_iter().map(|saved| (key(&saved), saved)).collect();
        for entry in &mut self.services {
            let address = SocketAddr::new(entry.address, entry.port);
            for member in &mut entry.members {
                let Some(saved) = saved.get(&(entry.name.clone(), address, member.endpoint)) else {
                    continue;
                };
                let asked = member.asked.check.as_ref().map(|check| check.kind.name());
                if member.health == saved.health && asked == Some(saved.check.as_str()) {
                    member.since = Some(clock::from_unix_s(saved.since_s));
                    member.restore_keeping(entry.forward, now, wall);
                    member.reason.clone_from(&saved.reason);
                }
            }
        }
    }
}

impl Member {
    fn saved(&self, entry: &Entry) -> Option<Saved> {
        let check = self.asked.check.as_ref()?;
        matches!(self.health, Health::Up | Health::Down).then_some(())?;
        Some(Saved {
            service: entry.name.clone(),
            address: SocketAddr::new(entry.address, entry.port),
            backend: self.endpoint,
            check: check.kind.name().into(),
            health: self.health,
            since_s: clock::unix_s(self.since?),
            reason: self.reason.clone(),
        })
    }
}

#[cfg(test)]
mod tests {
    use ringway_api::clock::Timestamp;

    use super::*;
    use crate::health::CheckEvent;
    use crate::testing::{event, gateway};
    use ringway_plan::Health as Planned;

    fn backend_set(check: &str) -> BackendSet {
        let backends = "backends = [{ address = \"10.0.0.2\" }, { address = \"10.0.0.3\" }]";
        let config = gateway("", &format!("check = {{ {check} }}\n{backends}"));
        BackendSet::new(&config, Instant::now())
    }

    const TCP: &str = "type = \"tcp\"";

    fn left() -> Vec<Saved> {
        let mut backend_set = backend_set(TCP);
        let ids = backend_set.ids();
        for (id, health) in [(ids[0], Health::Down), (ids[1], Health::Up)] {
            let reason = (health == Health::Down).then(|| "connection refused on port 80".into());
            backend_set.take(&CheckEvent { reason, ..event(id, health) }, Instant::now());
        }
        backend_set.saved()
    }

    /// The second had traffic.
    fn left_up(member: &Member) -> Planned {
        let second = member.endpoint.ip().to_string().ends_with('3');
        if second { Planned::Up } else { Planned::Down }
    }

    fn shown(backend_set: &BackendSet) -> Vec<(Option<Timestamp>, Option<String>)> {
        let backends = &backend_set.shown(Instant::now())[0].backends;
        backends.iter().map(|backend| (backend.since, backend.reason.clone())).collect()
    }

    #[test]
    fn since_and_reason_come_back_where_the_state_is_the_same() {
        let saved = left();
        assert_eq!(saved.len(), 2);
        let mut same = backend_set(TCP);
        same.inherit(Instant::now(), |_, member| Some(left_up(member)));
        same.restore(saved.clone(), Instant::now(), SystemTime::now());
        let epoch = Some(Timestamp::default());
        let found = shown(&same);
        assert_eq!(found[0], (epoch, Some("connection refused on port 80".into())));
        assert_eq!(found[1].0, epoch);
        // The tables say otherwise of the second: they are newer.
        let mut other = backend_set(TCP);
        other.inherit(Instant::now(), |_, _| Some(Planned::Down));
        other.restore(saved.clone(), Instant::now(), SystemTime::now());
        assert_eq!(shown(&other)[1].0, None);
        // Another check, another meaning.
        let mut http = backend_set("type = \"http\"");
        http.inherit(Instant::now(), |_, member| Some(left_up(member)));
        http.restore(saved, Instant::now(), SystemTime::now());
        assert!(shown(&http).iter().all(|(since, _)| since.is_none()));
    }
}
