//! Avro's binary encoding → typed columns, by plans that Python makes (Avro 1.12, Binary Encoding).
//!
//! What the plain reader in Python refuses is refused here too, without a reason: it finds that.

use crate::columns::check_text;
use crate::values::{scaled, widened, Column, Decimal, List};
use crate::wire::{Reader, Result, Unusual};

/// How to read a value, and what it becomes: `schema/avro/resolution.py` explains each.
///
/// A tag of its own is looked at more quickly than one within the fields.
#[repr(u8)]
pub enum Plan {
    Null,
    Number(Number),
    Bytes {
        size: Option<usize>,
        into: Into,
    },
    Enum(Vec<Option<Vec<u8>>>),
    Array {
        items: Box<Plan>,
        bounds: Bounds,
    },
    /// Keys are text, unless they are passed over.
    Map {
        keys: Into,
        values: Box<Plan>,
        bounds: Bounds,
    },
    Record(Box<Record>),
    Union(Vec<Plan>),
    Member {
        plan: Box<Plan>,
        member: usize,
    },
    Unresolvable,
}

/// A number and what whole ones are multiplied with, then divided by.
#[derive(Clone, Copy)]
pub struct Number {
    pub written: Written,
    pub factor: i64,
    pub divisor: i64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Written {
    Boolean,
    Int,
    Long,
    Float,
    Double,
}

/// What bytes become.
#[repr(u8)]
pub enum Into {
    Raw,
    Text,
    Uuid,
    Duration,
    Decimal(Box<Decimal>),
}

/// An item's least bytes, and how many flat columns it needs.
#[derive(Clone, Copy)]
pub struct Bounds {
    pub least: usize,
    pub fields: usize,
}

pub struct Record {
    pub steps: Vec<Step>,
    /// Places, and how to read their defaults from these bytes.
    pub defaults: Vec<(usize, Plan, Vec<u8>)>,
    /// Places that have neither.
    pub missing: Vec<usize>,
}

/// A field of the writer's.
pub struct Step {
    /// Of a union of null and one other type, the number of null; `plan` reads the other.
    null: Option<i64>,
    plan: Plan,
    /// Its place in the reader's record, if it has one.
    target: Option<usize>,
}

impl Step {
    pub fn new(plan: Plan, target: Option<usize>) -> Self {
        let null = match &plan {
            Plan::Union(branches) if branches.len() == 2 => {
                branches.iter().position(|branch| matches!(branch, Plan::Null))
            }
            _ => None,
        };
        match (plan, null) {
            (Plan::Union(mut branches), Some(null)) => {
                Step { null: Some(null as i64), plan: branches.swap_remove(1 - null), target }
            }
            (plan, _) => Step { null: None, plan, target },
        }
    }

    #[inline]
    fn read(&self, cursor: &mut Cursor, into: Option<&mut Column>) -> Result<()> {
        if let Some(null) = self.null {
            let number = cursor.long()?;
            if number == null {
                return into.map_or(Ok(()), Column::push_null);
            }
            if number != 1 - null {
                return Err(Unusual);
            }
        }
        self.plan.read(cursor, into)
    }
}

/// How many items without bytes a value may have, and how many cells its lists.
#[derive(Clone, Copy)]
pub struct Limits {
    pub empty_items: usize,
    pub cells: usize,
}

/// Append a value to a column; if it is refused, the column has to be truncated.
pub fn read(plan: &Plan, data: &[u8], limits: Limits, into: &mut Column) -> Result<()> {
    let mut cursor = Cursor { rest: Reader::new(data), left: limits };
    plan.read(&mut cursor, Some(into))?;
    cursor.rest.is_empty().then_some(()).ok_or(Unusual)
}

struct Cursor<'a> {
    rest: Reader<'a>,
    left: Limits,
}

impl<'a> Cursor<'a> {
    /// A whole number: zigzag, of at most 10 bytes and 64 bits.
    #[inline]
    fn long(&mut self) -> Result<i64> {
        let value = self.rest.number()?;
        Ok((value >> 1) as i64 ^ -((value & 1) as i64))
    }

