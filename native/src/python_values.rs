//! What Python sees of typed values: a decoder by plans of a format, and the columns that it made.

use std::sync::{Arc, Mutex, PoisonError};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};

use crate::avro::{self, Bounds, Into, Limits, Number, Plan, Record, Step, Written};
use crate::columns::{Buffer, Lent};
use crate::json;
use crate::protobuf::{self, Field, Form, Message, Value, Wire};
use crate::python::{detached, lent, Column as Bytes, Object};
use crate::values::{put_message, Column, Decimal, Kind};
use crate::wire::Result;

/// Reads values into columns, by one plan for each version of the schema.
///
/// ValueDecoder(kind, plans, cells, empty_items=0): `kind` is the layout of the columns together, as
/// a struct. A layout is its name, or a tuple of a name and its parts; a plan is a tuple of its name
/// and its fields, and one of AVRO unless it is a "message" or "json" (the `reading.py` of each
/// format makes them).
///
/// Threads can share one: they decode one after the other.
#[pyclass(module = "pulsar_spark._kernel", frozen)]
pub struct ValueDecoder {
    plans: Vec<AnyPlan>,
    limits: Limits,
    made: Mutex<Made>,
}

/// What values are read into, and the message that it becomes; their memory is used again.
struct Made {
    columns: Column,
    message: Buffer<u8>,
}

enum AnyPlan {
    Avro(Plan),
    Json(json::Value),
    Protobuf(Message),
}

#[pymethods]
impl ValueDecoder {
    #[new]
    #[pyo3(signature = (kind, plans, cells, empty_items=0))]
    fn new(
        kind: &Bound<'_, PyAny>,
        plans: Vec<Bound<'_, PyAny>>,
        cells: usize,
        empty_items: usize,
    ) -> PyResult<Self> {
        let plans = plans.iter().map(any_plan_of).collect::<PyResult<_>>()?;
        let columns = Column::new(&kind_of(kind)?).ok_or_else(|| unknown("fixed"))?;
        let limits = Limits { empty_items, cells };
        let made = Mutex::new(Made { columns, message: Buffer::default() });
        Ok(ValueDecoder { plans, limits, made })
    }

    /// decode(data, edges, valid=None, versions=None) -> (message, rows)
    ///
    /// Values are between their edges in the data. Without its byte in `valid` a row is null;
    /// `versions` has a byte for each row, the number of its plan. Returns the columns as a message of
    /// Arrow's IPC format, and the rows that could not be read, which are null.
    #[pyo3(signature = (data, edges, valid=None, versions=None))]
    fn decode<'py>(
        &self,
        py: Python<'py>,
        data: Bound<'py, PyBytes>,
        edges: &Bound<'py, PyAny>,
        valid: Option<&[u8]>,
        versions: Option<&[u8]>,
    ) -> PyResult<(Object, Vec<usize>)> {
        let values = Bytes::joined(data, edges)?;
        let values: Vec<&[u8]> = values.slices().flatten().collect();
        let fits = |bytes: Option<&[u8]>| bytes.is_none_or(|bytes| bytes.len() == values.len());
        if !fits(valid) || !fits(versions) {
            return Err(PyValueError::new_err("there is a byte for each row"));
        }
        // A thread that waits for another one does not hold the interpreter's lock.
        let done = detached(py, "decoding", || {
            let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
            made.decode(&self.plans, self.limits, &values, valid, versions)
        });
        let (message, bad) =
            done?.map_err(|_| PyValueError::new_err("the columns would be too large"))?;
        Ok((lent(py, message)?, bad))
    }
}

impl Made {
    fn decode(
        &mut self,
        plans: &[AnyPlan],
        limits: Limits,
        values: &[&[u8]],
        valid: Option<&[u8]>,
        versions: Option<&[u8]>,
    ) -> Result<(Lent<u8>, Vec<usize>)> {
        let Made { columns, message } = self;
        columns.clear();
        message.clear();
        let mut bad = Vec::new();
        for (row, value) in values.iter().enumerate() {
            if valid.is_some_and(|valid| valid[row] == 0) {
                columns.push_null()?;
                continue;
            }
            let plan = plans.get(versions.map_or(0, |numbers| usize::from(numbers[row])));
            let read = plan.map(|plan| match plan {
                AnyPlan::Avro(plan) => avro::read(plan, value, limits, columns),
                AnyPlan::Json(plan) => json::read(plan, value, limits.cells, columns),
                AnyPlan::Protobuf(plan) => protobuf::read(plan, value, limits.cells, columns),
            });
            if read != Some(Ok(())) {
                columns.truncate(row);
                columns.push_null()?;
                bad.push(row);
            }
        }
        if let Column::Struct(columns) = columns {
            put_message(message, columns);
        }
        Ok((message.lend(), bad))
    }
}

// --- what Python describes -------------------------------------------------------------------

