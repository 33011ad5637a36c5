//! What is blocked and allowed at run time, kept, and what runs out.

use super::*;
use crate::clock::from_unix_s;

fn wall() -> SystemTime {
    from_unix_s(1_800_000_000)
}

fn prefix(text: &str) -> Prefix {
    text.parse().expect("a prefix")
}

fn entry(text: &str, action: ListAction, seconds: Option<u64>) -> ShieldEntry {
    let until = seconds.map(|seconds| Timestamp(wall() + Duration::from_secs(seconds)));
    let (since, ends) = (Timestamp::default(), None);
    ShieldEntry { prefix: prefix(text), action, until, reason: "test".into(), since, ends }
}

fn block(text: &str, seconds: Option<u64>) -> ShieldChange {
    ShieldChange::Add(entry(text, ListAction::Block, seconds))
}

fn mode(mode: ShieldMode, seconds: u64) -> ShieldChange {
    let until = Timestamp(wall() + Duration::from_secs(seconds));
    ShieldChange::Mode { mode: Some(ModeOverride { mode, until, ends: None }) }
}

fn after(changes: &[ShieldChange], now: Instant) -> RuntimeShield {
    changes.iter().fold(RuntimeShield::default(), |runtime, change| {
        runtime.with(change, now, wall()).expect("possible")
    })
}

fn shown(runtime: &RuntimeShield) -> Vec<String> {
    let one = |entry: &ShieldEntry| format!("{} {}", entry.prefix, entry.action);
    runtime.entries.iter().map(one).collect()
}

#[test]
fn the_last_word_about_a_prefix_counts() {
    let now = Instant::now();
    let allow = |text| ShieldChange::Add(entry(text, ListAction::Allow, None));
    let runtime = after(
        &[
            block("198.51.100.0/24", None),
            block("192.0.2.0/24", None),
            allow("192.0.2.0/24"),
            allow("192.0.2.7"),
        ],
        now,
    );
    let want = ["192.0.2.0/24 allow", "192.0.2.7/32 allow", "198.51.100.0/24 block"];
    assert_eq!(shown(&runtime), want);
    assert_eq!((runtime.count(ListAction::Block), runtime.count(ListAction::Allow)), (1, 2));
    let remove = |text| ShieldChange::Remove { prefix: prefix(text) };
    let told = |text| remove(text).outcome(runtime.of(&prefix(text)));
    assert_eq!(told("192.0.2.0/24"), "192.0.2.0/24 is no longer allowed");
    assert_eq!(told("198.51.100.0/24"), "198.51.100.0/24 is no longer blocked");
    let less = runtime.with(&remove("192.0.2.0/24"), now, wall()).expect("there");
    assert_eq!(shown(&less), ["192.0.2.7/32 allow", "198.51.100.0/24 block"]);
    let refused = |text| runtime.with(&remove(text), now, wall()).expect_err("not there");
    let inside = refused("198.51.100.7/32");
    assert!(inside.what.contains("198.51.100.7/32 was neither blocked nor allowed"), "{inside}");
    assert!(inside.remedy.to_string().contains("`ringway unblock 198.51.100.0/24`"), "{inside}");
    assert!(refused("2001:db8::/32").remedy.to_string().contains("ringway blocked"));
}

#[test]
fn time_runs_out_on_the_clock_that_nobody_sets() {
    let now = Instant::now();
    let changes =
        [block("192.0.2.0/24", Some(10)), block("198.51.100.0/24", None), mode(ShieldMode::Off, 5)];
    let runtime = after(&changes, now);
    let at =
        |seconds| runtime.without_ended(now + Duration::from_secs(seconds)).map(|(new, _)| new);
    assert_eq!(at(4), None);
    let without_mode = at(5).expect("the mode is over");
    assert_eq!((without_mode.mode, without_mode.entries.len()), (None, 2));
    assert_eq!(shown(&at(10).expect("one is over")), ["198.51.100.0/24 block"]);
    let past = block("192.0.2.0/24", Some(0));
    let error = RuntimeShield::default().with(&past, now, wall()).expect_err("past");
    assert!(error.what.contains("is past"), "{error}");
    assert!(error.remedy.to_string().contains("--for"), "{error}");
}

