//! Typed columns in the making, whatever the format of the values that they are read from.

use crate::columns::{Binary, Buffer, Fixed, Validity};
use crate::wire::{Result, Unusual};

/// The layout of a column, by Arrow's types.
pub enum Kind {
    Null,
    Boolean,
    /// Numbers of so many bytes, of any meaning.
    Fixed(usize),
    /// Bytes or text.
    Binary,
    Struct(Vec<Kind>),
    /// A list; of a map, its pairs are structs.
    List(Box<Kind>),
}

/// A column, laid out as Arrow has it.
#[repr(u8)]
pub enum Column {
    Null(usize),
    Boolean(Fixed<bool>),
    Fixed32(Fixed<u32>),
    Fixed64(Fixed<u64>),
    Fixed128(Fixed<u128>),
    Binary(Binary),
    Struct(Struct),
    List(List),
}

pub struct Struct {
    pub rows: usize,
    pub validity: Validity,
    pub children: Vec<Column>,
}

pub struct List {
    pub offsets: Buffer<i32>,
    pub validity: Validity,
    pub items: Box<Column>,
}

impl Column {
    /// None for numbers of a size that no value is read into.
    pub fn new(kind: &Kind) -> Option<Self> {
        Some(match kind {
            Kind::Null => Column::Null(0),
            Kind::Boolean => Column::Boolean(Fixed::default()),
            Kind::Fixed(4) => Column::Fixed32(Fixed::default()),
            Kind::Fixed(8) => Column::Fixed64(Fixed::default()),
            Kind::Fixed(16) => Column::Fixed128(Fixed::default()),
            Kind::Fixed(_) => return None,
            Kind::Binary => Column::Binary(Binary::default()),
            Kind::Struct(kinds) => {
                let children = kinds.iter().map(Column::new).collect::<Option<_>>()?;
                Column::Struct(Struct { rows: 0, validity: Validity::default(), children })
            }
            Kind::List(kind) => {
                let mut offsets = Buffer::default();
                offsets.push(0);
                let items = Box::new(Column::new(kind)?);
                Column::List(List { offsets, validity: Validity::default(), items })
            }
        })
    }

    pub fn rows(&self) -> usize {
        match self {
            Column::Null(rows) => *rows,
            Column::Boolean(column) => column.data.len(),
            Column::Fixed32(column) => column.data.len(),
            Column::Fixed64(column) => column.data.len(),
            Column::Fixed128(column) => column.data.len(),
            Column::Binary(column) => column.rows(),
            Column::Struct(column) => column.rows,
            Column::List(column) => column.offsets.len() - 1,
        }
    }

    /// Append a row without a value. Parts of a struct have none either.
    pub fn push_null(&mut self) -> Result<()> {
        match self {
            Column::Null(rows) => *rows += 1,
            Column::Boolean(column) => column.push(None),
            Column::Fixed32(column) => column.push(None),
            Column::Fixed64(column) => column.push(None),
            Column::Fixed128(column) => column.push(None),
            Column::Binary(column) => column.push(None)?,
            Column::Struct(column) => {
                for child in &mut column.children {
                    child.push_null()?;
                }
                column.end(false);
            }
            Column::List(column) => column.end(false)?,
        }
        Ok(())
    }

    /// Keep the first rows only, whatever parts of another one were appended.
    pub fn truncate(&mut self, rows: usize) {
        match self {
            Column::Null(own) => *own = rows.min(*own),
            Column::Boolean(column) => column.truncate(rows),
            Column::Fixed32(column) => column.truncate(rows),
            Column::Fixed64(column) => column.truncate(rows),
            Column::Fixed128(column) => column.truncate(rows),
            Column::Binary(column) => column.truncate(rows),
            Column::Struct(column) => {
                column.rows = rows.min(column.rows);
                column.validity.truncate(rows);
                for child in &mut column.children {
                    child.truncate(rows);
                }
            }
            Column::List(column) => {
                column.offsets.truncate(rows + 1);
                column.validity.truncate(rows);
                let items = column.offsets.last().map_or(0, |&items| items as usize);
                column.items.truncate(items);
            }
        }
    }

    /// Begin anew; what was lent stays as it is.
    pub fn clear(&mut self) {
        match self {
            Column::Null(rows) => *rows = 0,
            Column::Boolean(column) => column.clear(),
            Column::Fixed32(column) => column.clear(),
            Column::Fixed64(column) => column.clear(),
            Column::Fixed128(column) => column.clear(),
            Column::Binary(column) => column.clear(MAX_KEPT),
            Column::Struct(column) => {
                column.rows = 0;
                column.validity.clear();
                column.children.iter_mut().for_each(Column::clear);
            }
            Column::List(column) => {
                column.offsets.clear();
                column.offsets.push(0);
                column.validity.clear();
                column.items.clear();
            }
        }
    }
}

