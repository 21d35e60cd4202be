//! JSON values, written from columns by the plans that Python makes.
//!
//! A row is either written whole or refused: the reference in Python then writes it, or tells why it
//! cannot be written.

use std::io::Write;

use crate::avro_writing::uuid;
use crate::given::Array;
use crate::values::{scaled, Decimal};
use crate::wire::{Result, Unusual};

/// How a value is written.
#[repr(u8)]
pub enum Plan {
    /// Always null.
    Null,
    /// Null where it is null.
    Nullable(Box<Plan>),
    /// The only column, which is the value itself.
    Alone(Box<Plan>),
    /// The fields' names, quoted, before a colon; those that are null may be left out.
    Record {
        fields: Vec<(Vec<u8>, Plan)>,
        leaves_out: bool,
    },
    Array(Box<Plan>),
    Map(Box<Plan>),
    /// Structs as the pairs of an object: the places of key and value.
    Pairs {
        key: (usize, Box<Plan>),
        value: (usize, Box<Plan>),
    },
    /// Structs of which one column at most is not null.
    Union {
        members: Vec<Plan>,
        nullable: bool,
    },
    Boolean,
    Integer,
    /// A number of so many bits, from one with as many or fewer, or from a whole one (0).
    Float {
        bits: u32,
        source: u32,
        quoted: bool,
    },
    /// Of a scale.
    Decimal(Decimal, usize),
    Text,
    /// One of these names, sorted; or any, where numbers stand for themselves.
    Enum(Option<Vec<Vec<u8>>>),
    Uuid,
    /// In base64, or as text; of a size if there is one.
    Bytes {
        base64: bool,
        size: Option<usize>,
    },
    /// A number × factor ÷ divisor; perhaps a time of day.
    Time {
        factor: i64,
        divisor: i64,
        of_day: bool,
    },
    IsoDate,
    IsoTime,
    /// With what is written behind it.
    IsoMoment(Vec<u8>),
    Refused,
}

const NANOS_PER_DAY: i64 = 86_400_000_000_000;

impl Plan {
    /// Append a value; if it is refused, what was appended has to be taken back. Returns whether the
    /// value is null.
    #[inline]
    pub fn write(&self, given: &Array, row: usize, out: &mut Vec<u8>) -> Result<bool> {
        match self {
            Plan::Null if given.is_null(row) => {
                out.extend_from_slice(b"null");
                return Ok(true);
            }
            Plan::Nullable(plan) => {
                if !given.is_null(row) {
                    return plan.write(given, row, out);
                }
                out.extend_from_slice(b"null");
                return Ok(true);
            }
            _ => {}
        }
        if given.is_null(row) {
            return Err(Unusual);
        }
        match self {
            Plan::Alone(plan) => {
                return plan.write(given.parts()?.first().ok_or(Unusual)?, row, out)
            }
            Plan::Record { fields, leaves_out } => {
                write_record(fields, *leaves_out, given, row, out)?
            }
            Plan::Array(items) => {
                let (column, rows) = given.items(row)?;
                write_list(b"[]", rows, out, |row, out| items.write(column, row, out).map(drop))?;
            }
            Plan::Map(values) => {
                let (column, rows) = given.items(row)?;
                let [keys, own] = column.parts()? else { return Err(Unusual) };
                write_list(b"{}", rows, out, |row, out| {
                    put_quoted(out, keys.bytes(row)?);
                    out.push(b':');
                    values.write(own, row, out).map(drop)
                })?;
            }
            Plan::Pairs { key, value } => write_pairs(key, value, given, row, out)?,
            Plan::Union { members, nullable } => {
                return write_member(members, *nullable, given, row, out)
            }
            Plan::Boolean => {
                let word: &[u8] = if given.truth(row)? { b"true" } else { b"false" };
                out.extend_from_slice(word);
            }
            Plan::Integer => put_whole(out, given.whole(row)?),
            Plan::Float { bits, source, quoted } => {
                write_float((*bits, *source), *quoted, given, row, out)?;
            }
            Plan::Decimal(decimal, scale) => {
                let number = decimal.rescaled(i128::from_le_bytes(given.number(row)?))?;
                put_decimal(out, number, *scale);
            }
            Plan::Text => put_quoted(out, given.bytes(row)?),
            Plan::Enum(names) => write_name(names, given.bytes(row)?, out)?,
            Plan::Uuid => {
                let text = given.bytes(row)?;
                uuid(text)?;
                put_quoted(out, text);
            }
            Plan::Bytes { base64, size } => {
                let bytes = given.bytes(row)?;
                if size.is_some_and(|size| size != bytes.len()) {
                    return Err(Unusual);
                }
                if *base64 {
                    put_base64(out, bytes);
                } else {
                    std::str::from_utf8(bytes).map_err(|_| Unusual)?;
                    put_quoted(out, bytes);
                }
            }
            Plan::Time { factor, divisor, of_day } => {
                let number = given.whole(row)?;
                if *of_day && !(0..NANOS_PER_DAY).contains(&number) {
                    return Err(Unusual);
                }
                put_whole(out, scaled(number, *factor, *divisor)?);
            }
            Plan::IsoDate => {
                out.push(b'"');
                put_date(out, given.whole(row)?)?;
                out.push(b'"');
            }
            Plan::IsoTime => {
                let number = given.whole(row)?;
                if !(0..NANOS_PER_DAY).contains(&number) {
                    return Err(Unusual);
                }
                out.push(b'"');
                put_time(out, number, 1_000_000_000, 9);
                out.push(b'"');
            }
            Plan::IsoMoment(zone) => {
                const DAY: i64 = 86_400_000_000;
                let number = given.whole(row)?;
                out.push(b'"');
                put_date(out, number.div_euclid(DAY))?;
                out.push(b'T');
                put_time(out, number.rem_euclid(DAY), 1_000_000, 6);
                out.extend_from_slice(zone);
                out.push(b'"');
            }
            Plan::Null | Plan::Nullable(_) | Plan::Refused => return Err(Unusual),
        }
        Ok(false)
    }
}

