//! Frames: the command, checksum and metadata of entries, and the scans of the receive thread.

use crate::wire::{be32, Reader, Result, Unusual};

const NAME: u8 = 0x0a;
const SEQUENCE_ID: u8 = 0x10;
const PUBLISH_TIME: u8 = 0x18;
const PROPERTIES: u64 = 0x22;
const REPLICATE_TO: u64 = 0x3a;
/// A broker's metadata of an entry is a time and an index; more would be unusual.
const MAX_BROKER_METADATA: usize = 64;

/// Where the longest run of whole MESSAGE frames of one consumer ends, the consumer, their number,
/// and where the last of them starts; the consumer is -1 where there is none.
pub fn scan_messages(data: &[u8], at: usize, limit: usize) -> (usize, i64, usize, usize) {
    let (mut end, mut consumer, mut count, mut last) = (at, -1, 0, at);
    while let Ok((next, found)) = message_frame(data, end, limit) {
        if count > 0 && found != consumer {
            break;
        }
        (end, consumer, count, last) = (next, found, count + 1, end);
    }
    (end, consumer, count, last)
}

fn message_frame(data: &[u8], at: usize, limit: usize) -> Result<(usize, i64)> {
    let (end, body) = command_body(data, at, limit, [0x08, 0x09, 0x4a])?;
    let mut reader = Reader::new(body);
    reader.expect(0x08)?;
    Ok((end, reader.number()? as i64))
}

/// The end of a whole frame and the body of its command, which begins with these three bytes.
fn command_body(data: &[u8], at: usize, limit: usize, head: [u8; 3]) -> Result<(usize, &[u8])> {
    let size = be32(data, at)?;
    let command_size = be32(data, at + 4)?;
    let end = at + 4 + size;
    if size > limit || end > data.len() || size < command_size + 4 {
        return Err(Unusual);
    }
    let command = data.get(at + 8..at + 8 + command_size).ok_or(Unusual)?;
    let (found, body) = command.split_first_chunk::<4>().ok_or(Unusual)?;
    // The body has one byte of size, and nothing follows it in the command.
    if found[..3] != head || found[3] > 127 || usize::from(found[3]) != body.len() {
        return Err(Unusual);
    }
    Ok((end, body))
}

/// Where the longest run of usual SEND_RECEIPT frames of one producer ends, the producer (-1 where
/// there is none), and of each the sequence id, the highest sequence id, ledger and entry.
pub fn scan_receipts(data: &[u8], at: usize, limit: usize) -> (usize, i64, Vec<i64>) {
    let (mut end, mut producer, mut numbers) = (at, -1, Vec::new());
    while let Ok((next, found, receipt)) = receipt_frame(data, end, limit) {
        if !numbers.is_empty() && found != producer {
            break;
        }
        (end, producer) = (next, found);
        numbers.extend_from_slice(&receipt);
    }
    (end, producer, numbers)
}

fn receipt_frame(data: &[u8], at: usize, limit: usize) -> Result<(usize, i64, [i64; 4])> {
    let (end, body) = command_body(data, at, limit, [0x08, 0x07, 0x3a])?;
    // Nothing follows the command.
    if end != at + 12 + body.len() {
        return Err(Unusual);
    }
    let mut reader = Reader::new(body);
    reader.expect(0x08)?;
    let producer = reader.number()? as i64;
    reader.expect(0x10)?;
    let sequence_id = reader.number()? as i64;
    reader.expect(0x1a)?;
    let mut id = Reader::new(reader.bytes()?);
    id.expect(0x08)?;
    let ledger = id.number()? as i64;
    id.expect(0x10)?;
    let entry = id.number()? as i64;
    if id.has(0x18) {
        id.number()?;
    }
    // 2^64-1 and 0 are said where there is none.
    let highest = match if reader.has(0x20) { reader.number()? as i64 } else { -1 } {
        -1 => sequence_id,
        highest => highest.max(sequence_id),
    };
    if !id.is_empty() || !reader.is_empty() {
        return Err(Unusual);
    }
    Ok((end, producer, [sequence_id, highest, ledger, entry]))
}

/// What the command of a MESSAGE frame says, and what follows it.
pub struct Command<'a> {
    pub ledger: i64,
    pub entry: i64,
    /// Where the first chunk is, of a message that is whole again: ledger, entry, partition or -1.
    pub first_chunk: Option<(i64, i64, i64)>,
    pub redelivery_count: i32,
    pub rest: &'a [u8],
}

