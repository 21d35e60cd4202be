//! SENDs: from columns of messages to the bytes of frames.
//!
//! A message's fields, those of MessageMetadata that it brings besides its key, are encoded already:
//! an entry of one message takes them as they are, and batches get each with the tag that it has in
//! SingleMessageMetadata.

use std::ops::Range;

use crate::wire::{put_number, put_sized, Reader, Result, Unusual};

const CHECKSUM: [u8; 2] = [0x0e, 0x01];
/// Of a SEND: its type, and the tag of its body.
const SEND: [u8; 3] = [0x08, 0x06, 0x32];
/// Bytes that frame, command and metadata of an entry have at most besides names, keys and fields.
const ROOM: usize = 180;

/// Tags of MessageMetadata.
const PROPERTIES: u64 = 0x22;
const EVENT_TIME: u64 = 0x60;
const KEY_IS_BASE64: u64 = 0x88;
const ORDERING_KEY: u64 = 0x92;
const TXN_LEAST_BITS: u64 = 0xb0;
const TXN_MOST_BITS: u64 = 0xb8;
const NULL_VALUE: u64 = 0xc8;
const NULL_KEY: u64 = 0xf0;

/// The tag in SingleMessageMetadata of what a message brings; nothing else goes into a batch.
fn in_batch(tag: u64) -> Result<Option<u64>> {
    Ok(Some(match tag {
        PROPERTIES => 0x0a,
        EVENT_TIME => 0x28,
        KEY_IS_BASE64 => 0x30,
        ORDERING_KEY => 0x3a,
        NULL_VALUE => 0x48,
        NULL_KEY => 0x50,
        _ => return Err(Unusual),
    }))
}

fn in_entry(tag: u64) -> Result<Option<u64>> {
    Ok(Some(tag))
}

/// What a batch shows of its first message.
fn of_batch(tag: u64) -> Result<Option<u64>> {
    Ok(matches!(tag, KEY_IS_BASE64 | ORDERING_KEY).then_some(tag))
}

/// A message's fields, to be written among others in the order of their tags.
struct Fields<'a, Tag> {
    rest: Reader<'a>,
    next: Option<(u64, &'a [u8])>,
    tag: Tag,
}

impl<'a, Tag: Fn(u64) -> Result<Option<u64>>> Fields<'a, Tag> {
    #[inline]
    fn new(data: &'a [u8], tag: Tag) -> Result<Self> {
        let mut fields = Fields { rest: Reader::new(data), next: None, tag };
        if !data.is_empty() {
            fields.advance()?;
        }
        Ok(fields)
    }

    #[inline]
    fn is_empty(&self) -> bool {
        self.next.is_none()
    }

    #[inline]
    fn advance(&mut self) -> Result<()> {
        self.next = None;
        while self.next.is_none() && !self.rest.is_empty() {
            let (tag, value) = self.rest.field()?;
            self.next = (self.tag)(tag)?.map(|tag| (tag, value));
        }
        Ok(())
    }

    /// Append those that come before a tag.
    #[inline]
    fn put_before(&mut self, out: &mut Vec<u8>, tag: u64) -> Result<()> {
        while let Some((own, value)) = self.next.filter(|(own, _)| *own < tag) {
            put_number(out, own);
            out.extend_from_slice(value);
            self.advance()?;
        }
        Ok(())
    }
}

/// What all entries of a producer have in common.
pub struct Producer {
    /// The tag and number of the producer in commands, and the sequence id's tag.
    id: Vec<u8>,
    /// Its name in metadata, and the sequence id's tag.
    name: Vec<u8>,
    /// Fields of MessageMetadata: the schema's version and the transaction.
    common: Vec<u8>,
    txn: Option<(u64, u64)>,
}

/// One entry: a message, or a batch whose key is that of its first message.
pub struct Entry<'a> {
    /// Codec, and size before compression.
    pub compressed: Option<(u8, usize)>,
    /// The lowest and the highest sequence id.
    pub ids: (u64, u64),
    pub publish_time: u64,
    pub key: Option<&'a [u8]>,
    /// Those of its first message.
    pub fields: &'a [u8],
    pub messages: usize,
}

impl Producer {
    /// Every command repeats the transaction of its metadata.
    pub fn new(id: u64, name: &[u8], common: &[u8]) -> Result<Self> {
        let (mut own, mut named) = (vec![0x08], vec![0x0a]);
        put_number(&mut own, id);
        own.push(0x10);
        put_sized(&mut named, name);
        named.push(0x10);
        Ok(Producer { id: own, name: named, common: common.to_vec(), txn: txn_of(common)? })
    }

    /// Bytes that the metadata of an entry has at most, besides its key and fields.
    pub fn overhead(&self) -> usize {
        self.name.len() + self.common.len() + 128
    }

