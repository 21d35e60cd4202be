//! Columns that Python gives: one record batch of Arrow's IPC format, looked at where it lies.
//!
//! Every place and length is checked when it is used, so that any bytes are taken without a panic.

use std::ops::Range;

use crate::values::{widened, Kind};
use crate::wire::{bytes_at, Result, Unusual};

/// A column.
pub struct Array<'a> {
    pub rows: usize,
    /// A bit for each row, if there are nulls.
    validity: Option<&'a [u8]>,
    values: Values<'a>,
}

enum Values<'a> {
    Null,
    Boolean(&'a [u8]),
    Fixed { size: usize, data: &'a [u8] },
    Binary { offsets: &'a [u8], data: &'a [u8] },
    Struct(Vec<Array<'a>>),
    List { offsets: &'a [u8], items: Box<Array<'a>> },
}

impl<'a> Array<'a> {
    #[inline]
    pub fn is_null(&self, row: usize) -> bool {
        match self.validity {
            None => matches!(self.values, Values::Null),
            Some(bits) => !bit(bits, row).unwrap_or_default(),
        }
    }

    #[inline]
    pub fn truth(&self, row: usize) -> Result<bool> {
        let Values::Boolean(bits) = self.values else { return Err(Unusual) };
        bit(bits, row)
    }

    /// A number's bytes, the lowest first.
    #[inline]
    pub fn number<const N: usize>(&self, row: usize) -> Result<[u8; N]> {
        let Values::Fixed { size, data } = self.values else { return Err(Unusual) };
        if size != N {
            return Err(Unusual);
        }
        numbers(data, row)
    }

    /// A double's bytes, also of a float.
    #[inline]
    pub fn double(&self, row: usize) -> Result<[u8; 8]> {
        match self.number(row) {
            Ok(bytes) => Ok(bytes),
            Err(_) => Ok(widened(u32::from_le_bytes(self.number(row)?)).to_le_bytes()),
        }
    }

    /// A signed number of at most 64 bits.
    #[inline]
    pub fn whole(&self, row: usize) -> Result<i64> {
        let Values::Fixed { size, data } = self.values else { return Err(Unusual) };
        match size {
            8 => Ok(i64::from_le_bytes(numbers(data, row)?)),
            4 => Ok(i64::from(i32::from_le_bytes(numbers(data, row)?))),
            2 => Ok(i64::from(i16::from_le_bytes(numbers(data, row)?))),
            1 => Ok(i64::from(i8::from_le_bytes(numbers(data, row)?))),
            _ => Err(Unusual),
        }
    }

    /// A signed number of any size.
    #[inline]
    pub fn integer(&self, row: usize) -> Result<i128> {
        match self.number(row) {
            Ok(bytes) => Ok(i128::from_le_bytes(bytes)),
            Err(_) => self.whole(row).map(i128::from),
        }
    }

    #[inline]
    pub fn bytes(&self, row: usize) -> Result<&'a [u8]> {
        let Values::Binary { offsets, data } = self.values else { return Err(Unusual) };
        data.get(range(offsets, row)?).ok_or(Unusual)
    }

    /// The columns of a struct.
    #[inline]
    pub fn parts(&self) -> Result<&[Array<'a>]> {
        let Values::Struct(parts) = &self.values else { return Err(Unusual) };
        Ok(parts)
    }

    /// The items of a list: their column, and their rows in it.
    #[inline]
    pub fn items(&self, row: usize) -> Result<(&Array<'a>, Range<usize>)> {
        let Values::List { offsets, items } = &self.values else { return Err(Unusual) };
        let rows = range(offsets, row)?;
        (rows.start <= rows.end && rows.end <= items.rows)
            .then_some((&**items, rows))
            .ok_or(Unusual)
    }
}

#[inline]
fn bit(bits: &[u8], row: usize) -> Result<bool> {
    bits.get(row / 8).map(|byte| byte >> (row % 8) & 1 == 1).ok_or(Unusual)
}

#[inline]
fn numbers<const N: usize>(data: &[u8], place: usize) -> Result<[u8; N]> {
    bytes_at(data, place.checked_mul(N).ok_or(Unusual)?)
}

#[inline]
fn range(offsets: &[u8], row: usize) -> Result<Range<usize>> {
    let both = u64::from_le_bytes(bytes_at(offsets, row.checked_mul(4).ok_or(Unusual)?)?);
    let at = |offset: u32| usize::try_from(offset as i32).map_err(|_| Unusual);
    Ok(at(both as u32)?..at((both >> 32) as u32)?)
}

// --- the message -----------------------------------------------------------------------------

/// The columns of a message, which are of these kinds, as parts of a struct (Arrow columnar format,
/// Encapsulated message format).
pub fn columns_of<'a>(message: &'a [u8], kinds: &[Kind]) -> Result<Array<'a>> {
    let [continuation, size] = [0, 4].map(|at| number32(message, at));
    let size = usize::try_from(size?).map_err(|_| Unusual)?;
    let rest = message.get(8..).ok_or(Unusual)?;
    if continuation? != u32::MAX || size > rest.len() {
        return Err(Unusual);
    }
    let (metadata, body) = rest.split_at(size);
    let root = Table::at(metadata, 0)?;
    // Of Message the header, and of RecordBatch rows, nodes and buffers.
    let batch = Table::at(metadata, root.place(2)?)?;
    if batch.place(3).is_ok() {
        // It is compressed.
        return Err(Unusual);
    }
    // Nothing is written for a default.
    let rows = batch.place(0).map_or(Ok(0), |at| length(metadata, at))?;
    let (nodes, buffers) = (batch.pairs(1)?, batch.pairs(2)?);
    let mut parts = Parts { nodes: nodes.into_iter(), buffers: buffers.into_iter(), body };
    let columns = kinds.iter().map(|kind| parts.column(kind)).collect::<Result<Vec<_>>>()?;
    if columns.iter().any(|column| column.rows != rows) {
        return Err(Unusual);
    }
    Ok(Array { rows, validity: None, values: Values::Struct(columns) })
}