    #[inline]
    fn sized(&mut self) -> Result<&'a [u8]> {
        let size = usize::try_from(self.long()?).map_err(|_| Unusual)?;
        self.rest.take(size)
    }

    /// The number of items in the next block, 0 at the end.
    fn block(&mut self, bounds: Bounds) -> Result<usize> {
        let mut count = self.long()?;
        if count < 0 {
            // The block's size follows, for skipping it.
            self.long()?;
            count = count.checked_neg().ok_or(Unusual)?;
        }
        let count = usize::try_from(count).map_err(|_| Unusual)?;
        let size = count.checked_mul(bounds.least).ok_or(Unusual)?;
        let cells = count.checked_mul(bounds.fields).ok_or(Unusual)?;
        if size > self.rest.len() {
            return Err(Unusual);
        }
        if bounds.least == 0 {
            self.left.empty_items = self.left.empty_items.checked_sub(cells).ok_or(Unusual)?;
        }
        self.left.cells = self.left.cells.checked_sub(cells).ok_or(Unusual)?;
        Ok(count)
    }
}

impl Plan {
    /// Read a value, and append it to a column if there is one.
    fn read(&self, cursor: &mut Cursor, into: Option<&mut Column>) -> Result<()> {
        let mut plan = self;
        while let Plan::Union(branches) = plan {
            let number = usize::try_from(cursor.long()?).map_err(|_| Unusual)?;
            plan = branches.get(number).ok_or(Unusual)?;
        }
        match plan {
            Plan::Null => into.map_or(Ok(()), Column::push_null),
            Plan::Number(number) => number.read(cursor, into),
            Plan::Bytes { size, into: what } => {
                let bytes = match size {
                    Some(size) => cursor.rest.take(*size)?,
                    None => cursor.sized()?,
                };
                what.put(bytes, into)
            }
            Plan::Enum(symbols) => {
                let number = usize::try_from(cursor.long()?).map_err(|_| Unusual)?;
                let symbol = symbols.get(number).and_then(Option::as_deref).ok_or(Unusual)?;
                Into::Raw.put(symbol, into)
            }
            Plan::Array { items, bounds } => read_array(items, *bounds, cursor, into),
            Plan::Map { keys, values, bounds } => read_map(keys, values, *bounds, cursor, into),
            Plan::Record(record) => record.read(cursor, into),
            Plan::Member { plan, member } => read_member(plan, *member, cursor, into),
            // A union is one of its branches here.
            Plan::Union(_) | Plan::Unresolvable => Err(Unusual),
        }
    }
}

impl Record {
    #[inline(never)]
    fn read(&self, cursor: &mut Cursor, into: Option<&mut Column>) -> Result<()> {
        let Some(into) = into else {
            return self.steps.iter().try_for_each(|step| step.read(cursor, None));
        };
        let Column::Struct(own) = into else { return Err(Unusual) };
        for step in &self.steps {
            let column = match step.target {
                Some(target) => Some(own.children.get_mut(target).ok_or(Unusual)?),
                None => None,
            };
            step.read(cursor, column)?;
        }
        for (target, plan, data) in &self.defaults {
            let column = own.children.get_mut(*target).ok_or(Unusual)?;
            let unlimited = Limits { empty_items: usize::MAX, cells: usize::MAX };
            let mut cursor = Cursor { rest: Reader::new(data), left: unlimited };
            plan.read(&mut cursor, Some(column))?;
        }
        for target in &self.missing {
            own.children.get_mut(*target).ok_or(Unusual)?.push_null()?;
        }
        own.end(true);
        Ok(())
    }
}

/// Read a value into one of the columns of a union.
#[inline(never)]
fn read_member(
    plan: &Plan,
    member: usize,
    cursor: &mut Cursor,
    into: Option<&mut Column>,
) -> Result<()> {
    let Some(into) = into else { return plan.read(cursor, None) };
    let Column::Struct(own) = into else { return Err(Unusual) };
    for (place, child) in own.children.iter_mut().enumerate() {
        if place == member {
            plan.read(cursor, Some(child))?;
        } else {
            child.push_null()?;
        }
    }
    own.end(true);
    Ok(())
}

#[inline(never)]
fn read_array(
    items: &Plan,
    bounds: Bounds,
    cursor: &mut Cursor,
    into: Option<&mut Column>,
) -> Result<()> {
    let mut list = list_of(into)?;
    loop {
        let count = cursor.block(bounds)?;
        if count == 0 {
            return list.map_or(Ok(()), |list| list.end(true));
        }
        for _ in 0..count {
            items.read(cursor, list.as_mut().map(|list| &mut *list.items))?;
        }
    }
}

