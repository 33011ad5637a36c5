//! The state of `ringway top`, and the effect of keys on it. Pure: no terminal, no node.

use std::cmp::Ordering;
use std::time::Duration;

use clap::ValueEnum;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ringway_api::documents::shield::is_answered;
use ringway_api::documents::status::{Counter, Problem, Status};
use ringway_api::error::Error;
use ringway_api::problem_kind::ProblemKind;
use ringway_config::ShieldMode;

use super::feed::{More, Reading};
use super::sheet::{self, Column, Kind, Rank, Row};
use crate::cli::TopView;
use crate::units;

/// A key's request to the program around the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyRequest {
    Nothing,
    /// Reads again at once.
    Sample,
    End,
}

/// The lines above every view.
#[derive(Debug)]
pub struct Heading {
    /// The node, how it is, and what is wrong.
    pub health: String,
    pub is_bad: bool,
    pub figures: Vec<String>,
}

/// Everything that is on the screen.
#[derive(Debug)]
pub struct Model {
    pub view: TopView,
    /// Between two readings.
    pub delay: Duration,
    /// Column that rows are ordered by.
    pub sort: usize,
    pub reverse: bool,
    /// Rows that hold this; in the flows' view the filter of `ringway flows`.
    pub filter: String,
    /// A filter that is being written.
    pub writing: Option<String>,
    /// Rows above the first one on the screen.
    pub scroll: usize,
    /// Readings are not shown.
    pub paused: bool,
    pub help: bool,
    pub trouble: Option<String>,
    sample: Reading,
}

/// The first sort column of each view: the busiest rows first.
fn first_sort(view: TopView) -> usize {
    sheet::columns(view).iter().position(|column| column.kind == Kind::Load).unwrap_or(0)
}

impl Model {
    pub fn new(view: TopView, delay: Duration) -> Model {
        Model {
            view,
            delay,
            sort: first_sort(view),
            reverse: false,
            filter: String::new(),
            writing: None,
            scroll: 0,
            paused: false,
            help: false,
            trouble: None,
            sample: Reading::default(),
        }
    }

    /// Takes a look; what went wrong is shown beside the one before.
    pub fn take(&mut self, sample: Result<Reading, Error>) {
        if self.paused {
            return;
        }
        match sample {
            Ok(sample) => {
                self.sample = sample;
                self.trouble = None;
            }
            Err(error) => {
                // What is shown fitted another filter.
                if self.view == TopView::Flows {
                    self.sample.flows = None;
                }
                self.trouble = Some(error.what);
            }
        }
        self.scroll = self.scroll.min(self.rows().len().saturating_sub(1));
    }

    /// What is to be read beside the status.
    pub fn more_wanted(&self) -> More {
        match self.view {
            TopView::Flows => More::Flows(self.filter.clone()),
            TopView::Shield => More::Shield,
            _ => More::Nothing,
        }
    }

