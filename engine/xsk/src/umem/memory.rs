//! Memory that lies in a file without a name (memfd_create(2)): the kernel and a successor of this
//! process can have it too. Asked for in large pages, and saying what was obtained instead and why.

use std::ffi::c_ulong;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::{fmt, fs, io};

use rustix::fs::{
    MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create,
};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};

/// How large a page is. The larger, the fewer entries of the CPU's TLB a pool of frames takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum PageSize {
    /// The machine's smallest pages: 4 KiB on x86-64.
    #[default]
    Base,
    /// 2 MiB; reserved by the administrator, as are those of 1 GiB.
    Huge2M,
    /// 1 GiB.
    Huge1G,
}

impl PageSize {
    /// Bytes of a page.
    pub fn bytes(self) -> usize {
        match self {
            PageSize::Base => rustix::param::page_size(),
            PageSize::Huge2M => 2 << 20,
            PageSize::Huge1G => 1 << 30,
        }
    }

    /// This size and those to be tried after it.
    fn and_smaller(self) -> impl Iterator<Item = PageSize> {
        [PageSize::Huge1G, PageSize::Huge2M, PageSize::Base].into_iter().filter(move |p| *p <= self)
    }

    fn flags(self) -> MemfdFlags {
        let own = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        match self {
            PageSize::Base => own,
            PageSize::Huge2M => own | MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB,
            PageSize::Huge1G => own | MemfdFlags::HUGETLB | MemfdFlags::HUGE_1GB,
        }
    }

    fn of_file(bytes: usize) -> Self {
        [PageSize::Huge1G, PageSize::Huge2M]
            .into_iter()
            .find(|p| p.bytes() == bytes)
            .unwrap_or(PageSize::Base)
    }
}

impl fmt::Display for PageSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PageSize::Base => write!(f, "{} KiB", self.bytes() >> 10),
            PageSize::Huge2M => f.write_str("2 MiB"),
            PageSize::Huge1G => f.write_str("1 GiB"),
        }
    }
}

/// The memory that was asked for and the memory that was obtained. Show it to the user: smaller
/// pages or a far node only cost speed, but nobody should have to guess.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Obtained {
    /// Pages that were asked for.
    pub asked: PageSize,
    /// Pages that it lies in.
    pub pages: PageSize,
    /// Bytes of the mapping: what was needed, rounded up to whole pages.
    pub bytes: usize,
    /// NUMA node that was asked for.
    pub asked_node: Option<u32>,
    /// NUMA node of the first page, if the kernel says.
    pub node: Option<u32>,
    /// Why it differs: a sentence for each refusal, with the remedy.
    pub refusals: Vec<String>,
}

impl Obtained {
    /// Whether it is what was asked for.
    pub fn as_asked(&self) -> bool {
        self.refusals.is_empty()
    }
}

impl fmt::Display for Obtained {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} KiB in pages of {}", self.bytes >> 10, self.pages)?;
        if let Some(node) = self.node {
            write!(f, " on NUMA node {node}")?;
        }
        self.refusals.iter().try_for_each(|refusal| write!(f, "; {refusal}"))
    }
}

/// Checks that all of a file is there, and stays there. An access to what is not there ends this
/// process, or takes memory that whoever made the file has not paid for.
///
/// # Errors
/// Why not.
pub(crate) fn check_file(file: impl AsFd) -> Result<(), &'static str> {
    if !fcntl_get_seals(&file).is_ok_and(|seals| seals.contains(SealFlags::SHRINK)) {
        return Err("it can be cut short while it is in use (no F_SEAL_SHRINK)");
    }
    // Blocks are 512 bytes here whatever the file system has (stat(3type)).
    match fstat(file).is_ok_and(|stat| i128::from(stat.st_blocks) * 512 >= stat.st_size.into()) {
        true => Ok(()),
        false => Err("it has holes"),
    }
}

/// A shared mapping of an unnamed file; unmapped when dropped.
#[derive(Debug)]
pub(crate) struct Memory {
    base: NonNull<u8>,
    file: OwnedFd,
    obtained: Obtained,
}

