//! Options of `ringway capture`: several captures beside each other, of the same packets.

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use ringway_net_tests::{
    Line, SERVICE_V4, SERVICE_V6, Site, ask_udp, needs_root, not_tested, udp_to,
};
use ringway_testnet::{Child, tools};

use crate::capture::{begin, end, ended, settled, totals, tshark, wait_until_nothing_is_left};

const PORT: u16 = 7;
const FOUR: SocketAddr = SocketAddr::new(SERVICE_V4, PORT);
const SIX: SocketAddr = SocketAddr::new(SERVICE_V6, PORT);
/// Datagrams to each of both, short and long.
const SIZES: [usize; 4] = [1, 20, 500, 1200];
const FIELDS: [&str; 7] = [
    "frame.len",
    "frame.cap_len",
    "frame.interface_name",
    "frame.packet_flags_direction",
    "frame.comment",
    "ipv6.src",
    "udp.srcport",
];

/// A capture into a file, under way.
struct Writing<'a> {
    site: &'a Site,
    file: PathBuf,
    child: Child,
}

/// What it came to: captured, lost and matching packets, and a row of [`FIELDS`] for each record.
struct Written {
    file: PathBuf,
    totals: [u64; 3],
    rows: Vec<Vec<String>>,
}

impl<'a> Writing<'a> {
    fn begin(site: &'a Site, name: &str, arguments: &[&str]) -> Result<Writing<'a>> {
        let file = site.net.gateway.directory().join(name);
        let path = file.to_string_lossy().into_owned();
        let child = begin(&site.net.gateway, &[&["-w", &path], arguments].concat())?;
        Ok(Writing { site, file, child })
    }

    fn end(self) -> Result<Written> {
        let (code, log) = end(self.child)?;
        ensure!(code == 0, "{log}");
        let rows = tshark(&self.site.net.gateway, &self.file, &FIELDS)?;
        let split = |row: &String| row.split('\t').map(str::to_owned).collect();
        let rows = rows.iter().map(split).collect();
        Ok(Written { file: self.file, totals: totals(&log)?, rows })
    }
}

impl Written {
    /// Lengths on the wire, in order of size.
    fn lengths(&self) -> Result<Vec<u32>> {
        let mut all: Vec<u32> =
            self.rows.iter().map(|row| row[0].parse()).collect::<Result<_, _>>()?;
        all.sort_unstable();
        Ok(all)
    }

