//! `ringway nic`: NICs, and the roads that they can take.

use clap::{Args, Subcommand};

use super::OutputArgs;

/// `ringway nic`
#[derive(Debug, Args)]
pub struct NicArgs {
    #[command(subcommand)]
    pub action: NicAction,
}

/// What to do with NICs.
#[derive(Debug, Subcommand)]
pub enum NicAction {
    /// List them: driver, interface, queues, NUMA node, IOMMU group, link, and for which ports of
    /// the engine each is ready.
    #[command(
        after_help = "Reads sysfs and netlink, and changes nothing. An interface in another network namespace is not seen: run it there.\n\n\
        Examples:\n  ringway nic list\n  ringway nic list -o json"
    )]
    List(OutputArgs),
    /// Give NICs to vfio-pci, so that programs drive them with DPDK, now and after each reboot.
    #[command(
        after_help = "The kernel loses the NIC, with its interface, addresses and routes. It is recorded in /var/lib/ringway-nics, and \
        ringway-nics.service binds it again at each boot, before the network is configured; another card in its place is left alone. Several \
        NICs are bound all or none. What fails is undone.\n\nRefused: the default route's NIC; a NIC that shares its IOMMU group with a \
        device that is not named, too; without an IOMMU. Without --force also an interface that has addresses, an XDP program, or \
        bridges, bonds and VLANs made of it.\n\nExit code 2 when there is no such NIC, 1 when it is refused or fails, 3 when it is bound and \
        will not be after a reboot.\n\nExamples:\n  ringway nic bind 0000:01:00.0\n  ringway nic bind eth1 eth2 --force\n  ringway nic bind --recorded"
    )]
    Bind(BindArgs),
    /// Give NICs back to the kernel's drivers that they had.
    #[command(
        after_help = "Also after a bind that was interrupted. Without a record, as of a NIC that another tool has bound, the kernel takes the \
        driver that fits. The interface comes back without addresses: whatever configures the network gives it some.\n\nRefused while a \
        program has the NIC.\n\nExamples:\n  ringway nic unbind 0000:01:00.0\n  ringway nic unbind 01:00.0 02:00.0"
    )]
    Unbind(UnbindArgs),
}

/// `ringway nic bind`
#[derive(Debug, Args)]
pub struct BindArgs {
    /// PCI addresses ([DOMAIN:]BUS:DEVICE.FUNCTION), or names of interfaces.
    #[arg(value_name = "NIC", required_unless_present = "recorded")]
    pub nics: Vec<String>,
    /// Take NICs whose interfaces are in use, too.
    #[arg(long)]
    pub force: bool,
    /// Bind again what was bound before, as ringway-nics.service does at boot.
    #[arg(long, conflicts_with_all = ["nics", "force"])]
    pub recorded: bool,
}

/// `ringway nic unbind`
#[derive(Debug, Args)]
pub struct UnbindArgs {
    /// PCI addresses.
    #[arg(value_name = "PCI", required = true)]
    pub nics: Vec<String>,
}
