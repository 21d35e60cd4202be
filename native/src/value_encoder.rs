//! What Python sees of writing typed values: an encoder by the plan of a format.

use std::sync::{Mutex, PoisonError};

use pyo3::exceptions::{PyOverflowError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::avro_writing::{self as avro, Step};
use crate::columns::Binary;
use crate::given::{columns_of, Array};
use crate::json_writing as json;
use crate::protobuf_writing as protobuf;
use crate::python::{detached, lent, Object};
use crate::python_values::{at, decimal_of, each, kind_of, name_of, unknown};
use crate::values::Kind;
use crate::wire::Unusual;

/// Writes rows of columns as values, by a plan.
///
/// ValueEncoder(kinds, plan): `kinds` are the layouts of the columns. A layout is its name, or a
/// tuple of a name and its parts; a plan is a tuple of its format and that format's own description
/// (the `fitting.py` of each format makes them, of JSON `writing.py`).
///
/// Threads can share one: they encode one after the other.
#[pyclass(module = "pulsar_spark._kernel", frozen)]
pub struct ValueEncoder {
    kinds: Vec<Kind>,
    plan: AnyPlan,
    values: Mutex<Binary>,
}

enum AnyPlan {
    Avro(avro::Plan),
    Json(json::Plan),
    Protobuf(protobuf::Message),
}

/// Bytes of memory that are kept for the next values.
const MAX_KEPT: usize = 16 << 20;

#[pymethods]
impl ValueEncoder {
    #[new]
    fn new(kinds: Vec<Bound<'_, PyAny>>, plan: &Bound<'_, PyTuple>) -> PyResult<Self> {
        let kinds = kinds.iter().map(kind_of).collect::<PyResult<_>>()?;
        let own = plan.get_item(1)?;
        let plan = match name_of(plan)?.as_str() {
            "avro" => AnyPlan::Avro(avro_plan_of(own.cast()?)?),
            "json" => AnyPlan::Json(json_plan_of(own.cast()?)?),
            "protobuf" => AnyPlan::Protobuf(message_of(own.cast()?, 0)?),
            other => return Err(unknown(other)),
        };
        Ok(ValueEncoder { kinds, plan, values: Mutex::default() })
    }

    /// encode(message) -> (offsets, data, rows)
    ///
    /// The message is a record batch of Arrow's IPC format. Returns the values as buffers of a
    /// binary array, and the rows that could not be written, which are empty.
    fn encode(&self, py: Python<'_>, message: &[u8]) -> PyResult<(Object, Object, Vec<usize>)> {
        let columns = columns_of(message, &self.kinds)
            .map_err(|_| PyValueError::new_err("this is no record batch of these columns"))?;
        // A thread that waits for another one does not hold the interpreter's lock.
        let done = detached(py, "encoding", || {
            let mut values = self.values.lock().unwrap_or_else(PoisonError::into_inner);
            values.clear(MAX_KEPT);
            let refused = write_rows(&self.plan, &columns, &mut values)?;
            Result::<_, Unusual>::Ok((values.offsets.lend(), values.data.lend(), refused))
        });
        let (offsets, data, refused) =
            done?.map_err(|_| PyOverflowError::new_err("the values take more than 2 GiB"))?;
        Ok((lent(py, offsets)?, lent(py, data)?, refused))
    }
}

/// Append all rows; return those that are refused.
fn write_rows(plan: &AnyPlan, columns: &Array, out: &mut Binary) -> Result<Vec<usize>, Unusual> {
    let mut refused = Vec::new();
    for row in 0..columns.rows {
        let start = out.data.len();
        let written = match plan {
            AnyPlan::Avro(plan) => plan.write(columns, row, &mut out.data),
            AnyPlan::Json(plan) => plan.write(columns, row, &mut out.data).map(drop),
            AnyPlan::Protobuf(plan) => plan.write(columns, row, &mut out.data),
        };
        if written.is_err() {
            out.data.truncate(start);
            refused.push(row);
        }
        out.end(true)?;
    }
    Ok(refused)
}

// --- what Python describes -------------------------------------------------------------------

fn avro_plan_of(fields: &Bound<'_, PyTuple>) -> PyResult<avro::Plan> {
    use avro::Plan;
    let boxed = || PyResult::Ok(Box::new(avro_plan_of(fields.get_item(1)?.cast()?)?));
    Ok(match name_of(fields)?.as_str() {
        "null" => Plan::Null,
        "boolean" => Plan::Boolean,
        "whole" => {
            Plan::Whole { factor: at(fields, 1)?, divisor: at(fields, 2)?, bound: at(fields, 3)? }
        }
        "float" => Plan::Float(at(fields, 1)?),
        "double" => Plan::Double(at(fields, 1)?),
        "bytes" => Plan::Bytes,
        "fixed" => Plan::Fixed(at(fields, 1)?),
        "enum" => Plan::Enum(names_of(fields)?),
        "uuid text" => Plan::UuidText,
        "uuid" => Plan::Uuid,
        "duration" => Plan::Duration,
        "decimal" => Plan::Decimal(decimal_of(fields)?, at(fields, 5)?),
        "record" => Plan::Record(each(&fields.get_item(1)?, |step| {
            Ok(match at::<Option<usize>>(step, 0)? {
                Some(place) => Step::Field(place, avro_plan_of(step.get_item(1)?.cast()?)?),
                None => Step::Constant(at(step, 1)?),
            })
        })?),
        "array" => Plan::Array(boxed()?),
        "map" => Plan::Map(boxed()?),
        "union" => Plan::Union {
            null: at(fields, 1)?,
            members: each(&fields.get_item(2)?, |member| {
                Ok((at(member, 0)?, avro_plan_of(member.get_item(1)?.cast()?)?))
            })?,
            apart: at(fields, 3)?,
        },
        "opaque" => Plan::Refused,
        other => return Err(unknown(other)),
    })
}

fn json_plan_of(fields: &Bound<'_, PyTuple>) -> PyResult<json::Plan> {
    use json::Plan;
    let boxed = || PyResult::Ok(Box::new(json_plan_of(fields.get_item(1)?.cast()?)?));
    let side = |place| {
        let given = fields.get_item(place)?;
        let pair = given.cast::<PyTuple>()?;
        PyResult::Ok((at(pair, 0)?, Box::new(json_plan_of(pair.get_item(1)?.cast()?)?)))
    };
    Ok(match name_of(fields)?.as_str() {
        "null" => Plan::Null,
        "nullable" => Plan::Nullable(boxed()?),
        "alone" => Plan::Alone(boxed()?),
        "record" => Plan::Record {
            fields: each(&fields.get_item(1)?, |field| {
                Ok((at(field, 1)?, json_plan_of(field.get_item(2)?.cast()?)?))
            })?,
            leaves_out: at(fields, 2)?,
        },
        "array" => Plan::Array(boxed()?),
        "map" => Plan::Map(boxed()?),
        "pairs" => Plan::Pairs { key: side(1)?, value: side(2)? },
        "union" => Plan::Union {
            members: each(&fields.get_item(1)?, json_plan_of)?,
            nullable: at(fields, 2)?,
        },
        "boolean" => Plan::Boolean,
        "integer" => Plan::Integer,
        "float" => {
            Plan::Float { bits: at(fields, 1)?, source: at(fields, 2)?, quoted: at(fields, 3)? }
        }
        "decimal" => Plan::Decimal(decimal_of(fields)?, at(fields, 4)?),
        "text" => Plan::Text,
        "enum" => Plan::Enum(at(fields, 1)?),
        "uuid" => Plan::Uuid,
        "bytes" => Plan::Bytes { base64: at(fields, 1)?, size: at(fields, 2)? },
        "time" => {
            Plan::Time { factor: at(fields, 1)?, divisor: at(fields, 2)?, of_day: at(fields, 3)? }
        }
        "iso date" => Plan::IsoDate,
        "iso time" => Plan::IsoTime,
        "iso moment" => Plan::IsoMoment(at(fields, 1)?),
        "uuid bytes" | "any" => Plan::Refused,
        other => return Err(unknown(other)),
    })
}

/// The message whose fields and oneofs are from a place on.
fn message_of(given: &Bound<'_, PyTuple>, place: usize) -> PyResult<protobuf::Message> {
    let fields = each(&given.get_item(place)?, |field| {
        Ok((at(field, 0)?, field_of(field.get_item(1)?.cast()?)?))
    })?;
    Ok(protobuf::Message { fields, oneofs: at(given, place + 1)? })
}

fn field_of(fields: &Bound<'_, PyTuple>) -> PyResult<protobuf::Field> {
    use protobuf::{Field, Form};
    Ok(Field {
        form: match name_of(fields)?.as_str() {
            "single" => Form::Single,
            "repeated" => Form::Repeated,
            "packed" => Form::Packed,
            other => return Err(unknown(other)),
        },
        head: at(fields, 1)?,
        end: at(fields, 2)?,
        nullable: at(fields, 3)?,
        omits_zero: at(fields, 4)?,
        value: value_of(fields.get_item(5)?.cast()?)?,
    })
}

fn value_of(fields: &Bound<'_, PyTuple>) -> PyResult<protobuf::Value> {
    use protobuf::{Value, Written};
    let tags = || PyResult::Ok([at(fields, 1)?, at(fields, 2)?]);
    Ok(match name_of(fields)?.as_str() {
        "whole" => Value::Whole {
            written: match at::<String>(fields, 1)?.as_str() {
                "varint" => Written::Varint,
                "zigzag" => Written::Zigzag,
                "fixed32" => Written::Fixed32,
                "fixed64" => Written::Fixed64,
                other => return Err(unknown(other)),
            },
            low: at::<i64>(fields, 2)?.into(),
            high: at::<u64>(fields, 3)?.into(),
        },
        "boolean" => Value::Boolean,
        "float" => Value::Float,
        "double" => Value::Double,
        "bytes" => Value::Bytes,
        "enum" => Value::Enum(names_of(fields)?),
        "message" => Value::Message(message_of(fields, 1)?),
        "field" => Value::Field(Box::new(field_of(fields.get_item(1)?.cast()?)?)),
        "empty" => Value::Empty,
        "truth" => Value::Truth,
        "message bytes" => Value::MessageBytes,
        "timestamp" => Value::Timestamp(tags()?),
        "duration" => Value::Duration(tags()?),
        "json" => Value::Refused,
        other => return Err(unknown(other)),
    })
}

/// Names with the bytes of their numbers, sorted.
fn names_of(fields: &Bound<'_, PyTuple>) -> PyResult<Vec<(Vec<u8>, Vec<u8>)>> {
    let mut names: Vec<(Vec<u8>, Vec<u8>)> = at(fields, 1)?;
    names.sort_unstable();
    Ok(names)
}