    /// The columns of the view.
    pub fn columns(&self) -> &'static [Column] {
        sheet::columns(self.view)
    }

    /// The rows in their order.
    pub fn rows(&self) -> Vec<Row> {
        let mut rows = sheet::rows(self.view, &self.sample);
        let wanted = self.filter.to_lowercase();
        if self.view != TopView::Flows && !wanted.is_empty() {
            rows.retain(|row| row.iter().any(|f| f.text.to_lowercase().contains(&wanted)));
        }
        rows.sort_by(|a, b| {
            let order = in_order(&a[self.sort].rank, &b[self.sort].rank);
            let order = if self.reverse { order.reverse() } else { order };
            // So that rows that are alike do not jump about.
            order.then_with(|| in_order(&a[0].rank, &b[0].rank))
        });
        rows
    }

    pub fn heading(&self) -> Heading {
        let status = &self.sample.status;
        let (health, is_bad) = match (status.healthy, status.degraded, status.daemon.running) {
            _ if status.node.is_empty() => ("looking", false),
            (_, _, false) => ("no daemon", true),
            _ if status.from_pins => ("daemon silent", true),
            (false, ..) => ("unhealthy", true),
            (true, true, _) => ("degraded", false),
            (true, false, _) => ("healthy", false),
        };
        // The header already says that no daemon runs.
        let known = |problem: &&Problem| problem.kind != ProblemKind::DaemonNotRunning;
        let problem = status.problems.iter().find(known).map(|problem| problem.error.as_str());
        // A wrong filter is told in several lines, where the rows would be.
        let first = |text: &'_ str| text.lines().next().unwrap_or_default().to_owned();
        let note = self.trouble.as_deref().or(problem).map(first).unwrap_or_default();
        let paused = if self.paused { " [paused]" } else { "" };
        let health = format!("ringway {}: {health}{paused} {note}", status.node);
        let flows = status.flow_table.as_ref().map(|table| table.current_flows);
        let mut figures = vec![
            format!("in {}/s", units::rate(sum(status.interfaces.iter().map(|i| i.rate_pps)))),
            format!("dropped {}/s", units::rate(sum(dropped(status)))),
            format!("lost {}/s", units::rate(sum(status.losses.iter().map(|loss| loss.rate_pps)))),
        ];
        if status.forward.is_some() {
            let forwarded = status.counters.iter().filter(|counter| counter.is_forwarded());
            let rate = sum(forwarded.map(|counter| counter.rate_pps));
            figures.insert(1, format!("forwarded {}/s", units::rate(rate)));
        }
        if !status.only_forwards() {
            figures.push(format!("flows {}", units::count(flows)));
        }
        let of_shield = |counter: &&Counter| counter.is_shields();
        let dropped = status.counters.iter().filter(of_shield).map(|counter| counter.rate_pps);
        let dropped: Vec<_> = dropped.collect();
        if !dropped.is_empty() {
            figures.push(format!("shield {}/s", units::rate(sum(dropped.into_iter()))));
        }
        // What it has observed stays counted when it observes no more.
        for (answers, what) in [(false, "shield would drop"), (true, "shield would answer")] {
            let of_kind =
                status.shield_observed.iter().filter(|it| is_answered(it.reason) == answers);
            let rate = sum(of_kind.map(|one| one.rate_pps)).filter(|rate| *rate > 0.0);
            figures.extend(rate.map(|rate| format!("{what} {}/s", units::rate(Some(rate)))));
        }
        let shield = self.sample.shield.as_ref().filter(|_| self.view == TopView::Shield);
        if let Some(shield) = shield.filter(|shield| shield.mode != ShieldMode::Enforce) {
            figures.insert(0, format!("mode {}", shield.mode.name()));
        }
        Heading { health: health.trim_end().to_owned(), is_bad, figures }
    }

    /// The text in place of rows where there are none.
    pub fn instead(&self) -> Vec<String> {
        match &self.trouble {
            Some(trouble) => trouble.lines().map(str::to_owned).collect(),
            None if self.sample.status.node.is_empty() => Vec::new(),
            None if !self.filter.is_empty() => vec![format!("nothing matches {:?}", self.filter)],
            None if self.sample.shield.as_ref().is_some_and(|shield| !shield.configured) => {
                vec!["the configuration has no [shield]".to_owned()]
            }
            None => vec!["nothing yet".to_owned()],
        }
    }

    /// How many flows the filter lets through, where not all are shown.
    pub fn more_flows(&self) -> Option<u64> {
        let flows = self.sample.flows.as_ref().filter(|_| self.view == TopView::Flows)?;
        Some(flows.matched).filter(|matched| *matched > flows.rows.len() as u64)
    }

    pub fn key(&mut self, key: KeyEvent, page: usize) -> KeyRequest {
        if self.writing.is_some() {
            return self.write(key);
        }
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Char('c' | 'd') if control => return KeyRequest::End,
            KeyCode::Char('q') | KeyCode::F(10) => return KeyRequest::End,
            _ if self.help => self.help = false,
            KeyCode::Char('h' | '?') | KeyCode::F(1) => self.help = true,
            KeyCode::Char('/') | KeyCode::F(4) => self.writing = Some(self.filter.clone()),
            KeyCode::Char('t') | KeyCode::Tab => return self.show(next_view(self.view, 1)),
            KeyCode::BackTab => {
                return self.show(next_view(self.view, TopView::value_variants().len() - 1));
            }
            KeyCode::Char('>' | '.') | KeyCode::F(6) | KeyCode::Right => self.sort_by(1),
            KeyCode::Char('<' | ',') | KeyCode::Left => {
                self.sort_by(self.columns().len().saturating_sub(1));
            }
            KeyCode::Char('I') => self.reverse = !self.reverse,
            KeyCode::Char(' ') => {
                self.paused = !self.paused;
                return if self.paused { KeyRequest::Nothing } else { KeyRequest::Sample };
            }
            KeyCode::Esc => {
                self.filter.clear();
                return KeyRequest::Sample;
            }
            code => self.scroll_by(code, page),
        }
        KeyRequest::Nothing
    }

    fn write(&mut self, key: KeyEvent) -> KeyRequest {
        let Some(text) = &mut self.writing else { return KeyRequest::Nothing };
        match key.code {
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => {
                self.writing = None;
            }
            KeyCode::Char(c) => text.push(c),
            KeyCode::Backspace => drop(text.pop()),
            KeyCode::Esc => self.writing = None,
            KeyCode::Enter => {
                self.filter = self.writing.take().unwrap_or_default();
                (self.scroll, self.trouble) = (0, None);
                return KeyRequest::Sample;
            }
            _ => {}
        }
        KeyRequest::Nothing
    }

    fn show(&mut self, view: TopView) -> KeyRequest {
        // What one view is filtered by means something else in another.
        self.filter.clear();
        (self.view, self.scroll, self.reverse) = (view, 0, false);
        (self.sort, self.trouble) = (first_sort(view), None);
        KeyRequest::Sample
    }

    fn sort_by(&mut self, steps: usize) {
        self.sort = (self.sort + steps) % self.columns().len();
    }

    fn scroll_by(&mut self, code: KeyCode, page: usize) {
        let last = self.rows().len().saturating_sub(1);
        self.scroll = match code {
            KeyCode::Up | KeyCode::Char('k') => self.scroll.saturating_sub(1),
            KeyCode::Down | KeyCode::Char('j') => self.scroll + 1,
            KeyCode::PageUp => self.scroll.saturating_sub(page.max(1)),
            KeyCode::PageDown => self.scroll + page.max(1),
            KeyCode::Home => 0,
            KeyCode::End => last,
            _ => self.scroll,
        };
        self.scroll = self.scroll.min(last);
    }
}

fn in_order(a: &Rank, b: &Rank) -> Ordering {
    match (a, b) {
        (Rank::Number(a), Rank::Number(b)) => b.total_cmp(a),
        _ => a.partial_cmp(b).unwrap_or(Ordering::Equal),
    }
}

fn next_view(view: TopView, steps: usize) -> TopView {
    let all = TopView::value_variants();
    let at = all.iter().position(|one| *one == view).unwrap_or(0);
    all[(at + steps) % all.len()]
}

fn dropped(status: &Status) -> impl Iterator<Item = Option<f64>> {
    // Where nothing was dropped yet, that is known as soon as the interfaces' rates are.
    let known = status.interfaces.first().and_then(|i| i.rate_pps).map(|_| 0.0);
    let drops = status.counters.iter().filter(|counter| sheet::is_drop(counter.verdict));
    std::iter::once(known).chain(drops.map(|counter| counter.rate_pps))
}

/// `None` where one is not known.
fn sum(rates: impl Iterator<Item = Option<f64>>) -> Option<f64> {
    rates.sum()
}
