//! Capture files.

/// A capture of packets of these lengths (draft-ietf-opsawg-pcap), a second apart.
pub fn capture(lens: &[usize]) -> Vec<u8> {
    let mut file = vec![0xd4, 0xc3, 0xb2, 0xa1, 2, 0, 4, 0];
    for word in [0, 0, 0x4_0000, 1_u32] {
        file.extend(word.to_le_bytes());
    }
    for (n, len) in (0_u32..).zip(lens) {
        for word in [1_000_000_000 + n, 123_456, *len as u32, *len as u32] {
            file.extend(word.to_le_bytes());
        }
        file.extend(vec![n as u8; *len]);
    }
    file
}
