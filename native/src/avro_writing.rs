//! AVRO values, written from columns by the plans that Python makes.
//!
//! A row is either written whole or refused: the reference in Python then writes it, or tells why it
//! cannot be written (Avro 1.12 specification, Binary Encoding).

use crate::given::Array;
use crate::values::{scaled, Decimal};
use crate::wire::{put_zigzag, Result, Unusual};

/// How a value is written.
#[repr(u8)]
pub enum Plan {
    Null,
    Boolean,
    /// A whole number × factor ÷ divisor, from 0 up to the bound if there is one.
    Whole {
        factor: i64,
        divisor: i64,
        bound: i64,
    },
    /// From a number with a point, or from a whole one.
    Float(bool),
    Double(bool),
    /// Bytes or text, behind their size.
    Bytes,
    Fixed(usize),
    /// Names, sorted, with the bytes of their numbers.
    Enum(Vec<(Vec<u8>, Vec<u8>)>),
    /// A UUID's text, as text or as 16 bytes.
    UuidText,
    Uuid,
    Duration,
    /// Of a size, or of as few bytes as it takes.
    Decimal(Decimal, Option<usize>),
    Record(Vec<Step>),
    Array(Box<Plan>),
    Map(Box<Plan>),
    /// The bytes that stand for null, if it fits, and those before each type's values. The column is
    /// a struct of the types' columns if they are apart.
    Union {
        null: Option<Vec<u8>>,
        members: Vec<(Vec<u8>, Plan)>,
        apart: bool,
    },
    Refused,
}

pub enum Step {
    /// A column by its place in the struct.
    Field(usize, Plan),
    Constant(Vec<u8>),
}

impl Plan {
    /// Append a value; if it is refused, what was appended has to be taken back.
    #[inline]
    pub fn write(&self, given: &Array, row: usize, out: &mut Vec<u8>) -> Result<()> {
        if given.is_null(row) {
            return match self {
                Plan::Null => Ok(()),
                Plan::Union { null: Some(null), .. } => {
                    out.extend_from_slice(null);
                    Ok(())
                }
                // The only member may be null itself.
                Plan::Union { members, apart: false, .. } => write_only(members, given, row, out),
                _ => Err(Unusual),
            };
        }
        match self {
            Plan::Boolean => out.push(u8::from(given.truth(row)?)),
            Plan::Whole { factor, divisor, bound } => {
                let mut number = given.whole(row)?;
                if *bound > 0 && !(0..*bound).contains(&number) {
                    return Err(Unusual);
                }
                if factor != divisor {
                    number = scaled(number, *factor, *divisor)?;
                }
                put_zigzag(out, number);
            }
            Plan::Float(true) => out.extend_from_slice(&given.number::<4>(row)?),
            Plan::Float(false) => {
                out.extend_from_slice(&(given.whole(row)? as f32).to_le_bytes());
            }
            Plan::Double(true) => out.extend_from_slice(&given.double(row)?),
            Plan::Double(false) => {
                out.extend_from_slice(&(given.whole(row)? as f64).to_le_bytes());
            }
            Plan::Bytes => put_sized(out, given.bytes(row)?),
            Plan::Fixed(size) => put_fixed(out, given.bytes(row)?, *size)?,
            Plan::Enum(names) => {
                let name = given.bytes(row)?;
                let found = names.binary_search_by(|(own, _)| own[..].cmp(name));
                out.extend_from_slice(&names[found.map_err(|_| Unusual)?].1);
            }
            Plan::UuidText => {
                let text = given.bytes(row)?;
                uuid(text)?;
                put_sized(out, text);
            }
            Plan::Uuid => out.extend_from_slice(&uuid(given.bytes(row)?)?),
            Plan::Duration => write_duration(given, row, out)?,
            Plan::Decimal(decimal, size) => {
                let number = decimal.rescaled(i128::from_le_bytes(given.number(row)?))?;
                put_decimal(out, number, *size)?;
            }
            Plan::Record(steps) => write_record(steps, given, row, out)?,
            Plan::Array(items) => write_array(items, given, row, out)?,
            Plan::Map(values) => write_map(values, given, row, out)?,
            Plan::Union { members, apart: false, .. } => write_only(members, given, row, out)?,
            Plan::Union { null, members, .. } => write_member(null, members, given, row, out)?,
            Plan::Null | Plan::Refused => return Err(Unusual),
        }
        Ok(())
    }
}

/// A row's columns are the record's fields.
#[inline(never)]
fn write_record(steps: &[Step], given: &Array, row: usize, out: &mut Vec<u8>) -> Result<()> {
    let parts = given.parts()?;
    for step in steps {
        match step {
            Step::Field(place, plan) => {
                plan.write(parts.get(*place).ok_or(Unusual)?, row, out)?;
            }
            Step::Constant(bytes) => out.extend_from_slice(bytes),
        }
    }
    Ok(())
}

#[inline(never)]
fn write_array(items: &Plan, given: &Array, row: usize, out: &mut Vec<u8>) -> Result<()> {
    let (column, rows) = given.items(row)?;
    put_zigzag(out, rows.len() as i64);
    if !rows.is_empty() {
        for row in rows {
            items.write(column, row, out)?;
        }
        out.push(0);
    }
    Ok(())
}

