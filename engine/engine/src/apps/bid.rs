//! `bid`: a bidder of a real-time auction: 50 bytes ask, a table is looked up, 30 bytes answer.

use std::collections::HashMap;

use ringway_wire::{FromBytes, Immutable, IntoBytes, U16, U32};
use ringway_xsk::Buffer;
use zerocopy::network_endian::U64;
use zerocopy::{KnownLayout, Unaligned};

use super::Host;
use super::datagram::Datagram;
use crate::app::App;
use crate::arch::Cycles;
use crate::buffer_pool::BufferPool;
use crate::burst::{Burst, Verdict};
use crate::status::reason::Reason;

/// Bytes of an [`Answer`].
pub const ANSWER_BYTES: usize = 30;

/// A request: a payload of UDP, all numbers in network byte order.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Request {
    /// [`Request::MAGIC`].
    pub magic: U16,
    /// [`Request::VERSION`].
    pub version: u8,
    /// 0.
    pub flags: u8,
    /// The client's number, below the number of clients.
    pub client: U32,
    /// A number that comes back in the answer.
    pub id: U64,
    /// The user who would see the advertisement.
    pub user: U64,
    /// The segment of the user: the key of the table.
    pub segment: U64,
    /// The lowest price that counts, in millionths.
    pub floor: U32,
    /// Pixels.
    pub width: U16,
    /// Pixels.
    pub height: U16,
    /// Ignored.
    pub reserved: [u8; 10],
}

impl Request {
    /// "BQ".
    pub const MAGIC: u16 = 0x4251;
    /// The only one there is.
    pub const VERSION: u8 = 1;
}

#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Answer {
    /// [`Answer::MAGIC`].
    pub magic: U16,
    /// [`Request::VERSION`].
    pub version: u8,
    /// 1: a bid; 0: none.
    pub bid: u8,
    pub client: U32,
    /// The number of the request.
    pub id: U64,
    /// The bid, in millionths; 0 without a bid.
    pub price: U32,
    /// The advertisement that would be shown; 0 without a bid.
    pub creative: U64,
    /// 0.
    pub reserved: [u8; 2],
}

impl Answer {
    /// "BA".
    pub const MAGIC: u16 = 0x4241;
}

const _: () = assert!(size_of::<Request>() == 50 && size_of::<Answer>() == ANSWER_BYTES);

/// The offer for a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    pub price: u32,
    pub creative: u64,
}

/// The requests of one client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Client {
    requests: u64,
    bids: u64,
}

/// The bidder. It is also a host that can be reached and pinged.
pub struct Bid {
    host: Host,
    port: u16,
    offers: HashMap<u64, Offer>,
    clients: Vec<Client>,
}

impl Bid {
    /// A bidder on this UDP port, with these offers by segment, for clients numbered from 0 up to
    /// this number.
    pub fn new(host: Host, port: u16, offers: HashMap<u64, Offer>, clients: u32) -> Self {
        let clients = vec![Client::default(); clients as usize];
        Self { host, port, offers, clients }
    }

    fn bid(&mut self, packet: &mut impl Buffer, from: usize) -> Result<Verdict, Reason> {
        let several = packet.frames() > 1;
        let shorter = match Datagram::find(packet, &self.host, self.port)? {
            Some(_) if several => return Err(Reason::SeveralFrames),
            Some(mut datagram) => {
                let answer = self.answer(datagram.payload)?;
                datagram.answer(answer.as_bytes())?
            }
            None => return Ok(self.host.answered(packet, from)),
        };
        // Its padding stays: an answer is longer than the shortest frame in any case.
        let range = packet.range();
        packet.set_range(range.start..range.end - shorter).map_err(|_| Reason::NoRoom)?;
        Ok(Verdict::Forward(from))
    }

    /// The answer to a request, wherever it came from.
    ///
    /// # Errors
    /// [`Reason::BadRequest`] and [`Reason::UnknownClient`].
    pub fn answer(&mut self, payload: &[u8]) -> Result<Answer, Reason> {
        let request = Request::ref_from_bytes(payload).map_err(|_| Reason::BadRequest)?;
        if (request.magic.get(), request.version) != (Request::MAGIC, Request::VERSION) {
            return Err(Reason::BadRequest);
        }
        let client = self.clients.get_mut(request.client.get() as usize);
        let client = client.ok_or(Reason::UnknownClient)?;
        let offer = self.offers.get(&request.segment.get());
        let offer = offer.filter(|offer| offer.price >= request.floor.get());
        client.requests += 1;
        client.bids += u64::from(offer.is_some());
        Ok(Answer {
            magic: U16::new(Answer::MAGIC),
            version: Request::VERSION,
            bid: offer.is_some().into(),
            client: request.client,
            id: request.id,
            price: U32::new(offer.map_or(0, |offer| offer.price)),
            creative: U64::new(offer.map_or(0, |offer| offer.creative)),
            reserved: [0; 2],
        })
    }
}

impl<P: BufferPool> App<P> for Bid {
    fn name(&self) -> &'static str {
        "bid"
    }

    fn on_burst(&mut self, _now: Cycles, burst: &mut Burst<'_, P>) {
        let from = burst.from();
        burst.decide(|packet| self.bid(packet, from).into());
    }

    /// Of clients that have asked.
    fn statistics(&self) -> Vec<(String, u64)> {
        let asked = (0..).zip(&self.clients).filter(|(_, client)| client.requests > 0);
        let both = asked.flat_map(|(n, client): (u32, _)| {
            [
                (format!("client {n}: requests"), client.requests),
                (format!("client {n}: bids"), client.bids),
            ]
        });
        both.collect()
    }
}
