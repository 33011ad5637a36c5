//! `ringway capture`: packets as they come and leave.

use std::io::{self, Write};
use std::time::Duration;

use ringway_api::client::node_selector::NodeSelector;
use ringway_api::error::Error;
use ringway_api::text::counted;
use ringway_inspect::capture::{
    self, CaptureOptions, CaptureTarget, Ended, Form, Limits, Selection, Summary,
};

use crate::cli::{CaptureArgs, Output};
use crate::exit::{self, Exit};

/// Captures, and says at its end what it came to.
pub fn main(args: &CaptureArgs) -> anyhow::Result<Exit> {
    let selector = NodeSelector { config: args.config.as_deref(), node: args.node.as_deref() };
    let options = options(args)?;
    let outcome =
        capture::run(&selector, &options, |line| exit::say(format_args!("ringway: {line}")))?;
    exit::say(summary_line(&outcome.summary));
    if args.output.output == Output::Json && options.target != Some(CaptureTarget::Stdout) {
        // One line, as the packets before it.
        let line = serde_json::to_string(&outcome.summary)?;
        writeln!(io::stdout().lock(), "{line}")?;
    }
    let Some(failure) = outcome.failure else { return Ok(Exit::Done) };
    exit::complain(crate::NAME, &failure.into());
    Ok(Exit::Failed)
}

fn options(args: &CaptureArgs) -> Result<CaptureOptions, Error> {
    let target = args.write.as_ref().map(|path| match path.as_os_str() == "-" {
        true => CaptureTarget::Stdout,
        false => CaptureTarget::File(path.clone()),
    });
    let json = args.output.output == Output::Json;
    if target == Some(CaptureTarget::Stdout) && (args.follow || json) {
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
    Ok(CaptureOptions {
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

fn summary_line(summary: &Summary) -> String {
    let Summary { captured_packets, lost_packets, matched_packets, sample, .. } = summary;
    let captured = counted(*captured_packets, "packet");
    let mut text = format!(
        "{captured} captured, {lost_packets} lost (ring full), of {matched_packets} that matched"
    );
    if *sample > 1 {
        text += &format!(" and were samples, one in {sample}");
    }
    let later = matched_packets.saturating_sub(captured_packets + lost_packets);
    if later > 0 && matches!(summary.ended, Ended::Count | Ended::Size) {
        text += &format!("; {later} of them came after the last one, before the capture had ended");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_counted_is_told() {
        let summary = |captured_packets, matched_packets, sample, ended| Summary {
            schema: capture::SCHEMA,
            node: "gw1".into(),
            filter: String::new(),
            captured_packets,
            lost_packets: 0,
            matched_packets,
            sample,
            written_bytes: 0,
            duration_ms: 0,
            ended,
        };
        for (summary, words) in [
            (
                summary(1, 1, 1, Ended::Signal),
                "1 packet captured, 0 lost (ring full), of 1 that matched",
            ),
            (
                summary(2, 9, 10, Ended::Count),
                "2 packets captured, 0 lost (ring full), of 9 that matched and were samples, one in 10; 7 of them \
                 came after the last one, before the capture had ended",
            ),
        ] {
            assert_eq!(summary_line(&summary), words);
        }
    }
}
