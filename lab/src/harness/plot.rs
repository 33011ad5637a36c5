//! One self-contained page of HTML: headings, tables, and plots as inline SVG. No script, nothing
//! loaded.

use std::borrow::Borrow;
use std::fmt::Write as _;

use crate::harness::machine::Machine;
use crate::harness::table::Column;

/// Width of a plot, in pixels of the page.
const WIDTH: f64 = 860.0;
/// Room for the labels of bars.
const LABELS: f64 = 240.0;
const BAR: f64 = 20.0;
const PITCH: f64 = 28.0;
/// A number at a bar's end.
const NUMBER: f64 = 42.0;
/// Colours that colour-blind people tell apart (Okabe and Ito), then greys.
const COLOURS: [&str; 16] = [
    "#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442", "#888888",
    "#bbbbbb", "#555555", "#99c7e0", "#f5d999", "#99d8c7", "#ebc9dc", "#eebf99", "#dddddd",
];
const STYLE: &str = "body{font:15px/1.45 system-ui,sans-serif;max-width:900px;margin:2em auto;padding:0 1em;\
    color:#222;background:#fff}.wide{overflow-x:auto}table{border-collapse:collapse;\
    margin:1em 0;font-size:13px}td,th{padding:.25em .6em;text-align:right;vertical-align:top;\
    border-bottom:1px solid #ddd}td{white-space:nowrap}td:first-child,th:first-child,.text{text-align:left}td:first-child,td.text{white-space:normal}\
    td:first-child{min-width:8em}td.text{min-width:15em}svg{width:100%;height:auto}\
    svg text{font:12px system-ui,sans-serif;fill:#333}.note{color:#666;font-size:13px}pre{white-space:pre-wrap}\
    .grid{stroke:#ddd}.mark{stroke:#000;stroke-width:3}@media(prefers-color-scheme:dark){\
    body{color:#ddd;background:#1a1a1a}td,th{border-color:#444}svg text{fill:#ccc}.note{color:#999}\
    .grid{stroke:#444}.mark{stroke:#fff}}";
/// Letters of a cell that is longer than figures are.
const LONG_CELL: usize = 24;
/// Parts that bars are told apart by, at most; the smallest are summed up.
const PARTS: usize = 12;
const OTHERS: &str = "others";

pub(crate) struct Bar {
    pub label: String,
    /// Names and lengths of its parts; what is below zero is left out.
    pub parts: Vec<(String, f64)>,
    pub marks: Vec<f64>,
}

impl Bar {
    fn total(&self) -> f64 {
        self.parts.iter().map(|(_, n)| n.max(0.0)).sum()
    }
}

/// A line through points, which are in order of x.
pub(crate) struct Line {
    pub label: String,
    pub points: Vec<(f64, f64)>,
}

pub struct Page {
    html: String,
}

impl Page {
    pub(crate) fn new(title: &str, lede: &str) -> Self {
        let (title, lede) = (escape(title), escape(lede));
        let html = format!(
            "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{title}</title>\n\
             <style>{STYLE}</style></head><body>\n<h1>{title}</h1>\n<p>{lede}</p>\n"
        );
        Self { html }
    }

    /// Rows under a heading. The first column is aligned left, and so are columns of words.
    pub(crate) fn table<R>(
        &mut self,
        columns: &[&Column<R>],
        rows: impl IntoIterator<Item = impl Borrow<R>>,
    ) {
        let cells = |row: &R| columns.iter().map(|column| (column.cell)(row)).collect();
        let rows: Vec<Vec<String>> = rows.into_iter().map(|row| cells(row.borrow())).collect();
        // Long cells are wrapped.
        let of_words = |column: usize| {
            column > 0 && rows.iter().filter_map(|row| row.get(column)).any(|c| c.len() > LONG_CELL)
        };
        let row = |tag: &str, cells: &mut dyn Iterator<Item = &str>| {
            let cell = |(n, cell): (usize, &str)| {
                let class = if of_words(n) { " class=\"text\"" } else { "" };
                format!("<{tag}{class}>{}</{tag}>", escape(cell))
            };
            let cells: String = cells.enumerate().map(cell).collect();
            format!("<tr>{cells}</tr>\n")
        };
        self.html.push_str("<div class=\"wide\"><table>\n");
        self.html += &row("th", &mut columns.iter().map(|column| column.heading));
        for cells in &rows {
            self.html += &row("td", &mut cells.iter().map(String::as_str));
        }
        self.html.push_str("</table></div>\n");
    }

