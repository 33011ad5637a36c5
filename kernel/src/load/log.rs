//! libbpf's messages: to tracing, and the tail of them into the error of a failed load.

use std::cell::RefCell;
use std::sync::Once;

use libbpf_rs::{PrintLevel, set_print};

thread_local! {
    /// libbpf calls back on the thread that loads.
    static CAPTURED: RefCell<Option<String>> = const { RefCell::new(None) };
}

const TAIL_LINES: usize = 25;

/// Routes libbpf's log to tracing. Harmless to call again.
pub(crate) fn install() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        set_print(Some((PrintLevel::Debug, print)));
    });
}

/// All of it at debug: libbpf warns about what this crate handles, and real failures carry
/// their log in the error.
fn print(level: PrintLevel, message: String) {
    tracing::debug!(target: "libbpf", "{}", message.trim_end());
    if level == PrintLevel::Debug {
        return;
    }
    CAPTURED.with_borrow_mut(|captured| {
        if let Some(text) = captured {
            text.push_str(&message);
        }
    });
}

/// Runs `load` and returns its result with the last lines of what libbpf said meanwhile.
pub(crate) fn capture<T>(load: impl FnOnce() -> T) -> (T, String) {
    install();
    CAPTURED.set(Some(String::new()));
    let result = load();
    let log = CAPTURED.take().unwrap_or_default();
    (result, tail(&log))
}

fn tail(log: &str) -> String {
    let lines: Vec<&str> = log.lines().filter(|line| !line.trim().is_empty()).collect();
    lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_the_last_lines() {
        let log: String = (0..100).map(|n| format!("line {n}\n\n")).collect();
        let tail = tail(&log);
        assert_eq!(tail.lines().count(), TAIL_LINES);
        assert!(tail.starts_with("line 75\n") && tail.ends_with("line 99"));
    }

    #[test]
    fn captures_only_while_loading() {
        print(PrintLevel::Warn, "before\n".into());
        let ((), log) = capture(|| print(PrintLevel::Warn, "during\n".into()));
        assert_eq!(log, "during");
    }
}
