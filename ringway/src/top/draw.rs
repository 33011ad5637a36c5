//! Puts a model on a screen of any size.

use ratatui::Frame;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};

use super::model::{Heading, Model};
use super::sheet::{Column, Row};
use crate::cli::TopView;
use crate::table::Tone;

const HELP: [&str; 11] = [
    "q F10       end",
    "h F1        this help; any key leaves it",
    "t Tab       next view",
    "/ F4        filter; Esc: none",
    "< > F6      column to sort by",
    "I           turn the order round",
    "arrows      scroll",
    "PgUp PgDn   a page",
    "space       pause",
    "In the view of flows the filter is that of",
    "`ringway flows`: service web and idle > 30s",
];
const KEYS: &str = "F1 help  t view  / filter  F6 sort  I invert  space pause  q end";

/// Rows of the table that fit, at this height.
pub fn page(height: u16) -> usize {
    usize::from(height.saturating_sub(lines_above(height) + 2))
}

/// A screen that is very low has none but the first line above the table.
fn lines_above(height: u16) -> u16 {
    match height {
        0..=3 => 0,
        4..=7 => 1,
        _ => 3,
    }
}

pub fn draw(model: &Model, frame: &mut Frame<'_>, colour: bool) {
    let area = frame.area();
    let mut screen = Screen { buffer: frame.buffer_mut(), area, line: 0, colour };
    if area.width == 0 || area.height == 0 {
        return;
    }
    let above = lines_above(area.height);
    let Heading { health, is_bad, mut figures } = model.heading();
    if above > 0 {
        screen.put(&health, screen.tone(if is_bad { Tone::Bad } else { Tone::Plain }));
    }
    if above > 1 {
        figures.push(format!("every {} s", model.delay.as_secs_f64()));
        screen.put(&fitting(&figures, area.width.into()), Style::new());
        screen.put(&views(model.view, area.width), screen.tone(Tone::Dim));
    }
    match model.help {
        true => HELP.iter().for_each(|line| screen.put(line, Style::new())),
        false => screen.table(model),
    }
    screen.last(&footer(model));
}

/// Figures two spaces apart, closer or fewer of them on a narrow screen: one that is cut off would
/// be another.
pub fn fitting(figures: &[String], width: usize) -> String {
    let all = figures.join("  ");
    if all.chars().count() <= width {
        return all;
    }
    let mut fits = String::new();
    for figure in figures {
        let space = if fits.is_empty() { "" } else { " " };
        if fits.chars().count() + space.len() + figure.chars().count() > width {
            break;
        }
        fits = fits + space + figure;
    }
    fits
}

fn views(view: TopView, width: u16) -> String {
    let all = ["services", "backends", "interfaces", "reasons", "flows", "shield"];
    let shown = |(n, name): (usize, &&str)| match n == view as usize {
        true => format!("[{name}]"),
        false => format!(" {name} "),
    };
    let line: Vec<String> = all.iter().enumerate().map(shown).collect();
    let line = line.join(" ");
    match line.chars().count() > usize::from(width) {
        true => format!("[{}] t: next", all[view as usize]),
        false => line,
    }
}

fn footer(model: &Model) -> String {
    match (&model.writing, model.filter.as_str(), model.more_flows()) {
        (Some(text), ..) => format!("filter: {text}_"),
        (None, "", None) => KEYS.to_owned(),
        (None, filter, Some(more)) => {
            let filter = if filter.is_empty() { "" } else { "  filter: " }.to_owned() + filter;
            format!("not all of {more} flows are shown{filter}  {KEYS}")
        }
        (None, filter, None) => format!("filter: {filter}  (Esc: none)  {KEYS}"),
    }
}

struct Screen<'b> {
    buffer: &'b mut Buffer,
    area: Rect,
    line: u16,
    colour: bool,
}

