//! Whether the tables are as the kernel has them, and what is said of that; pure.

use ringway_abi::ForwardMode;
use ringway_api::documents::forward::{ForwardInterface, ForwardStatus};
use ringway_api::documents::status::Problem;
use ringway_api::problem_kind::ProblemKind;

use super::board::Posted;
use super::plan::{Plan, PlannedPort};

#[derive(Debug)]
pub struct SyncState {
    /// What was followed last; empty where a look failed, whatever of its plan was written.
    pub plan: Plan,
    /// The machine could not be read, and why: nothing is forwarded until it can be.
    unknown: Option<String>,
    /// Changes were lost, or not followed to the end: the stations are not to be trusted before all
    /// of them have been read anew.
    pub must_renew: bool,
    /// Links and ports are to be read again.
    pub must_look: bool,
}

impl Default for SyncState {
    /// Nothing is known yet.
    fn default() -> Self {
        Self { plan: Plan::default(), unknown: None, must_renew: true, must_look: false }
    }
}

impl SyncState {
    /// Changes came faster than they were read.
    pub fn lose(&mut self) {
        (self.must_renew, self.must_look) = (true, true);
    }

    /// The machine was read, and the tables follow it. A look that is due meanwhile stays so.
    pub fn looked(&mut self, plan: Plan) {
        (self.plan, self.unknown, self.must_renew) = (plan, None, false);
    }

    /// It was not, or not to the end.
    pub fn look_failed(&mut self, why: String) {
        (self.plan, self.unknown) = (Plan::default(), Some(why));
        self.lose();
    }

    /// What the tables say is true, as long as all that the kernel says is read.
    pub fn holds(&self) -> bool {
        !self.must_renew && self.unknown.is_none() && self.plan.obstacles.is_empty()
    }

    /// `stations`: those of the mirror that have a place, and those that have none.
    pub fn posted(&self, mode: ForwardMode, stations: Option<(usize, usize)>) -> Posted {
        let holds = self.holds() && (stations.is_some() || mode == ForwardMode::Route);
        let interface = |port: &PlannedPort| ForwardInterface {
            interface: port.name.clone(),
            forwards: holds && port.trouble.is_none(),
            reason: port.trouble.as_ref().map(|trouble| trouble.found.clone()).unwrap_or_default(),
        };
        let status = ForwardStatus {
            mode: mode.name().to_owned(),
            bridge: self.plan.bridge.as_ref().map(|bridge| bridge.name.clone()),
            suspended: !holds,
            interfaces: self.plan.ports.iter().map(interface).collect(),
            stations: stations.map(|(known, _)| known as u64),
            stations_left_out: stations.map(|(_, left_out)| left_out as u64),
        };
        let left_out = stations.map_or(0, |(_, left_out)| left_out);
        Posted {
            status: Some(status),
            problems: self.problems(),
            findings: self.findings(left_out),
        }
    }

    fn problems(&self) -> Vec<Problem> {
        let suspended = ProblemKind::ForwardSuspended;
        let unknown = self.unknown.iter().map(|why| {
            let found =
                format!("nothing is forwarded past the kernel: its tables are not known: {why}");
            suspended.problem(found, "it is tried again every second; traffic goes by the kernel")
        });
        let obstacles = self.plan.obstacles.iter().map(|obstacle| {
            let found = format!("nothing is forwarded past the kernel: {}", obstacle.found);
            suspended.problem(found, obstacle.fix.clone())
        });
        let ports = &self.plan.ports;
        let none = !ports.is_empty() && ports.iter().all(|port| port.trouble.is_some());
        let none = none.then(|| {
            suspended.problem(
                "nothing is forwarded past the kernel: no interface of [forward] can be",
                "see the findings about each of them",
            )
        });
        unknown.chain(obstacles).chain(none).collect()
    }

    fn findings(&self, left_out: usize) -> Vec<Problem> {
        let of_port = |port: &PlannedPort| {
            let trouble = port.trouble.as_ref()?;
            let found = format!("{}: not forwarded past the kernel: {}", port.name, trouble.found);
            Some(ProblemKind::ForwardInterface.of_interface(&port.name, found, trouble.fix.clone()))
        };
        let left_out = (left_out > 0).then(|| {
            ProblemKind::ForwardTableFull.problem(
                format!("{left_out} stations of the bridge have no place in the packet path"),
                "their frames go by the kernel's bridge; fewer stations a bridge",
            )
        });
        self.plan.ports.iter().filter_map(of_port).chain(left_out).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::plan::tests::{Machine, planned};
    use super::*;

    /// Whatever of it was written, the next one writes all of it.
    #[test]
    fn a_look_that_fails_halfway_holds_nothing_until_one_succeeds() {
        let plan = planned(&Machine::bridge());
        let mut state = SyncState::default();
        assert!(!state.holds() && state.posted(ForwardMode::Bridge, None).problems.is_empty());
        state.looked(plan.clone());
        assert!(state.holds() && !state.must_look);
        state.look_failed("no VLANs".into());
        assert!(!state.holds() && state.must_look && state.must_renew);
        assert_eq!(state.plan, Plan::default());
        let said = state.posted(ForwardMode::Bridge, Some((7, 0)));
        assert!(said.status.is_some_and(|status| status.suspended));
        assert!(said.problems[0].error.contains("no VLANs"), "{:?}", said.problems);
        state.looked(plan);
        assert!(state.holds());
        assert!(state.posted(ForwardMode::Bridge, Some((7, 0))).problems.is_empty());
    }

    #[test]
    fn lost_announcements_call_for_all_stations_anew() {
        let mut state = SyncState::default();
        state.looked(planned(&Machine::bridge()));
        state.lose();
        assert!(!state.holds() && state.must_renew && state.must_look);
        // It failed: it is not forgotten that they were lost.
        state.look_failed("busy".into());
        assert!(state.must_renew && state.must_look);
        // A change that is read while a look is under way calls for another one.
        state.looked(planned(&Machine::bridge()));
        assert!(state.holds() && state.must_look);
    }

    #[test]
    fn what_does_not_forward_is_said() {
        let mut machine = Machine::bridge();
        machine.port("p1").proxy_arp = true;
        let mut state = SyncState::default();
        state.looked(planned(&machine));
        let said = state.posted(ForwardMode::Bridge, Some((65_536, 3)));
        let status = said.status.expect("status");
        assert!(
            !status.suspended && !status.interfaces[0].forwards && status.interfaces[1].forwards
        );
        let kinds: Vec<ProblemKind> = said.findings.iter().map(|finding| finding.kind).collect();
        assert_eq!(kinds, [ProblemKind::ForwardInterface, ProblemKind::ForwardTableFull]);
        assert!(said.problems.is_empty());
        machine.port("p2").proxy_arp = true;
        state.looked(planned(&machine));
        let said = state.posted(ForwardMode::Bridge, Some((0, 0)));
        assert!(said.problems[0].error.contains("no interface"), "{:?}", said.problems);
        // Without a mirror nothing is forwarded.
        state.looked(planned(&Machine::bridge()));
        let status = state.posted(ForwardMode::Bridge, None).status.expect("status");
        assert!(status.suspended && !status.interfaces[0].forwards);
    }
}
