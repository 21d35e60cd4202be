//! Rows in the making, laid out as Arrow has them; knows nothing of Python.

use std::collections::{HashMap, HashSet};
use std::mem;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, PoisonError};

use crate::frame::{Fields, Pair};
use crate::wire::{put_base64, Result, Unusual};

/// The last millisecond of the year 9999: neither Spark's SQL nor Python has later times.
const LAST_MILLIS: u64 = 253_402_300_799_999;

/// Which rows have a value. There are bits only from the first null on.
#[derive(Default)]
pub struct Validity {
    bits: Vec<u8>,
    len: usize,
    pub nulls: usize,
}

impl Validity {
    #[inline]
    pub fn push(&mut self, valid: bool) {
        if !valid && self.nulls == 0 {
            self.begin();
        }
        if !valid || self.nulls > 0 {
            let place = self.len % 8;
            let bit = u8::from(valid) << place;
            match self.bits.last_mut() {
                Some(last) if place > 0 => *last |= bit,
                _ => self.bits.push(bit),
            }
            self.nulls += usize::from(!valid);
        }
        self.len += 1;
    }

    /// Write the bits of the rows before the first null.
    #[cold]
    fn begin(&mut self) {
        self.bits.clear();
        self.bits.resize(self.len / 8, 0xff);
        if self.len % 8 > 0 {
            self.bits.push((1 << (self.len % 8)) - 1);
        }
    }

    pub fn truncate(&mut self, len: usize) {
        let len = len.min(self.len);
        if self.nulls > 0 {
            let is_null = |row: &usize| self.bits[row / 8] >> (row % 8) & 1 == 0;
            self.nulls -= (len..self.len).filter(is_null).count();
            self.bits.truncate(len.div_ceil(8));
            if len % 8 > 0 {
                self.bits[len / 8] &= (1 << (len % 8)) - 1;
            }
        }
        self.len = len;
    }

    /// The bitmap, if there are nulls.
    pub fn bits(&self) -> Option<&[u8]> {
        (self.nulls > 0).then_some(&self.bits)
    }

    pub fn clear(&mut self) {
        *self = Validity { bits: std::mem::take(&mut self.bits), len: 0, nulls: 0 };
    }
}

/// One buffer of a column, a vector that can be lent.
#[derive(Default)]
pub struct Buffer<T> {
    values: Vec<T>,
    spare: Spare<T>,
}

/// Memory that came back, to be used again: page faults of new memory cost more than writing to it.
type Spare<T> = Arc<Mutex<Vec<Vec<T>>>>;

/// Spark holds one record batch while the next one is made.
const MAX_SPARE: usize = 2;

/// Values that are no longer the column's; their memory comes back to it when they are dropped.
pub struct Lent<T> {
    values: Vec<T>,
    spare: Spare<T>,
}

impl<T> Buffer<T> {
    /// Lend the values; the buffer is empty then.
    pub fn lend(&mut self) -> Lent<T> {
        let next = unlocked(&self.spare, Vec::pop).unwrap_or_default();
        Lent { values: mem::replace(&mut self.values, next), spare: self.spare.clone() }
    }
}

impl<T> Drop for Lent<T> {
    fn drop(&mut self) {
        let mut values = mem::take(&mut self.values);
        values.clear();
        unlocked(&self.spare, |spare| {
            if spare.len() < MAX_SPARE {
                spare.push(values);
            }
        });
    }
}

fn unlocked<T, R>(spare: &Spare<T>, action: impl FnOnce(&mut Vec<Vec<T>>) -> R) -> R {
    action(&mut spare.lock().unwrap_or_else(PoisonError::into_inner))
}

impl<T> Deref for Buffer<T> {
    type Target = Vec<T>;

    fn deref(&self) -> &Vec<T> {
        &self.values
    }
}

impl<T> DerefMut for Buffer<T> {
    fn deref_mut(&mut self) -> &mut Vec<T> {
        &mut self.values
    }
}

impl<T> Deref for Lent<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.values
    }
}

/// A column of bytes or text.
pub struct Binary {
    pub offsets: Buffer<i32>,
    pub data: Buffer<u8>,
    pub validity: Validity,
}