    /// Append what precedes the payload in the frame of an entry.
    pub fn put_head(&self, out: &mut Vec<u8>, entry: &Entry, payload: &[u8]) -> Result<()> {
        let own = entry.fields.len() + entry.key.map_or(0, <[u8]>::len);
        out.reserve(self.overhead() + own + ROOM);
        let frame = out.len();
        // The sizes of frame and command, and that of its body, are known later.
        out.extend([0; 8]);
        out.extend(SEND);
        out.push(0);
        let body = out.len();
        self.put_command(out, entry)?;
        let command_end = out.len();
        out[body - 1] = (command_end - body) as u8;
        out.extend(CHECKSUM);
        // Checksum and size of the metadata.
        out.extend([0; 8]);
        let metadata = out.len();
        self.put_metadata(out, entry)?;
        let size = out.len() - metadata;
        set_be32(out, metadata - 4, size)?;
        let head_sum = crc32c::crc32c(&out[metadata - 4..]);
        let checksum = crc32c::crc32c_append(head_sum, payload);
        set_be32(out, metadata - 8, checksum as usize)?;
        let size = out.len() - frame - 4 + payload.len();
        set_be32(out, frame, size)?;
        set_be32(out, frame + 4, command_end - frame - 8)
    }

    fn put_command(&self, out: &mut Vec<u8>, entry: &Entry) -> Result<()> {
        out.extend_from_slice(&self.id);
        put_number(out, entry.ids.0);
        out.push(0x18);
        put_number(out, entry.messages as u64);
        let may_have = entry.messages == 1 && !entry.fields.is_empty();
        let own = if may_have { txn_of(entry.fields)? } else { None };
        if let Some((least, most)) = own.or(self.txn) {
            out.push(0x20);
            put_number(out, least);
            out.push(0x28);
            put_number(out, most);
        }
        if entry.messages > 1 {
            out.push(0x30);
            put_number(out, entry.ids.1);
        }
        Ok(())
    }

    fn put_metadata(&self, out: &mut Vec<u8>, entry: &Entry) -> Result<()> {
        let is_batch = entry.messages > 1;
        let mut fields = Fields::new(entry.fields, |tag| match is_batch {
            true => of_batch(tag),
            false => in_entry(tag),
        })?;
        out.extend_from_slice(&self.name);
        put_number(out, entry.ids.0);
        out.push(0x18);
        put_number(out, entry.publish_time);
        fields.put_before(out, 0x32)?;
        if let Some(key) = entry.key {
            out.push(0x32);
            put_sized(out, key);
        }
        fields.put_before(out, 0x40)?;
        if let Some((codec, size)) = entry.compressed {
            out.extend([0x40, codec, 0x48]);
            put_number(out, size as u64);
        }
        if is_batch {
            out.push(0x58);
            put_number(out, entry.messages as u64);
        }
        if fields.is_empty() {
            out.extend_from_slice(&self.common);
        } else {
            let mut common = Fields::new(&self.common, in_entry)?;
            while let Some((tag, _)) = common.next {
                fields.put_before(out, tag)?;
                common.put_before(out, tag + 1)?;
            }
        }
        if is_batch {
            fields.put_before(out, 0xc0)?;
            out.extend([0xc0, 0x01]);
            put_number(out, entry.ids.1);
        }
        fields.put_before(out, u64::MAX)
    }
}

/// The least and the most bits of the transaction that fields name.
fn txn_of(fields: &[u8]) -> Result<Option<(u64, u64)>> {
    let (mut least, mut most) = (None, None);
    let mut fields = Reader::new(fields);
    while !fields.is_empty() {
        let (tag, value) = fields.field()?;
        match tag {
            TXN_LEAST_BITS => least = Some(Reader::new(value).number()?),
            TXN_MOST_BITS => most = Some(Reader::new(value).number()?),
            _ => {}
        }
    }
    Ok(least.zip(most))
}

/// Frames in the making: their heads, and the bodies that are not a message's payload as given.
#[derive(Default)]
pub struct Frames {
    heads: Vec<u8>,
    pub bodies: Vec<u8>,
    /// Where those of each frame end.
    cuts: Vec<(usize, usize)>,
}

impl Frames {
    pub fn clear(&mut self) {
        self.heads.clear();
        self.bodies.clear();
        self.cuts.clear();
    }

    /// Bytes of memory in use.
    pub fn capacity(&self) -> usize {
        self.heads.capacity() + self.bodies.capacity()
    }

    /// Put the next frame's body, in place of one that was put.
    pub fn replace_body(&mut self, body: &[u8]) {
        self.bodies.truncate(self.last_cut().1);
        self.bodies.extend_from_slice(body);
    }

