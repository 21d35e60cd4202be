//! Values of JSON topics → columns.

mod times;

use std::collections::HashMap;

use crate::values::{Column, List};
use crate::wire::{put_base64, Result, Unusual};

/// How a value is read, as Python describes it; null is null whatever the plan.
pub enum Plan {
    Boolean,
    Integer,
    Float,
    /// Days, an ISO date, or an array of year, month and day.
    Date,
    /// A whole number × factor ÷ divisor, ISO 8601 text, or, if it has no zone, an array of fields.
    Time {
        form: TimeForm,
        factor: i64,
        divisor: i64,
    },
    /// The unscaled number, below the bound.
    Decimal {
        scale: usize,
        bound: i128,
    },
    /// With `numbers` and `truths`, these are text as they are written.
    Text {
        numbers: bool,
        truths: bool,
    },
    Base64,
    Record(Record),
    /// Items, and how many cells each of them can need.
    Array {
        items: Box<Plan>,
        cells: usize,
    },
    Map {
        values: Box<Plan>,
        cells: usize,
    },
    /// Left to the reference.
    Refused,
}

/// What a time becomes: microseconds since 1970, or nanoseconds since midnight.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum TimeForm {
    Utc,
    /// Java's: a number with a point is in seconds.
    JavaUtc,
    Local,
    OfDay,
}

pub struct Record {
    /// Names as they are mostly written: in quotes, with the colon.
    heads: Vec<Vec<u8>>,
    fields: Vec<Plan>,
    places: HashMap<Vec<u8>, usize>,
}

/// A topic's values: objects whose fields are columns, or anything, which is one column.
pub struct Value {
    pub plan: Plan,
    pub is_whole: bool,
}

/// Append a value to a column; if it is refused, the column has to be truncated.
pub fn read(value: &Value, data: &[u8], cells: usize, into: &mut Column) -> Result<()> {
    std::str::from_utf8(data).map_err(|_| Unusual)?;
    let mut cursor = Cursor::new(data.strip_prefix(MARK).unwrap_or(data), cells);
    cursor.space();
    if value.is_whole && !cursor.is_null() {
        let Column::Struct(own) = into else { return Err(Unusual) };
        value.plan.read(&mut cursor, own.children.get_mut(0).ok_or(Unusual)?)?;
        own.end(true);
    } else {
        value.plan.read(&mut cursor, into)?;
    }
    cursor.space();
    cursor.end()
}

/// What some writers put before UTF-8.
const MARK: &[u8] = "\u{feff}".as_bytes();

/// Deeper ones are left to the reference, which knows how deep Python's parser goes.
const MAX_DEPTH: usize = 200;

struct Cursor<'a> {
    data: &'a [u8],
    at: usize,
    depth: usize,
    cells: usize,
    /// A string without its escapes.
    text: Vec<u8>,
}

/// A number as it is written.
#[derive(Clone, Copy)]
struct Number<'a> {
    text: &'a [u8],
    kind: NumberKind,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum NumberKind {
    Whole,
    Point,
    Exponent,
    /// NaN and the infinities, which are no JSON, but which Python writes.
    Word,
}

impl<'a> Cursor<'a> {
    fn new(data: &'a [u8], cells: usize) -> Self {
        Cursor { data, at: 0, depth: 0, cells, text: Vec::new() }
    }

    fn end(&self) -> Result<()> {
        (self.at == self.data.len()).then_some(()).ok_or(Unusual)
    }

    #[inline]
    fn peek(&self) -> Result<u8> {
        self.data.get(self.at).copied().ok_or(Unusual)
    }

    #[inline]
    fn space(&mut self) {
        while matches!(self.data.get(self.at), Some(b' ' | b'\t' | b'\r' | b'\n')) {
            self.at += 1;
        }
    }

    /// Pass white space and a byte, if that is next.
    #[inline]
    fn has(&mut self, byte: u8) -> bool {
        self.space();
        let found = self.data.get(self.at) == Some(&byte);
        self.at += usize::from(found);
        found
    }