#[inline(never)]
fn write_record(
    fields: &[(Vec<u8>, Plan)],
    leaves_out: bool,
    given: &Array,
    row: usize,
    out: &mut Vec<u8>,
) -> Result<()> {
    let parts = given.parts()?;
    if parts.len() != fields.len() {
        return Err(Unusual);
    }
    out.push(b'{');
    let mut is_first = true;
    for ((name, plan), part) in fields.iter().zip(parts) {
        let start = out.len();
        if !is_first {
            out.push(b',');
        }
        out.extend_from_slice(name);
        if plan.write(part, row, out)? && leaves_out {
            out.truncate(start);
        } else {
            is_first = false;
        }
    }
    out.push(b'}');
    Ok(())
}

/// Append items with commas between them, within brackets.
#[inline]
fn write_list(
    brackets: &[u8; 2],
    rows: std::ops::Range<usize>,
    out: &mut Vec<u8>,
    mut write: impl FnMut(usize, &mut Vec<u8>) -> Result<()>,
) -> Result<()> {
    out.push(brackets[0]);
    let first = rows.start;
    for row in rows {
        if row > first {
            out.push(b',');
        }
        write(row, out)?;
    }
    out.push(brackets[1]);
    Ok(())
}

#[inline(never)]
fn write_pairs(
    key: &(usize, Box<Plan>),
    value: &(usize, Box<Plan>),
    given: &Array,
    row: usize,
    out: &mut Vec<u8>,
) -> Result<()> {
    let (column, rows) = given.items(row)?;
    let parts = column.parts()?;
    let keys = parts.get(key.0).ok_or(Unusual)?;
    let values = parts.get(value.0).ok_or(Unusual)?;
    write_list(b"{}", rows, out, |row, out| {
        let start = out.len();
        if column.is_null(row) || key.1.write(keys, row, out)? {
            return Err(Unusual);
        }
        if matches!(out[start], b'{' | b'[') {
            return Err(Unusual);
        }
        if out[start] != b'"' {
            out.insert(start, b'"');
            out.push(b'"');
        }
        out.push(b':');
        value.1.write(values, row, out).map(drop)
    })
}

#[inline(never)]
fn write_member(
    members: &[Plan],
    nullable: bool,
    given: &Array,
    row: usize,
    out: &mut Vec<u8>,
) -> Result<bool> {
    let parts = given.parts()?;
    let mut there = parts.iter().zip(members).filter(|(part, _)| !part.is_null(row));
    match (there.next(), there.next()) {
        (Some((part, plan)), None) => plan.write(part, row, out),
        (None, _) if nullable => {
            out.extend_from_slice(b"null");
            Ok(true)
        }
        _ => Err(Unusual),
    }
}

fn write_name(names: &Option<Vec<Vec<u8>>>, name: &[u8], out: &mut Vec<u8>) -> Result<()> {
    match names {
        Some(names) => {
            names.binary_search_by(|own| own[..].cmp(name)).map_err(|_| Unusual)?;
            put_quoted(out, name);
        }
        None => {
            let digits = name.strip_prefix(b"-").unwrap_or(name);
            let is_number = matches!(digits.len(), 1..=18)
                && digits.iter().all(u8::is_ascii_digit)
                && (digits[0] != b'0' || digits.len() == 1);
            if is_number {
                out.extend_from_slice(name);
            } else {
                put_quoted(out, name);
            }
        }
    }
    Ok(())
}