/// Of a repeated key the reference knows which value counts.
#[inline(never)]
fn read_map(
    keys: &Into,
    values: &Plan,
    bounds: Bounds,
    cursor: &mut Cursor,
    into: Option<&mut Column>,
) -> Result<()> {
    let mut list = list_of(into)?;
    let mut met: Vec<&[u8]> = Vec::new();
    loop {
        let count = cursor.block(bounds)?;
        if count == 0 {
            break;
        }
        for _ in 0..count {
            let found = cursor.sized()?;
            let Some(list) = &mut list else {
                keys.put(found, None)?;
                values.read(cursor, None)?;
                continue;
            };
            let Column::Struct(pairs) = &mut *list.items else { return Err(Unusual) };
            let [key, value] = &mut pairs.children[..] else { return Err(Unusual) };
            keys.put(found, Some(key))?;
            met.push(found);
            values.read(cursor, Some(value))?;
            pairs.end(true);
        }
    }
    met.sort_unstable();
    if met.windows(2).any(|pair| pair[0] == pair[1]) {
        return Err(Unusual);
    }
    list.map_or(Ok(()), |list| list.end(true))
}

/// The list that items are read into, if they are not passed over.
fn list_of(into: Option<&mut Column>) -> Result<Option<&mut List>> {
    match into {
        None => Ok(None),
        Some(Column::List(list)) => Ok(Some(list)),
        Some(_) => Err(Unusual),
    }
}

impl Number {
    #[inline]
    fn read(self, cursor: &mut Cursor, into: Option<&mut Column>) -> Result<()> {
        match self.written {
            Written::Boolean => {
                let [byte] = cursor.rest.array()?;
                match (byte, into) {
                    (0 | 1, None) => {}
                    (0 | 1, Some(Column::Boolean(column))) => column.push(Some(byte == 1)),
                    _ => return Err(Unusual),
                }
            }
            Written::Int | Written::Long => {
                let number = cursor.long()?;
                if self.written == Written::Int {
                    i32::try_from(number).map_err(|_| Unusual)?;
                }
                self.put_whole(number, into)?;
            }
            Written::Float => {
                let bits = u32::from_le_bytes(cursor.rest.array()?);
                match into {
                    None => {}
                    Some(Column::Fixed32(column)) => column.push(Some(bits)),
                    Some(Column::Fixed64(column)) => column.push(Some(widened(bits))),
                    Some(_) => return Err(Unusual),
                }
            }
            Written::Double => {
                let bits = u64::from_le_bytes(cursor.rest.array()?);
                match into {
                    None => {}
                    Some(Column::Fixed64(column)) => column.push(Some(bits)),
                    Some(_) => return Err(Unusual),
                }
            }
        }
        Ok(())
    }

    #[inline]
    fn put_whole(self, number: i64, into: Option<&mut Column>) -> Result<()> {
        let Some(into) = into else { return Ok(()) };
        match (self.becomes_float(), into) {
            (false, Column::Fixed32(column)) => column.push(Some(number as u32)),
            (false, Column::Fixed64(column)) => column.push(Some(self.scaled(number)? as u64)),
            (true, Column::Fixed32(column)) => column.push(Some((number as f32).to_bits())),
            (true, Column::Fixed64(column)) => column.push(Some((number as f64).to_bits())),
            _ => return Err(Unusual),
        }
        Ok(())
    }

    /// A factor of 0 says that a whole number becomes a float.
    #[inline]
    fn becomes_float(self) -> bool {
        self.factor == 0
    }

    #[inline]
    fn scaled(self, number: i64) -> Result<i64> {
        if self.factor == self.divisor {
            return Ok(number);
        }
        scaled(number, self.factor, self.divisor)
    }
}

impl Into {
    #[inline]
    fn put(&self, bytes: &[u8], into: Option<&mut Column>) -> Result<()> {
        match (self, into) {
            (Into::Text, None) => check_text(bytes),
            (Into::Raw | Into::Uuid | Into::Duration, None) => Ok(()),
            (Into::Raw, Some(Column::Binary(column))) => column.push(Some(bytes)),
            (Into::Text, Some(Column::Binary(column))) => {
                check_text(bytes)?;
                column.push(Some(bytes))
            }
            (Into::Uuid, Some(Column::Binary(column))) => column.push(Some(&uuid(bytes))),
            (Into::Duration, Some(Column::Struct(own))) => {
                for (child, part) in own.children.iter_mut().zip(bytes.chunks_exact(4)) {
                    let Column::Fixed64(column) = child else { return Err(Unusual) };
                    let part = part.try_into().map_err(|_| Unusual)?;
                    column.push(Some(u64::from(u32::from_le_bytes(part))));
                }
                own.end(true);
                Ok(())
            }
            (Into::Decimal(decimal), into) => {
                let number = decimal.rescaled(unscaled(bytes)?)?;
                match into {
                    None => {}
                    Some(Column::Fixed128(column)) => column.push(Some(number as u128)),
                    Some(_) => return Err(Unusual),
                }
                Ok(())
            }
            _ => Err(Unusual),
        }
    }
}

