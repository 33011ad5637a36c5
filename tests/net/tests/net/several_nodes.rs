//! Nodes of one machine in several network namespaces: the one that a command is for which names
//! none.

use std::fs::{self, File};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;

use anyhow::{Result, ensure};
use ringway_net_tests::{Ran, SOON, STARTED, binary, needs_root};
use ringway_testnet::{Child, Namespace, wait_for};
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_bind_recursive, mount_change};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};

/// Mounts with a bpffs and a /run of their own, where nodes of other tests are not seen.
struct Machine(Arc<OwnedFd>);

impl Machine {
    /// Namespaces that are made later have no name in it.
    fn new() -> Result<Machine> {
        let make = || -> Result<OwnedFd> {
            // SAFETY: the mounts of this thread change alone; no descriptor table and no memory is
            // unshared.
            unsafe { unshare_unsafe(UnshareFlags::NEWNS) }?;
            mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
            mount("bpf", "/sys/fs/bpf", "bpf", MountFlags::empty(), c"mode=0700")?;
            let run = File::open("/run")?;
            mount("tmpfs", "/run", "tmpfs", MountFlags::empty(), c"mode=0755")?;
            fs::create_dir("/run/ringway")?;
            for shared in ["netns", "ringway-testnet"] {
                let to = format!("/run/{shared}");
                fs::create_dir(&to)?;
                mount_bind_recursive(format!("/proc/self/fd/{}/{shared}", run.as_raw_fd()), to)?;
            }
            Ok(File::open("/proc/thread-self/ns/mnt")?.into())
        };
        let made = std::thread::spawn(make).join();
        Ok(Machine(Arc::new(made.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?)))
    }

    fn command(&self, namespace: &Namespace, words: &[&str]) -> Command {
        let mut command = namespace.command(words[0]);
        let mounts = Arc::clone(&self.0);
        let enter =
            move || Ok(move_into_link_name_space(mounts.as_fd(), Some(LinkNameSpaceType::Mount))?);
        // SAFETY: between fork and exec only a system call is made: no allocation, no lock.
        unsafe { command.pre_exec(enter) };
        command.args(&words[1..]).env_remove("NOTIFY_SOCKET");
        command
    }

    fn run(&self, namespace: &Namespace, words: &[&str]) -> Result<Ran> {
        Ok(self.command(namespace, words).output()?.into())
    }

    /// `ringway ARGUMENTS`.
    fn ringway(&self, namespace: &Namespace, arguments: &[&str]) -> Result<Ran> {
        let binary = binary()?;
        self.run(namespace, &[&[&*binary.to_string_lossy()], arguments].concat())
    }

    /// `ringway ARGUMENTS`, until it has answered like this: a daemon of a busy machine may miss the
    /// half second that a bare command waits for it.
    fn answers(
        &self,
        namespace: &Namespace,
        arguments: &[&str],
        fits: impl Fn(&Ran) -> bool,
    ) -> Result<Ran> {
        let ask = || match self.ringway(namespace, arguments) {
            Ok(ran) if fits(&ran) => Ok(ran),
            other => Err(format!("{other:?}")),
        };
        Ok(wait_for(format!("the answer to {arguments:?}"), SOON, ask)?)
    }

    /// A command as a user is told it, for the shell.
    fn told(&self, namespace: &Namespace, command: &str) -> Result<Ran> {
        let binary = binary()?;
        let command = command.replacen("ringway ", &format!("{} ", binary.display()), 1);
        self.run(namespace, &["sh", "-c", &command])
    }

    /// `ringway forward` between a namespace's interfaces, serving; `before`: words before it.
    fn forward(&self, namespace: &Namespace, before: &[&str], options: &[&str]) -> Result<Child> {
        let binary = binary()?;
        let binary = binary.to_string_lossy();
        let own = [&*binary, "forward", "--route", "--metrics", "off"];
        let command = self.command(namespace, &[before, &own, options].concat());
        let mut child = namespace.spawn(command)?;
        child.wait_for_log("serving: ", STARTED)?;
        Ok(child)
    }

