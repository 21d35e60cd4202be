//! Protobuf's messages → typed columns, by plans that Python makes (protobuf.dev, Encoding).
//!
//! Each field that occurs is appended to its own column at once, so its place among others does not
//! matter; if it occurs again, what was appended is taken back. What is unusual is refused without a
//! reason: the reference in Python finds that, or reads it.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use crate::columns::check_text;
use crate::values::Column;
use crate::wire::{Reader, Result, Unusual};

/// A message's fields, in the order of their columns, then those without one.
pub struct Message {
    fields: Vec<Field>,
    /// Places in `fields` by their numbers.
    order: Vec<(u32, usize)>,
    oneofs: usize,
}

pub struct Field {
    pub number: u32,
    pub repeated: bool,
    pub oneof: Option<usize>,
    /// Whether an absent field is null instead of its default.
    pub nullable: bool,
    pub value: Value,
}

/// How to read a field, and what it becomes.
pub enum Value {
    Number {
        written: Wire,
        into: Number,
        /// The default, as it is written.
        absent: u64,
    },
    Bytes {
        is_text: bool,
    },
    Message {
        message: Message,
        form: Form,
        /// How many cells a message in a list is counted as.
        cells: usize,
    },
    /// A field without a column, which only clears others of its oneof.
    Noticed(Wire),
    /// The reference reads it.
    Refused,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Wire {
    Varint,
    Fixed64,
    Delimited,
    Fixed32,
}

/// What numbers of 64 bits become.
pub enum Number {
    /// The lower 32 bits: as they are, and as a number without a sign.
    Int,
    Unsigned,
    /// All bits, and as a decimal.
    Long,
    Decimal,
    /// Signed ones, of which the lowest bit is the sign.
    ZigzagInt,
    ZigzagLong,
    Truth,
    Name(Arc<Names>),
}

/// An enum's names, by their numbers.
pub type Names = Vec<(i32, Vec<u8>)>;

/// What a message becomes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Form {
    Struct,
    /// The pair of a map, whose keys are distinct.
    Pair,
    /// Its only field.
    Field,
    /// True where it is there.
    Truth,
    Bytes,
    Timestamp,
    Duration,
}

/// Append a value to the columns; if it is refused, they have to be truncated. Messages in lists
/// have at most so many cells.
pub fn read(message: &Message, data: &[u8], cells: usize, into: &mut Column) -> Result<()> {
    let Column::Struct(own) = into else { return Err(Unusual) };
    let mut state = State { cells, members: Vec::new() };
    message.read(data, &mut own.children, own.rows, &mut state)?;
    own.end(true);
    Ok(())
}

struct State {
    cells: usize,
    /// For each oneof of the messages that are being read, the member that is set.
    members: Vec<Option<usize>>,
}

impl Message {
    pub fn new(fields: Vec<Field>) -> Self {
        let places = fields.iter().enumerate();
        let mut order: Vec<_> = places.map(|(place, field)| (field.number, place)).collect();
        order.sort_unstable();
        let oneofs = fields.iter().filter_map(|field| field.oneof).max().map_or(0, |last| last + 1);
        Message { fields, order, oneofs }
    }

    /// Append a message's fields to columns that have so many rows.
    fn read(
        &self,
        data: &[u8],
        columns: &mut [Column],
        row: usize,
        state: &mut State,
    ) -> Result<()> {
        let members = state.members.len();
        state.members.resize(members + self.oneofs, None);
        let mut reader = Reader::new(data);
        let mut next = 0;
        while !reader.is_empty() {
            let (number, wire) = tag(&mut reader)?;
            let Some(place) = self.place_of(number, &mut next) else {
                pass(&mut reader, wire)?;
                continue;
            };
            let field = &self.fields[place];
            if !field.takes(wire) {
                pass(&mut reader, wire)?;
                continue;
            }
            if let Some(oneof) = field.oneof {
                let before = state.members[members + oneof].replace(place);
                if let Some(before) = before.filter(|&before| before != place) {
                    if let Some(column) = columns.get_mut(before) {
                        self.fields[before].take_back(column, row)?;
                    }
                }
            }
            match columns.get_mut(place) {
                None => pass(&mut reader, wire)?,
                Some(column) if field.repeated => {
                    let Column::List(list) = column else { return Err(Unusual) };
                    field.read_item(wire, &mut reader, &mut list.items, state)?;
                }
                Some(column) => {
                    if column.rows() > row {
                        field.take_back(column, row)?;
                    }
                    field.value.read(&mut reader, column, state)?;
                }
            }
        }
        state.members.truncate(members);
        for (field, column) in self.fields.iter().zip(columns) {
            field.end(column, row, state)?;
        }
        Ok(())
    }

