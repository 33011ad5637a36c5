//! The folder of a run's results, which has what was measured also when the run is interrupted.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use super::report::CellFigures;
use super::site::Observed;
use super::size::Size;
use super::{Road, Test};
use crate::harness::{BenchReport, Figures, machine};
use crate::{Error, Result};

/// `looped`: by the tester alone; a burst has no load and no duration of its own.
const COLUMNS: &str = "ended,road,size,round,test,looped,load,duration_s,intended,sent,received,duplicates,reordered,elapsed_s,p50_us,p99_us,max_us";

pub(super) struct Folder {
    path: PathBuf,
    trials: File,
}

impl Folder {
    /// A new one; without a path, named by the date.
    pub(super) fn new(path: Option<&Path>, date: &str) -> Result<Self> {
        let named = || PathBuf::from(format!("forward-{}", date.replace(':', "")));
        let path = path.map_or_else(named, Path::to_owned);
        let made = fs::create_dir(&path);
        if made.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::AlreadyExists) {
            let path = path.display();
            let remedy = "write another `--folder`, or remove it";
            return Err(Error::Unavailable(format!("{path} is there already; {remedy}")));
        }
        let trials = made.and_then(|()| File::create(path.join("trials.csv")));
        let mut trials = trials.map_err(|source| Error::Write { path: path.clone(), source })?;
        writeln!(trials, "{COLUMNS}")
            .map_err(|source| Error::Write { path: path.clone(), source })?;
        Ok(Self { path, trials })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// One more line.
    pub(super) fn trial(
        &mut self,
        (road, size, round): (Road, Size, u32),
        test: Test,
        seen: &Observed,
    ) -> Result<()> {
        let trial = &seen.trial;
        let times = seen.latency.percentiles().unwrap_or_default();
        let known = |figure: f64| if figure > 0.0 { figure.to_string() } else { String::new() };
        let line = format!(
            "{},{road},{size},{round},{test},{},{},{},{},{},{},{},{},{:.6},{:.1},{:.1},{:.1}\n",
            machine::now(),
            seen.looped,
            known(trial.load.round()),
            known(trial.duration_s),
            trial.intended,
            trial.sent,
            trial.received,
            seen.duplicates,
            seen.reordered,
            trial.elapsed_s,
            times.p50_us,
            times.p99_us,
            times.max_us,
        );
        let path = || self.path.join("trials.csv");
        self.trials
            .write_all(line.as_bytes())
            .map_err(|source| Error::Write { path: path(), source })
    }

    fn file(&self, name: &str, text: &str) -> Result<()> {
        let path = self.path.join(name);
        fs::write(&path, text).map_err(|source| Error::Write { path, source })
    }

    /// What was swept of a road and size so far, and what was found.
    pub(super) fn curve(&self, cell: &CellFigures) -> Result<()> {
        let CellFigures { road, size, .. } = cell;
        if !cell.curve.is_empty() {
            self.file(&format!("tune-{road}-{size}.csv"), &cell.curve_csv())?;
        }
        let Some(tuned) = &cell.tuned else { return Ok(()) };
        let by =
            format!("# By `ringway-lab bench forward --tune`: road {road}, frames of {size}.\n");
        self.file(&format!("engine-{road}-{size}.toml"), &(by + &tuned.toml()))
    }

    /// All that is known so far.
    pub(super) fn write<F: Figures>(&self, report: &BenchReport<F>) -> Result<()> {
        let json = serde_json::to_string_pretty(report).unwrap_or_default();
        let files = [
            ("report.json", json),
            ("report.txt", report.to_string()),
            ("report.html", report.html().unwrap_or_default()),
        ];
        files.into_iter().try_for_each(|(name, text)| self.file(name, &text))
    }
}