// SAFETY: it is an address range and an open file; what lies there is reached by others' unsafe
// code, or atomically.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// At least `len` bytes, all zero, present, in pages of `pages` or smaller.
    pub(crate) fn new(len: usize, pages: PageSize, node: Option<u32>) -> io::Result<Self> {
        let mut refusals = Vec::new();
        let mut last = io::Error::from(io::ErrorKind::OutOfMemory);
        for size in pages.and_smaller() {
            match Self::in_pages(len, size, node) {
                Ok((mut memory, node_refusal)) => {
                    refusals.extend(node_refusal);
                    memory.obtained.asked = pages;
                    memory.obtained.refusals = refusals;
                    return Ok(memory);
                }
                Err(e) => {
                    refusals.push(refusal(len, size, &e));
                    last = e;
                }
            }
        }
        Err(last)
    }

    fn in_pages(
        len: usize,
        pages: PageSize,
        node: Option<u32>,
    ) -> io::Result<(Self, Option<String>)> {
        let len = len.next_multiple_of(pages.bytes());
        let file = memfd_create("ringway-umem", pages.flags())?;
        ftruncate(&file, len as u64)?;
        // Nobody can cut it short under those who have it mapped.
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let mut memory = Self::map(file, len, pages)?;
        let preferred = node.map(|node| prefer(memory.base, len, node));
        // Makes pages present, and fails where there are none, while MAP_POPULATE would leave that
        // to the first access. SAFETY: the range is the mapping's, and zero or not, it is nobody's
        // yet.
        unsafe { madvise(memory.base.as_ptr().cast(), len, Advice::LinuxPopulateWrite) }?;
        memory.obtained.asked_node = node;
        memory.obtained.node = node_of(memory.base).ok();
        let refusal = node_refusal(node, preferred, memory.obtained.node);
        Ok((memory, refusal))
    }

    /// The memory of another process, or of a predecessor.
    pub(crate) fn from_file(file: OwnedFd) -> io::Result<Self> {
        let stat = fstat(&file)?;
        let len = usize::try_from(stat.st_size).unwrap_or(0);
        let mut memory = Self::map(file, len, PageSize::of_file(stat.st_blksize as usize))?;
        // So that nobody waits for it later; where it cannot be had now, it is with the first
        // access. SAFETY: the range is the mapping's, and its pages stay as they are.
        let _ = unsafe { madvise(memory.base.as_ptr().cast(), len, Advice::LinuxPopulateWrite) };
        memory.obtained.node = node_of(memory.base).ok();
        Ok(memory)
    }

    /// The memory of another process, to be looked at: nothing can be written.
    pub(crate) fn read_only(file: OwnedFd) -> io::Result<Self> {
        let stat = fstat(&file)?;
        let len = usize::try_from(stat.st_size).unwrap_or(0);
        Self::map_for(file, len, PageSize::of_file(stat.st_blksize as usize), ProtFlags::READ)
    }

    fn map(file: OwnedFd, len: usize, pages: PageSize) -> io::Result<Self> {
        Self::map_for(file, len, pages, ProtFlags::READ | ProtFlags::WRITE)
    }

    fn map_for(file: OwnedFd, len: usize, pages: PageSize, access: ProtFlags) -> io::Result<Self> {
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory of
        // anybody's.
        let base = unsafe { mmap(ptr::null_mut(), len, access, MapFlags::SHARED, &file, 0) }?;
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        let obtained = Obtained {
            asked: pages,
            pages,
            bytes: len,
            asked_node: None,
            node: None,
            refusals: Vec::new(),
        };
        Ok(Self { base, file, obtained })
    }

    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }

    pub(crate) fn obtained(&self) -> &Obtained {
        &self.obtained
    }

    pub(crate) fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and whoever pointed into it kept this alive. It fails only
        // for ranges that are none.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.obtained.bytes) };
    }
}

fn refusal(len: usize, pages: PageSize, error: &io::Error) -> String {
    if pages == PageSize::Base {
        return format!("pages of {pages} refused: {error}");
    }
    let needed = len.div_ceil(pages.bytes());
    let directory = format!("/sys/kernel/mm/hugepages/hugepages-{}kB", pages.bytes() >> 10);
    let free = std::fs::read_to_string(format!("{directory}/free_hugepages"));
    match free {
        Ok(free) => format!(
            "pages of {pages} refused: {needed} needed, {} free ({error}); reserve them: echo {needed} > {directory}/nr_hugepages",
            free.trim()
        ),
        Err(_) => format!("pages of {pages} refused: this kernel or CPU has none ({error})"),
    }
}

