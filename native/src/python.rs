//! What Python sees: the functions and classes of the contract, with buffers as `bytes`.

use std::panic::{catch_unwind, AssertUnwindSafe};

use pyo3::exceptions::{PyException, PyIndexError, PyOverflowError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyList, PyTuple};

use crate::columns::{Binary, Fixed, Maps, Rows, Span};
use crate::decode::{self, Options, Place};
use crate::frame;

/// Version of the contract; Python refuses another one.
const CONTRACT: u32 = 1;

type Object = Py<PyAny>;

/// scan_messages(data, at, limit) -> (end, consumer_id, frames)
#[pyfunction]
fn scan_messages(data: &[u8], at: usize, limit: usize) -> (usize, i64, usize) {
    frame::scan_messages(data, at, limit)
}

/// scan_receipts(data, at, limit) -> (end, producer_id, numbers)
#[pyfunction]
fn scan_receipts<'py>(
    py: Python<'py>,
    data: &[u8],
    at: usize,
    limit: usize,
) -> PyResult<(usize, i64, Bound<'py, PyAny>)> {
    let (end, producer, numbers) = frame::scan_receipts(data, at, limit);
    let numbers = array_type(py)?.call1(("q", integers(py, &numbers)?))?;
    Ok((end, producer, numbers))
}