impl Default for Binary {
    fn default() -> Self {
        let mut offsets = Buffer::default();
        offsets.push(0);
        Binary { offsets, data: Buffer::default(), validity: Validity::default() }
    }
}

impl Binary {
    pub fn rows(&self) -> usize {
        self.offsets.len() - 1
    }

    #[inline]
    pub fn push(&mut self, value: Option<&[u8]>) -> Result<()> {
        self.data.extend_from_slice(value.unwrap_or_default());
        self.end(value.is_some())
    }

    /// End the row whose bytes were appended to `data`.
    #[inline]
    pub fn end(&mut self, valid: bool) -> Result<()> {
        self.offsets.push(i32::try_from(self.data.len()).map_err(|_| Unusual)?);
        self.validity.push(valid);
        Ok(())
    }

    pub fn truncate(&mut self, rows: usize) {
        self.offsets.truncate(rows + 1);
        let end = self.offsets[self.offsets.len() - 1];
        self.data.truncate(end as usize);
        self.validity.truncate(rows);
    }

    pub fn clear(&mut self, largest: usize) {
        self.offsets.clear();
        self.offsets.push(0);
        self.data.clear();
        self.data.shrink_to(largest);
        self.validity.clear();
    }
}

/// A column of numbers.
#[derive(Default)]
pub struct Fixed<T> {
    pub data: Buffer<T>,
    pub validity: Validity,
}

impl<T: Default + Copy> Fixed<T> {
    #[inline]
    pub fn push(&mut self, value: Option<T>) {
        self.data.push(value.unwrap_or_default());
        self.validity.push(value.is_some());
    }

    fn fill(&mut self, value: T, count: usize) {
        let rows = self.data.len() + count;
        self.data.resize(rows, value);
        self.validity.len += count;
        debug_assert_eq!(self.validity.nulls, 0);
    }

    pub fn truncate(&mut self, rows: usize) {
        self.data.truncate(rows);
        self.validity.truncate(rows);
    }

    pub fn clear(&mut self) {
        self.data.clear();
        self.validity.clear();
    }
}

/// A column of maps from text to text.
pub struct Maps {
    pub offsets: Vec<i32>,
    pub keys: Binary,
    pub values: Binary,
}

impl Default for Maps {
    fn default() -> Self {
        Maps { offsets: vec![0], keys: Binary::default(), values: Binary::default() }
    }
}

impl Maps {
    /// Of a repeated key the last value counts, at the place of the first.
    fn push<'a>(&mut self, pairs: impl Iterator<Item = Pair<'a>>) -> Result<()> {
        let mut found: Vec<Pair<'a>> = Vec::new();
        let mut places: HashMap<&[u8], usize> = HashMap::new();
        for (key, value) in pairs {
            check_text(key)?;
            check_text(value)?;
            let place = match found.len() {
                ..FEW_PROPERTIES => found.iter().position(|pair| pair.0 == key),
                FEW_PROPERTIES => {
                    places = found.iter().enumerate().map(|(at, pair)| (pair.0, at)).collect();
                    places.get(key).copied()
                }
                _ => places.get(key).copied(),
            };
            match place {
                Some(at) => found[at].1 = value,
                None => {
                    if found.len() >= FEW_PROPERTIES {
                        places.insert(key, found.len());
                    }
                    found.push((key, value));
                }
            }
        }
        for (key, value) in found {
            self.keys.push(Some(key))?;
            self.values.push(Some(value))?;
        }
        self.end()
    }

    fn end(&mut self) -> Result<()> {
        let count = i32::try_from(self.keys.rows()).map_err(|_| Unusual)?;
        self.offsets.push(count);
        Ok(())
    }

    fn clear(&mut self, largest: usize) {
        self.offsets.truncate(1);
        self.keys.clear(largest);
        self.values.clear(largest);
    }

    fn truncate(&mut self, rows: usize) {
        self.offsets.truncate(rows + 1);
        let count = self.offsets.last().map_or(0, |&count| count as usize);
        self.keys.truncate(count.min(self.keys.rows()));
        self.values.truncate(count.min(self.values.rows()));
    }
}

/// Of more in one message, to look at each would take time by the square of their number.
const FEW_PROPERTIES: usize = 64;