    /// Waits until a bare `ringway status` shows the node whose first interface this is.
    fn shows(&self, namespace: &Namespace, iface: &str) -> Result<()> {
        let is =
            |ran: &Ran| ran.json().is_ok_and(|status| status["interfaces"][0]["name"] == iface);
        self.answers(namespace, &["status", "-o", "json"], is).map(drop)
    }
}

/// A router with interfaces NAME0 and NAME1, and lone ones for another node.
fn router(name: &str) -> Result<Namespace> {
    let namespace = Namespace::new(name)?;
    namespace.sysctl("net.ipv4.ip_forward", "1")?;
    for number in 0..4 {
        let iface = format!("{name}{number}");
        namespace.ip(&format!(
            "link add {iface} type veth peer name p{number}\naddress add 10.{number}.0.1/24 dev {iface}\n\
             link set {iface} up\nlink set p{number} up\n"
        ))?;
    }
    Ok(namespace)
}

/// What an error says of a node, and what is to be written for it.
fn line(node: &str, place: &str, command: &str) -> String {
    format!("\n  {node}, of {place}: {command}\n")
}

fn enter(namespace: &Namespace) -> String {
    format!("nsenter --net={}", namespace.path().display())
}

fn place(namespace: &Namespace) -> String {
    format!("network namespace {}", namespace.name())
}

#[test]
fn a_bare_command_is_for_the_node_of_its_namespace() -> Result<()> {
    needs_root!();
    let (a, b, neither) = (router("a")?, router("b")?, Namespace::new("neither")?);
    let machine = Machine::new()?;
    machine.ringway(&a, &["status"])?.complains(3, &["nothing of Ringway is loaded"])?;

    // One, which is looked at from anywhere, and given orders from its own namespace alone.
    let mut first = machine.forward(&a, &[], &["-i", "a0,a1", "--name", "gw-a"])?;
    for namespace in [&a, &b, &neither] {
        machine.shows(namespace, "a0")?;
        let told = machine.ringway(namespace, &["status"])?.out.contains("no node was named");
        ensure!(told == (namespace.name() != a.name()), "{}", namespace.name());
    }
    for order in ["detach", "confirm"] {
        let ran = machine.ringway(&b, &[order])?;
        let way = format!("`{} ringway status`", enter(&a));
        ensure!(ran.code == 2 && ran.err.contains("nothing was done"), "{ran:?}");
        ensure!(ran.err.contains(&way) && ran.err.contains("--node gw-a"), "{ran:?}");
    }

    // One in each of two namespaces.
    let socket = |name: &str| b.directory().join(name).display().to_string();
    let options = ["-i", "b0,b1", "--name", "gw-b", "--socket", &socket("b.sock")];
    let mut second = machine.forward(&b, &[], &options)?;
    machine.shows(&a, "a0")?;
    machine.shows(&b, "b0")?;
    let flows = |namespace| machine.ringway(namespace, &["flows"]);
    ensure!(flows(&a)?.code == 0 && flows(&b)?.code == 0);
    let elsewhere = |name: &str, namespace: &Namespace| {
        let command = format!("{} ringway status --node {name}", enter(namespace));
        line(name, &place(namespace), &command)
    };
    for command in ["status", "flows", "detach", "confirm"] {
        let ran = machine.ringway(&neither, &[command])?;
        let both = elsewhere("gw-a", &a) + &elsewhere("gw-b", &b)[1..];
        ensure!(ran.code == 2 && ran.err.contains(&both), "{command}: {ran:?}");
    }

    // Two in one.
    let options = ["-i", "b2,b3", "--name", "lab", "--socket", &socket("lab.sock")];
    let mut third = machine.forward(&b, &[], &options)?;
    machine.shows(&a, "a0")?;
    let ran = machine.ringway(&b, &["status"])?;
    for node in ["gw-b", "lab"] {
        let command = format!("ringway status --node {node}");
        let told = line(node, "this network namespace", &command);
        ensure!(ran.code == 2 && ran.err.contains(&told), "{ran:?}");
        ensure!(machine.told(&b, &command)?.out.starts_with(&format!("node {node}: ")));
    }
    ensure!(ran.err.contains(&elsewhere("gw-a", &a)), "{ran:?}");

    // Without daemons they are told by what is attached.
    for child in [&mut first, &mut second, &mut third] {
        child.kill()?;
    }
    machine.shows(&a, "a0")?;
    let ran = machine.ringway(&neither, &["status"])?;
    let all = elsewhere("gw-a", &a) + &elsewhere("gw-b", &b)[1..] + &elsewhere("lab", &b)[1..];
    ensure!(ran.code == 2 && ran.err.contains(&all), "{ran:?}");
    let ran = machine.told(&neither, &format!("{} ringway status --node gw-b", enter(&b)))?;
    ensure!(ran.out.contains("\nnode gw-b; "), "{ran:?}");
    machine.ringway(&a, &["detach", "--verify"])?.says(0, &["program on a0"])?;
    ensure!(machine.ringway(&b, &["detach", "--node", "lab"])?.code == 0);
    machine.ringway(&a, &["detach"])?.complains(2, &["nothing was done"])?;
    ensure!(machine.ringway(&b, &["detach"])?.out.contains("program on b0"));
    Ok(())
}