/// Bytes of a column's memory that are kept for the next values.
const MAX_KEPT: usize = 16 << 20;

impl Struct {
    /// End the row whose parts were appended.
    #[inline]
    pub fn end(&mut self, valid: bool) {
        self.rows += 1;
        self.validity.push(valid);
    }
}

impl List {
    /// End the row whose items were appended.
    #[inline]
    pub fn end(&mut self, valid: bool) -> Result<()> {
        self.offsets.push(i32::try_from(self.items.rows()).map_err(|_| Unusual)?);
        self.validity.push(valid);
        Ok(())
    }
}

/// A number × factor ÷ divisor, rounded down.
#[inline]
pub fn scaled(number: i64, factor: i64, divisor: i64) -> Result<i64> {
    if divisor == 1 {
        return number.checked_mul(factor).ok_or(Unusual);
    }
    let scaled = i128::from(number) * i128::from(factor);
    i64::try_from(scaled.div_euclid(i128::from(divisor))).map_err(|_| Unusual)
}

/// The bits of a double with a float's value. Of what is no number, processors keep the bits too.
pub fn widened(bits: u32) -> u64 {
    let float = f32::from_bits(bits);
    if !float.is_nan() {
        return f64::from(float).to_bits();
    }
    let (sign, payload) = (u64::from(bits >> 31), u64::from(bits & 0x007f_ffff));
    sign << 63 | 0x7ff8 << 48 | payload << 29
}

/// A decimal's other scale: unscaled numbers are multiplied, divided without a rest, and below the
/// bound.
#[derive(Clone, Copy)]
pub struct Decimal {
    pub factor: i128,
    pub divisor: i128,
    pub bound: i128,
}

impl Decimal {
    #[inline]
    pub fn rescaled(self, number: i128) -> Result<i128> {
        let scaled = number.checked_mul(self.factor).ok_or(Unusual)?;
        let (number, rest) = (scaled / self.divisor, scaled % self.divisor);
        let fits = rest == 0 && number < self.bound && number > -self.bound;
        fits.then_some(number).ok_or(Unusual)
    }
}

// --- as a message of Arrow -------------------------------------------------------------------

/// Append the parts of a struct as a record batch: one message of Arrow's IPC format, which is made
/// into arrays at once, however many there are (Arrow columnar format, Encapsulated message format).
pub fn put_message(out: &mut Vec<u8>, columns: &Struct) {
    // Sizes before the body, which begins at a multiple of ALIGNED.
    let listed: usize = columns.children.iter().map(listed).sum();
    let body = (8 + HEAD + 16 * listed + 8).next_multiple_of(ALIGNED);
    let start = out.len();
    out.resize(start + body, 0);
    let mut parts = Parts { out, start: start + body, nodes: Vec::new(), buffers: Vec::new() };
    columns.children.iter().for_each(|column| parts.put(column));
    let metadata = parts.metadata(columns.rows);
    out[start..start + 4].copy_from_slice(&u32::MAX.to_le_bytes());
    out[start + 4..start + 8].copy_from_slice(&(body as u32 - 8).to_le_bytes());
    out[start + 8..start + 8 + metadata.len()].copy_from_slice(&metadata);
}

/// Flags as bits, from the lowest on.
fn bitmap(flags: &[bool]) -> Vec<u8> {
    let byte = |some: &[bool]| some.iter().rev().fold(0, |bits, flag| bits << 1 | u8::from(*flag));
    flags.chunks(8).map(byte).collect()
}

/// Where the buffers of a message begin, as processors like it.
const ALIGNED: usize = 64;
/// Bytes of the metadata before the list of nodes.
const HEAD: usize = 80;

/// How many nodes and buffers of a column a message lists.
fn listed(column: &Column) -> usize {
    match column {
        Column::Null(_) => 1,
        Column::Binary(_) => 4,
        Column::Struct(column) => 2 + column.children.iter().map(listed).sum::<usize>(),
        Column::List(column) => 3 + listed(&column.items),
        _ => 3,
    }
}

/// A message's body in the making, and what the metadata lists of it: rows and nulls of each array,
/// place and size of each buffer.
struct Parts<'a> {
    out: &'a mut Vec<u8>,
    start: usize,
    nodes: Vec<[i64; 2]>,
    buffers: Vec<[i64; 2]>,
}