    /// The place of a field: most follow the one before, or have the same number.
    #[inline]
    fn place_of(&self, number: u32, next: &mut usize) -> Option<usize> {
        for at in [*next, next.wrapping_sub(1)] {
            match self.order.get(at) {
                Some((found, place)) if *found == number => {
                    *next = at + 1;
                    return Some(*place);
                }
                _ => {}
            }
        }
        let at = self.order.binary_search_by_key(&number, |(number, _)| *number).ok()?;
        *next = at + 1;
        Some(self.order[at].1)
    }
}

impl Field {
    /// Whether it is written in this way; otherwise it is unknown.
    #[inline]
    fn takes(&self, wire: Wire) -> bool {
        match &self.value {
            Value::Number { written, .. } => {
                wire == *written || self.repeated && wire == Wire::Delimited
            }
            Value::Bytes { .. } | Value::Message { .. } | Value::Refused => wire == Wire::Delimited,
            Value::Noticed(written) => wire == *written,
        }
    }

    #[inline]
    fn read_item(
        &self,
        wire: Wire,
        reader: &mut Reader,
        items: &mut Column,
        state: &mut State,
    ) -> Result<()> {
        match &self.value {
            Value::Number { written, into, .. } if wire != *written => {
                let mut packed = Reader::new(reader.bytes()?);
                while !packed.is_empty() {
                    into.put(written.number(&mut packed)?, items)?;
                }
                Ok(())
            }
            Value::Message { cells, .. } => {
                state.cells = state.cells.checked_sub(*cells).ok_or(Unusual)?;
                self.value.read(reader, items, state)
            }
            value => value.read(reader, items, state),
        }
    }

    /// Take the value back that was appended: another one counts. Messages would be merged; and to
    /// read many that do not count would take longer than the value's size lets expect.
    fn take_back(&self, column: &mut Column, row: usize) -> Result<()> {
        if matches!(self.value, Value::Message { .. }) {
            return Err(Unusual);
        }
        column.truncate(row);
        Ok(())
    }

    /// End the row: of a list, or of a field that was absent.
    #[inline]
    fn end(&self, column: &mut Column, row: usize, state: &mut State) -> Result<()> {
        if self.repeated {
            let Column::List(list) = column else { return Err(Unusual) };
            if let Value::Message { form: Form::Pair, .. } = self.value {
                let start = list.offsets.last().map_or(0, |&start| start as usize);
                check_keys(&list.items, start)?;
            }
            return list.end(true);
        }
        if column.rows() > row {
            return Ok(());
        }
        if self.nullable {
            return column.push_null();
        }
        match &self.value {
            Value::Number { into, absent, .. } => into.put(*absent, column),
            Value::Bytes { .. } => put_bytes(b"", column),
            // No bytes are a message without fields.
            Value::Message { message, form, .. } => form.put(message, b"", column, state),
            Value::Noticed(_) | Value::Refused => Err(Unusual),
        }
    }
}

impl Value {
    #[inline]
    fn read(&self, reader: &mut Reader, column: &mut Column, state: &mut State) -> Result<()> {
        match self {
            Value::Number { written, into, .. } => into.put(written.number(reader)?, column),
            Value::Bytes { is_text } => {
                let bytes = reader.bytes()?;
                if *is_text {
                    check_text(bytes)?;
                }
                put_bytes(bytes, column)
            }
            Value::Message { message, form, .. } => {
                form.put(message, reader.bytes()?, column, state)
            }
            Value::Noticed(_) | Value::Refused => Err(Unusual),
        }
    }
}