pub fn command(frame: &[u8]) -> Result<Command<'_>> {
    let (_, body) = command_body(frame, 0, usize::MAX, [0x08, 0x09, 0x4a])?;
    let mut reader = Reader::new(body);
    reader.expect(0x08)?;
    reader.number()?;
    reader.expect(0x12)?;
    let mut id = Reader::new(reader.bytes()?);
    // The partition that goes into ids is the reader's own.
    let (ledger, entry, _) = place(&mut id)?;
    if entry == i64::MAX {
        // No position can be after it.
        return Err(Unusual);
    }
    let first_chunk = if id.has(0x3a) { Some(chunk_place(id.bytes()?)?) } else { None };
    // Java reads it as a signed number.
    let redelivery_count = if reader.has(0x18) { reader.number()? as i32 } else { 0 };
    if reader.has(0x28) {
        reader.number()?;
    }
    if !id.is_empty() || !reader.is_empty() {
        return Err(Unusual);
    }
    let rest = &frame[12 + body.len()..];
    Ok(Command { ledger, entry, first_chunk, redelivery_count, rest })
}

fn chunk_place(data: &[u8]) -> Result<(i64, i64, i64)> {
    let mut id = Reader::new(data);
    let found = place(&mut id)?;
    id.is_empty().then_some(found).ok_or(Unusual)
}

/// What an id begins with: ledger, entry, and the partition, -1 on a topic without.
fn place(id: &mut Reader) -> Result<(i64, i64, i64)> {
    id.expect(0x08)?;
    let ledger = id.shortest()? as i64;
    id.expect(0x10)?;
    let entry = id.shortest()? as i64;
    let partition = if id.has(0x18) { id.number()? as i64 } else { -1 };
    Ok((ledger, entry, partition))
}

/// What is behind the command: the broker's index, the checksum and what it covers, in which lie
/// metadata and payload.
pub struct Parts<'a> {
    pub index: Option<i64>,
    pub checksum: u32,
    pub checked: &'a [u8],
    pub metadata: &'a [u8],
    pub payload: &'a [u8],
}

pub fn parts(rest: &[u8]) -> Result<Parts<'_>> {
    let (mut rest, mut index) = (rest, None);
    if rest.starts_with(&[0x0e, 0x02]) {
        let size = be32(rest, 2)?;
        if size > MAX_BROKER_METADATA {
            return Err(Unusual);
        }
        let mut reader = Reader::new(rest.get(6..6 + size).ok_or(Unusual)?);
        if reader.has(0x08) {
            reader.number()?;
        }
        if reader.has(0x10) {
            index = Some(reader.number()? as i64);
        }
        if !reader.is_empty() {
            return Err(Unusual);
        }
        rest = &rest[6 + size..];
    }
    if !rest.starts_with(&[0x0e, 0x01]) {
        return Err(Unusual);
    }
    let checksum = be32(rest, 2)? as u32;
    let checked = &rest[6..];
    let size = be32(checked, 0)?;
    let body = &checked[4..];
    if size > body.len() {
        return Err(Unusual);
    }
    let (metadata, payload) = body.split_at(size);
    Ok(Parts { index, checksum, checked, metadata, payload })
}

pub type Pair<'a> = (&'a [u8], &'a [u8]);

/// What a message has of its own, besides its properties: in its metadata, in a batch or alone.
#[derive(Clone, Copy, Default)]
pub struct Fields<'a> {
    pub key: Option<&'a [u8]>,
    pub key_is_base64: bool,
    pub event_time: u64,
    pub ordering_key: Option<&'a [u8]>,
    pub null_value: bool,
}

/// The fields of MessageMetadata that are of use here; `count` is 0 outside of a batch.
#[derive(Default)]
pub struct Metadata<'a> {
    pub producer_name: &'a [u8],
    pub sequence_id: u64,
    pub publish_time: u64,
    pub properties: Vec<Pair<'a>>,
    pub replicated_from: Option<&'a [u8]>,
    pub codec: i32,
    pub uncompressed_size: i32,
    pub count: i32,
    pub schema_version: &'a [u8],
    pub fields: Fields<'a>,
}