    #[inline]
    fn expect(&mut self, byte: u8) -> Result<()> {
        self.has(byte).then_some(()).ok_or(Unusual)
    }

    #[inline]
    fn word(&mut self, word: &[u8]) -> Result<()> {
        let found = self.data[self.at..].starts_with(word);
        self.at += word.len();
        found.then_some(()).ok_or(Unusual)
    }

    fn is_null(&self) -> bool {
        self.data[self.at..].starts_with(b"null")
    }

    /// Pass a string; returns what is between its quotes, and whether there are escapes.
    #[inline]
    fn quoted(&mut self) -> Result<(&'a [u8], bool)> {
        self.expect(b'"')?;
        let start = self.at;
        let mut escaped = false;
        loop {
            self.at += plain(&self.data[self.at..]);
            match self.peek()? {
                b'"' => break,
                b'\\' => {
                    escaped = true;
                    self.at += 1;
                    self.escape()?;
                }
                // A control character.
                _ => return Err(Unusual),
            }
        }
        self.at += 1;
        Ok((&self.data[start..self.at - 1], escaped))
    }

    /// Pass an escape, behind its backslash.
    fn escape(&mut self) -> Result<()> {
        let letter = self.peek()?;
        self.at += 1;
        match letter {
            b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => Ok(()),
            b'u' => {
                let digits = self.data.get(self.at..self.at + 4).ok_or(Unusual)?;
                self.at += 4;
                digits.iter().all(u8::is_ascii_hexdigit).then_some(()).ok_or(Unusual)
            }
            _ => Err(Unusual),
        }
    }

    /// Pass a string, and give what it stands for to a function.
    #[inline]
    fn string<T>(&mut self, use_it: impl FnOnce(&[u8]) -> T) -> Result<T> {
        let (found, escaped) = self.quoted()?;
        if !escaped {
            return Ok(use_it(found));
        }
        self.text.clear();
        unescape(found, &mut self.text)?;
        Ok(use_it(&self.text))
    }

    /// Pass a number.
    fn number(&mut self) -> Result<Number<'a>> {
        let start = self.at;
        let negative = self.peek()? == b'-';
        self.at += usize::from(negative);
        let mut kind = NumberKind::Whole;
        match self.peek()? {
            b'0' => self.at += 1,
            b'1'..=b'9' => self.digits()?,
            b'I' => {
                kind = NumberKind::Word;
                self.word(b"Infinity")?;
            }
            b'N' if !negative => {
                kind = NumberKind::Word;
                self.word(b"NaN")?;
            }
            _ => return Err(Unusual),
        }
        if kind == NumberKind::Whole && self.data.get(self.at) == Some(&b'.') {
            kind = NumberKind::Point;
            self.at += 1;
            self.digits()?;
        }
        if kind != NumberKind::Word && matches!(self.data.get(self.at), Some(b'e' | b'E')) {
            kind = NumberKind::Exponent;
            self.at += 1;
            self.at += usize::from(matches!(self.data.get(self.at), Some(b'+' | b'-')));
            self.digits()?;
        }
        Ok(Number { text: &self.data[start..self.at], kind })
    }

    /// Pass a number, or a string that says one; an empty string is null.
    #[inline]
    fn figure(&mut self) -> Result<Option<Number<'a>>> {
        if self.peek()? != b'"' {
            return self.number().map(Some);
        }
        let (text, _) = self.quoted()?;
        if text.is_empty() {
            return Ok(None);
        }
        let mut cursor = Cursor::new(text, 0);
        let found = cursor.number()?;
        cursor.end()?;
        Ok(Some(found))
    }

    #[inline]
    fn digits(&mut self) -> Result<()> {
        let start = self.at;
        while self.data.get(self.at).is_some_and(u8::is_ascii_digit) {
            self.at += 1;
        }
        (self.at > start).then_some(()).ok_or(Unusual)
    }

    /// Pass the parts of an object or array, of which the first byte is next, one by one.
    #[inline]
    fn parts(
        &mut self,
        ends: [u8; 2],
        mut part: impl FnMut(&mut Self) -> Result<()>,
    ) -> Result<()> {
        self.expect(ends[0])?;
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(Unusual);
        }
        if !self.has(ends[1]) {
            loop {
                self.space();
                part(self)?;
                if self.has(ends[1]) {
                    break;
                }
                self.expect(b',')?;
            }
        }
        self.depth -= 1;
        Ok(())
    }

    /// Pass a key and its colon.
    #[inline]
    fn key<T>(&mut self, use_it: impl FnOnce(&[u8]) -> T) -> Result<T> {
        let found = self.string(use_it)?;
        self.colon()?;
        Ok(found)
    }

    #[inline]
    fn colon(&mut self) -> Result<()> {
        self.expect(b':')?;
        self.space();
        Ok(())
    }

    /// Pass a value of any kind.
    fn skip(&mut self) -> Result<()> {
        match self.peek()? {
            b'{' => self.parts(OBJECT, |cursor| {
                cursor.quoted()?;
                cursor.colon()?;
                cursor.skip()
            }),
            b'[' => self.parts(ARRAY, Cursor::skip),
            b'"' => self.quoted().map(|_| ()),
            b't' => self.word(b"true"),
            b'f' => self.word(b"false"),
            b'n' => self.word(b"null"),
            _ => self.number().map(|_| ()),
        }
    }

    fn take_cells(&mut self, cells: usize) -> Result<()> {
        self.cells = self.cells.checked_sub(cells).ok_or(Unusual)?;
        Ok(())
    }
}

