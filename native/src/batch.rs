//! Batches: the messages of an entry's body, each with metadata and payload.

use crate::frame::{pair, Fields, Pair};
use crate::wire::{be32, Reader, Result, Unusual};

const PROPERTIES: u64 = 0x0a;
const PAYLOAD_SIZE: u64 = 0x18;
/// Four bytes of size, then the required payload size: a tag and at least one digit.
const MIN_MESSAGE: usize = 6;

/// A message of a batch; `properties` is the part of its metadata that holds them.
#[derive(Default)]
pub struct Message<'a> {
    pub properties: Properties<'a>,
    pub fields: Fields<'a>,
    pub sequence_id: Option<u64>,
    /// Compaction has removed the message.
    pub compacted_out: bool,
    pub payload: &'a [u8],
}

/// The properties of a message, checked but not gathered.
#[derive(Default, Clone, Copy)]
pub struct Properties<'a> {
    metadata: &'a [u8],
    count: usize,
}

impl<'a> Properties<'a> {
    /// All pairs; they come first in the metadata.
    pub fn pairs(self) -> impl Iterator<Item = Pair<'a>> {
        let mut reader = Reader::new(self.metadata);
        (0..self.count).filter_map(move |_| {
            reader.expect(PROPERTIES as u8).ok()?;
            pair(reader.bytes().ok()?).ok()
        })
    }
}

/// Whether a body of this size may hold that many messages.
pub fn may_hold(body: &[u8], count: i32) -> bool {
    count > 0
        && body.len() <= i32::MAX as usize
        && (count as usize).saturating_mul(MIN_MESSAGE) <= body.len()
}

/// The message that begins at `at` of a body, and where it ends.
#[inline]
pub fn message(body: &[u8], at: usize) -> Result<(Message<'_>, usize)> {
    let begin = at + 4;
    let start = begin.checked_add(be32(body, at)?).ok_or(Unusual)?;
    let metadata = body.get(begin..start).ok_or(Unusual)?;
    let mut found = Message::default();
    let mut size = None;
    let mut reader = Reader::new(metadata);
    let mut last = 0;
    while !reader.is_empty() {
        match reader.tag(&mut last, &[PROPERTIES])? {
            PROPERTIES => {
                pair(reader.bytes()?)?;
                found.properties.metadata = metadata;
                found.properties.count += 1;
            }
            0x12 => found.fields.key = Some(reader.bytes()?),
            PAYLOAD_SIZE => size = Some(reader.int()? as usize),
            0x20 => found.compacted_out = reader.flag()?,
            0x28 => found.fields.event_time = reader.number()?,
            0x30 => found.fields.key_is_base64 = reader.flag()?,
            0x3a => found.fields.ordering_key = Some(reader.bytes()?),
            0x40 => found.sequence_id = Some(reader.number()?),
            0x48 => found.fields.null_value = reader.flag()?,
            // null_partition_key
            0x50 => drop(reader.flag()?),
            _ => return Err(Unusual),
        }
    }
    let end = start.checked_add(size.ok_or(Unusual)?).ok_or(Unusual)?;
    found.payload = body.get(start..end).ok_or(Unusual)?;
    Ok((found, end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_read_with_its_properties() {
        let body = [
            0, 0, 0, 13, 0x0a, 6, 0x0a, 1, b'a', 0x12, 1, b'b', 0x18, 2, 0x40, 7, 0x48, b'x', b'y',
        ];
        assert!(message(&body, 0).is_err());
        let mut body = body.to_vec();
        body[3] = 12;
        body.remove(16);
        let (found, end) = message(&body, 0).unwrap();
        assert_eq!((found.payload, end), (&b"xy"[..], body.len()));
        assert_eq!(found.sequence_id, Some(7));
        assert_eq!(found.properties.pairs().collect::<Vec<_>>(), [(&b"a"[..], &b"b"[..])]);
    }

    #[test]
    fn sizes_are_held_against_the_body() {
        assert!(!may_hold(&[0; 11], 2));
        assert!(may_hold(&[0; 12], 2));
        assert!(!may_hold(&[0; 12], i32::MAX));
        assert!(!may_hold(&[0; 12], -1));
        for body in [&[0, 0, 0, 2, 0x18, 1][..], &[0xff, 0xff, 0xff, 0xff, 0], &[0, 0, 0, 0], &[0]]
        {
            assert!(message(body, 0).is_err());
        }
    }
}