impl Form {
    fn put(
        self,
        message: &Message,
        data: &[u8],
        column: &mut Column,
        state: &mut State,
    ) -> Result<()> {
        match (self, column) {
            (Form::Struct | Form::Pair, Column::Struct(own)) => {
                message.read(data, &mut own.children, own.rows, state)?;
                own.end(true);
                Ok(())
            }
            (Form::Field, column) => {
                let row = column.rows();
                message.read(data, std::slice::from_mut(column), row, state)
            }
            (Form::Truth, Column::Boolean(column)) => {
                message.read(data, &mut [], 0, state)?;
                column.push(Some(true));
                Ok(())
            }
            (Form::Bytes, Column::Binary(column)) => {
                message.read(data, &mut [], 0, state)?;
                column.push(Some(data))
            }
            (Form::Timestamp, Column::Fixed64(column)) => {
                let (seconds, nanos) = time(data)?;
                let valid = SECONDS.contains(&seconds) && nanos >= 0;
                column.push(Some(micros(seconds, nanos, valid)?));
                Ok(())
            }
            (Form::Duration, Column::Fixed64(column)) => {
                let (seconds, nanos) = time(data)?;
                let valid =
                    SPAN.contains(&seconds) && seconds.signum() * i64::from(nanos.signum()) >= 0;
                column.push(Some(micros(seconds, nanos, valid)?));
                Ok(())
            }
            _ => Err(Unusual),
        }
    }
}

// --- numbers, bytes and times ----------------------------------------------------------------

impl Wire {
    fn of(number: u64) -> Result<Self> {
        Ok(match number {
            0 => Wire::Varint,
            1 => Wire::Fixed64,
            2 => Wire::Delimited,
            5 => Wire::Fixed32,
            _ => return Err(Unusual),
        })
    }

    #[inline]
    fn number(self, reader: &mut Reader) -> Result<u64> {
        match self {
            Wire::Varint => reader.number(),
            Wire::Fixed64 => Ok(u64::from_le_bytes(reader.array()?)),
            Wire::Fixed32 => Ok(u64::from(u32::from_le_bytes(reader.array()?))),
            Wire::Delimited => Err(Unusual),
        }
    }
}

/// A field's number and how it is written.
#[inline]
pub fn tag(reader: &mut Reader) -> Result<(u32, Wire)> {
    let tag = u32::try_from(reader.shortest()?).map_err(|_| Unusual)?;
    if tag < 8 {
        return Err(Unusual);
    }
    Ok((tag >> 3, Wire::of(u64::from(tag & 7))?))
}

/// Pass a field's value.
pub fn pass(reader: &mut Reader, wire: Wire) -> Result<()> {
    match wire {
        Wire::Delimited => reader.bytes().map(drop),
        _ => wire.number(reader).map(drop),
    }
}

impl Number {
    #[inline]
    fn put(&self, number: u64, column: &mut Column) -> Result<()> {
        let low = number as u32;
        match (self, column) {
            (Number::Int, Column::Fixed32(column)) => column.push(Some(low)),
            (Number::Unsigned, Column::Fixed64(column)) => column.push(Some(u64::from(low))),
            (Number::Long, Column::Fixed64(column)) => column.push(Some(number)),
            (Number::Decimal, Column::Fixed128(column)) => column.push(Some(u128::from(number))),
            (Number::ZigzagInt, Column::Fixed32(column)) => {
                column.push(Some(low >> 1 ^ (low & 1).wrapping_neg()));
            }
            (Number::ZigzagLong, Column::Fixed64(column)) => {
                column.push(Some(number >> 1 ^ (number & 1).wrapping_neg()));
            }
            (Number::Truth, Column::Boolean(column)) => column.push(Some(number != 0)),
            (Number::Name(names), Column::Binary(column)) => {
                return column.push(Some(&name(names, low as i32)));
            }
            _ => return Err(Unusual),
        }
        Ok(())
    }
}

