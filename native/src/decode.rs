//! The decoder: frames of a consumer, in order, become rows.

use std::collections::HashSet;

use crate::batch;
use crate::columns::{Own, Rows, Shared};
use crate::frame::{command, parts, Metadata, Parts};
use crate::lz4;
use crate::wire::{be32, put_base64, put_number, Result, Unusual};

/// A place on a topic: ledger, entry, batch index.
pub type Place = (i64, i64, i64);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    Done = 0,
    Full = 1,
    End = 2,
    Slow = 3,
}

#[cfg_attr(feature = "python", derive(pyo3::FromPyObject))]
pub struct Options {
    pub partition: i32,
    pub columns: HashSet<String>,
    pub end: Option<Place>,
    pub max_rows: usize,
    pub max_bytes: usize,
    pub max_payload: usize,
    pub published_from: Option<i64>,
    pub published_before: Option<i64>,
}

/// How far `decode` came, and what the frames taken cost in permits.
#[derive(Debug)]
pub struct Progress {
    pub at: usize,
    pub status: Status,
    pub messages: u64,
    pub position: Place,
}

/// Undoes a codec that is not here: codec, data, size, limit.
pub type Decompress<'a> = &'a mut dyn FnMut(i32, &[u8], usize, usize) -> Option<Vec<u8>>;

const NONE: i32 = 0;
const LZ4: i32 = 1;

/// Where the batch goes on that did not fit whole, in the body that the decoder has kept if it is
/// compressed.
struct Begun {
    at: usize,
    index: i32,
    offset: usize,
}

pub struct Decoder {
    options: Options,
    pub rows: Rows,
    pub slow_frames: u64,
    body: Vec<u8>,
    begun: Option<Begun>,
}

/// A frame that was taken, passed by, or left.
enum Taken {
    /// Its cost, and where the next one is expected.
    Whole(u64, Place),
    /// There is no room for it, or for the rest of it from the place on.
    Full(Place),
    End,
}

impl Decoder {
    pub fn new(options: Options) -> Self {
        let rows = Rows::new(&options.columns);
        Decoder { options, rows, slow_frames: 0, body: Vec::new(), begun: None }
    }

    /// Take the frames of `data[at..stop]`. A batch that was begun in other data is begun anew.
    pub fn decode(
        &mut self,
        data: &[u8],
        mut at: usize,
        stop: usize,
        mut position: Place,
        same_data: bool,
        decompress: Decompress,
    ) -> Progress {
        if !same_data {
            self.begun = None;
        }
        let (mut messages, mut status) = (0, Status::Done);
        let data = &data[..stop.min(data.len())];
        while at < stop {
            let taken = frame(data, at).and_then(|found| {
                let taken = self.take(found, at, position, decompress)?;
                Ok((taken, at + found.len()))
            });
            match taken {
                Ok((Taken::Whole(cost, next), end)) => {
                    messages += cost;
                    (at, position) = (end, next);
                }
                Ok((Taken::Full(place), _)) => {
                    (status, position) = (Status::Full, place);
                    break;
                }
                Ok((Taken::End, _)) => {
                    status = Status::End;
                    break;
                }
                Err(Unusual) => {
                    self.rows.give_up();
                    self.slow_frames += 1;
                    status = Status::Slow;
                    break;
                }
            }
        }
        Progress { at, status, messages, position }
    }

    /// Forget the rows, which were handed over.
    pub fn clear(&mut self) {
        let largest = self.options.max_bytes.saturating_add(self.options.max_bytes / 4);
        self.rows.clear(largest);
    }

