//! Tables of wrong configurations, and the messages that they get.

use ringway_config::parse;

/// `LINE:COLUMN: message` of every error, without snippets.
pub fn messages(text: &str) -> Vec<String> {
    let Err(errors) = parse(text, "gw.toml") else { return Vec::new() };
    errors.iter().map(|e| format!("{}:{}: {}", e.line, e.column, e.message)).collect()
}

/// A case of the table is lines of a file, then `=>` with each message that they get, or `=>` alone
/// if they are right. Lines with `# ` are comments. `whole` makes a file of a case's lines.
pub fn check_table(table: &str, whole: impl Fn(&str) -> String) {
    let is_message = |line: &str| line.starts_with("=>");
    let lines: Vec<&str> = table.lines().skip(1).filter(|line| !line.starts_with("# ")).collect();
    let mut wrong = String::new();
    for case in lines.chunk_by(|line, next| !is_message(line) || is_message(next)) {
        let (wanted, given): (Vec<&str>, Vec<&str>) = case.iter().partition(|it| is_message(it));
        assert!(!wanted.is_empty(), "no message behind {given:?}");
        let (given, wanted) = (given.join("\n"), wanted.join("\n"));
        let mut found = messages(&whole(&given));
        if found.is_empty() {
            found.push(String::new());
        }
        let found = found.iter().map(|message| format!("=> {message}")).collect::<Vec<_>>();
        let found = found.join("\n").trim_end().to_owned();
        if found != wanted {
            wrong += &format!("\n{given}\n  found\n{found}\n  not\n{wanted}");
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}
