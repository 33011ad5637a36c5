//! `ringway capture`: packets as they come and leave.

use std::io::{self, Write};
use std::time::Duration;

use ringway_gateway::ask::Whom;
use ringway_gateway::capture::{self, Form, Limits, Options, Selection, Summary, Target};
use ringway_gateway::problem::Error;

use crate::cli::{CaptureArgs, Output};
use crate::exit::{self, Exit};

/// Captures, and says at its end what it came to.
pub fn main(args: &CaptureArgs) -> anyhow::Result<Exit> {
    let whom = Whom { config: args.config.as_deref(), node: args.node.as_deref() };
    let options = options(args)?;
    let outcome = capture::run(&whom, &options, |line| exit::say(format_args!("ringway: {line}")))?;
    exit::say(told(&outcome.summary));
    if args.output.output == Output::Json && options.target != Some(Target::Stdout) {
        // One line, as the packets before it.
        let line = serde_json::to_string(&outcome.summary)?;
        writeln!(io::stdout().lock(), "{line}")?;
    }
    let Some(failure) = outcome.failure else { return Ok(Exit::Done) };
    exit::complain(&failure.into());
    Ok(Exit::Failed)
}

fn options(args: &CaptureArgs) -> Result<Options, Error> {
    let target = args.write.as_ref().map(|path| match path.as_os_str() == "-" {
        true => Target::Stdout,
        false => Target::File(path.clone()),
    });
    let json = args.output.output == Output::Json;
    if target == Some(Target::Stdout) && (args.follow || json) {
        return Err(Error::configuration(
            "with -w - standard output is the pcapng file",
            "write to a file with -w FILE, or leave out --follow and -o json",
        ));
    }
    let form = match (&target, json, args.follow) {
        (None, true, _) => Some(Form::Json),
        (_, false, true) => Some(Form::Follow),
        (Some(_), true, true) => Some(Form::Json),
        (None, false, false) => Some(Form::Lines),
        (Some(_), _, false) => None,
    };
    Ok(Options {
        // As tcpdump has it: the words of a filter need not be one argument.
        filter: args.filter.join(" "),
        selection: Selection {
            interface: args.interface.clone(),
            verdicts: args.verdict.clone(),
            reasons: args.reason.clone(),
            service: args.service.clone(),
            backend: args.backend.clone(),
        },
        snaplen: args.snaplen,
        sample: args.sample,
        buffer_bytes: args.buffer,
        target,
        overwrite: args.overwrite,
        form,
        limits: Limits {
            packets: args.count,
            duration: args.seconds.map(Duration::from_secs),
            bytes: args.size,
        },
    })
}

fn told(summary: &Summary) -> String {
    let Summary { captured_packets, lost_packets, matched_packets, .. } = summary;
    format!(
        "{captured_packets} packets captured, {lost_packets} lost (ring full), of {matched_packets} that matched"
    )
}
