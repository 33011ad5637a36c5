//! `ringway doctor`: collects, asks the rules, prints what they find.

mod exam;
mod explain;
mod path;
mod picture;
mod render;

pub use render::tone;

use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use ringway_api::error::Error;
use ringway_api::output_file;
use ringway_daemon::preflight;
use ringway_doctor::{
    Class, Collection, Comparison, Earlier, Facts, Finding, Origin, Profile, Program, Report, Rule,
    Severity, judge, rules, scripts,
};
use serde::Serialize;

use crate::cli::{DoctorArgs, Output};
use crate::exit::{self, Exit};
use crate::table;

const SCHEMA: &str = "ringway.doctor/1";

#[derive(Serialize)]
struct Document<'a> {
    schema: &'static str,
    /// The archive; absent: this machine.
    from: Option<String>,
    #[serde(flatten)]
    origin: &'a Origin,
    profile: Option<Profile>,
    /// Between the two samples.
    interval_seconds: f64,
    ok: usize,
    unknown: usize,
    info: usize,
    warn: usize,
    crit: usize,
    findings: &'a [Finding],
    /// Only with --since.
    changes: Option<&'a Comparison>,
}

#[derive(Serialize)]
struct Collected {
    schema: &'static str,
    file: String,
    /// How many files are in it.
    files: usize,
    /// Those that could not be read.
    unread: usize,
    contents: Vec<Contents>,
}

#[derive(Serialize)]
struct Contents {
    #[serde(flatten)]
    class: &'static Class,
    /// Of both samples.
    files: usize,
}

pub fn main(args: &DoctorArgs) -> anyhow::Result<Exit> {
    if args.exam {
        return exam::main(args.output.output);
    }
    if let Some(wanted) = &args.explain {
        return explain::main(wanted, args.output.output);
    }
    if let Some(interface) = &args.path {
        return path::main(interface, args);
    }
    // What is wrong with it is said before anybody waits.
    let earlier = args.since.as_deref().map(earlier).transpose()?;
    if let (Some(earlier), None) = (&earlier, &args.from) {
        same_place(earlier, &Origin::here())?;
    }
    for path in files(args) {
        output_file::check(&path, args.overwrite)?;
    }
    let collection = collection(args)?;
    if let Some(path) = &args.collect {
        return collect(&collection, path, args);
    }
    let facts = Facts::new(&collection, args.profile.map(Profile::from));
    let asked = asked(args);
    let report = judge(asked.iter().copied(), &facts);
    let origin = facts.origin();
    let changes = match earlier {
        Some(earlier) => {
            same_place(&earlier, &origin)?;
            Some(Comparison::between(&earlier.findings, &report, &asked))
        }
        None => None,
    };
    if let Some(path) = &args.fix_script {
        write_scripts(&report, &origin, path, args)?;
    }
    match args.output.output {
        Output::Json => table::json(&document(args, &facts, &origin, &report, changes.as_ref()))?,
        Output::Table => {
            let text = render::report(&report, changes.as_ref(), args.all, table::colour());
            let place = render::place(&origin, args.from.is_some());
            table::print(&(place + &text))?;
        }
    }
    Ok(if report.of(Severity::Crit).count() > 0 { Exit::Unhealthy } else { Exit::Done })
}

fn asked(args: &DoctorArgs) -> Vec<&'static Rule> {
    let profile = args.profile.map(Profile::from);
    let wanted = |check: &&Rule| match args.only.as_slice() {
        [] => check.applies(profile),
        only => only.iter().any(|only| only.number == check.number),
    };
    rules::ALL.iter().filter(wanted).collect()
}

fn collection(args: &DoctorArgs) -> anyhow::Result<Collection> {
    let Some(path) = &args.from else {
        say_how_long(args);
        return Ok(live(args.interval));
    };
    read(path)
}

fn say_how_long(args: &DoctorArgs) {
    if io::stderr().is_terminal() {
        exit::say(format_args!("looking for {:.1} s ...", args.interval.as_secs_f64()));
    }
}

fn read(path: &Path) -> anyhow::Result<Collection> {
    let shown = path.display();
    if path.is_dir() {
        let fix = "name the archive that --collect wrote";
        return Err(Error::configuration(format!("{shown} is a directory"), fix).into());
    }
    let file = File::open(path).map_err(|error| {
        Error::configuration(format!("{shown}: {error}"), "name a file that --collect wrote")
    })?;
    let read = Collection::read(BufReader::new(file));
    Ok(read.map_err(|error| Error::configuration(format!("{shown}: {error}"), ""))?)
}

fn live(interval: Duration) -> Collection {
    let mut collection = Collection::live(interval);
    preflight::compiler(&mut collection.after);
    collection
}

/// The report of the profile balancer on this machine.
#[derive(Serialize)]
pub struct Looked {
    interval_seconds: f64,
    ok: usize,
    unknown: usize,
    info: usize,
    warn: usize,
    pub crit: usize,
    #[serde(flatten)]
    report: Report,
}

impl Looked {
    pub fn render(&self, colour: bool) -> String {
        render::symptoms(
            &self.report,
            "`ringway doctor --profile balancer --all` shows all",
            colour,
        )
    }
}

