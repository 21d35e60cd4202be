//! SENDs: from payloads and keys to the bytes of frames, byte for byte as protobuf writes them.

use crate::wire::{put_number, Result, Unusual};

const CHECKSUM: [u8; 2] = [0x0e, 0x01];
/// Of a SEND: its type, and the tag of its body.
const SEND: [u8; 3] = [0x08, 0x06, 0x32];
/// Bytes that frame, command and metadata of an entry have at most besides names and keys.
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

    /// Bytes that the metadata of an entry has at most, besides its key.
    pub fn overhead(&self) -> usize {
        self.name.len() + self.version.len() + 128
    }

    /// Append the frame of an entry.
    pub fn put(&self, out: &mut Vec<u8>, entry: &Entry, payload: &[u8]) -> Result<()> {
        let own = entry.fields.or(entry.key).map_or(0, <[u8]>::len);
        out.reserve(self.overhead() + own + ROOM + payload.len());
        self.put_head(out, entry, payload)?;
        out.extend_from_slice(payload);
        Ok(())
    }

    /// Append what precedes the payload in a frame.
    pub fn put_head(&self, out: &mut Vec<u8>, entry: &Entry, payload: &[u8]) -> Result<()> {
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

/// Columns of messages; `fields` are all of each one's metadata in a batch that stands before the
/// number of its sequence id, or of an entry's between publish time and schema version.
#[derive(Clone, Copy)]
pub struct Columns<'a> {
    pub payloads: &'a [&'a [u8]],
    pub keys: Option<&'a [&'a [u8]]>,
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

/// Append the body of a batch.
pub fn put_batch(out: &mut Vec<u8>, columns: Columns, first_sequence_id: u64) -> Result<()> {
    for (index, payload) in columns.payloads.iter().enumerate() {
        let start = out.len();
        out.extend([0; 4]);
        if let Some(fields) = columns.fields {
            out.extend_from_slice(fields.get(index).ok_or(Unusual)?);
        } else {
            if let Some(keys) = columns.keys {
                out.push(0x12);
                put_sized(out, keys.get(index).ok_or(Unusual)?);
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
    fn what_is_written_can_be_read() {
        let producer = Producer::new(300, b"p", b"v");
        let mut body = Vec::new();
        let columns = Columns { payloads: &[b"one", b""], keys: Some(&[b"k", b"l"]), fields: None };
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
        producer.put(&mut out, &entry, &body).unwrap();
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