    /// Records of packets as they came that fit.
    fn came(&self, fits: impl Fn(&[String]) -> bool) -> u64 {
        self.rows.iter().filter(|row| row[3] == "0x00000001" && fits(row)).count() as u64
    }
}

/// A connection and some datagrams to each service.
fn exchange(site: &Site) -> Result<()> {
    for service in [FOUR, SIX] {
        let mut line = Line::open(site.client(), service)?;
        for text in ["short", &"long".repeat(300)] {
            line.ask(text)?;
        }
        line.close()?;
        let socket = udp_to(site.client(), service)?;
        for size in SIZES {
            ask_udp(&socket, &"x".repeat(size))?;
        }
    }
    Ok(())
}

#[test]
fn each_keeps_what_it_was_told_to() -> Result<()> {
    needs_root!();
    let site = Site::new(2)?;
    let _echo = (site.echo(SERVICE_V4, PORT)?, site.echo(SERVICE_V6, PORT)?);
    let both = "protocol = [\"tcp\", \"udp\"]\n";
    let text = site.service("four", FOUR, both) + &site.service("six", SIX, both);
    let gateway = site.start(&text)?;
    let start = |name: &str, arguments: &[&str]| Writing::begin(&site, name, arguments);
    let all = start("all", &["port 7"])?;
    let short = start("short", &["-s", "60", "port 7"])?;
    let sampled = start("sampled", &["--sample", "5", "port 7"])?;
    let udp = start("udp", &["--service", "four/udp"])?;
    let choice = ["--verdict", "redirect,drop", "--reason", "nat-reply,no-backend"];
    let replies = start("replies", &[&choice[..], &["--service", "six/tcp"]].concat())?;
    let front = start("front", &["-i", "eth0", "udp and ip6"])?;
    let sized = start("sized", &["--size", "4kB", "port 7"])?;
    exchange(&site)?;
    let packets = settled(&gateway, 0)?;

    let all = all.end()?;
    ensure!(all.totals == [packets, 0, packets], "{packets} packets, not {:?}", all.totals);
    ensure!(all.rows.len() as u64 == 2 * packets, "{} records", all.rows.len());
    ensure!(all.rows.iter().all(|row| row[0] == row[1]), "all of each: {:?}", all.rows);

    let short = short.end()?;
    ensure!(short.totals == all.totals && short.lengths()? == all.lengths()?, "{:?}", short.rows);
    let cut = |row: &[String]| {
        Ok::<_, std::num::ParseIntError>(row[1].parse::<u32>()? == row[0].parse::<u32>()?.min(60))
    };
    for row in &short.rows {
        ensure!(cut(row)?, "{row:?}");
    }
    ensure!(short.lengths()?.last() > Some(&1200), "{:?}", short.rows);
    read_by_tcpdump(&short)?;

    // One in five on each CPU.
    let sampled = sampled.end()?;
    let [captured, lost, matched] = sampled.totals;
    let cpus = std::thread::available_parallelism()?.get() as u64;
    ensure!((packets / 5..=packets / 5 + cpus).contains(&captured), "{captured} of {packets}");
    ensure!(lost == 0 && matched == captured, "{:?}", sampled.totals);

    let asked = SIZES.len() as u64;
    let udp = udp.end()?;
    let told = |row: &[String]| row[4].contains(", service four, ") && !row[6].is_empty();
    ensure!(
        udp.totals == [2 * asked, 0, 2 * asked] && udp.came(told) == 2 * asked,
        "{:?}",
        udp.rows
    );

    let replies = replies.end()?;
    let reply = |row: &[String]| {
        row[4].starts_with("redirect nat-reply, service six, ") && row[6].is_empty()
    };
    let known = all.came(reply);
    ensure!(known > 0 && replies.totals == [known, 0, known], "{known}, {:?}", replies.totals);
    let backends = |row: &[String]| row[2] == "eth1" && row[5].starts_with("fd02::");
    ensure!(replies.came(|row| reply(row) && backends(row)) == known, "{:?}", replies.rows);

    let front = front.end()?;
    let requests = |row: &[String]| row[2] == "eth0" && row[5].starts_with("fd01::");
    ensure!(front.totals == [asked, 0, asked] && front.came(requests) == asked, "{:?}", front.rows);

    let (code, log) = ended(sized.child)?;
    let (bytes, [captured, ..]) = (sized.file.metadata()?.len(), totals(&log)?);
    // The packet that reaches it is the last, and then there are the statistics.
    ensure!(code == 0 && (4000..8000).contains(&bytes) && captured < packets, "{bytes}: {log}");
    wait_until_nothing_is_left(&gateway)
}

/// It makes a line of each record.
fn read_by_tcpdump(written: &Written) -> Result<()> {
    let tool = match tools::find("tcpdump") {
        Ok(tool) => tool,
        Err(why) => {
            not_tested(format_args!("short packets by tcpdump: {why}"));
            return Ok(());
        }
    };
    let mut command = std::process::Command::new(&tool.path);
    tool.set_environment(&mut command);
    let ran =
        command.args(["-Z", "root", "-ntr"]).arg(&written.file).output().context("tcpdump")?;
    let lines = String::from_utf8_lossy(&ran.stdout).lines().count();
    ensure!(ran.status.success() && lines == written.rows.len(), "{lines} lines: {ran:?}");
    Ok(())
}
