//! Rules about forwarding between interfaces: what the daemon itself obeys while it runs.

use ringway_config::Config;
use ringway_doctor::{MACHINE, Outcome, Report};

use super::machine_state::MachineState;
use super::{misconfigured, names};
use crate::network::forward::plan;

/// Every interface of `[forward]`, and what packets would no longer meet.
pub fn check(config: &Config, state: &MachineState, report: &mut Report) {
    let (Some(forward), Some(facts)) = (&config.forward, &state.forward) else { return };
    let facts = match facts {
        Ok(facts) => facts,
        Err(error) => {
            let reason = format!("what [forward] depends on could not be read: {error}");
            return report.push(names::FORWARD, Outcome::crit(MACHINE, reason));
        }
    };
    let slots: Vec<(u32, String)> =
        (0..).zip(&forward.interfaces).map(|(slot, name)| (slot, name.to_string())).collect();
    let plan = plan(forward, &slots, facts);
    for obstacle in &plan.obstacles {
        let outcome = Outcome::crit("[forward]", obstacle.found.as_str());
        report.push(names::FORWARD, outcome.advice(obstacle.fix.clone()));
    }
    for (port, name) in plan.ports.iter().zip(&forward.interfaces) {
        let outcome = match &port.trouble {
            None => Outcome::ok(port.name.as_str(), "it is forwarded past the kernel"),
            Some(trouble) if trouble.forbids_start => {
                misconfigured(config, name, trouble.found.as_str(), trouble.fix.clone())
            }
            Some(trouble) => {
                let found = format!("it is left to the kernel for now: {}", trouble.found);
                Outcome::warn(port.name.as_str(), found).advice(trouble.fix.clone())
            }
        };
        report.push(names::FORWARD, outcome);
    }
}