#[inline(never)]
fn write_map(values: &Plan, given: &Array, row: usize, out: &mut Vec<u8>) -> Result<()> {
    let (column, rows) = given.items(row)?;
    let [keys, own] = column.parts()? else { return Err(Unusual) };
    put_zigzag(out, rows.len() as i64);
    if !rows.is_empty() {
        for row in rows {
            put_sized(out, keys.bytes(row)?);
            values.write(own, row, out)?;
        }
        out.push(0);
    }
    Ok(())
}

fn write_only(
    members: &[(Vec<u8>, Plan)],
    given: &Array,
    row: usize,
    out: &mut Vec<u8>,
) -> Result<()> {
    let [(number, plan)] = members else { return Err(Unusual) };
    out.extend_from_slice(number);
    plan.write(given, row, out)
}

#[inline(never)]
fn write_member(
    null: &Option<Vec<u8>>,
    members: &[(Vec<u8>, Plan)],
    given: &Array,
    row: usize,
    out: &mut Vec<u8>,
) -> Result<()> {
    let parts = given.parts()?;
    let mut there = parts.iter().zip(members).filter(|(part, _)| !part.is_null(row));
    match (there.next(), there.next()) {
        (Some((part, (number, plan))), None) => {
            out.extend_from_slice(number);
            plan.write(part, row, out)
        }
        (None, _) => {
            out.extend_from_slice(null.as_ref().ok_or(Unusual)?);
            Ok(())
        }
        _ => Err(Unusual),
    }
}

/// Months, days and milliseconds, of which one may be null for 0.
fn write_duration(given: &Array, row: usize, out: &mut Vec<u8>) -> Result<()> {
    let parts = given.parts()?;
    if parts.len() != 3 {
        return Err(Unusual);
    }
    for part in parts {
        let number = if part.is_null(row) { 0 } else { part.whole(row)? };
        out.extend_from_slice(&u32::try_from(number).map_err(|_| Unusual)?.to_le_bytes());
    }
    Ok(())
}

#[inline]
fn put_sized(out: &mut Vec<u8>, bytes: &[u8]) {
    put_zigzag(out, bytes.len() as i64);
    out.extend_from_slice(bytes);
}

fn put_fixed(out: &mut Vec<u8>, bytes: &[u8], size: usize) -> Result<()> {
    out.extend_from_slice((bytes.len() == size).then_some(bytes).ok_or(Unusual)?);
    Ok(())
}

/// A signed number, its highest byte first.
fn put_decimal(out: &mut Vec<u8>, number: i128, size: Option<usize>) -> Result<()> {
    let bytes = number.to_be_bytes();
    let bits = 128 - (number ^ number >> 127).leading_zeros() as usize;
    let least = bits / 8 + 1;
    let size = match size {
        None => {
            put_zigzag(out, least as i64);
            least
        }
        Some(size) if size < least => return Err(Unusual),
        Some(size) => size,
    };
    let sign = if number < 0 { 255 } else { 0 };
    out.resize(out.len() + size.saturating_sub(bytes.len()), sign);
    out.extend_from_slice(&bytes[bytes.len().saturating_sub(size)..]);
    Ok(())
}

/// The bytes of a UUID in its usual form: groups of 8, 4, 4, 4 and 12 digits.
pub fn uuid(text: &[u8]) -> Result<[u8; 16]> {
    let mut bytes = [0; 16];
    let mut digits = text.iter();
    for (place, byte) in bytes.iter_mut().enumerate() {
        if matches!(place, 4 | 6 | 8 | 10) && digits.next() != Some(&b'-') {
            return Err(Unusual);
        }
        for _ in 0..2 {
            let digit = digits.next().and_then(|digit| char::from(*digit).to_digit(16));
            *byte = *byte << 4 | digit.ok_or(Unusual)? as u8;
        }
    }
    digits.next().is_none().then_some(bytes).ok_or(Unusual)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decimal(number: i128, size: Option<usize>) -> Option<Vec<u8>> {
        let mut out = Vec::new();
        put_decimal(&mut out, number, size).ok().map(|()| out)
    }

    #[test]
    fn decimals_take_the_fewest_bytes_or_those_they_have() {
        for (number, bytes) in [
            (0, &b"\x02\x00"[..]),
            (127, b"\x02\x7f"),
            (128, b"\x04\x00\x80"),
            (-128, b"\x02\x80"),
            (-129, b"\x04\xff\x7f"),
        ] {
            assert_eq!(decimal(number, None).as_deref(), Some(bytes));
        }
        assert_eq!(decimal(i128::MIN, None).unwrap().len(), 17);
        assert_eq!(decimal(-2, Some(18)), Some([vec![255; 17], vec![254]].concat()));
        assert_eq!(decimal(2, Some(1)), Some(vec![2]));
        assert_eq!(decimal(128, Some(1)), None);
    }

    #[test]
    fn uuids_have_one_form() {
        let text = b"6f1f2a52-9d0e-4B4c-a0cb-0e4b8e1d0000";
        assert_eq!(uuid(text).unwrap()[..3], [0x6f, 0x1f, 0x2a]);
        for wrong in
            [&text[1..], b"", b"6f1f2a529d0e4b4ca0cb0e4b8e1d0000", &[text, &b"0"[..]].concat()]
        {
            assert_eq!(uuid(wrong), Err(Unusual));
        }
    }
}