const OBJECT: [u8; 2] = *b"{}";
const ARRAY: [u8; 2] = *b"[]";

/// How many bytes there are before a quote, a backslash or a control character: eight at a time.
#[inline]
fn plain(data: &[u8]) -> usize {
    const ONES: u64 = u64::MAX / 255;
    const HIGH: u64 = ONES << 7;
    let mut count = 0;
    while let Some(bytes) = data[count..].first_chunk() {
        let word = u64::from_le_bytes(*bytes);
        // The lowest of these bits is right: what is borrowed only spoils those above.
        let below = |word: u64, limit: u64| word.wrapping_sub(ONES * limit) & !word & HIGH;
        let found = below(word, 0x20)
            | below(word ^ (ONES * u64::from(b'"')), 1)
            | below(word ^ (ONES * u64::from(b'\\')), 1);
        if found != 0 {
            return count + found.trailing_zeros() as usize / 8;
        }
        count += 8;
    }
    let special = |byte: &u8| *byte < 0x20 || matches!(byte, b'"' | b'\\');
    count + data[count..].iter().position(special).unwrap_or(data.len() - count)
}

/// Append what escapes stand for; half of a surrogate pair stands for nothing.
fn unescape(mut quoted: &[u8], into: &mut Vec<u8>) -> Result<()> {
    while let Some(place) = quoted.iter().position(|byte| *byte == b'\\') {
        into.extend_from_slice(&quoted[..place]);
        let (letter, rest) = quoted[place + 1..].split_first().ok_or(Unusual)?;
        quoted = rest;
        into.push(match letter {
            b'b' => 8,
            b'f' => 12,
            b'n' => b'\n',
            b'r' => b'\r',
            b't' => b'\t',
            b'u' => {
                let (mut point, rest) = point_of(quoted)?;
                quoted = rest;
                if (0xd800..0xdc00).contains(&point) {
                    let (low, rest) = point_of(quoted.strip_prefix(b"\\u").ok_or(Unusual)?)?;
                    let low = low.checked_sub(0xdc00).filter(|low| *low < 0x400).ok_or(Unusual)?;
                    point = 0x10000 + ((point - 0xd800) << 10) + low;
                    quoted = rest;
                }
                let letter = char::from_u32(point).ok_or(Unusual)?;
                into.extend_from_slice(letter.encode_utf8(&mut [0; 4]).as_bytes());
                continue;
            }
            other => *other,
        });
    }
    into.extend_from_slice(quoted);
    Ok(())
}