pub(crate) fn kind_of(given: &Bound<'_, PyAny>) -> PyResult<Kind> {
    if let Ok(parts) = given.cast::<PyTuple>() {
        let inner = parts.get_item(1)?;
        return Ok(match name_of(parts)?.as_str() {
            "struct" => {
                let kinds = inner.try_iter()?.map(|kind| kind_of(&kind?));
                Kind::Struct(kinds.collect::<PyResult<_>>()?)
            }
            "list" => Kind::List(Box::new(kind_of(&inner)?)),
            other => return Err(unknown(other)),
        });
    }
    Ok(match given.extract::<String>()?.as_str() {
        "null" => Kind::Null,
        "boolean" => Kind::Boolean,
        "fixed8" => Kind::Fixed(1),
        "fixed16" => Kind::Fixed(2),
        "fixed32" => Kind::Fixed(4),
        "fixed64" => Kind::Fixed(8),
        "fixed128" => Kind::Fixed(16),
        "binary" => Kind::Binary,
        other => return Err(unknown(other)),
    })
}

fn any_plan_of(given: &Bound<'_, PyAny>) -> PyResult<AnyPlan> {
    let fields = given.cast::<PyTuple>()?;
    Ok(match name_of(fields)?.as_str() {
        "message" => AnyPlan::Protobuf(message_of(&fields.get_item(1)?, &enums_of(fields)?)?),
        "json" => AnyPlan::Json(json::Value {
            plan: json_plan_of(fields.get_item(1)?.cast::<PyTuple>()?)?,
            is_whole: at(fields, 2)?,
        }),
        _ => AnyPlan::Avro(plan_of(given)?),
    })
}

fn json_plan_of(fields: &Bound<'_, PyTuple>) -> PyResult<json::Plan> {
    use json::Plan;
    let boxed = || PyResult::Ok(Box::new(json_plan_of(fields.get_item(1)?.cast::<PyTuple>()?)?));
    Ok(match name_of(fields)?.as_str() {
        "boolean" => Plan::Boolean,
        "integer" => Plan::Integer,
        "float" => Plan::Float,
        "date" => Plan::Date,
        "time" => Plan::Time {
            form: match at::<String>(fields, 1)?.as_str() {
                "utc" => json::TimeForm::Utc,
                "java utc" => json::TimeForm::JavaUtc,
                "local" => json::TimeForm::Local,
                "of day" => json::TimeForm::OfDay,
                other => return Err(unknown(other)),
            },
            factor: at(fields, 2)?,
            divisor: at(fields, 3)?,
        },
        "decimal" => Plan::Decimal { scale: at(fields, 1)?, bound: power(fields, 2)? },
        "text" => Plan::Text { numbers: at(fields, 1)?, truths: at(fields, 2)? },
        "base64" => Plan::Base64,
        "record" => Plan::Record(json::Record::new(each(&fields.get_item(1)?, |field| {
            Ok((at(field, 0)?, json_plan_of(field.get_item(1)?.cast::<PyTuple>()?)?))
        })?)),
        "array" => Plan::Array { items: boxed()?, cells: at(fields, 2)? },
        "map" => Plan::Map { values: boxed()?, cells: at(fields, 2)? },
        "refused" => Plan::Refused,
        other => return Err(unknown(other)),
    })
}

fn plan_of(given: &Bound<'_, PyAny>) -> PyResult<Plan> {
    let fields = given.cast::<PyTuple>()?;
    let field = |place| fields.get_item(place);
    let boxed = |place| PyResult::Ok(Box::new(plan_of(&field(place)?)?));
    let bounds =
        || PyResult::Ok(Bounds { least: field(2)?.extract()?, fields: field(3)?.extract()? });
    Ok(match name_of(fields)?.as_str() {
        "null" => Plan::Null,
        "number" => Plan::Number(Number {
            written: match field(1)?.extract::<String>()?.as_str() {
                "boolean" => Written::Boolean,
                "int" => Written::Int,
                "long" => Written::Long,
                "float" => Written::Float,
                "double" => Written::Double,
                other => return Err(unknown(other)),
            },
            factor: field(2)?.extract()?,
            divisor: field(3)?.extract()?,
        }),
        "bytes" => Plan::Bytes { size: field(1)?.extract()?, into: into_of(&field(2)?)? },
        "enum" => Plan::Enum(field(1)?.extract()?),
        "array" => Plan::Array { items: boxed(1)?, bounds: bounds()? },
        "map" => Plan::Map { keys: into_of(&field(4)?)?, values: boxed(1)?, bounds: bounds()? },
        "record" => Plan::Record(Box::new(Record {
            steps: each(&field(1)?, |step| {
                Ok(Step::new(plan_of(&step.get_item(0)?)?, at(step, 1)?))
            })?,
            defaults: each(&field(2)?, |item| {
                Ok((at(item, 0)?, plan_of(&item.get_item(1)?)?, at(item, 2)?))
            })?,
            missing: field(3)?.extract()?,
        })),
        "union" => Plan::Union(each(&field(1)?, plan_of_item)?),
        "member" => Plan::Member { plan: boxed(1)?, member: field(2)?.extract()? },
        "unresolvable" => Plan::Unresolvable,
        other => return Err(unknown(other)),
    })
}