/// Append text as JSON has it.
#[inline]
fn put_quoted(out: &mut Vec<u8>, text: &[u8]) {
    out.push(b'"');
    if text.iter().all(|byte| *byte >= b' ' && *byte != b'"' && *byte != b'\\') {
        out.extend_from_slice(text);
    } else {
        text.iter().for_each(|byte| put_escaped(out, *byte));
    }
    out.push(b'"');
}

fn put_escaped(out: &mut Vec<u8>, byte: u8) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let short = match byte {
        b'"' | b'\\' => byte,
        0x08 => b'b',
        0x0c => b'f',
        b'\n' => b'n',
        b'\r' => b'r',
        b'\t' => b't',
        0..=0x1f => {
            out.extend_from_slice(b"\\u00");
            out.extend([DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]);
            return;
        }
        _ => return out.push(byte),
    };
    out.extend([b'\\', short]);
}

fn put_base64(out: &mut Vec<u8>, bytes: &[u8]) {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    out.push(b'"');
    for part in bytes.chunks(3) {
        let at = |place| u32::from(part.get(place).copied().unwrap_or_default());
        let bits = at(0) << 16 | at(1) << 8 | at(2);
        for place in 0..4 {
            let digit = DIGITS[(bits >> (18 - 6 * place) & 63) as usize];
            out.push(if place <= part.len() { digit } else { b'=' });
        }
    }
    out.push(b'"');
}

#[inline]
fn put_whole(out: &mut Vec<u8>, number: i64) {
    if number < 0 {
        out.push(b'-');
    }
    put_digits(out, u128::from(number.unsigned_abs()), 1);
}

/// Append a number's digits, at least so many.
#[inline]
fn put_digits(out: &mut Vec<u8>, number: u128, least: usize) {
    let mut digits = [b'0'; 40];
    let mut at = digits.len();
    let mut put = |digit: u8| {
        at -= 1;
        digits[at] = b'0' + digit;
    };
    // Division of 128 bits is slow.
    let mut rest = number;
    while rest > u128::from(u64::MAX) {
        put((rest % 10) as u8);
        rest /= 10;
    }
    let mut rest = rest as u64;
    while rest > 0 {
        put((rest % 10) as u8);
        rest /= 10;
    }
    let first = at.min(digits.len() - least.min(digits.len()));
    out.extend_from_slice(&digits[first..]);
}

/// As Python's Decimal and Java's BigDecimal write it: with an exponent below -6.
fn put_decimal(out: &mut Vec<u8>, number: i128, scale: usize) {
    let start = out.len();
    if number < 0 {
        out.push(b'-');
    }
    let first = out.len();
    put_digits(out, number.unsigned_abs(), 1);
    let count = out.len() - first;
    if scale == 0 {
        return;
    }
    if count + 5 < scale {
        // The exponent is that of the first digit.
        if count > 1 {
            out.insert(first + 1, b'.');
        }
        // Writing to memory does not fail.
        let _ = write!(out, "E-{}", scale + 1 - count);
    } else if count > scale {
        out.insert(out.len() - scale, b'.');
    } else {
        out.truncate(start);
        out.extend_from_slice(if number < 0 { b"-0." } else { b"0." });
        put_digits(out, number.unsigned_abs(), scale);
    }
}

#[inline(never)]
fn write_float(
    (bits, source): (u32, u32),
    quoted: bool,
    given: &Array,
    row: usize,
    out: &mut Vec<u8>,
) -> Result<()> {
    let number = match source {
        32 => f64::from(f32::from_le_bytes(given.number(row)?)),
        64 => f64::from_le_bytes(given.number(row)?),
        _ => given.whole(row)? as f64,
    };
    if !number.is_finite() {
        let word: &[u8] = match number {
            number if number.is_nan() => b"NaN",
            number if number > 0.0 => b"Infinity",
            _ => b"-Infinity",
        };
        out.extend_from_slice(if quoted { b"\"" } else { b"" });
        out.extend_from_slice(word);
        out.extend_from_slice(if quoted { b"\"" } else { b"" });
        return Ok(());
    }
    if number == 0.0 {
        // Without a point it would be read as an integer, which has no negative zero.
        out.extend_from_slice(if number.is_sign_negative() { b"-0.0" } else { b"0" });
        return Ok(());
    }
    put_shortest(out, number, bits);
    Ok(())
}

