//! The guest's NICs: those under test in the guest's first namespace, and behind each a far end in
//! one of its own.
//!
//! ```text
//!                 gateway              10.N.0.1, fd0N::1
//!   igb0 igb1   virtio0   vmxnet0  ...
//!      \ /         |         |         hub N, made by packaging/test-drivers
//!     eth0       eth0      eth0        10.N.0.2, fd0N::2; default route by the gateway
//!     far 1      far 2     far 4
//! ```
//! Hubs and roles are in the MAC addresses: 02:00:00:00:0N:01 is under test, :02 is the far end,
//! :03 a second NIC of the same driver, :04 the device whose virtual function is under test.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use ringway_driver_tests::{CELLS, Cell, expected, kernel_of};
use ringway_host::ethtool::Ethtool;
use ringway_host::netlink::links::{self, Link};
use ringway_net_tests::not_tested;
use ringway_testnet::{Namespace, wait_for, wait_until};
use ringway_xsk::XdpMode;

/// Of a real processor; a device may take three seconds to have its link again. Waits are six times
/// as long in a guest.
pub const SOON: Duration = Duration::from_secs(10);

pub struct Bench {
    pub gateway: Namespace,
    pub nics: Vec<Nic>,
    /// "6.18.15+deb13-amd64".
    pub release: String,
    /// For a run that has no time.
    pub quick: bool,
    seen: Mutex<BTreeMap<(String, usize), String>>,
}

/// A NIC under test.
pub struct Nic {
    /// Its row of the table: the driver; `virtio-net-mq` has several queues.
    pub row: String,
    /// The driver, as ethtool names it.
    pub driver: String,
    pub name: String,
    pub hub: u8,
    pub far: Namespace,
}

impl Bench {
    /// Moves and addresses what the guest has. `None`: this is no guest of packaging/test-drivers.
    pub fn find(quick: bool) -> Result<Option<Bench>> {
        // Nobody else's devices are touched.
        if std::env::var_os("RINGWAY_GUEST").is_none() {
            return Ok(None);
        }
        let devices: Vec<(Link, u8, u8)> = links::all()?.into_iter().filter_map(placed).collect();
        let release = fs::read_to_string("/proc/sys/kernel/osrelease")?.trim().to_owned();
        let gateway = Namespace::own("gw")?;
        for (key, value) in [
            ("net/ipv4/ip_forward", "1"),
            ("net/ipv6/conf/all/forwarding", "1"),
            ("net/ipv4/conf/all/rp_filter", "0"),
            ("net/ipv4/conf/default/rp_filter", "0"),
        ] {
            gateway.sysctl(key, value)?;
        }
        let mut bench = Bench { gateway, nics: Vec::new(), release, quick, seen: Mutex::default() };
        for (link, hub, role) in &devices {
            match role {
                1 => bench.add(link, *hub, &devices)?,
                3 => ip(&format!("link set {} down name second{hub}", link.name))?,
                4 => match virtual_function(&link.name) {
                    Ok(name) => bench.add(&links::by_name(&name)?, *hub, &devices)?,
                    // QEMU 10.0 brings no message of a virtual function to its device.
                    Err(error) => not_tested(format_args!("igbvf: {error:#}")),
                },
                _ => {}
            }
        }
        Ok(Some(bench))
    }

