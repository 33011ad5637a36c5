//! Rules for the frame that leaves, which hold for every frame that came, with any tables.

use ringway_abi::{Reason, Verdict};

use crate::frame::UDP;
use crate::inspect::{Layout, check, check_quote};

/// Says what is wrong with a frame that came as `came` and was left as `left`.
///
/// - What is dropped may look as it likes; what is passed is not touched, unless its reason says
///   so.
/// - What is sent has lengths and checksums in order if what came had.
/// - What is sent on carries what came: the same layer-4 payload, inside a tunnel or not. This is
///   looked at where the reason is known.
pub fn judge(
    came: &[u8],
    left: &[u8],
    verdict: Verdict,
    reason: Option<Reason>,
) -> Result<(), String> {
    match verdict {
        Verdict::Drop => return Ok(()),
        Verdict::Aborted => return Err("aborted".into()),
        Verdict::Pass if came == left => return Ok(()),
        Verdict::Pass if matches!(reason, Some(Reason::DecapIpip | Reason::DecapGue)) => {
            return opened(came, left);
        }
        Verdict::Pass if reason != Some(Reason::PassRewritten) => {
            return Err("passed, but changed".into());
        }
        _ => (),
    }
    // Of a frame that came in disorder nothing is promised.
    let Ok(came_as) = check(came) else { return Ok(()) };
    let Some(came_as) = came_as else { return not_ip(came, left) };
    let left_as = check(left).map_err(|why| format!("sent with wrong {why}"))?;
    let Some(left_as) = left_as else { return Err("IP came, something else was sent".into()) };
    if check_quote(came, &came_as) == Some(Ok(())) && left_as.proto == came_as.proto {
        check_quote(left, &left_as).unwrap_or(Ok(())).map_err(|why| format!("quote: {why}"))?;
    }
    let Some(reason) = reason else { return Ok(()) };
    if is_answer(reason) {
        // Sent to whoever asked: not longer than any way back allows.
        let len = left_as.end - left_as.l3;
        let came_len = came_as.end - came_as.l3;
        let short = len <= came_len.max(1280);
        return if short { Ok(()) } else { Err(format!("an answer of {len} bytes")) };
    }
    sent_on((came, &came_as), (left, &left_as), reason)
}

/// ARP and neighbour discovery change as much as they like; anything else that is not IP stays
/// here.
fn not_ip(came: &[u8], left: &[u8]) -> Result<(), String> {
    let arp = came[12..14] == [8, 6] && left[12..14] == [8, 6] && came.len() == left.len();
    if arp || came[12..14] == [0x81, 0] || came[12..14] == [0x88, 0xa8] {
        return Ok(());
    }
    Err("neither IP nor ARP, but sent".into())
}

/// A packet from a tunnel is the inner packet, except the congestion mark (RFC 6040) and its
/// checksum.
fn opened(came: &[u8], left: &[u8]) -> Result<(), String> {
    const ETHERNET: usize = 14;
    if left.len() >= came.len() || left[..12] != came[..12] {
        return Err(format!("opened: {} bytes of {}, or other ends", left.len(), came.len()));
    }
    let was = &came[came.len() - (left.len() - ETHERNET)..];
    let marks: &[usize] = if left[12..ETHERNET] == [8, 0] { &[1, 10, 11] } else { &[0, 1] };
    let same = |(at, (was, is)): (usize, (&u8, &u8))| was == is || marks.contains(&at);
    match was.iter().zip(&left[ETHERNET..]).enumerate().all(same) {
        true => Ok(()),
        false => Err("opened: not what was in it".into()),
    }
}

/// The packet path wrote it itself.
fn is_answer(reason: Reason) -> bool {
    matches!(
        reason,
        Reason::ResetNoBackend
            | Reason::ResetBackendDown
            | Reason::ResetNoFlow
            | Reason::ResetStray
            | Reason::ResetNoStamps
            | Reason::NdReply
            | Reason::SentTooBig
            | Reason::SentTimeExceeded
    )
}

/// A packet and where its layers are.
type Read<'a> = (&'a [u8], &'a Layout);

fn sent_on(came: Read<'_>, left: Read<'_>, reason: Reason) -> Result<(), String> {
    let Some(at) = tunnelled(came, left, reason) else { return same_payload(came, left) };
    let inner = left.0.get(at..left.1.end).ok_or("a tunnel with nothing in it")?;
    let ethertype = if came.1.v6 { [0x86, 0xdd] } else { [8, 0] };
    let opened = [&[0; 12][..], &ethertype, inner].concat();
    let found = check(&opened).map_err(|why| format!("in the tunnel: {why}"))?;
    let found = found.ok_or("in the tunnel: not IP")?;
    same_payload(came, (&opened, &found))
}

/// Where the packet in the tunnel begins, if it is in one.
fn tunnelled(came: Read<'_>, left: Read<'_>, reason: Reason) -> Option<usize> {
    let longer = left.1.end - left.1.l3 > came.1.end - came.1.l3;
    match reason {
        Reason::DsrIpip => Some(left.1.l4),
        Reason::DsrGue => Some(left.1.l4 + 8),
        Reason::PassRewritten if longer && left.1.proto == UDP => Some(left.1.l4 + 8),
        Reason::PassRewritten if longer => Some(left.1.l4),
        _ => None,
    }
}

fn same_payload(came: Read<'_>, left: Read<'_>) -> Result<(), String> {
    let lengths = (came.1.end - came.1.l3, left.1.end - left.1.l3);
    if lengths.0 != lengths.1 {
        return Err(format!("{} bytes came, {} were sent on", lengths.0, lengths.1));
    }
    // The quote of an ICMP error is translated.
    if came.1.icmp_error(came.0).is_some() {
        return Ok(());
    }
    let payload = |(frame, layout): Read<'_>| frame[layout.payload(frame)..layout.end].to_vec();
    if payload(came) != payload(left) {
        return Err("the payload changed".into());
    }
    Ok(())
}
