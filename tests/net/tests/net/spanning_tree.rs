//! Forwarding beside three Linux bridges in a loop, which the kernel's spanning tree cuts.

use anyhow::{Context, Result, ensure};
use ringway_host::Mac;
use ringway_net_tests::{Gateway, SOON, configuration, needs_root, packets, tool};
use ringway_testnet::{
    End, Namespace, VethOptions, XdpReceive, bridge, veth, wait_for, wait_until,
};

/// Hundredths of a second. The forward delay is the shortest there is; entries live as long as
/// during a topology change, twice that.
const TIMERS: &str = "forward_delay 200 hello_time 100 max_age 600 ageing_time 400";
/// `10.7.0.1` to `10.7.0.3`, each behind p0 of a switch. The first switch is the root; the third
/// blocks its port to the second:
///
/// ```text
///   sw1 p1 ---- p2 sw2 p1 --|-- p2 sw3 p1 ---- p2 sw1
/// ```
struct Ring {
    switches: Vec<Namespace>,
    hosts: Vec<Namespace>,
}

impl Ring {
    fn new() -> Result<Ring> {
        let mut ring = Ring { switches: Vec::new(), hosts: Vec::new() };
        for n in 1..=3 {
            let (switch, host) =
                (Namespace::new(&format!("sw{n}"))?, Namespace::new(&format!("h{n}"))?);
            bridge(&switch, "br0", &[])?;
            let priority = u16::from(n) * 4096;
            switch.ip(&format!(
                "link set br0 type bridge stp_state 1 priority {priority} {TIMERS}\n"
            ))?;
            let end = End::new(&host, "eth0").mac(mac(n)).address(format!("10.7.0.{n}/24"));
            connect(&end.xdp_receive(XdpReceive::Pass), &End::new(&switch, "p0"))?;
            // A host that is not asked anything says nothing.
            for other in (1..=3).filter(|other| *other != n) {
                let mac = mac(other);
                host.ip(&format!(
                    "neigh add 10.7.0.{other} lladdr {mac} dev eth0 nud permanent\n"
                ))?;
            }
            ring.switches.push(switch);
            ring.hosts.push(host);
        }
        for n in 0..3 {
            let next = &ring.switches[(n + 1) % 3];
            connect(&End::new(&ring.switches[n], "p1").port_of("br0"), &End::new(next, "p2"))?;
        }
        Ok(ring)
    }

    /// `ringway` on all ports of all switches.
    fn start(&self) -> Result<Vec<Gateway>> {
        let launch = |switch: &Namespace| {
            let text = configuration(switch, &["p0", "p1", "p2"], "[forward]\nmode = \"bridge\"\n");
            Gateway::launch(switch, &text)
        };
        let mut gateways = self.switches.iter().map(launch).collect::<Result<Vec<_>>>()?;
        gateways.iter_mut().try_for_each(Gateway::wait_healthy)?;
        Ok(gateways)
    }

    fn run(&self, switch: usize, program: &str, arguments: &str) -> Result<String> {
        let arguments: Vec<&str> = arguments.split(' ').collect();
        Ok(tool(&self.switches[switch - 1], program, &arguments)?.done()?.out)
    }

    /// What spanning tree has the third switch do with its port to the second.
    fn spare(&self) -> Result<String> {
        let shown = self.run(3, "bridge", "link show dev p2")?;
        let state = shown.split(' ').skip_while(|word| *word != "state").nth(1);
        Ok(state.context("no state")?.to_owned())
    }

    /// What `ping` says after so many of them, 0.05 s apart, with or without an answer.
    fn ping(&self, from: usize, to: &str, count: u32) -> Result<String> {
        let count = count.to_string();
        let words = ["-n", "-b", "-q", "-i", "0.05", "-W", "1", "-c", &count, to];
        Ok(tool(&self.hosts[from - 1], "ping", &words)?.said())
    }

    /// ICMP messages that have come to a host.
    fn came(&self, host: usize) -> Result<u64> {
        let read = || std::fs::read_to_string("/proc/thread-self/net/snmp");
        let snmp = self.hosts[host - 1].run(read)??;
        let messages = snmp.lines().rfind(|line| line.starts_with("Icmp: "));
        let messages = messages.and_then(|line| line.split(' ').nth(1)?.parse().ok());
        messages.context(snmp)
    }

    fn answered(&self, from: usize, to: usize) -> Result<bool> {
        Ok(self.ping(from, &format!("10.7.0.{to}"), 1)?.contains(" 1 received"))
    }

