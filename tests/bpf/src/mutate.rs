//! Changes frames at random, repeatably: what a hostile network, a broken sender and a fuzzer do.

/// SplitMix64: one seed, one sequence.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 bits.
    pub fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// Below `n`, which is not 0.
    pub fn below(&mut self, n: usize) -> usize {
        (self.word() % n as u64) as usize
    }

    pub fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len())]
    }
}

/// Bytes that parsers trip over.
const EDGES: [u8; 12] = [0, 1, 4, 5, 6, 7, 8, 0x7f, 0x80, 0xfe, 0xff, 0x45];

/// Changes a frame in one to three ways. Headers are hit more often than the rest.
pub fn mutate(random: &mut Random, frame: &mut Vec<u8>) {
    for _ in 0..=random.below(3) {
        let at = match random.below(8) {
            0 => random.below(frame.len()),
            1 => random.below(14),
            // Lengths, flags, protocols and addresses.
            _ => 12 + random.below((frame.len() - 12).min(68)),
        };
        match random.below(10) {
            0 => frame[at] ^= 1 << random.below(8),
            1 => frame[at] = *random.pick(&EDGES),
            2 => frame[at] = random.word() as u8,
            3 => frame[at] = frame[at].wrapping_add(1),
            4 => frame[at] = frame[at].wrapping_sub(1),
            // An XDP frame is at least an Ethernet header long.
            5 => frame.truncate(14.max(at)),
            6 => {
                let more = random.below(40);
                frame.extend((0..more).map(|n| n as u8));
            }
            7 if frame.len() > 20 => {
                let n = random.below(6) + 1;
                frame.drain(at.min(frame.len() - n - 14)..).for_each(drop);
                frame.resize(frame.len().max(14), 0);
            }
            8 => {
                let n = random.below(8);
                let bytes: Vec<u8> = (0..n).map(|_| random.word() as u8).collect();
                frame.splice(at..at, bytes);
            }
            _ => {
                let from = random.below(frame.len());
                frame[at] = frame[from];
            }
        }
    }
}
