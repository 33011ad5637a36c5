use std::time::Duration;

use super::super::cost::Spent;
use super::*;
use crate::harness::report::testing;

const FINE: Resolution = Resolution { split_ns: 4_000_000, softirq_ns: 10_000_000 };

fn figures() -> KernelPathFigures {
    let spent =
        Spent { user_ns: 1000, system_ns: 9000, softirq_ns: 500, switches: 20, ..Spent::default() };
    let rtt = [3, 1, 2].map(Duration::from_micros).into();
    let ran = Ran { sent: 12, units: 10, calls: Some(30), spent, seconds: 2.0, rtt };
    let nothing = Ran { calls: None, ..Ran::default() };
    let rows = vec![
        Row::new(Group::Request, "epoll".into(), &ran),
        Row::new(Group::Receive, "AF_XDP".into(), &nothing),
    ];
    KernelPathFigures { rows, rate_pps: 20_000, duration_s: 2.0, rounds: 3, resolution: FINE }
}

fn page(figures: KernelPathFigures) -> String {
    testing::report("kernel-path", figures, Vec::new()).html().unwrap()
}

#[test]
fn figures_of_one() {
    let report = figures();
    let row = &report.rows[0];
    assert_eq!((row.user_ns, row.system_ns, row.softirq_ns), (100.0, 900.0, Some(50.0)));
    assert_eq!(row.went, Went { user: 9.5, system: 85.7, softirq: Some(4.8) });
    assert_eq!(row.went.to_string(), "10/86/5");
    assert_eq!(report.rows[1].went, Went { softirq: Some(0.0), ..Went::default() });
    assert_eq!((row.context_switches, row.system_calls), (2.0, Some(3.0)));
    assert_eq!((row.per_second, row.lost_percent), (5.0, 16.667));
    assert_eq!(row.rtt_p50_us, Some(2.0));
    assert_eq!((report.rows[1].system_calls, report.rows[1].rtt_p50_us), (None, None));
}

#[test]
fn each_figure_by_itself() {
    let row = |ns: u64, rtt| {
        let spent = Spent { user_ns: ns, system_ns: 100 - ns, ..Spent::default() };
        let rtt = vec![Duration::from_micros(rtt)];
        let ran = Ran { units: 1, calls: Some(ns), spent, seconds: 1.0, rtt, ..Ran::default() };
        Row::new(Group::Request, "epoll".into(), &ran)
    };
    let other = Row::new(Group::Copy, "epoll".into(), &Ran::default());
    let rows = medians(vec![row(10, 9), other, row(90, 1), row(20, 5)]);
    let [epoll, copy] = &rows[..] else { panic!("{rows:?}") };
    assert_eq!((epoll.user_ns, epoll.system_ns), (20.0, 80.0));
    assert_eq!((epoll.system_calls, epoll.rtt_p50_us), (Some(20.0), Some(5.0)));
    assert_eq!((copy.group, copy.system_calls), (Group::Copy, None));
}

/// Softirqs are nobody's where others were busy, and the rounds in which they were not count.
#[test]
fn softirqs_beside_others() {
    let row = |others_ms: u64| {
        let (user_ns, system_ns, softirq_ns) = (100, 300, 600);
        let others_ns = others_ms * 1_000_000;
        let spent = Spent { user_ns, system_ns, softirq_ns, others_ns, ..Spent::default() };
        let ran = Ran { units: 1, spent, seconds: 2.0, ..Ran::default() };
        Row::new(Group::Request, "epoll".into(), &ran)
    };
    let (quiet, busy) = (row(200), row(201));
    assert_eq!((quiet.others_percent, quiet.softirq_ns), (10.0, Some(600.0)));
    assert_eq!((busy.others_percent, busy.softirq_ns), (10.1, None));
    assert_eq!(busy.went.to_string(), "25/75/-");
    assert_eq!(quiet.bar(FINE).unwrap().label, "epoll, softirq a guess");
    assert_eq!(busy.bar(FINE).unwrap().label, "epoll *");
    assert_eq!(medians(vec![row(900), row(0), row(900)])[0].softirq_ns, Some(600.0));
    assert_eq!(medians(vec![row(900)])[0].went.softirq, None);
}