fn point_of(data: &[u8]) -> Result<(u32, &[u8])> {
    let (digits, rest) = data.split_at_checked(4).ok_or(Unusual)?;
    let text = std::str::from_utf8(digits).map_err(|_| Unusual)?;
    Ok((u32::from_str_radix(text, 16).map_err(|_| Unusual)?, rest))
}

impl Plan {
    /// Read a value, and append it to a column.
    fn read(&self, cursor: &mut Cursor, into: &mut Column) -> Result<()> {
        if cursor.peek()? == b'n' {
            cursor.word(b"null")?;
            return into.push_null();
        }
        match (self, into) {
            (Plan::Boolean, Column::Boolean(column)) => column.push(truth(cursor)?),
            (Plan::Integer, into) => match cursor.figure()? {
                Some(number) => put_whole(number.whole()?, into)?,
                None => into.push_null()?,
            },
            (Plan::Date, into) => match times::date(cursor)? {
                Some(days) => put_whole(days, into)?,
                None => into.push_null()?,
            },
            (Plan::Time { form, factor, divisor }, Column::Fixed64(column)) => {
                let found = times::time(cursor, *form, *factor, *divisor)?;
                column.push(found.map(|found| found as u64));
            }
            (Plan::Float, Column::Fixed64(column)) => {
                let found = cursor.figure()?.map(Number::float).transpose()?;
                column.push(found.map(f64::to_bits));
            }
            (Plan::Float, Column::Fixed32(column)) => {
                let found = cursor.figure()?.map(Number::float).transpose()?;
                column.push(found.map(|number| (number as f32).to_bits()));
            }
            (Plan::Decimal { scale, bound }, Column::Fixed128(column)) => {
                let number = cursor.figure()?;
                let found = number.map(|number| unscaled(number.text, *scale, *bound));
                column.push(found.transpose()?.map(|number| number as u128));
            }
            (Plan::Text { numbers, truths }, Column::Binary(column)) => {
                let start = cursor.at;
                match cursor.peek()? {
                    b'"' => return cursor.string(|text| column.push(Some(text)))?,
                    b't' | b'f' if *truths => truth(cursor).map(|_| ())?,
                    _ if *numbers => cursor.number().map(|_| ())?,
                    _ => return Err(Unusual),
                }
                column.push(Some(&cursor.data[start..cursor.at]))?;
            }
            (Plan::Base64, Column::Binary(column)) => {
                cursor.string(|text| put_base64(&mut column.data, text))??;
                column.end(true)?;
            }
            (Plan::Record(record), into) => record.read(cursor, into)?,
            (Plan::Array { items, cells }, Column::List(list)) => {
                cursor.parts(ARRAY, |cursor| {
                    cursor.take_cells(*cells)?;
                    items.read(cursor, &mut list.items)
                })?;
                list.end(true)?;
            }
            (Plan::Map { values, cells }, Column::List(list)) => {
                read_map(values, *cells, cursor, list)?;
            }
            _ => return Err(Unusual),
        }
        Ok(())
    }
}

impl Record {
    pub fn new(fields: Vec<(Vec<u8>, Plan)>) -> Self {
        let (names, fields): (Vec<Vec<u8>>, Vec<_>) = fields.into_iter().unzip();
        let head = |name: &Vec<u8>| {
            // No text has the byte 255: names with escapes are looked up.
            let mark = if plain(name) == name.len() { b'"' } else { 255 };
            [&[mark], &name[..], b"\":"].concat()
        };
        let heads = names.iter().map(head).collect();
        Record { heads, fields, places: names.into_iter().zip(0..).collect() }
    }