    pub(crate) fn text(&mut self, text: &str) {
        let _ = writeln!(self.html, "<p>{}</p>", escape(text));
    }

    /// Lines as they are.
    pub(crate) fn lines_of_text(&mut self, text: &str) {
        let _ = writeln!(self.html, "<pre>{}</pre>", escape(text));
    }

    /// Horizontal bars of parts, with a legend; `mark` says what the marks are.
    pub(crate) fn bars(&mut self, title: &str, unit: &str, mark: &str, bars: &[Bar]) {
        let length = |bar: &Bar| bar.marks.iter().copied().fold(bar.total(), f64::max);
        let longest = bars.iter().map(length).fold(0.0, f64::max);
        let scale = Scale::new(longest, WIDTH - LABELS - 70.0);
        let names = names_of(bars);
        let height = PITCH * bars.len() as f64;
        let mut svg = scale.grid_below(height, LABELS, unit);
        for (n, bar) in bars.iter().enumerate() {
            svg += &draw(bar, &names, &scale, PITCH * n as f64);
        }
        let marked = bars.iter().any(|bar| !bar.marks.is_empty()).then_some(mark);
        let legend = legend(&names, marked, height + 56.0);
        let entries = names.len() + usize::from(marked.is_some());
        self.figure(title, height + 46.0 + 20.0 * rows_of(entries), &(svg + &legend));
    }

    /// Lines over a common x axis; both axes begin at zero.
    pub(crate) fn lines(&mut self, title: &str, (x_unit, y_unit): (&str, &str), lines: &[Line]) {
        const HEIGHT: f64 = 280.0;
        const LEFT: f64 = 90.0;
        const DOTS: usize = 12;
        let most = |of: fn(&(f64, f64)) -> f64| {
            lines.iter().flat_map(|line| &line.points).map(of).fold(0.0, f64::max)
        };
        let x = Scale::new(most(|p| p.0), WIDTH - LEFT - 30.0);
        let y = Scale::new(most(|p| p.1), HEIGHT - 20.0);
        let mut svg = x.grid_below(HEIGHT, LEFT, x_unit);
        for value in y.ticks() {
            let at = HEIGHT - y.at(value);
            let _ = write!(
                svg,
                "<line x1=\"{LEFT}\" x2=\"{}\" y1=\"{at:.1}\" y2=\"{at:.1}\" class=\"grid\"/>\
                 <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                WIDTH - 30.0,
                LEFT - 6.0,
                at + 4.0,
                short(value)
            );
        }
        let _ = write!(svg, "<text x=\"0\" y=\"-2\">{}</text>", escape(y_unit));
        let names: Vec<&str> = lines.iter().map(|line| line.label.as_str()).collect();
        for (line, colour) in lines.iter().zip(COLOURS.iter().cycle()) {
            let points: String = line
                .points
                .iter()
                .map(|(a, b)| format!("{:.1},{:.1} ", LEFT + x.at(*a), HEIGHT - y.at(*b)))
                .collect();
            let _ = write!(
                svg,
                "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>",
                points.trim_end()
            );
            // More of them stand so close that the line says it all.
            for (a, b) in line.points.iter().filter(|_| line.points.len() <= DOTS) {
                let (a, b) = (LEFT + x.at(*a), HEIGHT - y.at(*b));
                let _ = write!(
                    svg,
                    "<circle cx=\"{a:.1}\" cy=\"{b:.1}\" r=\"3.5\" fill=\"{colour}\"/>"
                );
            }
        }
        svg += &legend(&names, None, HEIGHT + 56.0);
        self.figure(title, HEIGHT + 46.0 + 20.0 * rows_of(names.len()), &svg);
    }