    /// A NIC to be tested, and its far end.
    fn add(&mut self, link: &Link, hub: u8, all: &[(Link, u8, u8)]) -> Result<()> {
        let ethtool = Ethtool::open()?;
        let driver = ethtool.driver(&link.name)?.context("no driver")?.name;
        let several = ethtool.channels(&link.name)?.is_some_and(|channels| channels.max_rx > 1);
        let row = match (&*driver, several) {
            ("virtio_net", true) => "virtio-net-mq".to_owned(),
            ("virtio_net", false) => "virtio-net".to_owned(),
            _ => driver.clone(),
        };
        let name = format!("{}{hub}", row.replace('-', ""));
        let far = Namespace::new(&format!("far{hub}"))?;
        let (end, ..) =
            all.iter().find(|(_, h, role)| (*h, *role) == (hub, 2)).context("no far end")?;
        ip(&format!("link set {} netns {} name eth0", end.name, far.name()))?;
        ip(&format!("link set {} down name {name}", link.name))?;
        // Nothing sends longer packets than the interface's, and nobody else finishes checksums.
        let off = far
            .command("ethtool")
            .args(["-K", "eth0", "tx", "off", "tso", "off", "gso", "off"])
            .output()?;
        ensure!(off.status.success(), "{}", String::from_utf8_lossy(&off.stderr));
        far.ip(&format!(
            "addr add 10.{hub}.0.2/24 dev eth0\naddr add fd0{hub}::2/64 dev eth0 nodad\nlink set eth0 up\n\
             route add default via 10.{hub}.0.1\nroute add default via fd0{hub}::1\n"
        ))?;
        self.gateway.ip(&format!(
            "addr add 10.{hub}.0.1/24 dev {name}\naddr add fd0{hub}::1/64 dev {name} nodad\nlink set {name} up\n"
        ))?;
        let nic = Nic { row, driver, name, hub, far };
        if nic.driver == "igb" {
            // By their ports, too: its key is random, and one in 32 puts neighbours into one queue.
            nic.ethtool(&["-N", "rx-flow-hash", "udp4", "sdfn"])?;
        }
        self.nics.push(nic);
        Ok(())
    }

    pub fn nic(&self, row: &str) -> Option<&Nic> {
        self.nics.iter().find(|nic| nic.row == row)
    }

    pub fn kernel(&self) -> &str {
        kernel_of(&self.release)
    }

    pub fn expected(&self, nic: &Nic, cell: Cell) -> Result<&'static str> {
        expected(&nic.row, self.kernel(), cell)
            .with_context(|| format!("no row for {} on {}", nic.row, self.kernel()))
    }

    pub fn has(&self, nic: &Nic, cell: Cell) -> bool {
        self.expected(nic, cell).is_ok_and(|word| word == "yes")
    }

    /// Native where the driver has it.
    pub fn xdp_mode(&self, nic: &Nic) -> XdpMode {
        if self.has(nic, Cell::Native) { XdpMode::Native } else { XdpMode::Generic }
    }

    /// Compares a cell with the table.
    ///
    /// # Errors
    /// It differs.
    pub fn see(&self, nic: &Nic, cell: Cell, word: &str) -> Result<()> {
        self.seen
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert((nic.row.clone(), cell as usize), word.to_owned());
        let expected = self.expected(nic, cell)?;
        ensure!(
            word == expected,
            "{} on {}: {cell} is {word:?}, and the table (tests/drivers/src/expected.txt) says {expected:?}",
            nic.row,
            self.release
        );
        Ok(())
    }

    /// What was seen, a line for each NIC; `?`: not looked at, or it failed before.
    pub fn rows(&self) -> Vec<String> {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let cell = |row: &str, column| {
            seen.get(&(row.to_owned(), column)).map_or("?", String::as_str).to_owned()
        };
        let line = |nic: &Nic| {
            let cells: Vec<String> =
                (0..CELLS.len()).map(|column| cell(&nic.row, column)).collect();
            format!("| {} | {} | {} |", nic.row, self.release, cells.join(" | "))
        };
        self.nics.iter().map(line).collect()
    }
}

impl Nic {
    pub fn address(&self, host: u8) -> String {
        format!("10.{}.0.{host}", self.hub)
    }

    pub fn address6(&self, host: u8) -> String {
        format!("fd0{}::{host}", self.hub)
    }

    pub fn link(&self) -> Result<Link> {
        Ok(links::by_name(&self.name)?)
    }

