//! `ringway doctor --path`: the path of packets that an interface receives.

use std::time::Instant;

use ringway_api::error::Error;
use ringway_doctor::path::{self, Path, TRACE, Trace};
use ringway_doctor::{Collection, Facts, complete, gather_counters};
use ringway_host::netlink::links;
use ringway_kernel::{Counted, DropReasons};
use serde::Serialize;

use super::{picture, read, say_how_long};
use crate::cli::{DoctorArgs, Output};
use crate::exit::Exit;
use crate::table;

#[derive(Serialize)]
struct Document<'a> {
    schema: &'static str,
    /// The archive; absent: this machine.
    from: Option<String>,
    #[serde(flatten)]
    path: &'a Path,
}

pub fn main(interface: &str, args: &DoctorArgs) -> anyhow::Result<Exit> {
    let collection = match &args.from {
        Some(archive) => read(archive)?,
        None => {
            is_there(interface)?;
            say_how_long(args);
            live(args)
        }
    };
    let facts = Facts::new(&collection, None);
    let path = path::path(&facts, interface).map_err(error)?;
    match args.output.output {
        Output::Json => {
            let from = args.from.as_ref().map(|from| from.display().to_string());
            table::json(&Document { schema: "ringway.path/1", from, path: &path })?;
        }
        Output::Table => table::print(&picture::draw(&path, table::colour()))?,
    }
    Ok(Exit::Done)
}

/// Said before anybody waits.
fn is_there(interface: &str) -> anyhow::Result<()> {
    let known: Vec<String> = links::all()?.into_iter().map(|link| link.name).collect();
    if known.iter().any(|name| name == interface) {
        return Ok(());
    }
    Err(error(path::Error::NoInterface { wanted: interface.into(), known }))
}

fn error(error: path::Error) -> anyhow::Error {
    let what = error.to_string();
    match error {
        path::Error::NoInterface { .. } => {
            Error::configuration(what, "name one of these: `ringway doctor --path lo`").into()
        }
        path::Error::Vanished(_) => {
            Error::failed(what, "run it again when the interface exists: `ip link` lists them")
                .into()
        }
        path::Error::Unknown(_) => Error::failed(what, "").into(),
    }
}

/// As [`Collection::live`] does, with what the kernel's tracepoints tell beside the counters; read
/// in the same order both times, so that what comes in between one and the other is as much at the
/// end as at the beginning.
fn live(args: &DoctorArgs) -> Collection {
    let drops = DropReasons::start();
    let counted = || drops.as_ref().ok().map(DropReasons::counted).transpose();
    let (first, start, before) = (counted(), Instant::now(), gather_counters());
    std::thread::sleep(args.interval);
    let last = counted();
    let seconds = start.elapsed().as_secs_f64();
    let mut after = complete(gather_counters());
    let trace = match drops {
        Ok(drops) => both(first, last).and_then(|(first, last)| drops.stop(&first, &last)),
        Err(why) => Err(why),
    };
    let trace = trace.map(|(seen, uncounted)| Trace { seen, uncounted });
    after.put_json(TRACE, trace.map_err(|error| error.to_string()));
    Collection { before, after, seconds }
}

type Read = ringway_kernel::Result<Option<Counted>>;

fn both(first: Read, last: Read) -> ringway_kernel::Result<(Counted, Counted)> {
    Ok((first?.unwrap_or_default(), last?.unwrap_or_default()))
}