fn array_type(py: Python<'_>) -> PyResult<&Bound<'_, PyAny>> {
    static ARRAY: PyOnceLock<Object> = PyOnceLock::new();
    let found = ARRAY.get_or_try_init(py, || {
        PyResult::Ok(py.import("array")?.getattr("array")?.unbind())
    })?;
    Ok(found.bind(py))
}

fn progress_type(py: Python<'_>) -> PyResult<&Bound<'_, PyAny>> {
    static PROGRESS: PyOnceLock<Object> = PyOnceLock::new();
    let found = PROGRESS.get_or_try_init(py, || {
        let make = py.import("collections")?.getattr("namedtuple")?;
        let fields = ["at", "status", "messages", "position"];
        PyResult::Ok(make.call1(("Progress", fields))?.unbind())
    })?;
    Ok(found.bind(py))
}

/// Takes the frames of one reader, in order, into rows.
#[pyclass(module = "pulsar_spark_native")]
struct BlockDecoder {
    decoder: decode::Decoder,
    decompress: Object,
    /// The data in which a batch was begun that did not fit whole.
    begun: Option<Py<PyBytes>>,
}

#[pymethods]
impl BlockDecoder {
    #[new]
    fn new(options: &Bound<'_, PyAny>, decompress: Object) -> PyResult<Self> {
        let columns = options.getattr("columns")?.try_iter()?;
        let options = Options {
            partition: options.getattr("partition")?.extract()?,
            columns: columns.map(|name| name?.extract()).collect::<PyResult<_>>()?,
            end: options.getattr("end")?.extract()?,
            max_rows: options.getattr("max_rows")?.extract()?,
            max_bytes: options.getattr("max_bytes")?.extract()?,
            max_payload: options.getattr("max_payload")?.extract()?,
            published_from: options.getattr("published_from")?.extract()?,
            published_before: options.getattr("published_before")?.extract()?,
        };
        let decoder = decode::Decoder::new(options);
        Ok(BlockDecoder { decoder, decompress, begun: None })
    }

    #[getter]
    fn rows(&self) -> usize {
        self.decoder.rows.rows
    }

    #[getter]
    fn nbytes(&self) -> usize {
        self.decoder.rows.nbytes
    }

    #[getter]
    fn slow_frames(&self) -> u64 {
        self.decoder.slow_frames
    }

    /// decode(data, at, stop, position) -> Progress
    fn decode<'py>(
        &mut self,
        py: Python<'py>,
        data: &Bound<'py, PyBytes>,
        at: usize,
        stop: usize,
        position: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let start = place(position)?;
        let same_data = self.begun.take().is_some_and(|begun| begun.is(data));
        let bytes = data.as_bytes();
        let mut raised = None;
        let decoder = &mut self.decoder;
        let decompress = &self.decompress;
        let done = py.detach(|| {
            let mut undo = |codec: i32, data: &[u8], size: usize, limit: usize| {
                Python::attach(|py| match call(py, decompress, codec, data, size, limit) {
                    Ok(found) => Some(found),
                    // The careful path will meet it again. What is no error must not be lost.
                    Err(error) if error.is_instance_of::<PyException>(py) => None,
                    Err(error) => {
                        raised = Some(error);
                        None
                    }
                })
            };
            catch_unwind(AssertUnwindSafe(|| {
                decoder.decode(bytes, at, stop, start, same_data, &mut undo)
            }))
        });
        if let Some(error) = raised {
            return Err(error);
        }
        let progress =
            done.map_err(|_| PyRuntimeError::new_err("decoding failed: please report this"))?;
        if progress.status == decode::Status::Full {
            self.begun = Some(data.clone().unbind());
        }
        let reached = match progress.position {
            unmoved if unmoved == start => position.clone(),
            moved => moved.into_pyobject(py)?.into_any(),
        };
        let fields = (progress.at, progress.status as u8, progress.messages, reached);
        progress_type(py)?.call1(fields)
    }

    /// take() -> Columns, or None if nothing is pending
    fn take(&mut self, py: Python<'_>) -> PyResult<Option<Columns>> {
        if self.decoder.rows.rows == 0 {
            return Ok(None);
        }
        let columns = Columns::new(py, &mut self.decoder.rows)?;
        self.decoder.clear();
        Ok(Some(columns))
    }
}

/// A position; no entry that is decoded here lies behind 63 bits.
fn place(position: &Bound<'_, PyAny>) -> PyResult<Place> {
    let (ledger, entry, index): (Bound<PyAny>, Bound<PyAny>, i64) = position.extract()?;
    let bounded = |number: &Bound<PyAny>| match number.extract::<i64>() {
        Err(error) if error.is_instance_of::<PyOverflowError>(number.py()) => Ok(i64::MAX),
        found => found,
    };
    Ok((bounded(&ledger)?, bounded(&entry)?, index))
}

fn call(
    py: Python<'_>,
    decompress: &Object,
    codec: i32,
    data: &[u8],
    size: usize,
    limit: usize,
) -> PyResult<Vec<u8>> {
    let found = decompress.call1(py, (codec, PyBytes::new(py, data), size, limit))?;
    let found = match found.cast_bound::<PyBytes>(py) {
        Ok(found) => found.clone(),
        Err(_) => py.get_type::<PyBytes>().call1((found,))?.cast_into::<PyBytes>()?,
    };
    Ok(found.as_bytes().to_vec())
}

/// Rows as buffers in Arrow's layout; a column that was not asked for is None.
#[pyclass(module = "pulsar_spark_native", frozen)]
struct Columns {
    #[pyo3(get)]
    rows: usize,
    #[pyo3(get)]
    nbytes: usize,
    #[pyo3(get)]
    value: Option<Object>,
    #[pyo3(get)]
    key: Option<Object>,
    #[pyo3(get)]
    message_id: Option<Object>,
    #[pyo3(get)]
    publish_time: Option<Object>,
    #[pyo3(get)]
    event_time: Option<Object>,
    #[pyo3(get)]
    properties: Option<Object>,
    #[pyo3(get)]
    ledger_id: Option<Object>,
    #[pyo3(get)]
    entry_id: Option<Object>,
    #[pyo3(get)]
    batch_index: Option<Object>,
    #[pyo3(get)]
    producer_name: Option<Object>,
    #[pyo3(get)]
    sequence_id: Option<Object>,
    #[pyo3(get)]
    ordering_key: Option<Object>,
    #[pyo3(get)]
    schema_version: Option<Object>,
    #[pyo3(get)]
    redelivery_count: Option<Object>,
    #[pyo3(get)]
    size: Option<Object>,
    #[pyo3(get)]
    index: Option<Object>,
    #[pyo3(get)]
    replicated_from: Option<Object>,
    #[pyo3(get)]
    versions: Py<PyList>,
    spans: Vec<Span>,
}

impl Columns {
    fn new(py: Python<'_>, rows: &mut Rows) -> PyResult<Self> {
        let binary = |column: &Option<Binary>| {
            column.as_ref().map(|column| binary_buffers(py, column)).transpose()
        };
        let versions = PyList::empty(py);
        for (row, version) in &rows.versions {
            versions.append((*row, PyBytes::new(py, version)))?;
        }
        Ok(Columns {
            rows: rows.rows,
            nbytes: rows.nbytes,
            value: binary(&rows.value)?,
            key: binary(&rows.key)?,
            message_id: binary(&rows.message_id)?,
            publish_time: fixed_buffers(py, &rows.publish_time)?,
            event_time: fixed_buffers(py, &rows.event_time)?,
            properties: map_buffers(py, &rows.properties)?,
            ledger_id: fixed_buffers(py, &rows.ledger_id)?,
            entry_id: fixed_buffers(py, &rows.entry_id)?,
            batch_index: fixed_buffers(py, &rows.batch_index)?,
            producer_name: binary(&rows.producer_name)?,
            sequence_id: fixed_buffers(py, &rows.sequence_id)?,
            ordering_key: binary(&rows.ordering_key)?,
            schema_version: binary(&rows.schema_version)?,
            redelivery_count: fixed_buffers(py, &rows.redelivery_count)?,
            size: fixed_buffers(py, &rows.size)?,
            index: fixed_buffers(py, &rows.index)?,
            replicated_from: binary(&rows.replicated_from)?,
            versions: versions.unbind(),
            spans: std::mem::take(&mut rows.spans),
        })
    }
}

#[pymethods]
impl Columns {
    /// locate(row) -> (ledger, entry, batch index or -1, batch size or 0)
    fn locate(&self, row: i64) -> PyResult<(i64, i64, i32, i32)> {
        let mut rest = usize::try_from(row).unwrap_or(usize::MAX);
        for span in &self.spans {
            if rest < span.rows {
                let index = if span.count == 0 { -1 } else { span.first + rest as i32 };
                return Ok((span.ledger, span.entry, index, span.count));
            }
            rest -= span.rows;
        }
        Err(PyIndexError::new_err("there are fewer rows"))
    }
}

fn binary_buffers(py: Python<'_>, column: &Binary) -> PyResult<Object> {
    let bits = column.validity.bits().map(|bits| PyBytes::new(py, bits));
    let data = PyBytes::new(py, &column.data);
    let fields = (bits, integers(py, &column.offsets)?, data, column.validity.nulls);
    Ok(fields.into_pyobject(py)?.into_any().unbind())
}

fn fixed_buffers<T: Bytes>(py: Python<'_>, column: &Option<Fixed<T>>) -> PyResult<Option<Object>> {
    let Some(column) = column else { return Ok(None) };
    let bits = column.validity.bits().map(|bits| PyBytes::new(py, bits));
    let fields = (bits, integers(py, &column.data)?, column.validity.nulls);
    Ok(Some(fields.into_pyobject(py)?.into_any().unbind()))
}

fn map_buffers(py: Python<'_>, column: &Option<Maps>) -> PyResult<Option<Object>> {
    let Some(column) = column else { return Ok(None) };
    let fields = PyTuple::new(
        py,
        [
            integers(py, &column.offsets)?.into_any().unbind(),
            binary_buffers(py, &column.keys)?,
            binary_buffers(py, &column.values)?,
        ],
    )?;
    Ok(Some(fields.into_any().unbind()))
}

/// Numbers that are written in the machine's own order.
trait Bytes: Copy {
    fn write(self, to: &mut [u8]);
    const SIZE: usize;
}

impl Bytes for i32 {
    const SIZE: usize = 4;
    #[inline]
    fn write(self, to: &mut [u8]) {
        to.copy_from_slice(&self.to_ne_bytes());
    }
}

impl Bytes for i64 {
    const SIZE: usize = 8;
    #[inline]
    fn write(self, to: &mut [u8]) {
        to.copy_from_slice(&self.to_ne_bytes());
    }
}

fn integers<'py, T: Bytes>(py: Python<'py>, numbers: &[T]) -> PyResult<Bound<'py, PyBytes>> {
    let size = numbers.len().checked_mul(T::SIZE);
    let size = size.ok_or_else(|| PyValueError::new_err("too many numbers"))?;
    PyBytes::new_with(py, size, |data| {
        for (to, number) in data.chunks_exact_mut(T::SIZE).zip(numbers) {
            number.write(to);
        }
        Ok(())
    })
}

#[pymodule]
fn pulsar_spark_native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("CONTRACT", CONTRACT)?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<BlockDecoder>()?;
    module.add_class::<Columns>()?;
    module.add_function(wrap_pyfunction!(scan_messages, module)?)?;
    module.add_function(wrap_pyfunction!(scan_receipts, module)?)
}