    /// Waits for its link, which may have gone down for a program.
    pub fn wait_link(&self) -> Result<()> {
        wait_link(&self.name, SOON)
    }

    /// Waits for its link, and for a packet each way.
    pub fn wait_up(&self) -> Result<()> {
        self.wait_link()?;
        let pings = || {
            let said = pings(&self.far, &self.address(1), 56);
            if said { Ok(()) } else { Err("no answer") }
        };
        Ok(wait_for(format!("a ping to {}", self.name), SOON, pings)?)
    }

    /// Sets the MTU of both ends.
    pub fn set_mtu(&self, mtu: u32) -> Result<()> {
        self.far.ip(&format!("link set eth0 mtu {mtu}\n"))?;
        ip(&format!("link set {} mtu {mtu}", self.name))
    }

    /// How often it has lost its link.
    pub fn downs(&self) -> Result<u32> {
        downs(&self.name)
    }

    /// A program on virtio_net brings queues that receive and do not send, unless all are in use.
    pub fn use_all_queues(&self, all: bool) -> Result<()> {
        if self.row != "virtio-net-mq" {
            return Ok(());
        }
        self.ethtool(&["-L", "combined", if all { "4" } else { "2" }]).map(drop)
    }

    pub fn ethtool(&self, words: &[&str]) -> Result<String> {
        let mut words = words.to_vec();
        words.insert(1, &self.name);
        let ran = Command::new("ethtool").args(&words).output()?;
        let said = String::from_utf8_lossy(&[ran.stdout, ran.stderr].concat()).into_owned();
        ensure!(ran.status.success(), "ethtool {words:?}: {said}");
        Ok(said)
    }
}

/// How often an interface has lost its link.
pub fn downs(name: &str) -> Result<u32> {
    let text = fs::read_to_string(format!("/sys/class/net/{name}/carrier_down_count"))?;
    Ok(text.trim().parse()?)
}

pub fn wait_link(name: &str, within: Duration) -> Result<()> {
    let ready = || links::by_name(name).is_ok_and(|link| link.carrier);
    Ok(wait_until(format!("the link of {name}"), within, ready)?)
}

pub fn pings(from: &Namespace, to: &str, bytes: u32) -> bool {
    let size = bytes.to_string();
    let ping = from.command("ping").args(["-c1", "-W5", "-M", "do", "-s", &size, to]).output();
    ping.is_ok_and(|ping| ping.status.success())
}

/// In the first namespace.
pub fn ip(words: &str) -> Result<()> {
    let ran = Command::new("ip").args(words.split(' ')).output()?;
    if ran.status.success() {
        return Ok(());
    }
    bail!("ip {words}: {}", String::from_utf8_lossy(&ran.stderr))
}

/// A device with its hub and role.
fn placed(link: Link) -> Option<(Link, u8, u8)> {
    match link.mac?.0 {
        [2, 0, 0, 0, hub, role] => Some((link, hub, role)),
        _ => None,
    }
}

/// Makes a virtual function of a device that is up, and returns its name.
fn virtual_function(physical: &str) -> Result<String> {
    ip(&format!("link set {physical} up"))?;
    let device = format!("/sys/class/net/{physical}/device");
    wait_link(physical, SOON)?;
    fs::write(format!("{device}/sriov_numvfs"), "1").context("making a virtual function")?;
    let name = || -> Option<String> {
        let entry = fs::read_dir(format!("{device}/virtfn0/net")).ok()?.next()?.ok()?;
        Some(entry.file_name().to_string_lossy().into_owned())
    };
    wait_until("a virtual function's interface", SOON, || name().is_some())?;
    let name = name().context("it has gone")?;
    // The device resets for its functions, and igbvf has no link until it is opened again after that.
    wait_link(physical, SOON)?;
    for state in ["up", "down", "up"] {
        ip(&format!("link set {name} {state}"))?;
    }
    wait_link(&name, SOON / 5)?;
    Ok(name)
}