#[test]
fn what_is_kept_comes_back_unless_its_time_is_over() {
    let place = tempfile::tempdir().expect("a directory");
    let (state, now) = (StateDir::new(place.path()), Instant::now());
    assert_eq!(RuntimeShield::load(&state, now, wall()), Ok(RuntimeShield::default()));
    let changes = [
        block("192.0.2.0/24", Some(10)),
        block("198.51.100.0/24", None),
        mode(ShieldMode::Observe, 5),
    ];
    state.write(DOCUMENT, &after(&changes, now)).expect("written");
    let later = |seconds| {
        let (now, wall) = (now, wall() + Duration::from_secs(seconds));
        RuntimeShield::load(&state, now, wall).expect("read")
    };
    let soon = later(4);
    let want = (2, Some(ShieldMode::Observe));
    assert_eq!((soon.entries.len(), soon.mode.map(|mode| mode.mode)), want);
    let want = Some(now + Duration::from_secs(6));
    assert_eq!(soon.entries.iter().next().expect("one").ends, want, "what is left of it");
    let late = later(10);
    assert_eq!((shown(&late), late.mode), (vec!["198.51.100.0/24 block".into()], None));
}

#[test]
fn there_is_room_for_so_many_and_for_short_reasons() {
    let now = Instant::now();
    let nth = |n: usize| format!("10.{}.{}.{}", n >> 16, n >> 8 & 255, n & 255);
    let entries = (0..MAX_ENTRIES).map(|n| entry(&nth(n), ListAction::Block, None)).collect();
    let full = RuntimeShield { entries, ..RuntimeShield::default() };
    let error = full.with(&block("192.0.2.0/24", None), now, wall()).expect_err("full");
    assert!(error.what.starts_with("65536 prefixes are blocked at run time"), "{error}");
    assert!(error.remedy.to_string().contains("write a list file"), "{error}");
    full.with(&block(&nth(7), Some(60)), now, wall()).expect("in place of itself");
    let allow = ShieldChange::Add(entry("192.0.2.0/24", ListAction::Allow, None));
    full.with(&allow, now, wall()).expect("those have room of their own");
    let unseen =
        ["two\nlines", "two\u{2028}lines", "two\u{2029}lines", "\u{202e}senil", "a\u{200b}b"];
    for reason in unseen.map(str::to_owned).into_iter().chain(["x".repeat(MAX_REASON + 1)]) {
        let entry = ShieldEntry { reason, ..entry("192.0.2.0/24", ListAction::Block, None) };
        let change = ShieldChange::Add(entry);
        let error = RuntimeShield::default().with(&change, now, wall()).expect_err("no reason");
        assert!(error.what.starts_with("the reason is"), "{error}");
    }
}

#[test]
fn a_change_is_read_as_it_was_written() {
    for change in [
        block("192.0.2.0/24", Some(60)),
        ShieldChange::Force(entry("0.0.0.0/0", ListAction::Block, None)),
        ShieldChange::Remove { prefix: prefix("2001:db8::/32") },
        mode(ShieldMode::Off, 60),
        ShieldChange::Mode { mode: None },
    ] {
        let text = serde_json::to_string(&change).expect("JSON");
        assert_eq!(serde_json::from_str::<ShieldChange>(&text).expect(&text), change);
    }
    let wrong = r#"{"change":"remove","prefix":"192.0.2.7/24"}"#;
    let error = serde_json::from_str::<ShieldChange>(wrong).expect_err("no prefix").to_string();
    assert!(error.contains("192.0.2.7/24") && error.contains("192.0.2.0/24"), "{error}");
}

/// Copies share what they have: neither a change nor a second looks at all prefixes.
#[test]
fn what_ends_and_what_lies_within_is_found_among_many() {
    let now = Instant::now();
    let nth = |n: usize| format!("10.{}.{}.{}", n >> 16, n >> 8 & 255, n & 255);
    let many = (0..MAX_ENTRIES).map(|n| {
        let ends = (n % 1000 == 0).then(|| now + Duration::from_secs(n as u64));
        ShieldEntry { ends, ..entry(&nth(n), ListAction::Block, None) }
    });
    let runtime = RuntimeShield { entries: many.collect(), ..RuntimeShield::default() };
    assert_eq!(runtime.count(ListAction::Block), MAX_ENTRIES);
    let (less, ended) =
        runtime.without_ended(now + Duration::from_secs(2000)).expect("three have ended");
    assert_eq!(ended, [0, 1000, 2000].map(|n| prefix(&nth(n))));
    assert_eq!(less.entries.len(), MAX_ENTRIES - 3);
    assert_eq!(less.without_ended(now + Duration::from_secs(2999)), None);
    assert_eq!(runtime.entries.len(), MAX_ENTRIES, "the copy is as it was");
    let wide = less.with(&block("10.0.0.0/28", None), now, wall()).expect("room");
    let within = wide.entries.within(prefix("10.0.0.0/28"));
    assert_eq!(within.count(), 16, "itself, and all but 10.0.0.0");
    let around: Vec<_> = wide.entries.around(prefix(&nth(7))).map(|it| it.prefix).collect();
    assert_eq!(around, [prefix("10.0.0.0/28"), prefix(&nth(7))]);
}
