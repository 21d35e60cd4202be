//! SENDs: from payloads and keys to the bytes of frames, byte for byte as protobuf writes them.

use crate::wire::{put_number, Result, Unusual};

const CHECKSUM: [u8; 2] = [0x0e, 0x01];
/// Of a SEND: its type, and the tag of its body.
const SEND: [u8; 3] = [0x08, 0x06, 0x32];
/// Bytes that frame, command and metadata of an entry have at most besides names, keys and fields.
const ROOM: usize = 160;

/// What all entries of a producer have in common.
pub struct Producer {
    /// The tag and number of the producer in commands, and the sequence id's tag.
    id: Vec<u8>,
    /// Its name in metadata, and the sequence id's tag.
    name: Vec<u8>,
    version: Vec<u8>,
}

/// One entry: a message, or a batch whose key is that of its first message.
pub struct Entry<'a> {
    /// Codec, and size before compression.
    pub compressed: Option<(u8, usize)>,
    pub first_sequence_id: u64,
    pub publish_time: u64,
    pub key: Option<&'a [u8]>,
    /// All that a message outside of a batch has behind the publish time, in place of the key.
    pub fields: Option<&'a [u8]>,
    pub messages: usize,
}

impl Producer {
    pub fn new(id: u64, name: &[u8], schema_version: &[u8]) -> Self {
        let (mut own, mut named, mut version) = (vec![0x08], vec![0x0a], Vec::new());
        put_number(&mut own, id);
        own.push(0x10);
        put_sized(&mut named, name);
        named.push(0x10);
        if !schema_version.is_empty() {
            version.extend([0x82, 0x01]);
            put_sized(&mut version, schema_version);
        }
        Producer { id: own, name: named, version }
    }

    /// Bytes that the metadata of an entry has at most, besides its key or fields.
    pub fn overhead(&self) -> usize {
        self.name.len() + self.version.len() + 128
    }

    /// Append what precedes the payload in the frame of an entry.
    pub fn put_head(&self, out: &mut Vec<u8>, entry: &Entry, payload: &[u8]) -> Result<()> {
        let own = entry.fields.or(entry.key).map_or(0, <[u8]>::len);
        out.reserve(self.overhead() + own + ROOM);
        let frame = out.len();
        let highest = entry.first_sequence_id + (entry.messages - 1) as u64;
        // The sizes of frame and command, and that of its body, are known later.
        out.extend([0; 8]);
        out.extend(SEND);
        out.push(0);
        let body = out.len();
        out.extend_from_slice(&self.id);
        put_number(out, entry.first_sequence_id);
        out.push(0x18);
        put_number(out, entry.messages as u64);
        if entry.messages > 1 {
            out.push(0x30);
            put_number(out, highest);
        }
        let command_end = out.len();
        out[body - 1] = (command_end - body) as u8;
        out.extend(CHECKSUM);
        // Checksum and size of the metadata.
        out.extend([0; 8]);
        let metadata = out.len();
        self.put_metadata(out, entry, highest);
        let size = out.len() - metadata;
        set_be32(out, metadata - 4, size)?;
        let head_sum = crc32c::crc32c(&out[metadata - 4..]);
        let checksum = crc32c::crc32c_append(head_sum, payload);
        set_be32(out, metadata - 8, checksum as usize)?;
        let size = out.len() - frame - 4 + payload.len();
        set_be32(out, frame, size)?;
        set_be32(out, frame + 4, command_end - frame - 8)
    }

    fn put_metadata(&self, out: &mut Vec<u8>, entry: &Entry, highest: u64) {
        out.extend_from_slice(&self.name);
        put_number(out, entry.first_sequence_id);
        out.push(0x18);
        put_number(out, entry.publish_time);
        if let Some(fields) = entry.fields {
            out.extend_from_slice(fields);
        } else if let Some(key) = entry.key {
            out.push(0x32);
            put_sized(out, key);
        }
        if let Some((codec, size)) = entry.compressed {
            out.extend([0x40, codec, 0x48]);
            put_number(out, size as u64);
        }
        if entry.messages > 1 {
            out.push(0x58);
            put_number(out, entry.messages as u64);
        }
        out.extend_from_slice(&self.version);
        if entry.messages > 1 {
            out.extend([0xc0, 0x01]);
            put_number(out, highest);
        }
    }
}

/// Frames in the making: their heads, and the bodies that are not a message's payload as given.
#[derive(Default)]
pub struct Frames {
    heads: Vec<u8>,
    bodies: Vec<u8>,
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

    /// Put a batch as the next frame's body.
    pub fn put_batch(&mut self, columns: Columns, first_sequence_id: u64) -> Result<()> {
        put_batch(&mut self.bodies, columns, first_sequence_id)
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

/// Columns of messages; `fields` are all of each one's metadata in a batch that stands before the
/// number of its sequence id, or of an entry's between publish time and schema version. With them
/// some messages may have no key.
#[derive(Clone, Copy)]
pub struct Columns<'a> {
    pub payloads: &'a [&'a [u8]],
    pub keys: Option<&'a [Option<&'a [u8]>]>,
    pub fields: Option<&'a [&'a [u8]]>,
}

impl<'a> Columns<'a> {
    /// A range of the messages; all columns have as many.
    pub fn part(&self, start: usize, stop: usize) -> Self {
        Columns {
            payloads: &self.payloads[start..stop],
            keys: self.keys.map(|column| &column[start..stop]),
            fields: self.fields.map(|column| &column[start..stop]),
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

/// Append the body of a batch.
fn put_batch(out: &mut Vec<u8>, columns: Columns, first_sequence_id: u64) -> Result<()> {
    for (index, payload) in columns.payloads.iter().enumerate() {
        let start = out.len();
        out.extend([0; 4]);
        if let Some(fields) = columns.fields {
            out.extend_from_slice(fields.get(index).ok_or(Unusual)?);
        } else {
            if let Some(keys) = columns.keys {
                out.push(0x12);
                put_sized(out, keys.get(index).copied().flatten().ok_or(Unusual)?);
            }
            out.push(0x18);
            put_number(out, payload.len() as u64);
            out.push(0x40);
        }
        put_number(out, first_sequence_id + index as u64);
        let size = out.len() - start - 4;
        set_be32(out, start, size)?;
        out.extend_from_slice(payload);
    }
    Ok(())
}

fn put_sized(out: &mut Vec<u8>, data: &[u8]) {
    put_number(out, data.len() as u64);
    out.extend_from_slice(data);
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
        let producer = Producer::new(300, b"p", b"v");
        let mut body = Vec::new();
        let columns = Columns {
            payloads: &[b"one", b""],
            keys: Some(&[Some(b"k"), Some(b"l")]),
            fields: None,
        };
        put_batch(&mut body, columns, 127).unwrap();
        let (first, end) = batch::message(&body, 0).unwrap();
        let (second, end) = batch::message(&body, end).unwrap();
        assert_eq!((first.payload, first.key), (&b"one"[..], Some(&b"k"[..])));
        assert_eq!((second.payload, second.sequence_id), (&b""[..], Some(128)));
        assert_eq!(end, body.len());

        let entry = Entry {
            compressed: None,
            first_sequence_id: 127,
            publish_time: 5,
            key: Some(b"k"),
            fields: None,
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
        let metadata = crate::frame::Metadata::read(parts.metadata).unwrap();
        assert_eq!((metadata.count, metadata.key), (2, Some(&b"k"[..])));
    }
}