const MPOL_PREFERRED: libc::c_int = 1;
const MPOL_F_NODE: c_ulong = 1;
const MPOL_F_ADDR: c_ulong = 2;

/// The node that an interface's device is attached to; none if it is virtual, or the machine has
/// one node.
pub fn node_of_interface(interface: &str) -> Option<u32> {
    let path = format!("/sys/class/net/{interface}/device/numa_node");
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// Asks for the pages of a mapping, which are not present yet, to be of `node`.
fn prefer(base: NonNull<u8>, len: usize, node: u32) -> io::Result<()> {
    let one: c_ulong = 1;
    let mask = one.checked_shl(node).ok_or(io::ErrorKind::InvalidInput)?;
    // The kernel takes one bit less than it is told.
    let bits = c_ulong::BITS as c_ulong + 1;
    // SAFETY: a policy of a range of ours changes where pages come from, not what lies in them; the
    // mask outlives the call.
    let result = unsafe {
        libc::syscall(libc::SYS_mbind, base.as_ptr(), len, MPOL_PREFERRED, &raw const mask, bits, 0)
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// The node of the page at `base`.
fn node_of(base: NonNull<u8>) -> io::Result<u32> {
    let mut node: libc::c_int = -1;
    let no_mask = ptr::null_mut::<c_ulong>();
    // SAFETY: the kernel writes the node and nothing else; the address is looked up, not accessed.
    let result = unsafe {
        libc::syscall(
            libc::SYS_get_mempolicy,
            &raw mut node,
            no_mask,
            0,
            base.as_ptr(),
            MPOL_F_NODE | MPOL_F_ADDR,
        )
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    u32::try_from(node).map_err(|_| io::ErrorKind::NotFound.into())
}

/// Why memory is not on the node that was asked for.
fn node_refusal(
    asked: Option<u32>,
    preferred: Option<io::Result<()>>,
    node: Option<u32>,
) -> Option<String> {
    let asked = asked?;
    match (preferred, node) {
        (Some(Err(e)), _) => Some(format!(
            "NUMA node {asked} refused: {e}; /sys/devices/system/node/online lists those there are"
        )),
        (_, Some(node)) if node != asked => Some(format!(
            "NUMA node {asked} had no room, so that it is on node {node}; `numactl -H` shows what is free"
        )),
        (_, None) => Some(format!(
            "NUMA node {asked} was asked for, and this kernel does not tell which it is"
        )),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn smaller_pages_than_asked_for_say_why() {
        // More than any machine has reserved.
        let memory = Memory::new(1 << 20, PageSize::Huge1G, None).unwrap();
        let obtained = memory.obtained();
        assert_eq!(obtained.as_asked(), obtained.pages == PageSize::Huge1G);
        if !obtained.as_asked() {
            let said = obtained.to_string();
            assert!(said.contains("pages of 1 GiB refused"), "{said}");
            assert!(said.contains("nr_hugepages") || said.contains("has none"), "{said}");
        }
    }

    #[test]
    fn another_mapping_sees_the_same() {
        let memory = Memory::new(5000, PageSize::Base, None).unwrap();
        assert_eq!(memory.obtained().bytes, 5000_usize.next_multiple_of(PageSize::Base.bytes()));
        // SAFETY: it is within the mapping, and nobody else's.
        unsafe { memory.base().add(4999).write(7) };
        let again = Memory::from_file(memory.file().try_clone_to_owned().unwrap()).unwrap();
        // SAFETY: as above.
        assert_eq!(unsafe { again.base().add(4999).read() }, 7);
        assert_eq!(again.obtained().pages, PageSize::Base);
    }

    #[test]
    fn a_node_that_does_not_exist() {
        let memory = Memory::new(4096, PageSize::Base, Some(63)).unwrap();
        let said = memory.obtained().to_string();
        assert!(said.contains("NUMA node 63"), "{said}");
    }
}