fn exec(namespace: &Namespace) -> [&str; 4] {
    ["ip", "netns", "exec", namespace.name()]
}

/// Their pins are their own, and their names may be the same.
#[test]
fn nodes_under_ip_netns_exec_are_found_by_their_sockets() -> Result<()> {
    needs_root!();
    let (a, b, neither) = (router("a")?, router("b")?, Namespace::new("neither")?);
    let machine = Machine::new()?;
    let (exec_a, exec_b) = (exec(&a), exec(&b));
    let binary = binary()?;
    let binary = binary.to_string_lossy();
    let start = |namespace, before: &[&str], interfaces, socket| {
        let options = ["-i", interfaces, "--socket", socket];
        machine.forward(namespace, before, &options)
    };
    let first = start(&a, &exec_a, "a0,a1", "/run/ringway/api.sock")?;
    ensure!(first.log().contains("nsenter --net=/run/netns/"), "{}", first.log());
    let _second = start(&b, &exec_b, "b0,b1", "/run/ringway/other.sock")?;
    for (namespace, before, iface) in [(&a, &exec_a, "a0"), (&b, &exec_b, "b0")] {
        machine.shows(namespace, iface)?;
        let asked = [&before[..], &[&*binary, "status", "-o", "json"]].concat();
        wait_for(iface, SOON, || {
            let status = machine.run(&neither, &asked).and_then(|ran| ran.json());
            let status = status.map_err(|error| format!("{error:#}"))?;
            let is = status["interfaces"][0]["name"] == iface;
            if is { Ok(()) } else { Err(status.to_string()) }
        })?;
    }
    let command = |namespace| format!("{} ringway status", enter(namespace));
    let told = |namespace| line("forward", &place(namespace), &command(namespace));
    let both = |ran: &Ran| [&a, &b].iter().all(|namespace| ran.err.contains(&told(namespace)));
    machine.answers(&neither, &["status"], both)?;
    for (namespace, iface) in [(&a, "a0"), (&b, "b0")] {
        wait_for(iface, SOON, || match machine.told(&neither, &command(namespace)) {
            Ok(ran) if ran.out.contains(iface) => Ok(()),
            other => Err(format!("{other:?}")),
        })?;
    }
    // What is read of the pins is not to be had but with the daemon's mounts.
    for (command, code) in [("flows", 0), ("detach", 1)] {
        let way = format!("nsenter -t {} -m -n ringway", first.pid());
        machine.answers(&a, &[command], |ran| ran.code == 1 && ran.err.contains(&way))?;
        let there = machine.told(&neither, &format!("{way} {command}"))?;
        ensure!(there.code == code && !there.err.contains("cannot be seen"), "{there:?}");
    }
    Ok(())
}

