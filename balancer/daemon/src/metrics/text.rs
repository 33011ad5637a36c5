//! Prometheus' text format, version 0.0.4: families with their help, series with their labels.
//! Written straight into one text: a scrape may have a million lines.

use std::fmt::{Display, Write};

/// Type of a family's figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Only ever grows, and begins anew with the daemon or the packet path; its name ends in
    /// `_total`.
    Counter,
    /// Is what it is now.
    Gauge,
    /// Counts of what was at most so long: `_bucket` with label `le`, `_sum` and `_count`.
    Histogram,
}

impl Kind {
    /// As the format has it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

/// Series of one name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Family {
    /// Its name, with the unit.
    pub name: &'static str,
    pub kind: Kind,
    /// Names of the labels of each series, in order.
    pub labels: &'static [&'static str],
    pub help: &'static str,
}

/// A text in the making.
#[derive(Debug, Default)]
pub struct Sheet {
    text: String,
}

impl Sheet {
    /// Begins a family; its series follow.
    pub fn family(&mut self, family: &'static Family) -> Series<'_> {
        let Family { name, kind, help, .. } = family;
        let kind = kind.name();
        // Writing to a String cannot fail, here and below.
        let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}");
        Series { text: &mut self.text, family }
    }

    pub fn finish(self) -> String {
        self.text
    }
}

/// Series of one family.
pub struct Series<'s> {
    text: &'s mut String,
    family: &'static Family,
}

impl Series<'_> {
    /// Adds one, with a value for each of the family's labels.
    pub fn add(&mut self, labels: &[&str], value: impl Display) {
        self.line("", labels, None, value);
    }

    /// Adds one of a histogram: upper bounds in ascending order with the number of what was at most
    /// that and more than the bound before, the number of what was more than all, and the sum of
    /// all values.
    pub fn histogram(&mut self, labels: &[&str], buckets: &[(f64, u64)], more: u64, sum: f64) {
        let mut count = 0;
        for (bound, number) in buckets {
            count += number;
            self.line("_bucket", labels, Some(&bound.to_string()), count);
        }
        count += more;
        self.line("_bucket", labels, Some("+Inf"), count);
        self.line("_sum", labels, None, sum);
        self.line("_count", labels, None, count);
    }

    fn line(&mut self, suffix: &str, labels: &[&str], le: Option<&str>, value: impl Display) {
        debug_assert_eq!(labels.len(), self.family.labels.len(), "{}", self.family.name);
        self.text.push_str(self.family.name);
        self.text.push_str(suffix);
        let named = self.family.labels.iter().copied().zip(labels.iter().copied());
        let mut open = '{';
        for (name, value) in named.chain(le.map(|le| ("le", le))) {
            self.text.push(open);
            open = ',';
            self.text.push_str(name);
            self.text.push_str("=\"");
            escape(self.text, value);
            self.text.push('"');
        }
        if open == ',' {
            self.text.push('}');
        }
        let _ = writeln!(self.text, " {value}");
    }
}

fn escape(text: &mut String, value: &str) {
    for letter in value.chars() {
        match letter {
            '\\' => text.push_str("\\\\"),
            '"' => text.push_str("\\\""),
            '\n' => text.push_str("\\n"),
            _ => text.push(letter),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Family = Family { name: "a", kind: Kind::Gauge, labels: &[], help: "A." };
    const NAMED: Family = Family { name: "b", kind: Kind::Histogram, labels: &["x"], help: "B." };

    #[test]
    fn lines_are_as_the_format_wants_them() {
        let mut sheet = Sheet::default();
        sheet.family(&PLAIN).add(&[], 7);
        sheet.family(&NAMED).histogram(&["q\"\\\n"], &[(0.5, 2), (1.0, 1)], 4, 9.5);
        let want = "# HELP a A.\n# TYPE a gauge\na 7\n# HELP b B.\n# TYPE b histogram\n\
                    b_bucket{x=\"q\\\"\\\\\\n\",le=\"0.5\"} 2\nb_bucket{x=\"q\\\"\\\\\\n\",le=\"1\"} 3\n\
                    b_bucket{x=\"q\\\"\\\\\\n\",le=\"+Inf\"} 7\nb_sum{x=\"q\\\"\\\\\\n\"} 9.5\n\
                    b_count{x=\"q\\\"\\\\\\n\"} 7\n";
        assert_eq!(sheet.finish(), want);
    }
}
