//! Remedies as types, rendered for a shell in one place.

use std::fmt::{self, Display, Formatter};
use std::net::IpAddr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A remedy. It is shown, in JSON too, as a line: for sh, unless it is advice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fix {
    /// `sysctl -w`
    Sysctl {
        /// Its path below /proc/sys, as in `net/ipv4/ip_forward`.
        key: String,
        value: SysctlValue,
        /// Only the machine's first network namespace can set it, and this is another.
        in_first_namespace: bool,
    },
    /// `ethtool OPTION DEVICE SETTINGS`
    Ethtool {
        /// As in `-K`.
        option: &'static str,
        device: String,
        settings: Vec<String>,
    },
    /// `ip link set dev DEVICE SETTINGS`
    Link { device: String, settings: Vec<String> },
    /// `echo VALUE > PATH`
    Write {
        /// A file under /proc or /sys.
        path: String,
        value: String,
    },
    /// Any other program, with its arguments.
    Command(Vec<String>),
    /// One after another, whether or not the first succeeds.
    Sequence(Vec<Fix>),
    /// Each reads what the one before it writes.
    Pipe(Vec<Fix>),
    /// Words and commands of one sentence, with a space between them.
    Sentence(Vec<Fix>),
    /// Advice in words, where no command can do it.
    Advice(String),
}

/// The value of a kernel setting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SysctlValue {
    Numbers(Vec<i64>),
    /// A name; or what was read, its words with one space between them.
    Words(String),
}

impl SysctlValue {
    /// The last of its numbers, which is the limit where there are several.
    pub fn limit(&self) -> Option<i64> {
        match self {
            Self::Numbers(numbers) => numbers.last().copied(),
            Self::Words(_) => None,
        }
    }
}

impl From<i64> for SysctlValue {
    fn from(number: i64) -> Self {
        Self::Numbers(vec![number])
    }
}

impl<const N: usize> From<[i64; N]> for SysctlValue {
    fn from(numbers: [i64; N]) -> Self {
        Self::Numbers(numbers.into())
    }
}

impl From<&str> for SysctlValue {
    fn from(text: &str) -> Self {
        Self::Words(words(text).join(" "))
    }
}

impl Display for SysctlValue {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Numbers(numbers) => {
                let numbers: Vec<String> = numbers.iter().map(i64::to_string).collect();
                f.write_str(&numbers.join(" "))
            }
            Self::Words(text) => f.write_str(text),
        }
    }
}

impl Fix {
    /// A setting by its path below /proc/sys.
    pub fn sysctl(key: impl Into<String>, value: impl Into<SysctlValue>) -> Self {
        Self::Sysctl { key: key.into(), value: value.into(), in_first_namespace: false }
    }

    /// `Fix::ethtool("-K", "eth0", "lro off")`
    pub fn ethtool(
        option: &'static str,
        device: impl Into<String>,
        settings: impl AsRef<str>,
    ) -> Self {
        Self::Ethtool { option, device: device.into(), settings: words(settings.as_ref()) }
    }

    /// `Fix::link("eth0", "mtu 1500")`
    pub fn link(device: impl Into<String>, settings: impl AsRef<str>) -> Self {
        Self::Link { device: device.into(), settings: words(settings.as_ref()) }
    }

    /// A file that takes one line.
    pub fn write(path: impl Into<String>, value: impl ToString) -> Self {
        Self::Write { path: path.into(), value: value.to_string() }
    }

    /// A program with its arguments.
    pub fn command<T: Into<String>>(argv: impl IntoIterator<Item = T>) -> Self {
        Self::Command(argv.into_iter().map(Into::into).collect())
    }

    /// The same, with words before it.
    pub fn after(self, words: impl Into<String>) -> Self {
        Self::Sentence(vec![Self::Advice(words.into()), self])
    }

    /// The same, with words after it.
    pub fn before(self, words: impl Into<String>) -> Self {
        Self::Sentence(vec![self, Self::Advice(words.into())])
    }

    /// `ip address ACTION ADDRESS dev DEVICE`, of this address alone.
    pub fn ip_address(action: &str, address: IpAddr, device: &str) -> Self {
        let bits = if address.is_ipv4() { 32 } else { 128 };
        Self::command(["ip", "address", action, &format!("{address}/{bits}"), "dev", device])
    }

    /// Nothing to do.
    pub fn is_empty(&self) -> bool {
        matches!(self, Self::Advice(words) if words.is_empty())
    }

    /// The kernel setting that it writes, and the value.
    pub fn setting(&self) -> Option<(&str, &SysctlValue)> {
        match self {
            Self::Sysctl { key, value, .. } => Some((key, value)),
            _ => None,
        }
    }
}

