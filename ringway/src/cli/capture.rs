//! `ringway capture`.

use std::path::PathBuf;

use clap::Args;

use ringway_terminal::quantity::bytes;

use super::OutputArgs;

/// `ringway capture`
#[derive(Debug, Args)]
#[command(
    after_help = "Prints packets, or writes them as pcapng with -w: what came in and, where it was rewritten, what \
    leaves. Verdict, reason, service and backend are in each packet's comment. The filter holds for the packet before \
    or after rewriting. Ctrl-C or SIGTERM ends it; traffic goes on whatever happens to it. With -o json each packet is \
    a line of JSON, and the last line is the summary. Exit code 1 when it could not go on (disk full, interface gone, \
    node detached); what it has until then is whole.\n\n-c counts packets here: the configuration is --config.\n\n\
    Examples:\n  ringway capture -c 10 'tcp port 80'\n  ringway capture -i eth0 -w web.pcapng --service web --seconds 30\n  \
    ringway capture --verdict drop,aborted\n  ringway capture --follow 'tcp and host 192.0.2.7'\n  \
    ringway capture -w - 'udp port 53' | tcpdump -nr -"
)]
pub struct CaptureArgs {
    /// Which packets, in the language of tcpdump (`man pcap-filter`) [default: all].
    #[arg(value_name = "FILTER")]
    pub filter: Vec<String>,
    /// Only packets that arrive on this interface.
    #[arg(short, long, value_name = "IFACE")]
    pub interface: Option<String>,
    /// Write pcapng to this file, or with - to standard output.
    #[arg(short, long, value_name = "FILE")]
    pub write: Option<PathBuf>,
    /// Replace an existing file, which is otherwise refused.
    #[arg(long, requires = "write")]
    pub overwrite: bool,
    /// End after so many packets.
    #[arg(short, long, value_name = "N", value_parser = packets)]
    pub count: Option<u64>,
    /// End after so many seconds.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub seconds: Option<u64>,
    /// End when this much is written: 100MB, 64MiB.
    #[arg(long, value_name = "SIZE", value_parser = bytes)]
    pub size: Option<u64>,
    /// Keep so many bytes of each packet, before and after rewriting.
    #[arg(short, long, value_name = "LEN", default_value_t = ringway_kernel::programs::capture::MOST_BYTES,
        value_parser = clap::value_parser!(u32).range(1..=i64::from(ringway_kernel::programs::capture::MOST_BYTES)))]
    pub snaplen: u32,
    /// Only packets with one of these verdicts: pass, drop, tx, redirect, aborted.
    #[arg(long, value_name = "VERDICT", value_delimiter = ',')]
    pub verdict: Vec<String>,
    /// Only packets with one of these reasons; `ringway reasons` lists them.
    #[arg(long, value_name = "REASON", value_delimiter = ',')]
    pub reason: Vec<String>,
    /// Only packets of this service; NAME/tcp or NAME/udp where it has both.
    #[arg(long, value_name = "NAME")]
    pub service: Option<String>,
    /// Only packets of this backend.
    #[arg(long, value_name = "ADDRESS[:PORT]")]
    pub backend: Option<String>,
    /// Take one in N of the packets that the filter matches.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub sample: u32,
    /// Print one line a packet by its flow, with the time since the flow's last packet.
    #[arg(long)]
    pub follow: bool,
    /// Room for packets that are not read yet.
    #[arg(long, value_name = "SIZE", default_value = "16MiB", value_parser = buffer)]
    pub buffer: u32,
    /// Configuration file that names the node.
    #[arg(long, value_name = "FILE", conflicts_with = "node")]
    pub config: Option<PathBuf>,
    /// Name of the node; when neither is given, the only one of this network namespace, else of
    /// this machine.
    #[arg(long, value_name = "NAME")]
    pub node: Option<String>,
    #[command(flatten)]
    pub output: OutputArgs,
}

/// A number of packets; with most other commands -c names the configuration.
fn packets(text: &str) -> Result<u64, String> {
    let number = text.parse().ok().filter(|number| *number > 0);
    number.ok_or_else(|| {
        "a number of packets; the configuration file is --config FILE here".to_owned()
    })
}

/// Room between the packet path and a capture.
fn buffer(text: &str) -> Result<u32, String> {
    let fits = |bytes: &u64| (64 << 10..=1 << 30).contains(bytes);
    let bytes = Some(bytes(text)?).filter(fits).ok_or("write a size from 64KiB to 1GiB")?;
    u32::try_from(bytes).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_has_bounds() {
        assert_eq!(buffer("64KiB"), Ok(64 << 10));
        assert!(buffer("1kB").is_err() && buffer("2GiB").is_err());
    }
}
