//! `null:BYTES`: packets without end, and a sink for those that are sent. It costs only the frames,
//! so that everything else can be measured.

use ringway_xsk::{Batch, Pool};

use crate::port::{Port, PortError, PortStatistics};

/// A source and sink that does nothing else.
pub struct Null {
    name: String,
    pool: Pool,
    template: Vec<u8>,
    statistics: PortStatistics,
}

impl Null {
    /// Its packets are copies of these bytes.
    ///
    /// # Errors
    /// A frame has no room for them.
    pub fn open(name: String, pool: &Pool, template: Vec<u8>) -> Result<Self, PortError> {
        let room = pool.umem().chunk().bytes() as usize - ringway_xsk::KERNEL_HEADROOM as usize;
        if template.len() > room {
            let why =
                format!("packets of {} bytes do not fit into frames of {room}", template.len());
            let remedy = "ask for shorter ones, or frames of 4096 bytes";
            return Err(PortError::Refused { port: name, why, remedy });
        }
        Ok(Self { name, pool: pool.clone(), template, statistics: PortStatistics::default() })
    }
}

/// The shortest frame there is without a call, which costs more than its 64 bytes do.
#[inline]
fn fill(packet: &mut [u8], template: &[u8]) {
    match (<&mut [u8; 64]>::try_from(&mut *packet), <&[u8; 64]>::try_from(template)) {
        (Ok(to), Ok(from)) => *to = *from,
        _ => packet.copy_from_slice(template),
    }
}

impl Port for Null {
    fn name(&self) -> &str {
        &self.name
    }

    fn rx_burst(&mut self, batch: &mut Batch) -> Result<usize, PortError> {
        let before = batch.len();
        let count = self.pool.allocate_burst(batch, batch.room());
        for packet in &mut batch[before..] {
            let start = packet.headroom();
            // It fits, as was checked when it was opened.
            if packet.set_range(start..start + self.template.len()).is_ok() {
                fill(packet.data_mut(), &self.template);
            }
        }
        self.statistics.received_packets += count as u64;
        self.statistics.no_frame_times += u64::from(count == 0);
        Ok(count)
    }

    fn tx_burst(&mut self, batch: &mut Batch) -> Result<usize, PortError> {
        let count = batch.len();
        batch.clear();
        self.statistics.transmitted_packets += count as u64;
        Ok(count)
    }

    fn statistics(&mut self) -> PortStatistics {
        self.statistics
    }
}