/// A number's name, or the number as text.
fn name(names: &[(i32, Vec<u8>)], number: i32) -> Cow<'_, [u8]> {
    // Most enums count from 0.
    let near = names.get(number as usize).filter(|(found, _)| *found == number);
    let found = near.or_else(|| {
        let at = names.binary_search_by_key(&number, |(number, _)| *number).ok()?;
        names.get(at)
    });
    match found {
        Some((_, name)) => Cow::Borrowed(name),
        None => Cow::Owned(number.to_string().into_bytes()),
    }
}

fn put_bytes(bytes: &[u8], column: &mut Column) -> Result<()> {
    match column {
        Column::Binary(column) => column.push(Some(bytes)),
        _ => Err(Unusual),
    }
}

/// The years 0001 to 9999, and a Duration's range of 10,000 years, in seconds.
pub const SECONDS: Range<i64> = -62_135_596_800..253_402_300_800;
pub const SPAN: Range<i64> = -315_576_000_000..315_576_000_001;
const NANOS: i32 = 1_000_000_000;

/// The seconds and nanoseconds of a Timestamp or Duration.
fn time(data: &[u8]) -> Result<(i64, i32)> {
    let (mut seconds, mut nanos) = (0, 0);
    let mut reader = Reader::new(data);
    while !reader.is_empty() {
        match tag(&mut reader)? {
            (1, Wire::Varint) => seconds = reader.number()? as i64,
            (2, Wire::Varint) => nanos = reader.number()? as i32,
            (_, wire) => pass(&mut reader, wire)?,
        }
    }
    Ok((seconds, nanos))
}

/// Microseconds, if they are valid; what is finer is cut off.
fn micros(seconds: i64, nanos: i32, valid: bool) -> Result<u64> {
    if !valid || nanos <= -NANOS || nanos >= NANOS {
        return Err(Unusual);
    }
    Ok((seconds * 1_000_000 + i64::from(nanos / 1000)) as u64)
}

// --- keys of maps ----------------------------------------------------------------------------

/// Refuse keys that repeat: the reference knows which value counts.
fn check_keys(pairs: &Column, start: usize) -> Result<()> {
    if pairs.rows() < start + 2 {
        return Ok(());
    }
    let Column::Struct(pairs) = pairs else { return Err(Unusual) };
    match pairs.children.first() {
        Some(Column::Boolean(keys)) => distinct(keys.data.get(start..)),
        Some(Column::Fixed32(keys)) => distinct(keys.data.get(start..)),
        Some(Column::Fixed64(keys)) => distinct(keys.data.get(start..)),
        Some(Column::Fixed128(keys)) => distinct(keys.data.get(start..)),
        Some(Column::Binary(keys)) => {
            let edges = keys.offsets.get(start..).ok_or(Unusual)?.windows(2);
            let found: Option<Vec<&[u8]>> =
                edges.map(|pair| keys.data.get(pair[0] as usize..pair[1] as usize)).collect();
            distinct(found.as_deref())
        }
        _ => Err(Unusual),
    }
}

/// Of more, to compare each with each would take time by the square of their number.
const FEW_KEYS: usize = 16;