    fn figure(&mut self, title: &str, height: f64, svg: &str) {
        let title = escape(title);
        let _ = writeln!(
            self.html,
            "<h2>{title}</h2>\n<svg viewBox=\"0 -16 {WIDTH} {:.0}\" role=\"img\" aria-label=\"{title}\">{svg}</svg>",
            height + 16.0
        );
    }

    /// The page as text, with the machine and the version.
    pub(crate) fn finish(mut self, machine: &Machine) -> String {
        let version = machine.versions.get("ringway").map_or("", String::as_str);
        let _ = writeln!(
            self.html,
            "<p class=\"note\">{}; ringway {}.</p>\n</body></html>",
            escape(&machine.to_string()),
            escape(version)
        );
        self.html
    }
}

/// Of all parts, the one first of which there is most. Of too many, the last is for all that are
/// not named.
fn names_of(bars: &[Bar]) -> Vec<&str> {
    let mut sums: Vec<(&str, f64)> = Vec::new();
    for (name, length) in bars.iter().flat_map(|bar| &bar.parts) {
        match sums.iter_mut().find(|(known, _)| known == name) {
            Some((_, sum)) => *sum += length.max(0.0),
            None => sums.push((name, length.max(0.0))),
        }
    }
    // Those of a few, like user and system, stay in their order.
    if sums.len() > PARTS {
        sums.sort_by(|a, b| b.1.total_cmp(&a.1));
        sums.truncate(PARTS - 1);
        sums.push((OTHERS, 0.0));
    }
    sums.into_iter().map(|(name, _)| name).collect()
}

/// In the order of the names, so that the same stands at the same place.
fn draw(bar: &Bar, names: &[&str], scale: &Scale, top: f64) -> String {
    let middle = top + BAR * 0.7;
    let mut svg = format!(
        "<text x=\"{}\" y=\"{middle:.1}\" text-anchor=\"end\">{}</text>",
        LABELS - 8.0,
        escape(&bar.label)
    );
    let mut left = LABELS;
    let place =
        |part: &(String, f64)| names.iter().position(|n| *n == part.0).unwrap_or(names.len());
    let mut parts: Vec<_> = bar.parts.iter().filter(|(_, length)| *length > 0.0).collect();
    parts.sort_by_key(|part| place(part));
    for (name, length) in parts {
        let width = scale.at(*length);
        let _ = write!(
            svg,
            "<rect x=\"{left:.1}\" y=\"{top:.1}\" width=\"{width:.1}\" height=\"{BAR}\" fill=\"{}\">\
             <title>{} {}</title></rect>",
            colour(names, name),
            escape(name),
            short(*length)
        );
        left += width;
    }
    let mut right = left;
    for mark in &bar.marks {
        let x = LABELS + scale.at(*mark);
        let _ = write!(
            svg,
            "<line x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{:.1}\" y2=\"{:.1}\" class=\"mark\"/>",
            top - 3.0,
            top + BAR + 3.0
        );
        // The number is the bar's, so it stands at its end, but not upon the mark.
        if (left - 4.0..left + NUMBER).contains(&x) {
            right = right.max(x);
        }
    }
    let total = short(bar.total());
    let _ = write!(svg, "<text x=\"{:.1}\" y=\"{middle:.1}\">{total}</text>", right + 6.0);
    svg
}

fn colour(names: &[&str], name: &str) -> &'static str {
    let last = names.len().saturating_sub(1);
    let n = names.iter().position(|one| *one == name).unwrap_or(last);
    COLOURS[n % COLOURS.len()]
}

/// Entries of a legend stand in columns.
const COLUMN: f64 = 285.0;
const COLUMNS: usize = 3;
/// Letters that fit into one.
const LETTERS: usize = 38;

fn rows_of(entries: usize) -> f64 {
    entries.div_ceil(COLUMNS) as f64
}