    fn read(&self, cursor: &mut Cursor, into: &mut Column) -> Result<()> {
        let Column::Struct(own) = into else { return Err(Unusual) };
        let row = own.rows;
        // Values of a topic have their fields in one order, mostly that of the schema.
        let mut next = 0;
        cursor.parts(OBJECT, |cursor| {
            let found = match self.heads.get(next) {
                Some(head) if cursor.data[cursor.at..].starts_with(head) => {
                    cursor.at += head.len();
                    cursor.space();
                    Some(next)
                }
                _ => cursor.key(|name| self.places.get(name).copied())?,
            };
            let Some(place) = found else { return cursor.skip() };
            next = place + 1;
            let column = own.children.get_mut(place).ok_or(Unusual)?;
            // Of a repeated name the last one counts.
            if column.rows() > row {
                return Err(Unusual);
            }
            self.fields[place].read(cursor, column)
        })?;
        for column in &mut own.children {
            if column.rows() == row {
                column.push_null()?;
            }
        }
        own.end(true);
        Ok(())
    }
}

/// Read an object's fields as pairs, sorted by their names; of a repeated one the last counts.
fn read_map(plan: &Plan, cells: usize, cursor: &mut Cursor, list: &mut List) -> Result<()> {
    let mut entries: Vec<(Vec<u8>, usize)> = Vec::new();
    cursor.parts(OBJECT, |cursor| {
        let name = cursor.key(<[u8]>::to_vec)?;
        entries.push((name, cursor.at));
        cursor.skip()
    })?;
    let end = cursor.at;
    entries.sort_by(|one, other| one.0.cmp(&other.0));
    let Column::Struct(pairs) = &mut *list.items else { return Err(Unusual) };
    for (place, (name, at)) in entries.iter().enumerate() {
        if entries.get(place + 1).is_some_and(|following| following.0 == *name) {
            continue;
        }
        cursor.take_cells(cells)?;
        cursor.at = *at;
        let [Column::Binary(keys), values] = &mut pairs.children[..] else { return Err(Unusual) };
        keys.push(Some(name))?;
        plan.read(cursor, values)?;
        pairs.end(true);
    }
    cursor.at = end;
    list.end(true)
}

// --- numbers ---------------------------------------------------------------------------------

impl Number<'_> {
    /// An integer; written with zeros behind a point, it is one too.
    #[inline]
    fn whole(self) -> Result<i64> {
        let digits = match self.kind {
            NumberKind::Whole => self.text,
            NumberKind::Point => {
                let trimmed = self.text.iter().rposition(|digit| *digit != b'0');
                let digits = &self.text[..trimmed.map_or(0, |place| place + 1)];
                digits.strip_suffix(b".").ok_or(Unusual)?
            }
            _ => return Err(Unusual),
        };
        text_of(digits).parse().map_err(|_| Unusual)
    }

    #[inline]
    fn float(self) -> Result<f64> {
        text_of(self.text).parse().map_err(|_| Unusual)
    }
}

/// What was read of a value, which is UTF-8.
#[inline]
fn text_of(data: &[u8]) -> &str {
    std::str::from_utf8(data).unwrap_or_default()
}

#[inline]
fn put_whole(number: i64, into: &mut Column) -> Result<()> {
    match into {
        Column::Fixed32(column) => {
            column.push(Some(i32::try_from(number).map_err(|_| Unusual)? as u32));
        }
        Column::Fixed64(column) => column.push(Some(number as u64)),
        _ => return Err(Unusual),
    }
    Ok(())
}

/// True, false, or a string that says it; an empty string says nothing.
fn truth(cursor: &mut Cursor) -> Result<Option<bool>> {
    let quoted = cursor.peek()? == b'"';
    let said = if quoted { cursor.quoted()?.0 } else { &cursor.data[cursor.at..] };
    let found = match said {
        b"" => None,
        _ if said.starts_with(b"true") => Some(true),
        _ if said.starts_with(b"false") => Some(false),
        _ => return Err(Unusual),
    };
    let size = found.map_or(0, |truth| if truth { 4 } else { 5 });
    if !quoted {
        cursor.at += size;
    } else if said.len() > size {
        return Err(Unusual);
    }
    Ok(found)
}