fn distinct<T: Ord + Clone>(keys: Option<&[T]>) -> Result<()> {
    let keys = keys.ok_or(Unusual)?;
    let repeated = if keys.len() <= FEW_KEYS {
        keys.iter().enumerate().any(|(at, key)| keys[..at].contains(key))
    } else {
        let mut sorted = keys.to_vec();
        sorted.sort_unstable();
        sorted.windows(2).any(|pair| pair[0] == pair[1])
    };
    (!repeated).then_some(()).ok_or(Unusual)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::values::Kind;

    fn field(number: u32, value: Value) -> Field {
        Field { number, repeated: false, oneof: None, nullable: true, value }
    }

    fn number(into: Number) -> Value {
        Value::Number { written: Wire::Varint, into, absent: 0 }
    }

    fn columns(kinds: Vec<Kind>) -> Column {
        Column::new(&Kind::Struct(kinds)).unwrap()
    }

    fn children(column: &Column) -> &[Column] {
        let Column::Struct(own) = column else { panic!() };
        &own.children
    }

    fn ints(column: &Column) -> (&[u32], usize) {
        let Column::Fixed32(column) = column else { panic!() };
        (&column.data, column.validity.nulls)
    }

    #[test]
    fn the_last_value_counts_and_fields_come_in_any_order() {
        let message =
            Message::new(vec![field(9, number(Number::Int)), field(1, number(Number::ZigzagInt))]);
        let mut found = columns(vec![Kind::Fixed(4), Kind::Fixed(4)]);
        for data in [&b"\x48\x05\x08\x01\x48\x07"[..], b"\x48\x06", b""] {
            read(&message, data, 0, &mut found).unwrap();
        }
        assert_eq!(ints(&children(&found)[0]), (&[7, 6, 0][..], 1));
        assert_eq!(ints(&children(&found)[1]), (&[u32::MAX, 0, 0][..], 2));
    }

    #[test]
    fn a_later_member_of_a_oneof_clears_an_earlier_one() {
        let mut fields = vec![field(1, number(Number::Int)), field(2, number(Number::Int))];
        fields.push(field(3, Value::Noticed(Wire::Varint)));
        fields.iter_mut().for_each(|field| field.oneof = Some(0));
        let message = Message::new(fields);
        let mut found = columns(vec![Kind::Fixed(4), Kind::Fixed(4)]);
        for data in [&b"\x08\x05\x10\x06"[..], b"\x10\x06\x08\x05", b"\x08\x05\x18\x01"] {
            read(&message, data, 0, &mut found).unwrap();
        }
        assert_eq!(ints(&children(&found)[0]), (&[0, 5, 0][..], 2));
        assert_eq!(ints(&children(&found)[1]), (&[6, 0, 0][..], 2));
    }

    #[test]
    fn malformed_bytes_and_groups_are_refused() {
        let message = Message::new(vec![field(1, number(Number::Int))]);
        let mut found = columns(vec![Kind::Fixed(4)]);
        for data in [&b"\x08"[..], b"\0\0", b"\x0b\x0c", b"\x12\x05", b"\x0f", &[255; 11]] {
            assert_eq!(read(&message, data, 0, &mut found), Err(Unusual));
            found.truncate(0);
        }
        assert_eq!(read(&message, b"\x12\x01a\x15abcd\x11abcdefgh", 0, &mut found), Ok(()));
    }

    #[test]
    fn messages_in_lists_are_bounded_by_their_cells() {
        let inner = Message::new(Vec::new());
        let mut list = field(1, Value::Message { message: inner, form: Form::Truth, cells: 3 });
        list.repeated = true;
        let message = Message::new(vec![list]);
        let mut found = columns(vec![Kind::List(Box::new(Kind::Boolean))]);
        assert_eq!(read(&message, b"\x0a\0\x0a\0", 6, &mut found), Ok(()));
        assert_eq!(read(&message, b"\x0a\0\x0a\0", 5, &mut found), Err(Unusual));
    }

    #[test]
    fn keys_of_maps_are_distinct() {
        for count in [3u32, 100] {
            let mut keys: Vec<u32> = (0..count).rev().collect();
            assert_eq!(distinct(Some(&keys)), Ok(()));
            keys[0] = 0;
            assert_eq!(distinct(Some(&keys)), Err(Unusual));
        }
    }

    #[test]
    fn numbers_without_a_name_are_text() {
        let names = [(-1, b"MINUS".to_vec()), (0, b"ZERO".to_vec()), (7, b"SEVEN".to_vec())];
        let found: Vec<_> = [-1, 0, 7, 1, i32::MIN].iter().map(|at| name(&names, *at)).collect();
        assert_eq!(found, [&b"MINUS"[..], b"ZERO", b"SEVEN", b"1", b"-2147483648"]);
    }
}