    fn take(
        &mut self,
        frame: &[u8],
        at: usize,
        position: Place,
        decompress: Decompress,
    ) -> Result<Taken> {
        let command = command(frame)?;
        let key = (command.ledger, command.entry);
        let first_chunk = command.first_chunk;
        let place = (position.0, position.1);
        if let Some(end) = self.options.end {
            if key >= place && (key.0, key.1, 0) >= end {
                return Ok(Taken::End);
            }
        }
        let parts = parts(command.rest)?;
        let metadata = Metadata::read(parts.metadata)?;
        let count = metadata.count.max(1);
        let cost = count as u64;
        if key < place {
            return Ok(Taken::Whole(cost, position));
        }
        let (first, stop) = self.wanted(key, position, count);
        let taken = self.takes(metadata.publish_time);
        let size = parts.metadata.len()
            + match metadata.codec {
                NONE => parts.payload.len(),
                _ => metadata.uncompressed_size as usize,
            };
        let shared = Shared {
            ledger: key.0,
            entry: key.1,
            publish_time: metadata.publish_time,
            producer_name: metadata.producer_name,
            schema_version: metadata.schema_version,
            replicated_from: metadata.replicated_from,
            redelivery_count: command.redelivery_count,
        };
        // A message alone has them once, in its metadata.
        let row_size = if metadata.count > 0 { self.rows.row_size(&shared) } else { 0 };
        let rows = (stop - first).max(0) as usize;
        let begun = self.begun.take().filter(|begun| begun.at == at && begun.index == first);
        let needed = size.saturating_add(row_size.saturating_mul(rows));
        if taken && rows > 0 && !self.has_room(rows, needed) {
            self.begun = begun;
            return Ok(Taken::Full(position));
        }
        // What was begun was checked.
        if begun.is_none() && crc32c::crc32c(parts.checked) != parts.checksum {
            return Err(Unusual);
        }
        let next = (key.0, key.1.checked_add(1).ok_or(Unusual)?, 0);
        if first >= stop {
            return Ok(Taken::Whole(cost, next));
        }
        let mut body = std::mem::take(&mut self.body);
        let done = self.payload(&metadata, &parts, begun.is_some(), &mut body, decompress);
        let reached = done.and_then(|payload| {
            if !taken {
                return Ok(stop);
            }
            if metadata.count == 0 {
                let id = self.id(&shared, first_chunk);
                self.add_message(payload, &metadata, &shared, &id, parts.index, size)?;
                return Ok(stop);
            }
            if first_chunk.is_some() {
                return Err(Unusual);
            }
            let (range, sizes) = ((first, stop), (parts.metadata.len(), row_size));
            self.add_messages(payload, &metadata, &shared, parts.index, range, sizes, begun, at)
        });
        body.shrink_to(self.options.max_bytes);
        self.body = body;
        Ok(match reached? {
            index if index < stop => Taken::Full((key.0, key.1, i64::from(index))),
            _ => Taken::Whole(cost, next),
        })
    }

    /// Which messages of an entry lie in the range: from the first up to, not including, the last.
    fn wanted(&self, key: (i64, i64), position: Place, count: i32) -> (i32, i32) {
        let within = |index: i64| index.clamp(0, i64::from(count)) as i32;
        let first = if key == (position.0, position.1) { within(position.2) } else { 0 };
        let stop = match self.options.end {
            Some(end) if key == (end.0, end.1) => within(end.2),
            _ => count,
        };
        (first, stop)
    }

    fn takes(&self, publish_time: u64) -> bool {
        let time = publish_time.min(i64::MAX as u64) as i64;
        self.options.published_from.is_none_or(|from| time >= from)
            && self.options.published_before.is_none_or(|before| time < before)
    }

    fn has_room(&self, count: usize, size: usize) -> bool {
        self.rows.rows == 0
            || self.rows.rows + count <= self.options.max_rows
                && self.rows.nbytes + size <= self.options.max_bytes
    }