fn number32(data: &[u8], at: usize) -> Result<u32> {
    bytes_at(data, at).map(u32::from_le_bytes)
}

/// A number of 64 bits that is a size or a place.
fn length(data: &[u8], at: usize) -> Result<usize> {
    usize::try_from(i64::from_le_bytes(bytes_at(data, at)?)).map_err(|_| Unusual)
}

/// A table of flatbuffers: what it has is found by its vtable.
struct Table<'a> {
    data: &'a [u8],
    at: usize,
    vtable: &'a [u8],
}

impl<'a> Table<'a> {
    /// The table that the offset at a place leads to.
    fn at(data: &'a [u8], place: usize) -> Result<Self> {
        let at = followed(data, place)?;
        let back = number32(data, at)? as i32;
        let start = (at as i64).checked_sub(i64::from(back)).ok_or(Unusual)?;
        let start = usize::try_from(start).map_err(|_| Unusual)?;
        let size = usize::from(number16(data, start)?);
        let vtable = data.get(start..).and_then(|rest| rest.get(..size)).ok_or(Unusual)?;
        Ok(Table { data, at, vtable })
    }

    /// Where a field is; it is Unusual to lack it.
    fn place(&self, field: usize) -> Result<usize> {
        match number16(self.vtable, 4 + 2 * field)? {
            0 => Err(Unusual),
            offset => Ok(self.at + usize::from(offset)),
        }
    }

    /// The pairs of numbers in a list.
    fn pairs(&self, field: usize) -> Result<Vec<[usize; 2]>> {
        let start = followed(self.data, self.place(field)?)?;
        let count = number32(self.data, start)? as usize;
        let size = count.checked_mul(16).ok_or(Unusual)?;
        let pairs = self.data.get(start + 4..).and_then(|rest| rest.get(..size)).ok_or(Unusual)?;
        let pair = |pair: &[u8]| Ok([length(pair, 0)?, length(pair, 8)?]);
        pairs.chunks_exact(16).map(pair).collect()
    }
}

fn number16(data: &[u8], at: usize) -> Result<u16> {
    bytes_at(data, at).map(u16::from_le_bytes)
}

fn followed(data: &[u8], place: usize) -> Result<usize> {
    place.checked_add(number32(data, place)? as usize).ok_or(Unusual)
}