/// The user of a daemon that was taken over: /run/ringway is theirs.
const ATTACKER: &str = "62114";
const ROOT: &str = "0";

/// Answers as the node NODE at SOCKET, where it listens as one user and goes on as another. Once it
/// has answered, the socket OTHER is there instead, if one is given.
const ANSWERS: &str = r#"
use IO::Socket::UNIX;
my ($socket, $node, $listens, $goes_on, $other) = @ARGV;
$> = $listens;
my $listener = IO::Socket::UNIX->new(Local => $socket, Listen => 9) or die "$socket: $!";
$> = $<;
($<, $>) = ($goes_on, $goes_on);
$| = 1;
print "listening\n";
while (my $client = $listener->accept) {
    while (<$client>) { last if $_ eq "\r\n" }
    print $client qq(HTTP/1.1 200 OK\r\n\r\n{"schema": "ringway.ready/1", "node": "$node", )
        . qq("ready": true, "reasons": []});
    symlink $other, "$socket.next" and rename "$socket.next", $socket if $other;
}
"#;

/// With an attacker's mounts, root would run the attacker's `ringway`.
#[test]
fn root_is_told_to_enter_the_mounts_of_root_alone() -> Result<()> {
    needs_root!();
    let (a, b) = (router("a")?, router("b")?);
    let machine = Machine::new()?;
    ensure!(machine.run(&a, &["chown", ATTACKER, "/run/ringway"])?.code == 0);
    let attack = |before: &[&str], socket: &str, words: &[&str]| -> Result<Child> {
        let socket = format!("/run/ringway/{socket}.sock");
        let command = [&exec(&b), before, &["perl", "-e", ANSWERS, &socket], words].concat();
        let mut child = b.spawn(machine.command(&b, &command))?;
        child.wait_for_log("listening", SOON)?;
        Ok(child)
    };
    let told = |node: &str| -> Result<String> {
        Ok(machine.ringway(&a, &["flows", "--node", node])?.said())
    };
    let daemon = machine.forward(&a, &exec(&a), &["-i", "a0,a1", "--name", "gw"])?;
    let way = format!("nsenter -t {} -m -n ringway", daemon.pid());

    let _plain = attack(&[], "b", &["plain", ATTACKER, ATTACKER])?;
    // As a user without rights gets mounts of its own.
    let user = format!("--reuid={ATTACKER}");
    let mounts = ["setpriv", &user, "unshare", "--user", "--map-root-user", "--mount"];
    let _seems = attack(&mounts, "c", &["seems-root", ROOT, ROOT])?;
    // As if it went on as a program that is root's by its set-user-ID bit.
    let _becomes = attack(&[], "d", &["becomes-root", ATTACKER, ROOT])?;
    // As if it had the number of a process of root's that has ended.
    let _was = attack(&[], "e", &["was-root", ROOT, ATTACKER])?;
    // Its socket comes before that of the node whose name it has.
    let _same = attack(&[], "a", &["gw", ATTACKER, ATTACKER])?;
    for node in ["plain", "seems-root", "becomes-root", "was-root"] {
        let said = told(node)?;
        ensure!(!said.contains(" -m"), "{node}: {said}");
    }
    machine.answers(&a, &["flows", "--node", "gw"], |ran| ran.said().contains(&way))?;

    // Its name is a command.
    let name = r"x;id\n  gw: nsenter -t 1 -m -n ringway";
    let _named = attack(&[], "f", &[name, ATTACKER, ATTACKER])?;
    let neither = Namespace::new("neither")?;
    let all = |ran: &Ran| ran.said().contains("\n  plain, of network namespace ");
    let said = machine.answers(&neither, &["status"], all)?.said();
    ensure!(!said.contains(" -m") && !said.contains("x;id"), "{said}");

    // Who has answered is not who listens there now.
    let other = "/run/ringway/api.sock";
    let _swaps = attack(&[], "g", &["swaps", ATTACKER, ATTACKER, other])?;
    let said = told("swaps")?;
    ensure!(!said.contains(" -m"), "{said}");
    Ok(())
}