    /// The next frame's body; `given` is its message's payload.
    pub fn body<'a>(&'a self, given: &'a [u8]) -> &'a [u8] {
        body_or(&self.bodies[self.last_cut().1..], given)
    }

    /// End the next frame by its head; `given` is its message's payload.
    pub fn put_head(&mut self, producer: &Producer, entry: &Entry, given: &[u8]) -> Result<()> {
        let payload = body_or(&self.bodies[self.last_cut().1..], given);
        producer.put_head(&mut self.heads, entry, payload)?;
        self.cuts.push((self.heads.len(), self.bodies.len()));
        Ok(())
    }

    /// Head and payload, if there is one frame; `given` is its message's payload.
    pub fn only<'a>(&'a self, given: &'a [u8]) -> Option<(&'a [u8], &'a [u8])> {
        (self.cuts.len() == 1).then(|| (&self.heads[..], body_or(&self.bodies, given)))
    }

    fn last_cut(&self) -> (usize, usize) {
        self.cuts.last().copied().unwrap_or_default()
    }

    /// Where each frame ends; `given` has a payload for each.
    pub fn ends<'a>(&'a self, given: impl Iterator<Item = &'a [u8]>) -> Vec<i64> {
        let mut end = 0;
        let ends = self.parts(given).map(|(head, payload)| {
            end += head.len() + payload.len();
            end as i64
        });
        ends.collect()
    }

    /// Write all frames, with payloads as in `ends`, to a buffer of their size.
    pub fn write<'a>(&'a self, given: impl Iterator<Item = &'a [u8]>, out: &mut [u8]) {
        let mut at = 0;
        for (head, payload) in self.parts(given) {
            for part in [head, payload] {
                out[at..at + part.len()].copy_from_slice(part);
                at += part.len();
            }
        }
    }

    fn parts<'a>(
        &'a self,
        given: impl Iterator<Item = &'a [u8]>,
    ) -> impl Iterator<Item = (&'a [u8], &'a [u8])> {
        let mut begin = (0, 0);
        self.cuts.iter().zip(given).map(move |(&end, payload)| {
            let (head, body) = (&self.heads[begin.0..end.0], &self.bodies[begin.1..end.1]);
            begin = end;
            (head, body_or(body, payload))
        })
    }
}

/// The body that was put, or else the payload as given.
fn body_or<'a>(put: &'a [u8], given: &'a [u8]) -> &'a [u8] {
    if put.is_empty() {
        given
    } else {
        put
    }
}

/// Columns of messages: of equally many, where there is one.
pub struct Columns<'a> {
    pub payloads: Vec<&'a [u8]>,
    pub keys: Option<Vec<Option<&'a [u8]>>>,
    pub fields: Option<Vec<&'a [u8]>>,
    pub ids: Ids,
}

/// Sequence ids, which count up from the first one or are the users' own.
pub enum Ids {
    From(u64),
    Own(Vec<u64>),
}

impl Columns<'_> {
    pub fn key(&self, index: usize) -> Option<&[u8]> {
        self.keys.as_ref().and_then(|keys| keys[index])
    }

    pub fn fields(&self, index: usize) -> &[u8] {
        self.fields.as_ref().map_or(&[], |fields| fields[index])
    }

    pub fn id(&self, index: usize) -> u64 {
        match &self.ids {
            Ids::From(first) => first + index as u64,
            Ids::Own(ids) => ids[index],
        }
    }
}

/// Where the values of a column start in `size` bytes, and where the last one ends, from numbers of
/// `width` bytes each, in the machine's own order; they count from the first.
pub fn column_edges(numbers: &[u8], width: usize, size: usize) -> Result<Vec<usize>> {
    let number = |bytes: &[u8]| match width {
        4 => bytes.try_into().map(|own| i64::from(i32::from_ne_bytes(own))).map_err(|_| Unusual),
        8 => bytes.try_into().map(i64::from_ne_bytes).map_err(|_| Unusual),
        _ => Err(Unusual),
    };
    let mut parts = numbers.chunks_exact(width.max(1));
    let first = number(parts.next().ok_or(Unusual)?)?;
    let mut edges = vec![0];
    let mut last = 0;
    for part in parts {
        let edge = number(part)?.checked_sub(first).ok_or(Unusual)?;
        let edge = usize::try_from(edge).map_err(|_| Unusual)?;
        if edge < last || edge > size {
            return Err(Unusual);
        }
        edges.push(edge);
        last = edge;
    }
    Ok(edges)
}