/// What the metadata lists, in the order of the columns and their parts.
struct Parts<'a, I> {
    nodes: I,
    buffers: I,
    body: &'a [u8],
}

impl<'a, I: Iterator<Item = [usize; 2]>> Parts<'a, I> {
    fn column(&mut self, kind: &Kind) -> Result<Array<'a>> {
        let [rows, nulls] = self.nodes.next().ok_or(Unusual)?;
        if matches!(kind, Kind::Null) {
            return Ok(Array { rows, validity: None, values: Values::Null });
        }
        let bits = self.buffer()?;
        let validity = (nulls > 0).then_some(bits);
        let values = match kind {
            Kind::Null => Values::Null,
            Kind::Boolean => Values::Boolean(self.buffer()?),
            Kind::Fixed(size) => Values::Fixed { size: *size, data: self.buffer()? },
            Kind::Binary => Values::Binary { offsets: self.buffer()?, data: self.buffer()? },
            Kind::Struct(kinds) => {
                Values::Struct(kinds.iter().map(|kind| self.column(kind)).collect::<Result<_>>()?)
            }
            Kind::List(kind) => {
                Values::List { offsets: self.buffer()?, items: Box::new(self.column(kind)?) }
            }
        };
        Ok(Array { rows, validity, values })
    }

    fn buffer(&mut self) -> Result<&'a [u8]> {
        let [start, size] = self.buffers.next().ok_or(Unusual)?;
        self.body.get(start..).and_then(|rest| rest.get(..size)).ok_or(Unusual)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::values::{put_message, Column};

    /// A message with a number, a text and a list of numbers in each of two rows, some of them null.
    fn message() -> Vec<u8> {
        let mut column = Column::new(&Kind::Struct(kinds())).unwrap();
        let Column::Struct(own) = &mut column else { panic!() };
        let [Column::Fixed64(numbers), Column::Binary(texts), Column::List(lists)] =
            &mut own.children[..]
        else {
            panic!()
        };
        numbers.push(Some(7));
        numbers.push(None);
        texts.push(Some(b"a")).unwrap();
        texts.push(Some(b"bc")).unwrap();
        lists.end(true).unwrap();
        let Column::Fixed64(items) = &mut *lists.items else { panic!() };
        items.push(Some(3));
        lists.end(true).unwrap();
        own.rows = 2;
        let mut out = Vec::new();
        put_message(&mut out, own);
        out
    }

    fn kinds() -> Vec<Kind> {
        vec![Kind::Fixed(8), Kind::Binary, Kind::List(Box::new(Kind::Fixed(8)))]
    }

    #[test]
    fn a_message_is_looked_at_where_it_lies() {
        let data = message();
        let found = columns_of(&data, &kinds()).unwrap();
        let [numbers, texts, lists] = found.parts().unwrap() else { panic!() };
        assert_eq!((found.rows, numbers.whole(0)), (2, Ok(7)));
        assert!(numbers.is_null(1) && !numbers.is_null(0));
        assert_eq!((texts.bytes(0), texts.bytes(1)), (Ok(&b"a"[..]), Ok(&b"bc"[..])));
        assert_eq!(texts.bytes(2), Err(Unusual));
        let (items, rows) = lists.items(1).unwrap();
        assert_eq!((items.whole(0), rows), (Ok(3), 0..1));
        assert_eq!(lists.items(0).unwrap().1, 0..0);
    }

    #[test]
    fn any_damage_is_met_without_a_panic() {
        let whole = message();
        for at in 0..whole.len() {
            for value in [0, 1, 127, 128, 255] {
                let mut data = whole.clone();
                data[at] = value;
                for data in [&data[..], &data[..at]] {
                    let Ok(found) = columns_of(data, &kinds()) else { continue };
                    let Ok([numbers, texts, lists]) = found.parts() else { panic!() };
                    for row in 0..found.rows.min(100) {
                        let _ = (numbers.is_null(row), numbers.whole(row), texts.bytes(row));
                        if let Ok((items, rows)) = lists.items(row) {
                            assert!(rows
                                .take(100)
                                .all(|row| items.whole(row).is_ok() || row < usize::MAX));
                        }
                    }
                }
            }
        }
    }
}
