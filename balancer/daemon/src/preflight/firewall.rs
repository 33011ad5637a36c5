//! Rules of the firewall that name a service, and that its packets no longer meet.

use ringway_config::{Config, Service};
use ringway_doctor::{MACHINE, Outcome, Report};
use ringway_host::Fix;
use ringway_host::firewall::Rule;

use super::machine_state::MachineState;

/// Every rule of the firewall, against every service.
pub fn check(config: &Config, state: &MachineState, report: &mut Report) {
    let rules = match &state.firewall {
        None => return,
        Some(Err(error)) => {
            let fix = Fix::Sequence(vec![
                Fix::command(["apt-get", "install", "nftables"]),
                Fix::command(["nft", "list", "ruleset"]).after("as root (sudo):"),
            ]);
            let reason = format!("rules that name a service could not be looked for: {error}");
            return report.push("firewall", Outcome::unknown(MACHINE, reason).advice(fix));
        }
        Some(Ok(rules)) => rules,
    };
    let mut named = false;
    for service in &config.services {
        for rule in rules.iter().filter(|rule| names(rule, service)) {
            named = true;
            bypassed(service, rule, report);
        }
    }
    if !named {
        let reason =
            format!("none of its {} rules about destinations names a service", rules.len());
        report.ok("firewall", MACHINE, reason);
    }
}

fn names(rule: &Rule, service: &Service) -> bool {
    let ports = service.ports();
    let protocols: Vec<String> = service.protocols.iter().map(ToString::to_string).collect();
    let protocols: Vec<&str> = protocols.iter().map(String::as_str).collect();
    rule.names(*service.address, (ports.first, ports.last), &protocols)
}

fn bypassed(service: &Service, rule: &Rule, report: &mut Report) {
    let by = if rule.destinations.is_empty() { "port" } else { "address" };
    let owner = rule.owner.map_or_else(String::new, |owner| format!("{owner}'s "));
    let reason = format!(
        "{owner}rule \"{}\" ({}) names it by its {by}; packets to a service are taken before any rule, so \
         it neither lets them in nor keeps them out",
        rule.text, rule.place
    );
    let port = *service.port;
    let fix = match rule.owner {
        Some("Docker") => Fix::command(["docker", "ps", "--filter", &format!("publish={port}")])
            .before("shows whose it is: publish it at another port or address"),
        Some("ufw") => Fix::Sequence(vec![
            Fix::command(["ufw", "status", "numbered"]),
            Fix::command(["ufw", "delete", "NUMBER"]),
        ]),
        Some("firewalld") => Fix::Sequence(vec![
            Fix::command(["firewall-cmd", "--list-all"]),
            Fix::command(["firewall-cmd".to_owned(), format!("--remove-port={port}/tcp")]),
        ]),
        _ => rule.removal.clone(),
    };
    report.push("firewall", Outcome::warn(service.name.as_str(), reason).advice(fix));
}
