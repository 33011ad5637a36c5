//! Changes of a packet within its frames.
#![allow(clippy::unwrap_used)]

use ringway_xsk::{Batch, Chunk, KERNEL_HEADROOM, MAX_FRAMES, NoRoom, Pool, Umem, UmemConfig};

fn pool(frames: u32, chunk: Chunk, headroom: u32) -> Pool {
    let config = UmemConfig { frames, chunk, headroom, ..UmemConfig::default() };
    Umem::new(&config).unwrap().pool().unwrap()
}

#[test]
fn headers_come_and_go() {
    let pool = pool(1, Chunk::Bytes2048, 44);
    let mut packet = pool.allocate().unwrap();
    assert!(packet.is_empty() && pool.allocate().is_none());
    assert_eq!(packet.headroom(), KERNEL_HEADROOM as usize + 44);
    packet.append(b"payload").unwrap();
    packet.grow_front(4).unwrap().copy_from_slice(b"head");
    assert_eq!(packet.data(), b"headpayload");
    packet.shrink_front(6).unwrap();
    assert_eq!(packet.data(), b"yload");
    assert_eq!(packet.shrink_front(6), Err(NoRoom { wanted: 6, room: 5 }));
    assert_eq!(packet.grow_front(303).unwrap_err(), NoRoom { wanted: 303, room: 302 });
    assert_eq!(packet.grow_front(302).unwrap().len(), 302);
    assert_eq!((packet.range(), packet.tailroom()), (0..307, 2048 - 307));
    assert_eq!(packet.buffer_mut().len(), 2048);
    packet.set_range(2040..2048).unwrap();
    assert_eq!(packet.set_range(2040..2049), Err(NoRoom { wanted: 2049, room: 2048 }));
    #[allow(clippy::reversed_empty_ranges)]
    packet.set_range(9..8).unwrap_err();
    assert_eq!(packet.len(), 8);
}

#[test]
fn as_many_frames_as_needed() {
    let pool = pool(20, Chunk::Bytes4096, 0);
    let bytes: Vec<u8> = (0..70_000_u32).map(|n| n as u8).collect();
    let in_frame = 4096 - KERNEL_HEADROOM as usize;
    for len in [0, 1, in_frame, in_frame + 1, 2 * in_frame, 9000, MAX_FRAMES * in_frame] {
        let mut packet = pool.allocate().unwrap();
        packet.append(&bytes[..len / 2]).unwrap();
        packet.append(&bytes[len / 2..len]).unwrap();
        assert_eq!((packet.len(), packet.frames()), (len, len.div_ceil(in_frame).max(1)));
        assert!(packet.segments().flatten().eq(&bytes[..len]));
        assert_eq!(pool.free() as usize, 20 - packet.frames());
    }
    let mut packet = pool.allocate().unwrap();
    let (wanted, room) = (MAX_FRAMES * in_frame + 1, MAX_FRAMES * in_frame);
    assert_eq!(packet.append(&bytes[..wanted]), Err(NoRoom { wanted, room }));
    assert_eq!((packet.len(), pool.free()), (0, 19));
    packet.append(&bytes[..9000]).unwrap();
    assert!(packet.copy_to(&pool).unwrap().segments().flatten().eq(&bytes[..9000]));
    let _others: Vec<_> = (0..17).map_while(|_| pool.allocate()).collect();
    // All others are in use.
    assert!(packet.copy_to(&pool).is_none());
    packet.append(&bytes[..9000]).unwrap_err();
    assert_eq!(packet.len(), 9000);
    assert!(pool.audit(&[]).balanced());
}

#[test]
fn batches_have_a_limit() {
    let (pool, other) = (pool(9, Chunk::Bytes2048, 0), pool(9, Chunk::Bytes2048, 0));
    let mut batch = Batch::new(4);
    assert_eq!(pool.allocate_burst(&mut batch, 2), 2);
    batch.push(other.allocate().unwrap()).unwrap();
    let mut long = pool.allocate().unwrap();
    long.append(&[0; 5000]).unwrap();
    batch.push(long).unwrap();
    assert_eq!((batch.room(), pool.allocate_burst(&mut batch, 2)), (0, 0));
    let packet = pool.allocate().unwrap();
    drop(batch.push(packet).unwrap_err());
    assert_eq!((pool.free(), other.free()), (4, 8));
    batch.clear();
    assert_eq!((pool.free(), other.free()), (9, 9));
    assert!(pool.audit(&[]).balanced() && other.audit(&[]).balanced());
}

#[test]
fn cleared_with_all_their_frames() {
    let (pool, other) = (pool(9, Chunk::Bytes2048, 0), pool(9, Chunk::Bytes2048, 0));
    let mut batch = Batch::new(8);
    for odd in [0, 1, 2] {
        pool.allocate_burst(&mut batch, odd);
        let mut long = pool.allocate().unwrap();
        long.append(&[0; 5000]).unwrap();
        batch.push(long).unwrap();
        pool.allocate_burst(&mut batch, 1);
        batch.push(other.allocate().unwrap()).unwrap();
        pool.allocate_burst(&mut batch, 1);
        batch.clear();
        assert_eq!((pool.free(), other.free()), (9, 9), "{odd}");
        assert!(pool.audit(&[]).balanced() && other.audit(&[]).balanced(), "{odd}");
    }
}
