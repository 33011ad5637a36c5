//! Backends of services with `syn = "backend"` that take the gateway's cookies, and those that do not.

use std::collections::BTreeMap;

use ringway_api::documents::status::Problem;
use ringway_api::problem_kind::ProblemKind;
use ringway_config::endpoint_text;

use super::{BackendSet, Entry, Line, Member};
use crate::health::ProbeRoute;
use crate::health::cookies::{CookieEvent, CookieTarget, Cookies};

impl BackendSet {
    /// Those that are asked whether they take cookies.
    pub fn cookie_targets(&self, routes: &BTreeMap<usize, ProbeRoute>) -> Vec<CookieTarget> {
        let asked = self.members().filter(|(_, member)| member.asked.for_cookies());
        let target = |(entry, member): (&Entry, &Member)| {
            let check = member.asked.check.as_ref()?;
            Some(CookieTarget {
                id: member.id,
                address: (entry.address, entry.port).into(),
                probe_route: routes.get(&member.id)?.clone(),
                interval: check.interval,
                timeout: check.timeout,
                rise: check.rise,
                fall: check.fall,
                initial: member.cookies.clone(),
            })
        };
        asked.filter_map(target).collect()
    }

    /// Takes a result; returns a line for the log.
    pub fn take_cookies(&mut self, event: &CookieEvent) -> Option<Line> {
        let (service, place) = *self.places.get(&event.id)?;
        let entry = self.services.get_mut(service)?;
        let member = entry.members.get_mut(place)?;
        member.cookies.clone_from(&event.cookies);
        let (service, backend) = (&entry.name, endpoint_text(member.endpoint));
        let text = match &event.cookies {
            Cookies::Unknown => return None,
            Cookies::Taken => format!("{service}: backend {backend} takes the gateway's cookies"),
            Cookies::Refused(why) => {
                format!("{service}: backend {backend} takes none of the gateway's cookies: {why}")
            }
        };
        let good = event.cookies == Cookies::Taken;
        Some(Line { good, text, lost_by: None })
    }

    /// Services whose SYNs are challenged because of backends that take no cookies.
    pub fn without_cookies(&self) -> impl Iterator<Item = Problem> {
        self.services.iter().filter_map(Entry::without_cookies)
    }
}

impl Entry {
    fn without_cookies(&self) -> Option<Problem> {
        let all = self.panicking().is_some();
        let counts = |member: &&Member| member.serves() || all && member.way.is_ok();
        let refusing = self.members.iter().filter(counts).filter_map(|member| {
            Some(format!("{}: {}", endpoint_text(member.endpoint), member.cookies_refused()?))
        });
        let refusing: Vec<String> = refusing.collect();
        (!refusing.is_empty()).then(|| {
            let error = format!(
                "service {}: SYNs are answered with challenges in place of cookies, which not every \
                 backend takes ({})",
                self.name,
                refusing.join("; ")
            );
            let remedy = format!(
                "there: `ringway accept --status -i IFACE` says whether it runs for {} with the \
                 fingerprint of `ringway shield status`; see docs/runbook.md, cookies-refused",
                endpoint_text((self.address, self.port).into())
            );
            ProblemKind::CookiesRefused.of_service(&self.name, error, remedy)
        })
    }
}

impl Member {
    /// Not known to take them, and asked.
    pub(super) fn lacks_cookies(&self) -> bool {
        self.asked.for_cookies() && self.cookies != Cookies::Taken
    }

    pub(super) fn cookies_refused(&self) -> Option<String> {
        match &self.cookies {
            Cookies::Refused(why) if self.asked.for_cookies() => Some(why.clone()),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::health::Health;
    use crate::testing::{event, gateway, hop};
    use ringway_config::Config;

    fn config(own: &str) -> Config {
        let syn = "[shield]\nsyn = { always = true, secret = \"/s\" }";
        let backends = "backends = [{ address = \"10.0.0.2\" }, { address = \"10.0.0.3\" }]";
        gateway(syn, &format!("forward = \"dsr-l2\"\n{own}\n{backends}"))
    }

    fn backend_set(own: &str) -> BackendSet {
        let mut set = BackendSet::new(&config(own), Instant::now());
        for id in 0..2 {
            set.take(&event(id, Health::Up), Instant::now());
        }
        set.take_ways(|_| Ok(hop()));
        set
    }

    fn takes(set: &BackendSet) -> [bool; 2] {
        let observed = set.observed(Instant::now());
        ["10.0.0.2:80", "10.0.0.3:80"]
            .map(|backend| observed.takes_cookies("web", backend.parse().expect("an endpoint")))
    }

    const ASKED: &str = "syn = \"backend\"\ncheck = { type = \"tcp\" }";

    #[test]
    fn who_is_asked_has_to_say_yes() {
        let mut set = backend_set(ASKED);
        assert_eq!(takes(&set), [false; 2]);
        assert_eq!(set.without_cookies().count(), 0, "nothing is wrong yet");
        let mut take =
            |id, cookies| set.take_cookies(&CookieEvent { id, cookies }).expect("a line");
        assert!(take(0, Cookies::Taken).good);
        let line = take(1, Cookies::Refused("it is lazy".into()));
        let want = "web: backend 10.0.0.3:80 takes none of the gateway's cookies: it is lazy";
        assert_eq!(line.text, want);
        assert_eq!(takes(&set), [true, false]);
        let found: Vec<Problem> = set.without_cookies().collect();
        let words = "(10.0.0.3:80: it is lazy)";
        assert!(found.len() == 1 && found[0].error.contains(words), "{found:?}");
        let shown = &set.shown(Instant::now())[0].backends;
        assert_eq!(shown[1].cookies_refused.as_deref(), Some("it is lazy"));
        set.take(&event(1, Health::Down), Instant::now());
        assert_eq!(set.without_cookies().count(), 0, "it gets no flows");
        // What is known stays with another check; and is nothing to another way of answering.
        let http = config(&ASKED.replace("tcp", "http"));
        assert_eq!(takes(&set.reconfigure(&http, Instant::now())), [true, false]);
        let off = config(&ASKED.replace("\"backend\"", "\"challenge\""));
        assert_eq!(takes(&set.reconfigure(&off, Instant::now())), [true, true]);
    }

    #[test]
    fn who_cannot_be_asked_is_taken_to() {
        assert_eq!(takes(&backend_set("syn = \"backend\"")), [true; 2]);
        let elsewhere = "check = { type = \"tcp\", address = \"10.0.0.9\" }";
        assert_eq!(takes(&backend_set(&format!("syn = \"backend\"\n{elsewhere}"))), [true; 2]);
        assert_eq!(takes(&backend_set("check = { type = \"tcp\" }")), [true; 2]);
    }
}