/// The unscaled number of a decimal without an exponent.
fn unscaled(text: &[u8], scale: usize, bound: i128) -> Result<i128> {
    const MAX_DIGITS: usize = 38;
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    let point = digits.iter().position(|digit| *digit == b'.');
    let (whole, fraction) = match point {
        Some(place) => (&digits[..place], &digits[place + 1..]),
        None => (digits, &[][..]),
    };
    if whole.is_empty() || point.is_some() && fraction.is_empty() {
        return Err(Unusual);
    }
    let (fraction, beyond) = fraction.split_at(fraction.len().min(scale));
    if beyond.iter().any(|digit| *digit != b'0') || whole.len() + scale > MAX_DIGITS {
        return Err(Unusual);
    }
    let mut number = 0i128;
    for digit in whole.iter().chain(fraction) {
        if !digit.is_ascii_digit() {
            return Err(Unusual);
        }
        number = number * 10 + i128::from(digit - b'0');
    }
    for _ in fraction.len()..scale {
        number *= 10;
    }
    if number >= bound {
        return Err(Unusual);
    }
    Ok(if digits.len() < text.len() { -number } else { number })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::values::Kind;

    fn text(data: &str) -> Result<Vec<u8>> {
        let mut column = Column::new(&Kind::Struct(vec![Kind::Binary])).unwrap();
        let value = Value { plan: Plan::Text { numbers: false, truths: false }, is_whole: true };
        read(&value, data.as_bytes(), 0, &mut column)?;
        let Column::Struct(own) = column else { panic!() };
        let Column::Binary(column) = &own.children[0] else { panic!() };
        Ok(column.data.to_vec())
    }

    #[test]
    fn strings_end_at_their_quote_and_stand_for_what_is_escaped() {
        for count in 0..20 {
            let letters = "x".repeat(count);
            let quoted = format!("\"{letters}\\n{letters}\"");
            assert_eq!(text(&quoted), Ok(format!("{letters}\n{letters}").into_bytes()));
            assert_eq!(text(&format!("\"{letters}\u{1f}\"")), Err(Unusual));
            assert_eq!(text(&format!("\"{letters}")), Err(Unusual));
        }
        let escapes = r#" "\"\\\/\b\f\n\r\t\u00e9\ud83d\ude00\u0000" "#;
        assert_eq!(text(escapes), Ok("\"\\/\u{8}\u{c}\n\r\té😀\0".as_bytes().to_vec()));
        for wrong in [r#""\x""#, r#""\u12""#, r#""\ud83d""#, r#""\ude00""#, r#""\ud83d\u0041""#] {
            assert_eq!(text(wrong), Err(Unusual), "{wrong}");
        }
    }

    #[test]
    fn numbers_are_exact_or_left_alone() {
        let decimal = |text: &str| unscaled(text.as_bytes(), 2, 100_000);
        assert_eq!(decimal("-1.5"), Ok(-150));
        assert_eq!(decimal("999.990"), Ok(99_999));
        for wrong in ["1000", "0.001", "1.", ".5", "1e2", "", "-", "+1"] {
            assert_eq!(decimal(wrong), Err(Unusual), "{wrong}");
        }
        let whole = |text: &'static str, kind| Number { text: text.as_bytes(), kind }.whole();
        assert_eq!(whole("-10.00", NumberKind::Point), Ok(-10));
        assert_eq!(whole("1.5", NumberKind::Point), Err(Unusual));
        assert_eq!(whole("9223372036854775808", NumberKind::Whole), Err(Unusual));
    }

    #[test]
    fn values_nested_too_deeply_are_left_alone() {
        let record = || Value { plan: Plan::Record(Record::new(vec![])), is_whole: false };
        for (depth, wanted) in [(MAX_DEPTH - 1, Ok(())), (MAX_DEPTH, Err(Unusual))] {
            let data = format!("{{\"x\":{}1{}}}", "[".repeat(depth), "]".repeat(depth));
            let mut column = Column::new(&Kind::Struct(vec![])).unwrap();
            assert_eq!(read(&record(), data.as_bytes(), 0, &mut column), wanted);
        }
    }
}
