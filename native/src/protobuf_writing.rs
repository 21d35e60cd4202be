//! Protobuf messages, written from columns by the plans that Python makes.
//!
//! A row is either written whole or refused: the reference in Python then writes it, or tells why it
//! cannot be written (Protocol Buffers, Encoding).

use crate::given::Array;
use crate::protobuf::{pass, tag, SECONDS, SPAN};
use crate::wire::{put_number, put_sized, put_zigzag, Reader, Result, Unusual};

/// Fields in the order of their numbers, with their places among the columns of a struct.
pub struct Message {
    pub fields: Vec<(usize, Field)>,
    /// The places of each oneof's members, of which at most one is not null.
    pub oneofs: Vec<Vec<usize>>,
}

/// How a column is written as the records of a field.
pub struct Field {
    pub form: Form,
    /// The tag before each record, and of a group the one behind it.
    pub head: Vec<u8>,
    pub end: Vec<u8>,
    /// Whether null means that the field is absent.
    pub nullable: bool,
    /// Whether a value of zeros is left out.
    pub omits_zero: bool,
    pub value: Value,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Form {
    Single,
    Repeated,
    Packed,
}

/// How a value is written behind its tag.
#[repr(u8)]
pub enum Value {
    /// A whole number of this range.
    Whole {
        written: Written,
        low: i128,
        high: i128,
    },
    Boolean,
    Float,
    Double,
    /// Bytes or text, behind their size.
    Bytes,
    /// Names, sorted, with the bytes of their numbers; the reference knows others.
    Enum(Vec<(Vec<u8>, Vec<u8>)>),
    Message(Message),
    /// A message that the column is the only field of.
    Field(Box<Field>),
    /// A message without fields: always there, or where the column is true.
    Empty,
    Truth,
    /// A message that is encoded already.
    MessageBytes,
    /// Microseconds as seconds and nanoseconds, behind these tags.
    Timestamp([Vec<u8>; 2]),
    Duration([Vec<u8>; 2]),
    Refused,
}

#[derive(Clone, Copy)]
pub enum Written {
    Varint,
    Zigzag,
    Fixed32,
    Fixed64,
}

const MICROS: i64 = 1_000_000;

impl Message {
    /// Append a row of a struct; if it is refused, what was appended has to be taken back.
    #[inline(never)]
    pub fn write(&self, given: &Array, row: usize, out: &mut Vec<u8>) -> Result<()> {
        let parts = given.parts()?;
        for places in &self.oneofs {
            let there = places.iter().filter_map(|place| parts.get(*place));
            if there.filter(|part| !part.is_null(row)).count() > 1 {
                return Err(Unusual);
            }
        }
        for (place, field) in &self.fields {
            field.write(parts.get(*place).ok_or(Unusual)?, row, out)?;
        }
        Ok(())
    }
}

impl Field {
    #[inline]
    fn write(&self, given: &Array, row: usize, out: &mut Vec<u8>) -> Result<()> {
        if self.form != Form::Single {
            return self.write_list(given, row, out);
        }
        if given.is_null(row) {
            return self.nullable.then_some(()).ok_or(Unusual);
        }
        if matches!(self.value, Value::Truth) && !given.truth(row)? {
            return Ok(());
        }
        let start = out.len();
        out.extend_from_slice(&self.head);
        let from = out.len();
        self.write_value(given, row, out)?;
        // All values but zero, and no text but the empty one, have some bit set.
        if self.omits_zero && out[from..].iter().all(|byte| *byte == 0) {
            out.truncate(start);
        } else {
            out.extend_from_slice(&self.end);
        }
        Ok(())
    }

    #[inline(never)]
    fn write_list(&self, given: &Array, row: usize, out: &mut Vec<u8>) -> Result<()> {
        if given.is_null(row) {
            return Err(Unusual);
        }
        let (items, rows) = given.items(row)?;
        if rows.is_empty() {
            return Ok(());
        }
        let write_all = |out: &mut Vec<u8>| {
            for row in rows.clone() {
                if items.is_null(row) {
                    return Err(Unusual);
                }
                if self.form == Form::Repeated {
                    out.extend_from_slice(&self.head);
                }
                self.write_value(items, row, out)?;
                out.extend_from_slice(&self.end);
            }
            Ok(())
        };
        if self.form == Form::Repeated {
            return write_all(out);
        }
        out.extend_from_slice(&self.head);
        write_sized(out, write_all)
    }