fn cut(name: &str) -> String {
    let fits = name.chars().count() <= LETTERS;
    if fits { name.to_owned() } else { name.chars().take(LETTERS - 1).chain(['…']).collect() }
}

fn legend(names: &[&str], mark: Option<&str>, top: f64) -> String {
    let mut svg = String::new();
    let place = |n: usize| ((n % COLUMNS) as f64 * COLUMN, top + (n / COLUMNS) as f64 * 20.0);
    if let Some(mark) = mark {
        let (x, y) = place(names.len());
        let _ = write!(
            svg,
            "<line x1=\"{0}\" x2=\"{0}\" y1=\"{1:.0}\" y2=\"{2:.0}\" class=\"mark\"/><text x=\"{3}\" y=\"{y:.0}\">{4}</text>",
            x + 6.0,
            y - 12.0,
            y + 2.0,
            x + 17.0,
            escape(&cut(mark))
        );
    }
    for (n, name) in names.iter().enumerate() {
        let (x, y) = place(n);
        let _ = write!(
            svg,
            "<rect x=\"{x}\" y=\"{:.0}\" width=\"12\" height=\"12\" fill=\"{}\"/><text x=\"{}\" y=\"{y:.0}\">{}</text>",
            y - 11.0,
            colour(names, name),
            x + 17.0,
            escape(&cut(name))
        );
    }
    svg
}

/// From zero to the most there is, in steps of 1, 2 or 5 times a power of ten.
struct Scale {
    most: f64,
    step: f64,
    pixels: f64,
}

impl Scale {
    fn new(most: f64, pixels: f64) -> Self {
        let most = if most > 0.0 { most } else { 1.0 };
        let rough = most / 6.0;
        let power = 10_f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].map(|n| n * power);
        let step = step.into_iter().find(|step| *step >= rough).unwrap_or(10.0 * power);
        Self { most, step, pixels }
    }

    fn at(&self, value: f64) -> f64 {
        value / self.most * self.pixels
    }

    fn ticks(&self) -> impl Iterator<Item = f64> + '_ {
        (0..).map(|n| f64::from(n) * self.step).take_while(|value| *value <= self.most * 1.0001)
    }

    /// Vertical lines from the top to `height`, and their values below.
    fn grid_below(&self, height: f64, left: f64, unit: &str) -> String {
        let mut svg = String::new();
        for value in self.ticks() {
            let x = left + self.at(value);
            let _ = write!(
                svg,
                "<line x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"0\" y2=\"{height}\" class=\"grid\"/>\
                 <text x=\"{x:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
                height + 16.0,
                short(value)
            );
        }
        let _ = write!(svg, "<text x=\"{left}\" y=\"{}\">{}</text>", height + 32.0, escape(unit));
        svg
    }
}