pub fn check_text(text: &[u8]) -> Result<()> {
    // What most texts are is found out in less time.
    if text.is_ascii() {
        return Ok(());
    }
    std::str::from_utf8(text).map(drop).map_err(|_| Unusual)
}

/// What the messages of an entry have in common.
pub struct Shared<'a> {
    pub ledger: i64,
    pub entry: i64,
    pub publish_time: u64,
    pub producer_name: &'a [u8],
    pub schema_version: &'a [u8],
    pub replicated_from: Option<&'a [u8]>,
    pub redelivery_count: i32,
}

/// What a message has of its own; its batch index is -1 outside of a batch.
#[derive(Default)]
pub struct Own<'a, P> {
    pub batch_index: i32,
    pub payload: &'a [u8],
    pub fields: Fields<'a>,
    pub sequence_id: i64,
    pub index: Option<i64>,
    pub properties: P,
}

/// Rows of one entry that follow each other: `first` is -1 and `count` 0 outside of a batch.
pub struct Span {
    pub rows: usize,
    pub first: i32,
    pub count: i32,
    pub ledger: i64,
    pub entry: i64,
}

/// Which version of the schema rows have: for each run of rows with the same one its first row, and
/// the version's place among those that were met.
#[derive(Default)]
pub struct Versions {
    pub met: Vec<Vec<u8>>,
    pub starts: Vec<i32>,
    pub numbers: Vec<i32>,
    places: HashMap<Vec<u8>, i32>,
}

impl Versions {
    /// Rows from this one on have that version.
    fn push(&mut self, row: usize, version: &[u8]) {
        let last = self.numbers.last().map(|&number| &self.met[number as usize]);
        // To compare nothing with nothing takes surprisingly long: of no bytes there is no address.
        let same =
            |last: &[u8]| last.len() == version.len() && (last.is_empty() || last == version);
        if last.is_some_and(|last| same(last)) {
            return;
        }
        let number = self.places.get(version).copied().unwrap_or_else(|| {
            let number = self.met.len() as i32;
            self.places.insert(version.to_vec(), number);
            self.met.push(version.to_vec());
            number
        });
        self.starts.push(row as i32);
        self.numbers.push(number);
    }

    fn clear(&mut self) {
        self.met.clear();
        self.starts.clear();
        self.numbers.clear();
        self.places.clear();
    }
}

type Long = Fixed<i64>;
type Int = Fixed<i32>;