    /// Append a value; a message has its size before it unless it is a group.
    #[inline]
    fn write_value(&self, given: &Array, row: usize, out: &mut Vec<u8>) -> Result<()> {
        if self.value.is_message() && self.end.is_empty() {
            return write_sized(out, |out| self.value.write(given, row, out));
        }
        self.value.write(given, row, out)
    }
}

/// Append what is written behind its size.
#[inline]
fn write_sized(out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>) -> Result<()>) -> Result<()> {
    let start = out.len();
    // Most sizes take one byte.
    out.push(0);
    write(out)?;
    let size = out.len() - start - 1;
    if size < 128 {
        out[start] = size as u8;
        return Ok(());
    }
    let mut digits = Vec::with_capacity(10);
    put_number(&mut digits, size as u64);
    out.splice(start..=start, digits);
    Ok(())
}

impl Value {
    #[inline]
    fn is_message(&self) -> bool {
        use Value::{Boolean, Bytes, Double, Enum, Float, Whole};
        !matches!(self, Whole { .. } | Boolean | Float | Double | Bytes | Enum(_))
    }

    #[inline]
    fn write(&self, given: &Array, row: usize, out: &mut Vec<u8>) -> Result<()> {
        match self {
            Value::Whole { written, low, high } => {
                let number = given.integer(row)?;
                if number < *low || number > *high {
                    return Err(Unusual);
                }
                match written {
                    Written::Varint => put_number(out, number as u64),
                    Written::Zigzag => put_zigzag(out, number as i64),
                    Written::Fixed32 => out.extend_from_slice(&(number as u32).to_le_bytes()),
                    Written::Fixed64 => out.extend_from_slice(&(number as u64).to_le_bytes()),
                }
            }
            Value::Boolean => out.push(u8::from(given.truth(row)?)),
            Value::Float => out.extend_from_slice(&given.number::<4>(row)?),
            Value::Double => out.extend_from_slice(&given.double(row)?),
            Value::Bytes => put_sized(out, given.bytes(row)?),
            Value::Enum(names) => {
                let name = given.bytes(row)?;
                let found = names.binary_search_by(|(own, _)| own[..].cmp(name));
                out.extend_from_slice(&names[found.map_err(|_| Unusual)?].1);
            }
            Value::Message(message) => message.write(given, row, out)?,
            Value::Field(field) => field.write(given, row, out)?,
            Value::Empty | Value::Truth => {}
            Value::MessageBytes => {
                let bytes = given.bytes(row)?;
                check_message(bytes)?;
                out.extend_from_slice(bytes);
            }
            Value::Timestamp(tags) => {
                let micros = given.whole(row)?;
                let (seconds, rest) = (micros.div_euclid(MICROS), micros.rem_euclid(MICROS));
                if !SECONDS.contains(&seconds) {
                    return Err(Unusual);
                }
                put_time(out, tags, [seconds, rest * 1000]);
            }
            Value::Duration(tags) => {
                let micros = given.whole(row)?;
                let (seconds, rest) = (micros / MICROS, micros % MICROS);
                if !SPAN.contains(&seconds) {
                    return Err(Unusual);
                }
                put_time(out, tags, [seconds, rest * 1000]);
            }
            Value::Refused => return Err(Unusual),
        }
        Ok(())
    }
}

fn put_time(out: &mut Vec<u8>, tags: &[Vec<u8>; 2], numbers: [i64; 2]) {
    for (tag, number) in tags.iter().zip(numbers) {
        if number != 0 {
            out.extend_from_slice(tag);
            put_number(out, number as u64);
        }
    }
}

/// Bytes that any parser takes for a message; groups are left to the reference.
fn check_message(bytes: &[u8]) -> Result<()> {
    let mut rest = Reader::new(bytes);
    while !rest.is_empty() {
        let (_, wire) = tag(&mut rest)?;
        pass(&mut rest, wire)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_come_before_what_they_count() {
        for size in [0, 1, 127, 128, 300, 20_000] {
            let mut out = b"ab".to_vec();
            write_sized(&mut out, |out| {
                out.resize(out.len() + size, 7);
                Ok(())
            })
            .unwrap();
            let mut wanted = b"ab".to_vec();
            put_sized(&mut wanted, &vec![7; size]);
            assert_eq!(out, wanted);
        }
    }

    #[test]
    fn a_message_consists_of_fields() {
        for good in [&b""[..], b"\x08\x01", b"\x0a\x01a\x0d1234", b"\x09\0\0\0\0\0\0\0\0"] {
            assert_eq!(check_message(good), Ok(()));
        }
        for bad in [&b"\x00\x01"[..], b"\x08", b"\x0a\x02a", b"\x0b\x0c", b"\x0f\x00"] {
            assert_eq!(check_message(bad), Err(Unusual));
        }
    }
}