impl<'a> Metadata<'a> {
    pub fn read(data: &'a [u8]) -> Result<Self> {
        let mut found = Metadata::default();
        let mut reader = Reader::new(data);
        reader.expect(NAME)?;
        found.producer_name = reader.bytes()?;
        reader.expect(SEQUENCE_ID)?;
        found.sequence_id = reader.number()?;
        reader.expect(PUBLISH_TIME)?;
        found.publish_time = reader.number()?;
        let mut last = u64::from(PUBLISH_TIME);
        while !reader.is_empty() {
            match reader.tag(&mut last, &[PROPERTIES, REPLICATE_TO])? {
                PROPERTIES => found.properties.push(pair(reader.bytes()?)?),
                0x2a => found.replicated_from = Some(reader.bytes()?),
                0x32 => found.fields.key = Some(reader.bytes()?),
                0x40 => found.codec = reader.int()?,
                0x48 => found.uncompressed_size = reader.int()?,
                0x58 => {
                    found.count = reader.int()?;
                    if found.count == 0 {
                        return Err(Unusual);
                    }
                }
                0x60 => found.fields.event_time = reader.number()?,
                0x82 => found.schema_version = reader.bytes()?,
                0x88 => found.fields.key_is_base64 = reader.flag()?,
                0x92 => found.fields.ordering_key = Some(reader.bytes()?),
                0xc8 => found.fields.null_value = reader.flag()?,
                // deliver_at_time, the transaction, highest_sequence_id, null_partition_key,
                // entry_hash_min, entry_hash_max
                0x98 | 0xb0 | 0xb8 | 0xc0 | 0xf0 | 0x108 | 0x110 => drop(reader.number()?),
                // replicate_to, schema_id
                REPLICATE_TO | 0x102 => drop(reader.bytes()?),
                // Encrypted, in chunks, compacted, a marker, or not known.
                _ => return Err(Unusual),
            }
        }
        Ok(found)
    }
}

/// A property.
pub fn pair(data: &[u8]) -> Result<Pair<'_>> {
    let mut reader = Reader::new(data);
    reader.expect(0x0a)?;
    let key = reader.bytes()?;
    reader.expect(0x12)?;
    let value = reader.bytes()?;
    reader.is_empty().then_some((key, value)).ok_or(Unusual)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(consumer: u8) -> Vec<u8> {
        let body = [&[8, consumer, 0x12, 4, 8, 5, 0x10, 6][..]].concat();
        let mut data = vec![0, 0, 0, 22, 0, 0, 0, 12, 8, 9, 0x4a, 8];
        data.extend(body);
        data.extend([0x0e, 1, 0, 0, 0, 0]);
        data
    }

    #[test]
    fn a_run_ends_at_another_consumer_and_where_the_data_is_cut() {
        let data = [message(3), message(3), message(4)].concat();
        assert_eq!(scan_messages(&data, 0, 100), (52, 3, 2, 26));
        assert_eq!(scan_messages(&data, 52, 100), (78, 4, 1, 52));
        assert_eq!(scan_messages(&data[..51], 0, 100), (26, 3, 1, 0));
        assert_eq!(scan_messages(&data, 0, 21), (0, -1, 0, 0));
        assert_eq!(scan_messages(&data, 1000, 100), (1000, -1, 0, 1000));
    }

    #[test]
    fn a_command_is_read() {
        let data = message(3);
        let found = command(&data).unwrap();
        assert_eq!((found.ledger, found.entry, found.redelivery_count), (5, 6, 0));
        assert_eq!(found.rest, [0x0e, 1, 0, 0, 0, 0]);
        assert!(parts(found.rest).is_err());
    }

    #[test]
    fn fields_come_in_order_and_once() {
        let head = [0x0a, 1, b'p', 0x10, 5, 0x18, 6];
        let read = |rest: &[u8]| Metadata::read(&[&head, rest].concat()).map(|found| found.count);
        assert_eq!(read(&[]), Ok(0));
        assert_eq!(read(&[0x58, 3]), Ok(3));
        for rest in [&[0x58, 0][..], &[0x58, 3, 0x58, 3], &[0x60, 3, 0x58, 3], &[0x6a, 0], &[0x59]]
        {
            assert_eq!(read(rest), Err(Unusual));
        }
    }
}