/// Asks these checks about this machine, as one that passes packets on by this program.
pub fn balancer(
    program: Option<Program>,
    checks: impl IntoIterator<Item = &'static Rule>,
    interval: Duration,
) -> Looked {
    let mut facts = Facts::new(&live(interval), Some(Profile::Balancer));
    if let Some(program) = program {
        facts = facts.with_program(program);
    }
    let report = judge(checks, &facts);
    Looked {
        interval_seconds: facts.seconds,
        ok: report.of(Severity::Ok).count(),
        unknown: report.of(Severity::Unknown).count(),
        info: report.of(Severity::Info).count(),
        warn: report.of(Severity::Warn).count(),
        crit: report.of(Severity::Crit).count(),
        report,
    }
}

fn collect(collection: &Collection, path: &Path, args: &DoctorArgs) -> anyhow::Result<Exit> {
    let file = output_file::create(path, args.overwrite)?;
    if let Err(error) = collection.write(BufWriter::new(file)) {
        // Half an archive helps nobody.
        let _ = fs::remove_file(path);
        let failed = format!("{} was not written: {error}", path.display());
        return Err(Error::failed(failed, "make room, or write it elsewhere").into());
    }
    let (files, unread) = (collection.after.files().len(), collection.after.unread().len());
    if args.output.output == Output::Json {
        let file = path.display().to_string();
        let contents = collection.contents().into_iter();
        let contents = contents.map(|(class, files)| Contents { class, files }).collect();
        let schema = "ringway.doctor-collection/1";
        table::json(&Collected { schema, file, files, unread, contents })?;
        return Ok(Exit::Done);
    }
    table::print(&format!(
        "{1}\n{0}: {files} files, {unread} that could not be read. Read it before you send it, then: \
         ringway doctor --from {0}\n",
        path.display(),
        render::contents(collection, table::colour())
    ))?;
    Ok(Exit::Done)
}

fn earlier(path: &Path) -> anyhow::Result<Earlier> {
    let fix = "name the JSON of an earlier run: `ringway doctor -o json > before.json`";
    let wrong = |why: String| Error::configuration(format!("{}: {why}", path.display()), fix);
    let text = fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
    let earlier: Earlier = serde_json::from_str(&text)
        .map_err(|error| wrong(format!("it is no report of ringway doctor: {error}")))?;
    if earlier.schema != SCHEMA {
        return Err(wrong(format!("its schema is {:?}, not {SCHEMA:?}", earlier.schema)).into());
    }
    Ok(earlier)
}

/// A finding of another machine is not fixed because it is not found here.
fn same_place(earlier: &Earlier, here: &Origin) -> anyhow::Result<()> {
    if earlier.origin.is_where(here) {
        return Ok(());
    }
    Err(Error::configuration(
        format!("the earlier run was of {}; this one is of {here}", earlier.origin),
        "run it there; or look at both one after the other",
    )
    .into())
}

fn files(args: &DoctorArgs) -> impl Iterator<Item = PathBuf> {
    let script = args.fix_script.iter().flat_map(|path| [undo_of(path), path.clone()]);
    script.chain(args.collect.iter().cloned())
}

fn undo_of(script: &Path) -> PathBuf {
    let mut undo = script.as_os_str().to_owned();
    undo.push(".undo");
    undo.into()
}

fn write_scripts(
    report: &Report,
    origin: &Origin,
    path: &Path,
    args: &DoctorArgs,
) -> anyhow::Result<()> {
    let undo = undo_of(path);
    let scripts = scripts(report, origin);
    // The undo first: there is never a fix without.
    for (path, text) in [(undo.as_path(), &scripts.undo), (path, &scripts.fix)] {
        output_file::create(path, args.overwrite)?.write_all(text.as_bytes())?;
    }
    if scripts.commands == 0 {
        exit::say(format_args!(
            "{}: no command; what to do by hand is in it as comments",
            path.display()
        ));
        return Ok(());
    }
    let whose = match &args.from {
        Some(_) => format!(", for {origin}, and refused elsewhere"),
        None => String::new(),
    };
    let enter = origin.namespace.as_ref().map_or_else(String::new, |one| one.enter() + " ");
    exit::say(format_args!(
        "{0}: {1} commands{whose}; read it, run it{2}: {enter}sh {0}; to take them back: {enter}sh {3}",
        path.display(),
        scripts.commands,
        if args.from.is_some() { " there" } else { "" },
        undo.display()
    ));
    Ok(())
}

fn document<'a>(
    args: &DoctorArgs,
    facts: &Facts,
    origin: &'a Origin,
    report: &'a Report,
    changes: Option<&'a Comparison>,
) -> Document<'a> {
    Document {
        schema: SCHEMA,
        from: args.from.as_ref().map(|path| path.display().to_string()),
        origin,
        profile: facts.profile,
        interval_seconds: facts.seconds,
        ok: report.of(Severity::Ok).count(),
        unknown: report.of(Severity::Unknown).count(),
        info: report.of(Severity::Info).count(),
        warn: report.of(Severity::Warn).count(),
        crit: report.of(Severity::Crit).count(),
        findings: &report.findings,
        changes,
    }
}