    /// The payload decompressed, into `body` if it was compressed and is not `kept` there.
    fn payload<'a>(
        &self,
        metadata: &Metadata,
        parts: &Parts<'a>,
        kept: bool,
        body: &'a mut Vec<u8>,
        decompress: Decompress,
    ) -> Result<&'a [u8]> {
        if metadata.codec == NONE {
            return Ok(parts.payload);
        }
        let limit = self.options.max_payload;
        let size = metadata.uncompressed_size as usize;
        if size > limit {
            return Err(Unusual);
        }
        match metadata.codec {
            _ if kept => (),
            LZ4 => lz4::decompress(parts.payload, size, body)?,
            codec => *body = decompress(codec, parts.payload, size, limit).ok_or(Unusual)?,
        }
        (body.len() == size).then_some(body.as_slice()).ok_or(Unusual)
    }

    /// What the ids of an entry's messages begin with.
    fn id(&self, shared: &Shared, first_chunk: Option<Place>) -> Vec<u8> {
        let mut id = id((shared.ledger, shared.entry, i64::from(self.options.partition)));
        if let Some(place) = first_chunk {
            let first = self::id(place);
            id.push(0x3a);
            put_number(&mut id, first.len() as u64);
            id.extend_from_slice(&first);
        }
        id
    }

    fn add_message(
        &mut self,
        payload: &[u8],
        metadata: &Metadata,
        shared: &Shared,
        id: &[u8],
        index: Option<i64>,
        size: usize,
    ) -> Result<()> {
        let own = Own {
            batch_index: -1,
            payload,
            fields: metadata.fields,
            sequence_id: metadata.sequence_id as i64,
            index,
            properties: metadata.properties.iter().copied(),
        };
        self.rows.push(id, own)?;
        self.rows.finish(shared, -1, 1, 0)?;
        self.rows.nbytes += size;
        Ok(())
    }

    /// Add the messages of a batch from the first wanted one up to the last, or as many as may be;
    /// return where it stopped. All messages are looked at before any becomes a row.
    #[allow(clippy::too_many_arguments)]
    fn add_messages(
        &mut self,
        body: &[u8],
        metadata: &Metadata,
        shared: &Shared,
        last_index: Option<i64>,
        (first, stop): (i32, i32),
        (metadata_size, row_size): (usize, usize),
        begun: Option<Begun>,
        at: usize,
    ) -> Result<i32> {
        let count = metadata.count;
        if !batch::may_hold(body, count) {
            return Err(Unusual);
        }
        let (max_rows, max_bytes) = (self.options.max_rows, self.options.max_bytes);
        let repeated = |rows: i32| row_size.saturating_mul(rows as usize);
        let size = (metadata_size + body.len()).saturating_add(repeated(stop - first));
        let whole = (stop - first) as usize <= max_rows && size <= max_bytes;
        let checked = begun.is_some();
        let (start, mut offset) = begun.map_or((0, 0), |begun| (begun.index, begun.offset));
        let mut id = self.id(shared, None);
        let id_size = id.len();
        let mut tail = vec![0x30];
        put_number(&mut tail, count as u64);
        let (mut begin, mut reached, mut reached_at) = (0, first, 0);
        // Rows that follow each other, and where the next ones begin.
        let (mut runs, mut run) = (Vec::new(), first);
        let mut full = false;
        for index in start..count {
            let (message, end) = batch::message(body, offset)?;
            if index == first {
                begin = offset;
            }
            if !whole && !full && index > first && index < stop {
                let size = (end - begin).saturating_add(repeated(index + 1 - first));
                full = (index - first) as usize >= max_rows || size > max_bytes;
            }
            let taken = index >= first && index < stop && !full;
            if taken && message.compacted_out {
                runs.push((run, index - run));
                run = index + 1;
                (reached, reached_at) = (run, end);
            } else if taken {
                id.truncate(id_size);
                id.push(0x20);
                put_number(&mut id, index as u64);
                id.extend_from_slice(&tail);
                let own_id = message.sequence_id.map(|id| id as i64);
                let own = Own {
                    batch_index: index,
                    payload: message.payload,
                    fields: message.fields,
                    sequence_id: own_id
                        .unwrap_or((metadata.sequence_id as i64).wrapping_add(i64::from(index))),
                    // It is that of the last message.
                    index: last_index.map(|last| last.wrapping_sub(i64::from(count - 1 - index))),
                    properties: message.properties.pairs(),
                };
                self.rows.push(&id, own)?;
                (reached, reached_at) = (index + 1, end);
            }
            if message.fields.key_is_base64
                && self.rows.columns.key.is_some()
                && (!taken || message.compacted_out)
            {
                // A batch with a key that cannot be read is left whole.
                put_base64(&mut Vec::new(), message.fields.key.unwrap_or_default())?;
            }
            offset = end;
            if checked && full {
                break;
            }
        }
        if offset != body.len() && !(checked && full) {
            return Err(Unusual);
        }
        runs.push((run, reached - run));
        for (first, rows) in runs {
            self.rows.finish(shared, first, rows as usize, count)?;
        }
        self.rows.nbytes += reached_at - begin + metadata_size + repeated(reached - first);
        if reached < stop {
            self.begun = Some(Begun { at, index: reached, offset: reached_at });
        }
        Ok(reached)
    }
}

/// A serialized id: ledger, entry, partition (-1: none).
fn id((ledger, entry, partition): (i64, i64, i64)) -> Vec<u8> {
    let mut id = Vec::with_capacity(40);
    id.push(0x08);
    put_number(&mut id, ledger as u64);
    id.push(0x10);
    put_number(&mut id, entry as u64);
    if partition >= 0 {
        id.push(0x18);
        put_number(&mut id, partition as u64);
    }
    id
}

/// The whole frame at a place.
fn frame(data: &[u8], at: usize) -> Result<&[u8]> {
    let size = be32(data, at)?;
    let end = at.checked_add(4 + size).ok_or(Unusual)?;
    data.get(at..end).ok_or(Unusual)
}
