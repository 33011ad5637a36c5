//! What the kernel is asked to do to packets that it sends.

use ringway_xsk::{Checksum, ChecksumBy, Sent, TX_METADATA, TxMetadata, TxRequest};
use rustix::time::{ClockId, clock_gettime};

use super::*;

const CHECKSUM: Option<Checksum> = Some(Checksum { start: 34, offset: 6 });

fn umem(tx_metadata: TxMetadata) -> Pool {
    let config = UmemConfig { frames: 4096, tx_metadata, ..UmemConfig::default() };
    Umem::new(&config).unwrap().pool().unwrap()
}

/// The sum of 16-bit words, complemented or not.
fn sum(words: &[u8]) -> u16 {
    let words =
        words.chunks(2).map(|word| u16::from_be_bytes([word[0], *word.get(1).unwrap_or(&0)]));
    words.fold(0, |sum: u16, word| {
        let (sum, carry) = sum.overflowing_add(word);
        sum + u16::from(carry)
    })
}

/// A datagram of UDP over IPv4, in which the checksum of UDP is missing: there is the sum of its pseudo header.
fn datagram(pool: &Pool, payload: &[u8]) -> Packet {
    let len = 8 + payload.len() as u16;
    let addresses = [10, 9, 0, 1, 10, 9, 0, 2];
    let mut ip = [&[0x45, 0, 0, 0, 0, 0, 0, 0, 64, 17, 0, 0][..], &addresses].concat();
    ip[2..4].copy_from_slice(&(20 + len).to_be_bytes());
    let checksum = !sum(&ip);
    ip[10..12].copy_from_slice(&checksum.to_be_bytes());
    let pseudo = sum(&[&addresses[..], &[0, 17], &len.to_be_bytes()].concat());
    let mut packet = pool.allocate().unwrap();
    packet.append(&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0]).unwrap();
    packet.append(&ip).unwrap();
    packet.append(&[0, 9, 0, 9]).unwrap();
    packet.append(&len.to_be_bytes()).unwrap();
    packet.append(&pseudo.to_be_bytes()).unwrap();
    packet.append(payload).unwrap();
    packet
}

fn is_right(packet: &[u8]) -> bool {
    let len = &packet[38..40];
    sum(&[&packet[26..34], &[0, 17], len, &packet[34..]].concat()) == 0xffff
}

/// By the kernel, by the kernel for the driver, and by us; and none that was not asked for.
#[test]
fn missing_checksums_are_filled_in() {
    on_a_pair("missing_checksums_are_filled_in", &VethOptions::default(), |pair| {
        for (wanted, by) in [
            (TxMetadata::None, ChecksumBy::Us),
            (TxMetadata::Room, ChecksumBy::Kernel),
            (TxMetadata::RoomAndKernelChecksums, ChecksumBy::Kernel),
        ] {
            let (near, far) = (umem(wanted), pool(4096));
            let (mut left, _one) = open(&pair.left, &near, Hook::Native, &SocketConfig::default());
            let (mut right, _other) =
                open(&pair.right, &far, Hook::Native, &SocketConfig::default());
            if wanted != TxMetadata::None && !left.granted().tx_metadata {
                return skip("missing_checksums_are_filled_in", left.granted().refusals.join("; "));
            }
            assert_eq!(left.granted().checksum, by);
            let payload: Vec<u8> = (0..2601_u32).map(|n| n as u8).collect();
            let mut batch = Batch::new(8);
            batch.push(datagram(&near, b"asked")).unwrap();
            batch.push(datagram(&near, b"not asked")).unwrap();
            batch.push(datagram(&near, &payload[..1001])).unwrap();
            let asked = |packet: &Packet| !packet.data().ends_with(b"not asked");
            let request = |packet: &Packet| TxRequest {
                checksum: CHECKSUM.filter(|_| asked(packet)),
                stamp: None,
            };
            assert_eq!(left.send_with(&mut batch, request).unwrap(), 3);
            wait_until("three packets over there", SOON, || {
                right.receive(&mut batch).unwrap();
                batch.retain(|packet| packet.data().get(34..38) == Some(&[0, 9, 0, 9]));
                batch.len() == 3
            })
            .unwrap();
            for packet in batch.iter() {
                assert_eq!(
                    is_right(packet.data()),
                    asked(packet),
                    "{wanted:?}: {:?}",
                    packet.data()
                );
            }
            batch.clear();
            left.flush().unwrap();
            assert_eq!(left.kernel_counts().unwrap().tx_invalid_descs, 0);
            assert!(near.audit(&[left.rings()]).balanced());
        }
    });
}