    /// `count` messages come to a host, each of them once.
    fn come_once(&self, from: usize, to: &str, host: usize, count: u32) -> Result<()> {
        let before = self.came(host)?;
        let said = self.ping(from, to, count)?;
        let came = self.came(host)? - before;
        ensure!(came == u64::from(count), "{came} came to {host}: {said}");
        Ok(())
    }

    /// Two hosts reach each other, past the kernel at these switches; nothing comes twice.
    fn works(&self, [a, b]: [usize; 2], gateways: &[&Gateway]) -> Result<()> {
        let bridged = || -> Result<Vec<u64>> { gateways.iter().map(|of| bridged(of)).collect() };
        let (to_a, to_b) = (format!("10.7.0.{a}"), format!("10.7.0.{b}"));
        wait_until("the packet paths", SOON, || {
            let of_ten = || -> Result<bool> {
                let before = bridged()?;
                self.ping(a, &to_b, 5)?;
                Ok(before.iter().zip(bridged()?).all(|(before, after)| after >= before + 10))
            };
            of_ten().is_ok_and(|all| all)
        })?;
        self.come_once(a, &to_b, b, 20)?;
        self.come_once(b, &to_a, a, 20)?;
        self.come_once(a, "10.7.0.255", b, 20)
    }

    /// Until the second host reaches the third, and the spare port is in this state. If that is the
    /// only way, nothing comes before; and nothing comes twice.
    fn wait_reached(&self, what: &str, spare: &str) -> Result<()> {
        let (before, mut sent, mut early) = (self.came(3)?, 0, None);
        wait_for(what, SOON, || {
            sent += 1;
            let seen = || Ok((self.spare()?, self.answered(2, 3)?, self.spare()?));
            let (before, answered, state) =
                seen().map_err(|error: anyhow::Error| format!("{error:#}"))?;
            if answered && before == spare && state == spare {
                return Ok(());
            }
            if answered && spare == "forwarding" && state != spare {
                early = Some(state.clone());
            }
            Err(format!("answered: {answered}, and the spare port is {state}"))
        })?;
        let came = self.came(3)? - before;
        ensure!(early.is_none(), "it was {early:?}, and something came");
        ensure!(came <= sent, "{came} came of {sent}");
        Ok(())
    }
}

fn mac(host: u8) -> Mac {
    Mac([2, 9, 0, 0, 0, host])
}

fn connect(near: &End, far: &End) -> Result<()> {
    veth(near, &far.clone().port_of("br0"), &VethOptions::default())?;
    Ok(())
}

fn bridged(gateway: &Gateway) -> Result<u64> {
    Ok(packets(&gateway.status()?, "bridged"))
}

mod long {
    use super::*;

    /// The tree, another one when a link is cut, and the first again.
    #[test]
    fn frames_go_where_the_tree_lets_them() -> Result<()> {
        needs_root!();
        let ring = Ring::new()?;
        let gateways = ring.start()?;
        let [first, second, third] = gateways.as_slice() else { unreachable!() };
        ring.wait_reached("the tree", "blocking")?;
        ring.works([2, 3], &[first, second, third])?;

        // Entries that somebody sets lead through the port that is blocked: nothing does.
        let by_hand = |change: &str| {
            ring.run(2, "bridge", &format!("fdb {change} {} dev p1 master static", mac(3)))?;
            ring.run(3, "bridge", &format!("fdb {change} {} dev p2 master static", mac(2)))
        };
        by_hand("replace")?;
        wait_until("the entries", SOON, || ring.answered(2, 3).is_ok_and(|answered| !answered))?;
        let (sent, came) = (bridged(second)?, (ring.came(2)?, ring.came(3)?));
        ring.ping(2, "10.7.0.3", 5)?;
        ring.ping(3, "10.7.0.2", 5)?;
        ensure!(bridged(second)? >= sent + 5, "not by the packet path");
        ensure!((ring.came(2)?, ring.came(3)?) == came, "through a port that is blocked");
        third.wait_status("a port that is left out", |status| {
            let port = &status["forward"]["interfaces"][2];
            port["forwards"] == false && port["reason"].to_string().contains("blocking")
        })?;
        by_hand("del")?;
        ring.wait_reached("the tree, without these entries", "blocking")?;

        ring.run(1, "ip", "link set p2 down")?;
        ring.wait_reached("a tree without the link", "forwarding")?;
        ring.works([2, 3], &[second, third])?;
        ring.works([1, 3], &[first, second, third])?;

        ring.run(1, "ip", "link set p2 up")?;
        ring.wait_reached("the tree with the link", "blocking")?;
        ring.works([2, 3], &[first, second, third])?;
        ring.works([1, 3], &[first, third])
    }
}
