//! What is said where no daemon answers.

use super::*;

#[test]
fn without_a_daemon_the_node_is_not_ready_and_says_which_process_hangs() {
    let status = |running| Status {
        daemon: Daemon { running, pid: Some(u64::MAX), ..Daemon::default() },
        ..Status::default()
    };
    let error = Error::failed("no answer within 2 s", "");
    let late = |seconds| Late { error: &error, beat: Some(Duration::from_secs(seconds)) };
    let kind = |running, late: Option<Late<'_>>| {
        problems(&status(running), late.as_ref(), "", None).remove(0)
    };
    assert_eq!(kind(false, None).kind, ProblemKind::DaemonNotRunning);
    let busy = kind(true, Some(late(3)));
    assert!(busy.error.contains("3 s old: it, or this machine, is busy"), "{busy:?}");
    assert!(busy.remedy.to_string().starts_with("ask again in a moment"), "{busy:?}");
    let hangs = kind(true, Some(late(30)));
    assert_eq!(hangs.kind, ProblemKind::DaemonSilent);
    assert!(hangs.error.contains(&format!("process {}", u64::MAX)), "{hangs:?}");
    assert!(
        hangs.error.contains("no answer within 2 s")
            && hangs.remedy.to_string().contains("kill -KILL")
    );
}

#[test]
fn a_program_that_is_not_seen_here_may_be_elsewhere() {
    let status = Status {
        node: "gw1".into(),
        interfaces: vec![Interface { name: "eth0".into(), ..Interface::default() }],
        ..Status::default()
    };
    let told = |enter| problems(&status, None, "", enter).remove(1).remedy.to_string();
    assert!(told(Some("nsenter -t 7 -n")).contains("`nsenter -t 7 -n ringway status --node gw1`"));
    assert!(told(None).starts_with("start the daemon"));
}

#[test]
fn a_start_that_waits_says_for_what() {
    let daemon = Daemon { running: true, ..Daemon::default() };
    let status = Status { daemon, ..Status::default() };
    let problem = problems(&status, None, "waiting for eth1", None).remove(0);
    assert_eq!(problem.kind, ProblemKind::Starting);
    assert!(problem.error.contains("is starting (waiting for eth1) and"), "{problem:?}");
}