/// A number as short as it can be read.
fn short(value: f64) -> String {
    // A sum of nothing is -0.0.
    let value = value + 0.0;
    match value.abs() {
        n if n >= 1e9 => {
            format!("{:.4}", value / 1e9).trim_end_matches('0').trim_end_matches('.').to_owned()
                + " G"
        }
        n if n >= 1e6 => {
            format!("{:.3}", value / 1e6).trim_end_matches('0').trim_end_matches('.').to_owned()
                + " M"
        }
        n if n >= 100.0 || n == n.round() => format!("{value:.0}"),
        n if n >= 1.0 => format!("{value:.1}"),
        _ => format!("{value:.3}").trim_end_matches('0').to_owned(),
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_numbers() {
        for (most, ticks) in [
            (7.0, vec![0.0, 2.0, 4.0, 6.0]),
            (1000.0, vec![0.0, 200.0, 400.0, 600.0, 800.0, 1000.0]),
            (0.0, vec![0.0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        ] {
            let found: Vec<f64> = Scale::new(most, 100.0).ticks().collect();
            let same = found.iter().zip(&ticks).all(|(a, b)| (a - b).abs() < 1e-9);
            assert!(same && found.len() == ticks.len(), "{most}: {found:?}");
        }
    }

    #[test]
    fn numbers_are_short() {
        for (value, text) in [
            (-0.0, "0"),
            (0.25, "0.25"),
            (0.5, "0.5"),
            (2.5, "2.5"),
            (1234.0, "1234"),
            (2.5e6, "2.5 M"),
            (8e9, "8 G"),
        ] {
            assert_eq!(short(value), text);
        }
    }

    #[test]
    fn nothing_gets_out_of_its_element() {
        let mut page = Page::new("a<b", "c&d");
        page.table(&[&Column::text("x", |text: &&str| (*text).into())], ["<script>"]);
        let bar = Bar { label: "<i>".into(), parts: vec![("p\"q".into(), 2.0)], marks: vec![3.0] };
        page.bars("t", "u", "m<n", &[bar]);
        let points = vec![(0.0, 0.0), (1.0, 2.0)];
        page.lines("t", ("s", "bytes"), &[Line { label: "l".into(), points }]);
        let html = page.finish(&Machine::with(&[]));
        assert!(html.contains("a&lt;b") && html.contains("c&amp;d") && html.contains("p&quot;q"));
        assert!(!html.contains("<script>"), "{html}");
        assert!(!html.contains("<i>"), "{html}");
        assert!(!html.contains("NaN"), "{html}");
        assert_eq!(html.matches("<svg").count(), 2);
        assert!(html.trim_end().ends_with("</html>") && html.contains("m&lt;n"));
    }

    #[test]
    fn words_wrap_and_figures_do_not() {
        let mut page = Page::new("t", "l");
        let long = "many words that do not fit on the line";
        let is = Column::text("case", |text: &&str| (*text).into());
        let why = Column::text("why", |text: &&str| (*text).into());
        page.table(&[&is, &Column::number("n", |_| "7".into()), &why], [long]);
        let html = page.finish(&Machine::with(&[]));
        let row = format!("<td>{long}</td><td>7</td><td class=\"text\">{long}</td>");
        assert!(html.contains(&row) && html.contains("<th class=\"text\">why</th>"), "{html}");
        assert!(html.contains("<div class=\"wide\"><table>"), "{html}");
    }

    /// A table of ten columns fits into the page: only figures keep their line.
    #[test]
    fn only_figures_stay_on_one_line() {
        assert_eq!(STYLE.matches("nowrap").count(), 1);
        assert!(STYLE.contains("}td{white-space:nowrap}"));
        assert!(STYLE.contains("td:first-child,td.text{white-space:normal}"));
    }

    #[test]
    fn the_smallest_of_many_parts_are_one() {
        let part = |n: usize| (format!("p{n}"), n as f64);
        let bar = |parts: usize| Bar {
            label: "b".into(),
            parts: (1..=parts).map(part).collect(),
            marks: Vec::new(),
        };
        assert_eq!(names_of(&[bar(3)]), ["p1", "p2", "p3"]);
        let many = [bar(20)];
        let names = names_of(&many);
        assert_eq!((names.len(), names[0], names[10], names[11]), (12, "p20", "p10", OTHERS));
        assert_eq!(colour(&names, "p1"), colour(&names, OTHERS));
    }

    /// The book's figure stands beside the measured one, and the two are told apart.
    #[test]
    fn the_number_is_the_bars() {
        let number_at = |marks: &[f64]| {
            let marks = marks.to_vec();
            let bar = Bar { label: "b".into(), parts: vec![("p".into(), 50.0)], marks };
            let svg = draw(&bar, &["p"], &Scale::new(100.0, 500.0), 0.0);
            let text = svg.rsplit("<text x=\"").next().unwrap();
            text.split('"').next().unwrap().parse::<f64>().unwrap() - LABELS
        };
        assert_eq!(number_at(&[]), 256.0);
        assert_eq!(number_at(&[100.0]), 256.0, "a mark far to the right");
        assert_eq!(number_at(&[48.0, 52.0]), 266.0, "a mark where the number would be");
    }
}
