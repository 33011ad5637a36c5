//! Whether packet memory fits into the machine's, and into the limits of this process's control
//! groups: all pages are taken at once, and the kernel kills a process that takes too many.

use ringway_host::Host;
use ringway_xsk::{PageSize, UmemConfig};

use crate::error::EngineError;

/// The part of the available memory that is left to other processes.
const LEFT: u64 = 16;

/// Refuses more memory than the machine has. If the machine does not say, nothing is refused.
pub(crate) fn fits(host: &Host, config: &UmemConfig) -> Result<(), EngineError> {
    let needed = config.bytes()? as u64;
    let machine = host.memory().ok().map(|memory| (memory.available_bytes, String::new()));
    let group = host.memory_left().map(|left| (left.bytes, format!(" under {}", left.limit)));
    let least = machine.into_iter().chain(group).min_by_key(|(bytes, _)| *bytes);
    let Some((available_bytes, under)) = least else { return Ok(()) };
    let most = available_bytes - available_bytes / LEFT;
    if needed <= most || has_huge_pages(host, config.pages, needed) {
        return Ok(());
    }
    let frames = config.frames;
    // As many bytes for each as these take, their ledger included.
    let possible = u128::from(most) * u128::from(frames) / u128::from(needed.max(1));
    let per_worker = possible as u64 / u64::from(config.pools.max(1));
    Err(EngineError::NoMemory {
        frames,
        chunk: config.chunk.bytes(),
        needed_mib: needed.div_ceil(1 << 20),
        available_mib: available_bytes >> 20,
        under,
        possible: if per_worker >= 1000 { per_worker / 1000 * 1000 } else { per_worker },
    })
}

/// Pages that are set aside are not among those that are available.
fn has_huge_pages(host: &Host, pages: PageSize, needed: u64) -> bool {
    let pools = host.huge_pages().unwrap_or_default();
    let size = pages.bytes() as u64;
    let pool = pools.iter().find(|pool| pages != PageSize::Base && pool.size_bytes == size);
    pool.is_some_and(|pool| pool.free.saturating_mul(size) >= needed)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    /// A machine of 23 GB, of which this much is available.
    fn machine(available_kb: u64, huge: u64) -> Host {
        let meminfo = format!("MemTotal:       24000000 kB\nMemAvailable:   {available_kb} kB\n");
        let pool = "/sys/kernel/mm/hugepages/hugepages-2048kB";
        let files = [
            ("/proc/meminfo".to_owned(), meminfo),
            (format!("{pool}/nr_hugepages"), huge.to_string()),
            (format!("{pool}/free_hugepages"), huge.to_string()),
        ];
        Host::captured(Arc::new(files.into()))
    }

    fn config(frames: u32) -> UmemConfig {
        UmemConfig { frames, ..UmemConfig::default() }
    }

    #[test]
    fn more_frames_than_there_is_memory_for() {
        let host = machine(20 << 20, 0);
        assert!(fits(&host, &config(16_384)).is_ok());
        let error = fits(&host, &config(20_000_000)).unwrap_err();
        let EngineError::NoMemory { possible, needed_mib, .. } = error else { panic!("{error}") };
        let said = error.to_string();
        assert!(needed_mib > 39_000 && said.contains("20000000 frames of 2048 bytes"), "{said}");
        assert!(said.contains("20480 MiB are available"), "{said}");
        assert!(said.contains(&format!("`--frames {possible}`")), "{said}");
        // The number that it suggests fits, and not much more does.
        assert!(fits(&host, &config(possible as u32)).is_ok());
        assert!(fits(&host, &config(possible as u32 + 10_000)).is_err());
    }

    /// As of a container, or `systemd-run -p MemoryMax=`: what would be killed is refused.
    #[test]
    fn a_control_group_has_less_than_the_machine() {
        let limit = "/sys/fs/cgroup/small/memory.max";
        let with = |available_kb: u64, bytes: u64| {
            let meminfo = format!("MemTotal: 24000000 kB\nMemAvailable: {available_kb} kB\n");
            let files = [
                ("/proc/meminfo".to_owned(), meminfo),
                ("/proc/self/cgroup".to_owned(), "0::/small".to_owned()),
                (limit.to_owned(), bytes.to_string()),
            ];
            Host::captured(Arc::new(files.into()))
        };
        let error = fits(&with(20 << 20, 64 << 20), &config(100_000)).unwrap_err().to_string();
        assert!(error.contains(&format!("64 MiB are available under {limit}: ask")), "{error}");
        assert!(fits(&with(20 << 20, 64 << 20), &config(16_384)).is_ok());
        assert!(fits(&with(20 << 20, 1 << 30), &config(100_000)).is_ok());
        let error = fits(&with(60 << 10, 1 << 30), &config(100_000)).unwrap_err().to_string();
        assert!(error.contains("60 MiB are available: ask"), "{error}");
    }

    #[test]
    fn pages_that_are_set_aside_count() {
        let huge = UmemConfig { pages: PageSize::Huge2M, ..config(1_000_000) };
        assert!(fits(&machine(1 << 20, 1200), &huge).is_ok());
        assert!(fits(&machine(1 << 20, 900), &huge).is_err());
        assert!(fits(&machine(1 << 20, 1200), &config(1_000_000)).is_err());
    }

    #[test]
    fn a_machine_that_does_not_tell() {
        assert!(fits(&Host::captured(Arc::default()), &config(20_000_000)).is_ok());
    }
}