fn plan_of_item(given: &Bound<'_, PyTuple>) -> PyResult<Plan> {
    plan_of(given.as_any())
}

fn into_of(given: &Bound<'_, PyAny>) -> PyResult<Into> {
    let fields = given.cast::<PyTuple>()?;
    Ok(match name_of(fields)?.as_str() {
        "raw" => Into::Raw,
        "text" => Into::Text,
        "uuid" => Into::Uuid,
        "duration" => Into::Duration,
        "decimal" => Into::Decimal(Box::new(decimal_of(fields)?)),
        other => return Err(unknown(other)),
    })
}

type Enums = Vec<Arc<protobuf::Names>>;

/// Many fields can have the same enum, and an enum many names.
fn enums_of(fields: &Bound<'_, PyTuple>) -> PyResult<Enums> {
    let names: Vec<protobuf::Names> = at(fields, 2)?;
    Ok(names.into_iter().map(Arc::new).collect())
}

fn message_of(given: &Bound<'_, PyAny>, enums: &Enums) -> PyResult<Message> {
    let fields = each(given, |field| {
        Ok(Field {
            number: at(field, 0)?,
            repeated: at(field, 1)?,
            oneof: at(field, 2)?,
            nullable: at(field, 3)?,
            value: value_of(field.get_item(4)?.cast::<PyTuple>()?, enums)?,
        })
    })?;
    Ok(Message::new(fields))
}

fn value_of(fields: &Bound<'_, PyTuple>, enums: &Enums) -> PyResult<Value> {
    let text = |place| at::<String>(fields, place);
    Ok(match name_of(fields)?.as_str() {
        "number" => Value::Number {
            written: wire_of(&text(1)?)?,
            into: number_of(&fields.get_item(2)?, enums)?,
            absent: at(fields, 3)?,
        },
        "text" => Value::Bytes { is_text: true },
        "bytes" => Value::Bytes { is_text: false },
        "message" => Value::Message {
            message: message_of(&fields.get_item(2)?, enums)?,
            form: match text(1)?.as_str() {
                "struct" => Form::Struct,
                "pair" => Form::Pair,
                "field" => Form::Field,
                "truth" => Form::Truth,
                "bytes" => Form::Bytes,
                "timestamp" => Form::Timestamp,
                "duration" => Form::Duration,
                other => return Err(unknown(other)),
            },
            cells: at(fields, 3)?,
        },
        "noticed" => Value::Noticed(wire_of(&text(1)?)?),
        "refused" => Value::Refused,
        other => return Err(unknown(other)),
    })
}

fn wire_of(name: &str) -> PyResult<Wire> {
    Ok(match name {
        "varint" => Wire::Varint,
        "fixed64" => Wire::Fixed64,
        "delimited" => Wire::Delimited,
        "fixed32" => Wire::Fixed32,
        other => return Err(unknown(other)),
    })
}

/// What numbers become; of an enum, its place is given.
fn number_of(given: &Bound<'_, PyAny>, enums: &Enums) -> PyResult<protobuf::Number> {
    use protobuf::Number;
    let Ok(name) = given.extract::<String>() else {
        let names = enums.get(given.extract::<usize>()?);
        return Ok(Number::Name(names.ok_or_else(|| unknown("the enum"))?.clone()));
    };
    Ok(match name.as_str() {
        "int" => Number::Int,
        "unsigned" => Number::Unsigned,
        "long" => Number::Long,
        "decimal" => Number::Decimal,
        "zigzag int" => Number::ZigzagInt,
        "zigzag long" => Number::ZigzagLong,
        "truth" => Number::Truth,
        other => return Err(unknown(other)),
    })
}

/// A power of ten, given its exponent; one beyond all decimals makes every value unusual.
fn power(fields: &Bound<'_, PyTuple>, place: usize) -> PyResult<i128> {
    Ok(10i128.checked_pow(at(fields, place)?).unwrap_or(i128::MAX))
}

/// A decimal's scale, by the exponents of factor, divisor and bound.
pub(crate) fn decimal_of(fields: &Bound<'_, PyTuple>) -> PyResult<Decimal> {
    Ok(Decimal { factor: power(fields, 1)?, divisor: power(fields, 2)?, bound: power(fields, 3)? })
}

pub(crate) fn each<T>(
    given: &Bound<'_, PyAny>,
    make: impl Fn(&Bound<'_, PyTuple>) -> PyResult<T>,
) -> PyResult<Vec<T>> {
    given.try_iter()?.map(|item| make(item?.cast::<PyTuple>()?)).collect()
}

pub(crate) fn at<'py, T: FromPyObjectOwned<'py>>(
    fields: &Bound<'py, PyTuple>,
    place: usize,
) -> PyResult<T> {
    fields.get_item(place)?.extract().map_err(|error: T::Error| error.into())
}

pub(crate) fn name_of(fields: &Bound<'_, PyTuple>) -> PyResult<String> {
    fields.get_item(0)?.extract()
}

pub(crate) fn unknown(name: &str) -> PyErr {
    PyValueError::new_err(format!("{name} is not known"))
}