/// Append the fewest digits that tell a number from others of its width, laid out as Arrow does.
fn put_shortest(out: &mut Vec<u8>, number: f64, bits: u32) {
    let mut buffer = ryu::Buffer::new();
    let text = match bits {
        32 => buffer.format_finite(number as f32),
        _ => buffer.format_finite(number),
    };
    let (text, exponent) = text.split_once('e').unwrap_or((text, "0"));
    let (whole, rest) = text.split_once('.').unwrap_or((text, ""));
    let rest = if rest == "0" { "" } else { rest };
    if exponent == "0" && number.abs() < 1e10 {
        out.extend_from_slice(whole.as_bytes());
        if !rest.is_empty() {
            out.push(b'.');
            out.extend_from_slice(rest.as_bytes());
        }
        return;
    }
    let (sign, whole) = whole.strip_prefix('-').map_or(("", whole), |whole| ("-", whole));
    // Either there is one digit before the point, or all are.
    let power = exponent.parse().unwrap_or(0) + whole.len() as i32 - 1;
    let digits = [whole, rest].concat();
    let digits = digits.trim_end_matches('0');
    out.extend_from_slice(sign.as_bytes());
    if (-6..0).contains(&power) {
        out.extend_from_slice(&b"0.00000"[..(1 - power) as usize]);
        out.extend_from_slice(digits.as_bytes());
        return;
    }
    let (first, rest) = digits.split_at(1);
    let point = if rest.is_empty() { "" } else { "." };
    // Writing to memory does not fail.
    let _ = write!(out, "{first}{point}{rest}e{power:+}");
}

/// Append a day of the years 0 to 9999, counted from 1970 on.
fn put_date(out: &mut Vec<u8>, day: i64) -> Result<()> {
    if !(-719_528..=2_932_896).contains(&day) {
        return Err(Unusual);
    }
    // Years begin in March here, and 400 of them have always the same days.
    let day = day + 719_468 + 146_097;
    let of_era = day % 146_097;
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let of_month = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = day / 146_097 * 400 - 400 + year + i64::from(month <= 2);
    put_digits(out, u128::from(year.unsigned_abs()), 4);
    for part in [month, of_month] {
        out.push(b'-');
        put_digits(out, u128::from(part.unsigned_abs()), 2);
    }
    Ok(())
}

/// Append a time of day, given in parts of a second of so many digits.
fn put_time(out: &mut Vec<u8>, number: i64, per_second: i64, digits: usize) {
    let (seconds, rest) = (number / per_second, number % per_second);
    for (place, part) in [seconds / 3600, seconds / 60 % 60, seconds % 60].iter().enumerate() {
        if place > 0 {
            out.push(b':');
        }
        put_digits(out, u128::from(part.unsigned_abs()), 2);
    }
    out.push(b'.');
    put_digits(out, u128::from(rest.unsigned_abs()), digits);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(put: impl FnOnce(&mut Vec<u8>)) -> String {
        let mut out = Vec::new();
        put(&mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn text_is_escaped() {
        assert_eq!(text(|out| put_quoted(out, b"a\"\\\n\x01\x7f")), "\"a\\\"\\\\\\n\\u0001\x7f\"");
        for (bytes, wanted) in
            [(&b""[..], "\"\""), (b"a", "\"YQ==\""), (b"ab", "\"YWI=\""), (b"abc", "\"YWJj\"")]
        {
            assert_eq!(text(|out| put_base64(out, bytes)), wanted);
        }
    }

    #[test]
    fn numbers_have_the_fewest_digits() {
        for (number, wanted) in [
            (1.0, "1"),
            (-0.1, "-0.1"),
            (1e-6, "0.000001"),
            (1.25e-7, "1.25e-7"),
            (9.99e9, "9990000000"),
            (1234567890.5, "1234567890.5"),
            (1e10, "1e+10"),
            (-1.5e300, "-1.5e+300"),
            (978_151_217_979_905.3, "9.781512179799052e+14"),
        ] {
            assert_eq!(text(|out| put_shortest(out, number, 64)), wanted);
        }
        for (number, scale, wanted) in [
            (15, 1, "1.5"),
            (-5, 3, "-0.005"),
            (1, 7, "1E-7"),
            (-12, 8, "-1.2E-7"),
            (0, 7, "0E-7"),
            (7, 0, "7"),
            (1, 6, "0.000001"),
        ] {
            assert_eq!(text(|out| put_decimal(out, number, scale)), wanted);
        }
    }

    #[test]
    fn days_have_dates() {
        for (day, wanted) in [
            (0, "1970-01-01"),
            (-1, "1969-12-31"),
            (-719_528, "0000-01-01"),
            (11_016, "2000-02-29"),
            (2_932_896, "9999-12-31"),
        ] {
            assert_eq!(text(|out| put_date(out, day).unwrap()), wanted);
        }
        assert_eq!(put_date(&mut Vec::new(), 2_932_897), Err(Unusual));
        assert_eq!(text(|out| put_time(out, 86_399_000_001, 1_000_000, 6)), "23:59:59.000001");
    }
}