impl Display for Fix {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sysctl { key, value, in_first_namespace } => {
                if *in_first_namespace {
                    f.write_str("nsenter --target 1 --net ")?;
                }
                write!(
                    f,
                    "sysctl -w {}={}",
                    word(&sysctl_name(key)),
                    value_word(&value.to_string())
                )
            }
            Self::Ethtool { option, device, settings } => {
                write!(f, "ethtool {option} {} {}", word(device), line(settings))
            }
            Self::Link { device, settings } => {
                write!(f, "ip link set dev {} {}", word(device), line(settings))
            }
            Self::Write { path, value } => {
                write!(f, "echo {} > {}", value_word(value), word(path))
            }
            Self::Command(argv) => f.write_str(&line(argv)),
            Self::Sequence(fixes) => f.write_str(&joined(fixes, "; ")),
            Self::Pipe(fixes) => f.write_str(&joined(fixes, " | ")),
            Self::Sentence(parts) => f.write_str(&joined(parts, " ")),
            Self::Advice(words) => f.write_str(words),
        }
    }
}

/// Nothing to do.
impl Default for Fix {
    fn default() -> Self {
        Self::Advice(String::new())
    }
}

impl From<String> for Fix {
    fn from(advice: String) -> Self {
        Self::Advice(advice)
    }
}

impl From<&str> for Fix {
    fn from(advice: &str) -> Self {
        Self::Advice(advice.to_owned())
    }
}

impl Serialize for Fix {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Another process's line is advice, whatever it was there.
impl<'de> Deserialize<'de> for Fix {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(Self::Advice)
    }
}

/// A setting's name by its path below /proc/sys: with dots, unless a part of it holds a dot, as
/// names of VLAN devices do.
pub fn sysctl_name(key: &str) -> String {
    if key.contains('.') { key.to_owned() } else { key.replace('/', ".") }
}

fn words(text: &str) -> Vec<String> {
    text.split_ascii_whitespace().map(str::to_owned).collect()
}

fn joined(fixes: &[Fix], between: &str) -> String {
    fixes.iter().map(Fix::to_string).collect::<Vec<_>>().join(between)
}

fn line(argv: &[String]) -> String {
    argv.iter().map(|one| word(one)).collect::<Vec<_>>().join(" ")
}

fn is_plain(c: char) -> bool {
    c.is_ascii_alphanumeric() || "-_./:,=+@%".contains(c)
}

/// One word for sh, quoted where it has to be. Control characters are for the terminal that shows
/// it, and no fix needs any.
fn word(text: &str) -> String {
    if !text.is_empty() && text.chars().all(is_plain) {
        return text.to_owned();
    }
    quoted(&text.replace(char::is_control, "\u{fffd}"))
}

/// Several numbers, or nothing at all, in double quotes.
fn value_word(value: &str) -> String {
    let numbers = value.chars().all(|c| is_plain(c) || c == ' ');
    if numbers && (value.is_empty() || value.contains(' ')) {
        return format!("\"{value}\"");
    }
    word(value)
}

/// One word for sh, in quotes.
pub fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_sh_takes() {
        for (fix, wanted) in [
            (Fix::sysctl("net/core/somaxconn", 16), "sysctl -w net.core.somaxconn=16"),
            (Fix::sysctl("net/ipv4/tcp_rmem", "1\t2\t3"), "sysctl -w net.ipv4.tcp_rmem=\"1 2 3\""),
            (
                Fix::sysctl("net/ipv4/conf/eth0.5/rp_filter", 1),
                "sysctl -w net/ipv4/conf/eth0.5/rp_filter=1",
            ),
            (Fix::ethtool("-K", "eth0.5", "lro off"), "ethtool -K eth0.5 lro off"),
            (Fix::ethtool("-K", "a;reboot", "lro off"), "ethtool -K 'a;reboot' lro off"),
            (Fix::ethtool("-K", "it's", "lro off"), "ethtool -K 'it'\\''s' lro off"),
            (Fix::link("a b", "mtu 1500"), "ip link set dev 'a b' mtu 1500"),
            (Fix::link("a\u{1b}[2J", "up"), "ip link set dev 'a\u{fffd}[2J' up"),
            (Fix::write("/proc/irq/40/x", "0-3,8"), "echo 0-3,8 > /proc/irq/40/x"),
            (Fix::write("/sys/a:0", ""), "echo \"\" > /sys/a:0"),
            (Fix::write("/sys/a>b", "$(reboot)"), "echo '$(reboot)' > '/sys/a>b'"),
            (Fix::command(["umount", "/sys/fs/bpf"]), "umount /sys/fs/bpf"),
            (
                Fix::Sequence(vec![Fix::write("/a", 1), Fix::command(["b", ""])]),
                "echo 1 > /a; b ''",
            ),
            (Fix::Pipe(vec![Fix::command(["a", "*"]), Fix::command(["b"])]), "a '*' | b"),
            (
                Fix::link("a b", "up").before("(twice)").after("on the backend:"),
                "on the backend: ip link set dev 'a b' up (twice)",
            ),
        ] {
            assert_eq!(fix.to_string(), wanted);
        }
    }

    /// Whatever a name is, sh takes it for one argument.
    #[test]
    fn a_shell_takes_names_for_names() {
        for name in ["a;reboot", "$(reboot)", "a`b`", "a>b", "a&b", "a|b", "it's", "*", "~", "a b"]
        {
            let command = Fix::command(["printf", "%s", name]).to_string();
            let out = std::process::Command::new("sh").args(["-c", &command]).output().unwrap();
            assert_eq!(String::from_utf8(out.stdout).unwrap(), name, "{command}");
        }
    }
}