/// A signed number, its highest byte first; longer ones than 16 bytes are left to the reference.
fn unscaled(bytes: &[u8]) -> Result<i128> {
    if bytes.len() > 16 {
        return Err(Unusual);
    }
    let sign = if bytes.first().is_some_and(|byte| byte & 128 > 0) { -1 } else { 0 };
    Ok(bytes.iter().fold(sign, |number: i128, byte| number << 8 | i128::from(*byte)))
}

fn uuid(bytes: &[u8]) -> Vec<u8> {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut text = Vec::with_capacity(36);
    for (place, byte) in bytes.iter().enumerate() {
        if matches!(place, 4 | 6 | 8 | 10) {
            text.push(b'-');
        }
        text.extend([DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::values::Kind;

    const LIMITS: Limits = Limits { empty_items: 10, cells: 100 };

    fn long() -> Plan {
        Plan::Number(Number { written: Written::Long, factor: 1, divisor: 1 })
    }

    #[test]
    fn a_value_is_refused_unless_all_its_bytes_are_read() {
        let mut column = Column::new(&Kind::Fixed(8)).unwrap();
        assert_eq!(read(&long(), b"\x03", LIMITS, &mut column), Ok(()));
        for data in [&b""[..], b"\x80", b"\x02\x02", &[255; 10]] {
            assert_eq!(read(&long(), data, LIMITS, &mut column), Err(Unusual));
        }
        let Column::Fixed64(column) = column else { panic!() };
        assert_eq!(column.data[0], -2i64 as u64);
    }

    #[test]
    fn a_nullable_field_has_the_number_of_its_branch_before_it() {
        for (null, branches) in [(0, vec![Plan::Null, long()]), (1, vec![long(), Plan::Null])] {
            let steps = vec![Step::new(Plan::Union(branches), Some(0))];
            let record = Record { steps, defaults: Vec::new(), missing: Vec::new() };
            let plan = Plan::Record(Box::new(record));
            let mut column = Column::new(&Kind::Struct(vec![Kind::Fixed(8)])).unwrap();
            let [none, other] = [2 * null, 2 - 2 * null];
            assert_eq!(read(&plan, &[none], LIMITS, &mut column), Ok(()));
            assert_eq!(read(&plan, &[other, 3], LIMITS, &mut column), Ok(()));
            for data in [&[4, 3][..], &[1, 3], &[none, 3], &[other]] {
                assert_eq!(read(&plan, data, LIMITS, &mut column), Err(Unusual));
                column.truncate(2);
            }
            let Column::Struct(own) = column else { panic!() };
            let Column::Fixed64(column) = &own.children[0] else { panic!() };
            assert_eq!(column.data[..], [0, -2i64 as u64]);
            assert_eq!(column.validity.bits(), Some(&[0b10][..]));
        }
    }

    #[test]
    fn lists_are_bounded_by_their_bytes_and_their_cells() {
        let plan = |least| Plan::Array {
            items: Box::new(Plan::Null),
            bounds: Bounds { least, fields: 3 },
        };
        let mut column = Column::new(&Kind::List(Box::new(Kind::Null))).unwrap();
        assert_eq!(read(&plan(0), b"\x06\0", LIMITS, &mut column), Ok(()));
        assert_eq!(read(&plan(0), b"\x08\0", LIMITS, &mut column), Err(Unusual));
        assert_eq!(read(&plan(1), b"\x06\0", LIMITS, &mut column), Err(Unusual));
    }

    #[test]
    fn numbers_keep_their_bits() {
        assert_eq!(widened(0x7fa0_0001), 0x7ffc_0000_2000_0000);
        assert_eq!(f64::from_bits(widened(1.5f32.to_bits())), 1.5);
        assert_eq!(unscaled(b"\xff\x7f"), Ok(-129));
        assert_eq!(unscaled(b""), Ok(0));
        let number = Number { written: Written::Long, factor: 1, divisor: 1000 };
        assert_eq!(number.scaled(-1), Ok(-1));
        assert_eq!(uuid(&[0xab; 16]), b"abababab-abab-abab-abab-abababababab");
    }
}