/// A column that is wanted.
pub enum Wanted<'a> {
    Binary(&'a mut Binary),
    Long(&'a mut Long),
    Int(&'a mut Int),
    Maps(&'a mut Maps),
}

impl Wanted<'_> {
    fn truncate(self, rows: usize) {
        match self {
            Wanted::Binary(column) => column.truncate(rows),
            Wanted::Long(column) => column.truncate(rows),
            Wanted::Int(column) => column.truncate(rows),
            Wanted::Maps(column) => column.truncate(rows),
        }
    }

    fn clear(self, largest: usize) {
        match self {
            Wanted::Binary(column) => column.clear(largest),
            Wanted::Long(column) => column.clear(),
            Wanted::Int(column) => column.clear(),
            Wanted::Maps(column) => column.clear(largest),
        }
    }
}

macro_rules! columns {
    ($($name:ident: $kind:ident,)*) => {
        /// The columns that are wanted.
        #[derive(Default)]
        pub struct Columns {
            $(pub $name: Option<$kind>,)*
        }

        impl Columns {
            pub const NAMES: &[&str] = &[$(stringify!($name)),*];

            fn new(names: &HashSet<String>) -> Self {
                Columns { $($name: names.contains(stringify!($name)).then($kind::default),)* }
            }

            /// Each of them, with its name.
            pub fn each(&mut self) -> impl Iterator<Item = (&'static str, Wanted<'_>)> {
                let columns = [
                    $(self.$name.as_mut().map(|found| (stringify!($name), Wanted::$kind(found))),)*
                ];
                columns.into_iter().flatten()
            }
        }
    };
}

columns! {
    value: Binary,
    key: Binary,
    message_id: Binary,
    publish_time: Long,
    event_time: Long,
    properties: Maps,
    ledger_id: Long,
    entry_id: Long,
    batch_index: Int,
    producer_name: Binary,
    sequence_id: Long,
    ordering_key: Binary,
    schema_version: Binary,
    redelivery_count: Int,
    size: Int,
    index: Long,
    replicated_from: Binary,
}

/// Rows, in the columns that are wanted.
#[derive(Default)]
pub struct Rows {
    pub rows: usize,
    pub nbytes: usize,
    /// Whether a row has a key that was in base64, or an event time after the year 9999; and
    /// what was pushed since the last row.
    inexact: bool,
    pushed_inexact: bool,
    pub spans: Vec<Span>,
    pub versions: Versions,
    pub columns: Columns,
}

impl Rows {
    pub fn new(columns: &HashSet<String>) -> Self {
        Rows { columns: Columns::new(columns), ..Rows::default() }
    }

    /// Whether keys and event times are as they were sent.
    pub fn is_exact(&self) -> bool {
        !self.inexact
    }

    /// How many bytes the columns repeat for each message of a batch.
    pub fn row_size(&self, shared: &Shared) -> usize {
        [
            (&self.columns.producer_name, shared.producer_name),
            (&self.columns.schema_version, shared.schema_version),
            (&self.columns.replicated_from, shared.replicated_from.unwrap_or_default()),
        ]
        .iter()
        .map(|(column, text)| if column.is_some() { text.len() } else { 0 })
        .sum()
    }

    /// Add what a message has of its own; its id begins with `id`.
    #[inline]
    pub fn push<'a>(
        &mut self,
        id: &[u8],
        own: Own<'a, impl Iterator<Item = Pair<'a>>>,
    ) -> Result<()> {
        let fields = own.fields;
        if let Some(column) = &mut self.columns.value {
            column.push((!fields.null_value).then_some(own.payload))?;
        }
        if let Some(column) = &mut self.columns.key {
            match fields.key {
                Some(text) if fields.key_is_base64 => {
                    put_base64(&mut column.data, text)?;
                    column.end(true)?;
                    self.pushed_inexact = true;
                }
                key => column.push(key)?,
            }
        }
        if let Some(column) = &mut self.columns.message_id {
            column.push(Some(id))?;
        }
        if let Some(column) = &mut self.columns.event_time {
            let millis = fields.event_time.min(LAST_MILLIS) as i64;
            column.push((millis > 0).then_some(millis * 1000));
            self.pushed_inexact |= fields.event_time > LAST_MILLIS;
        }
        if let Some(column) = &mut self.columns.properties {
            column.push(own.properties)?;
        }
        if let Some(column) = &mut self.columns.batch_index {
            column.push(Some(own.batch_index));
        }
        if let Some(column) = &mut self.columns.sequence_id {
            column.push(Some(own.sequence_id));
        }
        if let Some(column) = &mut self.columns.ordering_key {
            column.push(fields.ordering_key)?;
        }
        if let Some(column) = &mut self.columns.size {
            column.push(Some(i32::try_from(own.payload.len()).map_err(|_| Unusual)?));
        }
        if let Some(column) = &mut self.columns.index {
            column.push(own.index);
        }
        Ok(())
    }

    /// Add what `count` messages have of their entry, after they were pushed: then they are rows.
    pub fn finish(&mut self, shared: &Shared, first: i32, count: usize, size: i32) -> Result<()> {
        if count == 0 {
            return Ok(());
        }
        if let Some(column) = &mut self.columns.publish_time {
            column.fill(shared.publish_time.min(LAST_MILLIS) as i64 * 1000, count);
        }
        if let Some(column) = &mut self.columns.ledger_id {
            column.fill(shared.ledger, count);
        }
        if let Some(column) = &mut self.columns.entry_id {
            column.fill(shared.entry, count);
        }
        if let Some(column) = &mut self.columns.redelivery_count {
            column.fill(shared.redelivery_count, count);
        }
        let version = Some(shared.schema_version).filter(|version| !version.is_empty());
        for (column, value, is_text) in [
            (&mut self.columns.producer_name, Some(shared.producer_name), true),
            (&mut self.columns.schema_version, version, false),
            (&mut self.columns.replicated_from, shared.replicated_from, true),
        ] {
            if let Some(column) = column {
                if is_text {
                    check_text(value.unwrap_or_default())?;
                }
                for _ in 0..count {
                    column.push(value)?;
                }
            }
        }
        self.versions.push(self.rows, shared.schema_version);
        let (ledger, entry) = (shared.ledger, shared.entry);
        self.spans.push(Span { rows: count, first, count: size, ledger, entry });
        self.rows += count;
        self.inexact |= std::mem::take(&mut self.pushed_inexact);
        Ok(())
    }

    /// Give up what was pushed and did not become rows.
    pub fn give_up(&mut self) {
        let count = self.rows;
        self.pushed_inexact = false;
        self.columns.each().for_each(|(_, column)| column.truncate(count));
    }

    /// Forget all rows, and keep memory for about as many.
    pub fn clear(&mut self, largest: usize) {
        self.columns.each().for_each(|(_, column)| column.clear(largest));
        self.spans.clear();
        self.versions.clear();
        self.rows = 0;
        self.nbytes = 0;
        self.inexact = false;
        self.pushed_inexact = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn validity_has_a_bit_for_each_row_once_there_is_a_null() {
        let mut found = Validity::default();
        for row in 0..20 {
            found.push(row != 10 && row != 17);
        }
        assert_eq!(found.nulls, 2);
        assert_eq!(found.bits(), Some(&[0xff, 0b1111_1011, 0b1101][..]));
        found.truncate(12);
        assert_eq!((found.nulls, found.bits()), (1, Some(&[0xff, 0b1011][..])));
        found.truncate(9);
        assert_eq!((found.nulls, found.bits()), (0, None));
        found.push(false);
        assert_eq!(found.bits(), Some(&[0xff, 1][..]));
    }

    #[test]
    fn what_was_lent_stays_as_it_is_and_its_memory_comes_back() {
        let mut buffer = Buffer::default();
        buffer.extend([1, 2]);
        let first = buffer.lend();
        buffer.extend([3, 4, 5]);
        assert_eq!((&first[..], &buffer[..]), (&[1, 2][..], &[3, 4, 5][..]));
        let memory = first.as_ptr();
        drop(first);
        let second = buffer.lend();
        assert!(buffer.is_empty());
        assert_eq!((buffer.as_ptr(), &second[..]), (memory, &[3, 4, 5][..]));
        let lent: Vec<_> = (0..5).map(|_| buffer.lend()).collect();
        drop(lent);
        assert_eq!(unlocked(&buffer.spare, |spare| spare.len()), MAX_SPARE);
    }

    #[test]
    fn an_event_time_that_is_too_late_is_the_last_one() {
        let mut rows = Rows::new(&HashSet::from(["event_time".to_string()]));
        for event_time in [1, LAST_MILLIS, LAST_MILLIS + 1, u64::MAX, 0] {
            let fields = Fields { event_time, ..Fields::default() };
            let own = Own { fields, properties: std::iter::empty(), ..Own::default() };
            rows.push(b"", own).unwrap();
        }
        let found = rows.columns.event_time.unwrap();
        let last = LAST_MILLIS as i64 * 1000;
        assert_eq!(&found.data[..], [1000, last, last, last, 0]);
        assert_eq!(found.validity.nulls, 1);
    }

    #[test]
    fn bytes_are_cut_back_with_their_rows() {
        let mut found = Binary::default();
        for value in [Some(&b"ab"[..]), None, Some(b""), Some(b"cd")] {
            found.push(value).unwrap();
        }
        found.data.extend(b"half");
        found.truncate(3);
        assert_eq!(
            (found.offsets.as_slice(), found.data.as_slice()),
            (&[0, 2, 2, 2][..], &b"ab"[..])
        );
        assert_eq!(found.validity.bits(), Some(&[0b101][..]));
    }

    #[test]
    fn of_a_repeated_property_the_last_value_counts_at_the_first_place() {
        let mut found = Maps::default();
        let pairs: [Pair; 3] = [(b"a", b"1"), (b"b", b"2"), (b"a", b"3")];
        found.push(pairs.into_iter()).unwrap();
        assert_eq!((&found.keys.data[..], &found.values.data[..]), (&b"ab"[..], &b"32"[..]));
        assert_eq!(found.offsets, [0, 2]);
    }
}
