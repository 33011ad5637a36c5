//! `ringway forward`: what its options mean, and what keeps it from starting.

use anyhow::{Result, ensure};
use ringway_net_tests::{Site, needs_root, ringway};
use ringway_testnet::attach_pass;

/// Nothing is left behind.
fn is_clean() -> bool {
    !std::path::Path::new("/sys/fs/bpf/ringway/rw-forward").exists()
}

#[test]
fn unfit_options_are_named() -> Result<()> {
    needs_root!();
    let site = Site::new(1)?;
    let ns = &site.net.gateway;
    let refuses = |options: &[&str], words: &[&str]| -> Result<()> {
        let socket = ns.directory().join("forward.sock").display().to_string();
        let own = ["--name", "rw-forward", "--metrics", "off", "--socket", &socket];
        let ran = ringway(ns, &[&["forward"], options, &own].concat())?;
        ensure!(ran.code == 2, "{options:?}: {ran:?}");
        for word in words {
            ensure!(ran.err.contains(word), "{options:?}: {word:?} not in {}", ran.err);
        }
        ensure!(is_clean() && !std::path::Path::new(&socket).exists(), "something is left");
        Ok(())
    };
    refuses(&[], &["--interface <IFACE>"])?;
    refuses(&["-i", ""], &["--interface \"\" is not an interface name"])?;
    refuses(&["-i", "eth0"], &["a bridge takes two or more", "with --route one is enough"])?;
    refuses(&["-i", "eth0,eth1", "-i", "eth0"], &["--interface \"eth0\" is there twice"])?;
    refuses(&["-i", "eth0,eth9"], &["\"eth9\" in this network namespace", "name one of: "])?;
    refuses(&["-i", "eth8,eth9"], &["none of these interfaces is here"])?;
    refuses(&["-i", "lo", "--route"], &["lo is neither Ethernet nor"])?;
    refuses(&["-i", "eth0,eth1", "--xdp-mode", "fast"], &["invalid value 'fast'", "generic"])
}

#[test]
fn another_program_is_told_without_keys_of_a_file() -> Result<()> {
    needs_root!();
    let site = Site::new(1)?;
    let ns = &site.net.gateway;
    attach_pass(ns, "eth1")?;
    let options = ["--route", "--name", "rw-forward", "--metrics", "off"];
    let ran = ringway(ns, &[&["forward", "-i", "eth1"][..], &options].concat())?;
    ensure!(ran.code != 0 && ran.err.contains("ip link set dev eth1 xdp off"), "{ran:?}");
    ensure!(!ran.err.contains("on_pass") && is_clean(), "{ran:?}");
    Ok(())
}