impl Parts<'_> {
    fn put(&mut self, column: &Column) {
        let rows = column.rows();
        match column {
            Column::Null(_) => self.nodes.push([rows as i64; 2]),
            Column::Boolean(column) => {
                self.begin(rows, &column.validity);
                self.put_bytes(&bitmap(&column.data));
            }
            Column::Fixed32(column) => {
                self.begin(rows, &column.validity);
                self.put_numbers(&column.data, |value| value.to_le_bytes());
            }
            Column::Fixed64(column) => {
                self.begin(rows, &column.validity);
                self.put_numbers(&column.data, |value| value.to_le_bytes());
            }
            Column::Fixed128(column) => {
                self.begin(rows, &column.validity);
                self.put_numbers(&column.data, |value| value.to_le_bytes());
            }
            Column::Binary(column) => {
                self.begin(rows, &column.validity);
                self.put_numbers(&column.offsets, |value| value.to_le_bytes());
                self.put_bytes(&column.data);
            }
            Column::Struct(column) => {
                self.begin(rows, &column.validity);
                column.children.iter().for_each(|child| self.put(child));
            }
            Column::List(column) => {
                self.begin(rows, &column.validity);
                self.put_numbers(&column.offsets, |value| value.to_le_bytes());
                self.put(&column.items);
            }
        }
    }

    fn begin(&mut self, rows: usize, validity: &Validity) {
        self.nodes.push([rows as i64, validity.nulls as i64]);
        self.put_bytes(validity.bits().unwrap_or_default());
    }

    fn put_bytes(&mut self, bytes: &[u8]) {
        let start = self.out.len();
        self.out.extend_from_slice(bytes);
        self.list(start, bytes.len());
    }

    fn put_numbers<T: Copy, const N: usize>(&mut self, values: &[T], bytes: fn(T) -> [u8; N]) {
        let (start, size) = (self.out.len(), N * values.len());
        self.out.resize(start + size.next_multiple_of(ALIGNED), 0);
        for (to, value) in self.out[start..].chunks_exact_mut(N).zip(values) {
            to.copy_from_slice(&bytes(*value));
        }
        self.list(start, size);
    }

    /// List a buffer, and fill up what follows it.
    fn list(&mut self, start: usize, size: usize) {
        self.buffers.push([(start - self.start) as i64, size as i64]);
        self.out.resize(start + size.next_multiple_of(ALIGNED), 0);
    }

    /// The tables Message and RecordBatch as flatbuffers, with their vtables in front of them.
    fn metadata(&self, rows: usize) -> Vec<u8> {
        let mut out = Vec::new();
        let mut put16 = |values: &[u16]| out.extend(values.iter().flat_map(|n| n.to_le_bytes()));
        // The place of Message. Its vtable: sizes, places of version, kind, header, body's length.
        put16(&[16, 0, 12, 20, 16, 18, 4, 8]);
        // Message: the way to its vtable and to its header, the body's length, version 5, a batch.
        put16(&[12, 0, 32, 0]);
        out.extend(((self.out.len() - self.start) as i64).to_le_bytes());
        let mut put16 = |values: &[u16]| out.extend(values.iter().flat_map(|n| n.to_le_bytes()));
        put16(&[4, 3, 0, 0]);
        // RecordBatch's vtable: sizes, places of length, nodes, buffers. The way to it, the length.
        put16(&[10, 20, 4, 12, 16, 0, 12, 0]);
        out.extend((rows as i64).to_le_bytes());
        // The ways to both lists, each of which has its length before it.
        let nodes = self.nodes.len() as u32;
        for value in [12, 16 + 16 * nodes, 0, nodes] {
            out.extend(value.to_le_bytes());
        }
        out.extend(self.nodes.iter().flatten().flat_map(|n| n.to_le_bytes()));
        out.extend([0; 4]);
        out.extend((self.buffers.len() as u32).to_le_bytes());
        out.extend(self.buffers.iter().flatten().flat_map(|n| n.to_le_bytes()));
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_appended_of_a_row_can_be_taken_back() {
        let pair = Kind::Struct(vec![Kind::Binary, Kind::Boolean]);
        let kinds = vec![Kind::List(Box::new(pair)), Kind::Fixed(8), Kind::Null];
        let mut column = Column::new(&Kind::Struct(kinds)).unwrap();
        column.push_null().unwrap();
        let Column::Struct(own) = &mut column else { panic!() };
        let Column::List(list) = &mut own.children[0] else { panic!() };
        let Column::Struct(item) = &mut *list.items else { panic!() };
        let Column::Binary(text) = &mut item.children[0] else { panic!() };
        text.push(Some(b"half")).unwrap();
        column.truncate(1);
        column.push_null().unwrap();
        let Column::Struct(own) = &column else { panic!() };
        assert_eq!(own.children.iter().map(Column::rows).collect::<Vec<_>>(), [2, 2, 2]);
        let Column::List(list) = &own.children[0] else { panic!() };
        assert_eq!(list.items.rows(), 0);
        assert_eq!(own.validity.nulls, 2);
        column.clear();
        assert_eq!(column.rows(), 0);
    }

    #[test]
    fn flags_become_bits_from_the_lowest_on() {
        let flags: Vec<bool> = (0..9).map(|row| row % 3 == 0).collect();
        assert_eq!(bitmap(&flags), [0b0100_1001, 0]);
    }
}