/// Append the body of a batch of a range of the messages.
pub fn put_batch(out: &mut Vec<u8>, columns: &Columns, range: Range<usize>) -> Result<()> {
    for index in range {
        let payload = columns.payloads[index];
        let start = out.len();
        out.extend([0; 4]);
        let put_key = |out: &mut Vec<u8>| {
            if let Some(key) = columns.key(index) {
                out.push(0x12);
                put_sized(out, key);
            }
            out.push(0x18);
            put_number(out, payload.len() as u64);
        };
        let put_id = |out: &mut Vec<u8>| {
            out.push(0x40);
            put_number(out, columns.id(index));
        };
        let own = columns.fields(index);
        if own.is_empty() {
            put_key(out);
            put_id(out);
        } else {
            let mut fields = Fields::new(own, in_batch)?;
            fields.put_before(out, 0x12)?;
            put_key(out);
            fields.put_before(out, 0x40)?;
            put_id(out);
            fields.put_before(out, u64::MAX)?;
        }
        let size = out.len() - start - 4;
        set_be32(out, start, size)?;
        out.extend_from_slice(payload);
    }
    Ok(())
}

fn set_be32(out: &mut [u8], at: usize, value: usize) -> Result<()> {
    let value = u32::try_from(value).map_err(|_| Unusual)?;
    out[at..at + 4].copy_from_slice(&value.to_be_bytes());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch;

    #[test]
    fn edges_of_a_column_count_from_the_first_and_lie_within_it() {
        let long = |numbers: &[i64]| -> Vec<u8> {
            numbers.iter().flat_map(|number| number.to_ne_bytes()).collect()
        };
        let short: Vec<u8> = [7i32, 7, 9].iter().flat_map(|number| number.to_ne_bytes()).collect();
        assert_eq!(column_edges(&short, 4, 2), Ok(vec![0, 0, 2]));
        assert_eq!(column_edges(&long(&[-3, 0]), 8, 3), Ok(vec![0, 3]));
        let wrong = [&[][..], &[0, 4], &[5, 4], &[0, 3, 2], &[i64::MIN, i64::MAX]];
        for numbers in wrong {
            assert_eq!(column_edges(&long(numbers), 8, 3), Err(Unusual));
        }
        assert_eq!(column_edges(&long(&[0, 1]), 2, 3), Err(Unusual));
        assert_eq!(column_edges(&long(&[0, 1]), 0, 3), Err(Unusual));
    }

    #[test]
    fn what_is_written_can_be_read() {
        let producer = Producer::new(300, b"p", b"\x82\x01\x01v\xb0\x01\x05\xb8\x01\x06").unwrap();
        assert_eq!(producer.txn, Some((5, 6)));
        let mut body = Vec::new();
        let columns = Columns {
            payloads: vec![b"one", b""],
            keys: Some(vec![Some(b"k"), None]),
            fields: Some(vec![b"\x88\x01\x01", b"\x60\x07\xc8\x01\x01"]),
            ids: Ids::From(127),
        };
        put_batch(&mut body, &columns, 0..2).unwrap();
        let (first, end) = batch::message(&body, 0).unwrap();
        let (second, end) = batch::message(&body, end).unwrap();
        assert_eq!((first.payload, first.fields.key), (&b"one"[..], Some(&b"k"[..])));
        assert_eq!((second.payload, second.sequence_id), (&b""[..], Some(128)));
        assert_eq!((second.fields.event_time, second.fields.null_value), (7, true));
        assert_eq!(end, body.len());

        let entry = Entry {
            compressed: None,
            ids: (127, 128),
            publish_time: 5,
            key: Some(b"k"),
            fields: b"\x22\x02\x0a\0\x88\x01\x01",
            messages: 2,
        };
        let mut out = b"before".to_vec();
        producer.put_head(&mut out, &entry, &body).unwrap();
        out.extend(&body);
        let frame = &out[6..];
        assert_eq!(crate::wire::be32(frame, 0), Ok(frame.len() - 4));
        let command_end = 8 + crate::wire::be32(frame, 4).unwrap();
        let parts = crate::frame::parts(&frame[command_end..]).unwrap();
        assert_eq!(crc32c::crc32c(parts.checked), parts.checksum);
        assert_eq!(parts.payload, body);
        let metadata = parts.metadata;
        let end = b"\x82\x01\x01v\x88\x01\x01\xb0\x01\x05\xb8\x01\x06\xc0\x01\x80\x01";
        assert!(metadata.ends_with(end));
    }

    #[test]
    fn fields_that_no_batch_has_are_refused() {
        let columns = Columns {
            payloads: vec![b""],
            keys: None,
            fields: Some(vec![b"\x98\x01\x07"]),
            ids: Ids::Own(vec![5]),
        };
        assert_eq!(put_batch(&mut Vec::new(), &columns, 0..1), Err(Unusual));
    }
}
