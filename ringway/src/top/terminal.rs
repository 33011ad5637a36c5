//! The terminal: taken, drawn upon, and given back however this ends.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use std::{io, thread};

use anyhow::Context;
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use ringway_api::error::Error;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::draw;
use super::feed::{Feed, More, Reading};
use super::model::{KeyRequest, Model};
use crate::cli::TopArgs;
use crate::table;

/// Keys and signals are looked for this often.
const GLANCE: Duration = Duration::from_millis(50);

/// Shows the node until `q` or a signal.
pub fn run(args: &TopArgs) -> anyhow::Result<()> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGINT] {
        signal_hook::flag::register(signal, stop.clone()).context("signals are not heard")?;
    }
    end_with_terminal().context("signals are not heard")?;
    let mut model = Model::new(args.view, args.delay);
    let (wanted, looks) = start(args);
    let given = Given;
    // Also makes a panic give it back before it says anything.
    let mut terminal = ratatui::try_init().context("the terminal cannot be used")?;
    let mut outcome = Ok(());
    while outcome.is_ok() && !stop.load(Ordering::Relaxed) {
        while let Ok(sample) = looks.try_recv() {
            model.take(sample);
        }
        outcome = terminal.draw(|frame| draw::draw(&model, frame, table::colour())).map(drop);
        match outcome.is_ok().then(|| keys(&mut model)).transpose() {
            Ok(Some(KeyRequest::End)) => break,
            Ok(Some(KeyRequest::Sample)) => wanted.set(&model, true),
            Ok(_) => wanted.set(&model, false),
            Err(error) => outcome = Err(error),
        }
    }
    drop(given);
    Ok(outcome?)
}

/// Ends the process when its terminal goes: crossterm, waiting for keys, reads the end of that for
/// ever.
fn end_with_terminal() -> io::Result<()> {
    let mut signals = Signals::new([SIGHUP])?;
    thread::spawn(move || {
        if signals.forever().next().is_some() {
            drop(Given);
            // As a shell tells the end by this signal.
            std::process::exit(128 + SIGHUP);
        }
    });
    Ok(())
}

struct Given;

impl Drop for Given {
    fn drop(&mut self) {
        let _ = ratatui::try_restore();
    }
}

/// Waits a moment for keys, and has the model take them.
fn keys(model: &mut Model) -> io::Result<KeyRequest> {
    let mut asked = KeyRequest::Nothing;
    let mut patience = GLANCE;
    while event::poll(patience)? {
        patience = Duration::ZERO;
        // A size that has changed is drawn anew anyway.
        let Event::Key(key) = event::read()? else { continue };
        if key.kind == KeyEventKind::Release {
            continue;
        }
        let height = ratatui::crossterm::terminal::size().map_or(24, |(_, height)| height);
        match model.key(key, draw::page(height)) {
            KeyRequest::Nothing => {}
            other => asked = other,
        }
        if asked == KeyRequest::End {
            break;
        }
    }
    Ok(asked)
}

/// The request for the next reading.
#[derive(Clone, Debug, Default)]
struct Wanted(Arc<Mutex<Wish>>);

#[derive(Clone, Debug, Default)]
struct Wish {
    more: More,
    now: bool,
    paused: bool,
}

impl Wanted {
    fn set(&self, model: &Model, now: bool) {
        let mut wish = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        wish.more = model.more_wanted();
        wish.paused = model.paused;
        wish.now |= now;
    }

    fn get(&self) -> Wish {
        let mut wish = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let found = wish.clone();
        wish.now = false;
        found
    }
}

type Readings = Receiver<Result<Reading, Error>>;

/// Readings on a thread of its own: the screen does not wait for a node that is slow.
fn start(args: &TopArgs) -> (Wanted, Readings) {
    let wanted = Wanted::default();
    let (send, looks) = channel();
    let (wish, mut feed, delay) = (wanted.clone(), Feed::new(&args.node), args.delay);
    thread::spawn(move || sample_until_closed(&wish, &mut feed, delay, &send));
    (wanted, looks)
}

fn sample_until_closed(
    wanted: &Wanted,
    feed: &mut Feed,
    delay: Duration,
    send: &Sender<Result<Reading, Error>>,
) {
    loop {
        let wish = wanted.get();
        if !wish.paused {
            let sample = feed.sample(&wish.more);
            if send.send(sample).is_err() {
                return;
            }
        }
        let next = Instant::now() + delay;
        while Instant::now() < next {
            let hurry = wanted.0.lock().unwrap_or_else(PoisonError::into_inner).now;
            if hurry {
                break;
            }
            thread::sleep(GLANCE.min(next.saturating_duration_since(Instant::now())));
        }
    }
}