/// The same where a packet is in several frames, which the kernel sums up as well as we do.
#[test]
fn checksums_of_several_frames() {
    let options = VethOptions { mtu: 9000, ..VethOptions::default() };
    on_a_pair("checksums_of_several_frames", &options, |pair| {
        for wanted in [TxMetadata::None, TxMetadata::Room] {
            let (near, far) = (umem(wanted), pool(4096));
            let (mut left, _one) = open(&pair.left, &near, Hook::Native, &SocketConfig::default());
            let (mut right, _other) =
                open(&pair.right, &far, Hook::Native, &SocketConfig::default());
            if !left.granted().several_frames {
                return skip("checksums_of_several_frames", left.granted().refusals.join("; "));
            }
            let payload: Vec<u8> = (0..5001_u32).map(|n| n as u8).collect();
            let mut batch = Batch::new(8);
            batch.push(datagram(&near, &payload)).unwrap();
            let request = |_: &Packet| TxRequest { checksum: CHECKSUM, stamp: None };
            assert_eq!(left.send_with(&mut batch, request).unwrap(), 1);
            wait_until("the packet over there", SOON, || {
                right.receive(&mut batch).unwrap();
                batch.retain(|packet| packet.data().get(34..38) == Some(&[0, 9, 0, 9]));
                batch.len() == 1
            })
            .unwrap();
            assert!(batch[0].frames() > 1);
            assert!(is_right(&batch[0].segments().collect::<Vec<_>>().concat()), "{wanted:?}");
        }
    });
}

fn now_ns() -> u64 {
    // Of clocks that rustix names, this one is 37 seconds behind TAI at most, or 0 where nobody has said.
    let now = clock_gettime(ClockId::Realtime);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

#[test]
fn when_packets_were_sent() {
    on_a_pair("when_packets_were_sent", &VethOptions::default(), |pair| {
        let pool = umem(TxMetadata::Room);
        let (mut left, _program) = open(&pair.left, &pool, Hook::Native, &SocketConfig::default());
        if !left.granted().tx_metadata {
            return skip("when_packets_were_sent", left.granted().refusals.join("; "));
        }
        let (before, mut batch) = (now_ns(), Batch::new(8));
        for payload in [&b"0"[..], b"1", b"2", b"not asked"] {
            batch.push(datagram(&pool, payload)).unwrap();
        }
        let request = |packet: &Packet| TxRequest {
            checksum: CHECKSUM,
            stamp: packet.data().last().filter(|_| packet.len() == 43).map(|last| u64::from(*last)),
        };
        assert_eq!(left.send_with(&mut batch, request).unwrap(), 4);
        let mut sent = Vec::new();
        wait_until("three times", SOON, || {
            left.flush().unwrap();
            sent.extend(left.sent());
            left.unsent() == 0
        })
        .unwrap();
        let (tags, times): (Vec<_>, Vec<_>) =
            sent.into_iter().map(|Sent { tag, at_ns }| (tag, at_ns.unwrap())).unzip();
        assert_eq!(tags, [u64::from(b'0'), u64::from(b'1'), u64::from(b'2')]);
        let offset = 38_000_000_000;
        assert!(
            times.is_sorted() && times.iter().all(|at| (before..now_ns() + offset).contains(at))
        );
        assert_eq!(left.sent().count(), 0);
    });
}

/// What the kernel would choke on does not come so far, and what follows is sent.
#[test]
fn what_cannot_be_asked() {
    on_a_pair("what_cannot_be_asked", &VethOptions::default(), |pair| {
        let pool = umem(TxMetadata::Room);
        let (mut left, _program) = open(&pair.left, &pool, Hook::Native, &SocketConfig::default());
        if !left.granted().tx_metadata {
            return skip("what_cannot_be_asked", left.granted().refusals.join("; "));
        }
        let mut batch = Batch::new(8);
        for _ in 0..4 {
            batch.push(datagram(&pool, b"")).unwrap();
        }
        // Its field is outside, and there is no room in front of it; the rest is as it should be.
        batch[0].set_range(256..270).unwrap();
        let front = batch[1].headroom() - TX_METADATA;
        batch[1].grow_front(front + 1).unwrap();
        batch[2].grow_front(front).unwrap();
        let request = |packet: &Packet| TxRequest {
            checksum: CHECKSUM.filter(|_| packet.len() < 43),
            stamp: Some(1),
        };
        assert_eq!(left.send_with(&mut batch, request).unwrap(), 2);
        assert_eq!((left.counts().unsendable_packets, left.counts().sent_packets), (2, 2));
        wait_until("both back", SOON, || {
            left.flush().unwrap();
            left.unsent() == 0
        })
        .unwrap();
        assert_eq!(left.sent().filter(|sent| sent.at_ns.is_some()).count(), 2);
        assert_eq!(left.kernel_counts().unwrap().tx_invalid_descs, 0);
        assert!(pool.audit(&[left.rings()]).balanced());
    });
}