/// Where all of the time may be in softirqs, a bar of no length would be a wrong figure.
#[test]
fn what_is_unknown_is_not_drawn() {
    let row = |case: &str, user_ns| {
        let spent = Spent { user_ns, others_ns: 900_000_000, ..Spent::default() };
        let ran = Ran { units: 1, spent, seconds: 1.0, ..Ran::default() };
        Row::new(Group::Receive, case.into(), &ran)
    };
    let mut report = figures();
    report.rows = vec![row("XDP drop", 0), row("read", 5), row("recvmmsg", 6)];
    let page_of = |rows: &[Row]| page(KernelPathFigures { rows: rows.to_vec(), ..figures() });
    let page = page_of(&report.rows);
    let label = |case: &str| page.contains(&format!("text-anchor=\"end\">{case}</text>"));
    assert!(!label("XDP drop") && label("read *") && label("recvmmsg *"), "{page}");
    assert_eq!(page.matches(SOFTIRQ_UNKNOWN).count(), 1, "{page}");
    report.rows.truncate(1);
    let page = page_of(&report.rows);
    assert!(!page.contains("<svg") && page.contains("<td>XDP drop</td>"), "{page}");
}

/// A sample or two do not tell user mode from the kernel; those of all rounds together may.
#[test]
fn few_samples_are_a_guess() {
    let row = |sampled_ns| {
        let spent = Spent { user_ns: 900, system_ns: 100, sampled_ns, ..Spent::default() };
        Row::new(Group::Request, "epoll".into(), &Ran { units: 1, spent, ..Ran::default() })
    };
    let went = |row: &Row| row.went_in_words(FINE);
    assert_eq!(went(&row(50_000_000)), "~90/10/0");
    assert_eq!(went(&medians(vec![row(50_000_000), row(50_000_000)])[0]), "90/10/0");
    let softirq = |ms: u64| {
        let spent = Spent { softirq_ns: ms * 1_000_000, ..Spent::default() };
        let ran = Ran { units: 1_000_000, spent, ..Ran::default() };
        Row::new(Group::Receive, "XDP drop".into(), &ran).softirq_in_words(FINE)
    };
    assert_eq!((softirq(240), softirq(250)), ("~240".into(), "250".into()));
    assert_eq!(went(&Row::new(Group::Receive, "XDP drop".into(), &Ran::default())), "0/0/0");
}

#[test]
fn a_rate_that_was_missed_is_said() {
    let with_sent = |sent| {
        let mut report = figures();
        let ran = Ran { sent, units: sent, seconds: 1.0, ..Ran::default() };
        report.rows = vec![Row::new(Group::Receive, "epoll".into(), &ran)];
        report
    };
    let missed = with_sent(12_345);
    let said = "--rate missed: 20000/s asked for, 12345 to 12345/s sent, in 1 row:";
    assert!(missed.notes().join("\n").contains(said), "{missed:?}");
    assert!(missed.rows[0].in_words(20_000).ends_with("; sent 12345/s of 20000/s"));
    assert!(!with_sent(19_990).notes().join("\n").contains("missed"));
    assert!(!figures().rows[0].missed(20_000), "requests have no rate");
}

#[test]
fn table_and_page() {
    let report = testing::report("kernel-path", figures(), Vec::new());
    let text = report.to_string();
    assert!(text.contains("one every 4 ms") && text.contains("in steps of 10 ms"), "{text}");
    assert!(text.contains("Medians of 3 rounds of 2 s each."), "{text}");
    testing::lines_up(&text, 3);
    let page = report.html().unwrap();
    assert!(page.contains("Answering a request") && page.contains("one every 4 ms"));
    let columns = COLUMNS.iter().filter(|column| !["group", "of one"].contains(&column.heading));
    for column in columns.map(|column| column.heading) {
        assert!(page.contains(&format!("<th>{column}</th>")), "{column}: {page}");
    }
    assert!(!page.contains("<th>group</th>"), "it is the heading's");
}

#[test]
fn json_has_the_promised_keys() {
    let report = testing::report("kernel-path", figures(), Vec::new());
    assert_eq!(serde_json::to_value(&report).unwrap()["rows"][0]["group"], "request");
    assert_eq!(
        testing::names(&report),
        "duration_s failed machine rate_pps resolution resolution.softirq_ns resolution.split_ns rounds rows rows.case \
         rows.context_switches rows.group rows.lost_percent rows.offered_per_second rows.others_percent rows.per_second \
         rows.rtt_p50_us rows.sampled_ms rows.softirq_ms rows.softirq_ns rows.system_calls rows.system_ns rows.unit \
         rows.user_ns rows.went rows.went.softirq rows.went.system rows.went.user schema skipped"
    );
}