impl Screen<'_> {
    fn put(&mut self, text: &str, style: Style) {
        // The last line is the footer's.
        if self.line + 1 < self.area.height || self.area.height == 1 {
            self.write(self.line, 0, text, style);
            self.line += 1;
        }
    }

    fn last(&mut self, text: &str) {
        let line = self.area.height - 1;
        if line > 0 {
            self.write(line, 0, text, Style::new().add_modifier(Modifier::REVERSED));
        }
    }

    fn write(&mut self, line: u16, at: u16, text: &str, style: Style) {
        if line >= self.area.height || at >= self.area.width {
            return;
        }
        let room = usize::from(self.area.width - at);
        // A name may hold anything; what moves the cursor does not belong on a screen.
        let text: String = text.chars().map(|c| if c.is_control() { '?' } else { c }).collect();
        let (x, y) = (self.area.x + at, self.area.y + line);
        self.buffer.set_stringn(x, y, text, room, style);
    }

    fn tone(&self, tone: Tone) -> Style {
        match tone {
            Tone::Dim => Style::new().add_modifier(Modifier::DIM),
            _ if !self.colour => Style::new(),
            Tone::Plain => Style::new(),
            Tone::Good => Style::new().fg(Color::Green),
            Tone::Warn => Style::new().fg(Color::Yellow),
            Tone::Bad => Style::new().fg(Color::Red),
        }
    }

    fn table(&mut self, model: &Model) {
        let columns = model.columns();
        let rows: Vec<Row> =
            model.rows().into_iter().skip(model.scroll).take(page(self.area.height)).collect();
        let shown = fit(columns, &rows, self.area.width);
        let heading = Style::new().add_modifier(Modifier::BOLD);
        let mut at = 0;
        for (column, width) in &shown {
            let marked = match (*column == model.sort, model.reverse) {
                (true, false) => heading.add_modifier(Modifier::UNDERLINED),
                (true, true) => heading.add_modifier(Modifier::UNDERLINED | Modifier::ITALIC),
                _ => heading,
            };
            let text = aligned(columns[*column].title, *width, columns[*column].right());
            self.write(self.line, at, &text, marked);
            at += *width as u16 + 2;
        }
        self.line += 1;
        for row in &rows {
            let mut at = 0;
            for (column, width) in &shown {
                let text = aligned(&row[*column].text, *width, columns[*column].right());
                self.write(self.line, at, &text, self.tone(row[*column].tone));
                at += *width as u16 + 2;
            }
            self.line += 1;
        }
        if rows.is_empty() {
            for line in model.instead() {
                self.put(&line, self.tone(Tone::Dim));
            }
        }
    }
}

fn aligned(text: &str, width: usize, right: bool) -> String {
    let text = cut(text, width);
    if right { format!("{text:>width$}") } else { format!("{text:<width$}") }
}

/// As much of a text as has room.
pub fn cut(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    let begin: String = text.chars().take(width.saturating_sub(1)).collect();
    format!("{begin}~")
}

/// The columns that fit, in their order, each with its width: the most important ones first; the
/// last that is taken gets what is left, if that is enough to read.
pub fn fit(columns: &[Column], rows: &[Row], screen: u16) -> Vec<(usize, usize)> {
    /// Less of a text says nothing.
    const LEAST: usize = 8;
    let natural = |column: usize| {
        let texts = rows.iter().map(|row| row[column].text.chars().count());
        texts.max().unwrap_or(0).max(columns[column].title.chars().count())
    };
    let mut by_rank: Vec<usize> = (0..columns.len()).collect();
    by_rank.sort_by_key(|column| columns[*column].rank);
    let mut left = usize::from(screen);
    let mut shown = Vec::new();
    for column in by_rank {
        let gap = if shown.is_empty() { 0 } else { 2 };
        let (wanted, room) = (natural(column), left.saturating_sub(gap));
        let first = shown.is_empty();
        let width = match wanted <= room {
            true => wanted,
            // The first column leaves room for one more; numbers are never cut.
            false if first => room,
            false if !columns[column].right() && room >= LEAST => room,
            false => break,
        };
        let width = if first { width.min((usize::from(screen) * 3 / 5).max(LEAST)) } else { width };
        left = left.saturating_sub(gap + width);
        shown.push((column, width));
    }
    shown.sort_unstable();
    shown
}

#[cfg(test)]
mod tests;
