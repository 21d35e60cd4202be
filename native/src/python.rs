//! What Python sees: the functions and classes of the contract, with small buffers as `bytes`.

use std::cell::RefCell;
use std::panic::{catch_unwind, AssertUnwindSafe};

use pyo3::exceptions::{
    PyException, PyIndexError, PyOverflowError, PyRuntimeError, PyTypeError, PyValueError,
};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyDict, PyList, PyTuple};

use crate::columns::{self, Binary, Fixed, Lent, Maps, Rows, Span, Wanted};
use crate::decode::{self, Options, Place};
use crate::encode::{self, column_edges, put_batch, Entry, Frames, Ids, Producer};
use crate::frame;
use crate::hashes;
use crate::python_values::ValueDecoder;
use crate::value_encoder::ValueEncoder;
use crate::wire::Unusual;

/// Version of the contract; Python refuses another one.
const CONTRACT: u32 = 16;

pub(crate) type Object = Py<PyAny>;

/// scan_messages(data, at, limit) -> (end, consumer_id, frames, last)
///
/// The decoder finds the ends of the frames again faster than Python could hand them over.
#[pyfunction]
fn scan_messages(data: &[u8], at: usize, limit: usize) -> (usize, i64, usize, usize) {
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
    Ok((end, producer, long_array(py, &numbers)?))
}

/// hash_values(values, seed, word=0, words=None) -> numbers of 64 bits
///
/// It keeps the interpreter's lock: values come a few at a time.
#[pyfunction]
#[pyo3(signature = (values, seed, word=0, words=None))]
fn hash_values<'py>(
    py: Python<'py>,
    values: &Bound<'py, PyAny>,
    seed: u64,
    word: u64,
    words: Option<&[u8]>,
) -> PyResult<Bound<'py, PyBytes>> {
    let column = Column::new(values)?;
    let found = hashes::hash_values(column.slices(), seed, word, words);
    let found = found.map_err(|_| PyValueError::new_err("there is a word for each value"))?;
    Plain::copied(py, &found)
}

fn long_array<'py>(py: Python<'py>, numbers: &[i64]) -> PyResult<Bound<'py, PyAny>> {
    static ARRAY: PyOnceLock<Object> = PyOnceLock::new();
    ARRAY.import(py, "array", "array")?.call1(("q", Plain::copied(py, numbers)?))
}

/// Takes the frames of one reader, in order, into rows.
#[pyclass(module = "pulsar_spark._kernel")]
struct BlockDecoder {
    decoder: decode::Decoder,
    decompress: Object,
    /// The data in which a batch was begun that did not fit whole.
    begun: Option<Py<PyBytes>>,
}

#[pymethods]
impl BlockDecoder {
    #[new]
    fn new(options: Options, decompress: Object) -> PyResult<Self> {
        let known = |name: &&String| columns::Columns::NAMES.contains(&name.as_str());
        if let Some(name) = options.columns.iter().find(|name| !known(name)) {
            let text = format!("this kernel has no column {name}: build it again");
            return Err(PyValueError::new_err(text));
        }
        let decoder = decode::Decoder::new(options);
        Ok(BlockDecoder { decoder, decompress, begun: None })
    }

    #[getter]
    fn rows(&self) -> usize {
        self.decoder.rows.rows
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
        let mut undo = |codec: i32, data: &[u8], size: usize, limit: usize| {
            Python::attach(|py| match call(py, decompress, codec, data, size, limit) {
                Ok(found) => Some(found),
                // What opens the entry will meet it again. What is no error must not be lost.
                Err(error) if error.is_instance_of::<PyException>(py) => None,
                Err(error) => {
                    raised = Some(error);
                    None
                }
            })
        };
        let done = detached(py, "decoding", || {
            decoder.decode(bytes, at, stop, start, same_data, &mut undo)
        });
        if let Some(error) = raised {
            return Err(error);
        }
        let progress = done?;
        if progress.status == decode::Status::Full {
            self.begun = Some(data.clone().unbind());
        }
        let reached = match progress.position {
            unmoved if unmoved == start => position.clone(),
            moved => moved.into_pyobject(py)?.into_any(),
        };
        let fields = (progress.at, progress.status as u8, progress.messages, reached);
        static PROGRESS: PyOnceLock<Object> = PyOnceLock::new();
        PROGRESS.import(py, "pulsar_spark.protocol.blocks", "Progress")?.call1(fields)
    }

    /// take() -> Columns, or None if nothing is pending
    fn take(&mut self, py: Python<'_>) -> PyResult<Option<Columns>> {
        if self.decoder.rows.rows == 0 {
            return Ok(None);
        }
        let columns = Columns::new(py, &mut self.decoder.rows);
        // After an error too: some buffers may have been lent.
        self.decoder.clear();
        columns.map(Some)
    }
}

/// Do what does not need the interpreter's lock. A panic becomes an error.
pub(crate) fn detached<T: Send>(
    py: Python<'_>,
    what: &str,
    work: impl FnOnce() -> T + Send,
) -> PyResult<T> {
    let done = py.detach(|| catch_unwind(AssertUnwindSafe(work)));
    done.map_err(|_| PyRuntimeError::new_err(format!("{what} failed: please report this")))
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
    Ok(as_bytes(found.into_bound(py))?.as_bytes().to_vec())
}

/// Rows as buffers in Arrow's layout: `columns` has those that were asked for, by name.
#[pyclass(module = "pulsar_spark._kernel", frozen)]
struct Columns {
    #[pyo3(get)]
    rows: usize,
    #[pyo3(get)]
    nbytes: usize,
    #[pyo3(get)]
    is_exact: bool,
    #[pyo3(get)]
    columns: Py<PyDict>,
    #[pyo3(get)]
    version_runs: Object,
    spans: Vec<Span>,
}

impl Columns {
    fn new(py: Python<'_>, rows: &mut Rows) -> PyResult<Self> {
        let columns = PyDict::new(py);
        for (name, column) in rows.columns.each() {
            let buffers = match column {
                Wanted::Binary(column) => binary_buffers(py, column)?,
                Wanted::Long(column) => fixed_buffers(py, column)?,
                Wanted::Int(column) => fixed_buffers(py, column)?,
                Wanted::Maps(column) => map_buffers(py, column)?,
            };
            columns.set_item(name, buffers)?;
        }
        let versions = &rows.versions;
        let met = PyList::new(py, versions.met.iter().map(|version| PyBytes::new(py, version)))?;
        let runs =
            (met, Plain::copied(py, &versions.starts)?, Plain::copied(py, &versions.numbers)?);
        Ok(Columns {
            rows: rows.rows,
            nbytes: rows.nbytes,
            is_exact: rows.is_exact(),
            columns: columns.unbind(),
            version_runs: runs.into_pyobject(py)?.into_any().unbind(),
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

// --- sends -----------------------------------------------------------------------------------

thread_local! {
    /// Kept for `encode`, since the page faults of new memory cost more than writing to it.
    static FRAMES: RefCell<Frames> = RefCell::default();
}

/// The payload of one frame is not copied from this size on.
const LARGE: usize = 32 << 10;

/// Larger ones are not kept.
const MAX_KEPT: usize = 2 << 20;

fn keep(frames: Frames) {
    if frames.capacity() <= MAX_KEPT {
        FRAMES.set(frames);
    }
}

/// Encodes the messages of a producer that is open.
#[pyclass(module = "pulsar_spark._kernel", frozen)]
struct SendEncoder {
    producer: Producer,
    compression: u8,
    compress: Object,
}

#[pymethods]
impl SendEncoder {
    #[new]
    fn new(
        producer_id: u64,
        producer_name: &str,
        common: &[u8],
        compression: u8,
        compress: Object,
    ) -> PyResult<Self> {
        let producer = Producer::new(producer_id, producer_name.as_bytes(), common);
        let producer = producer.map_err(|_| PyValueError::new_err("these are no fields"))?;
        Ok(SendEncoder { producer, compression, compress })
    }

    #[getter]
    fn overhead(&self) -> usize {
        self.producer.overhead()
    }

    /// encode(payloads, keys, fields, sequence_ids, publish_time, per_entry, *, by_highest=False)
    /// -> (buffers, ends)
    #[pyo3(signature = (
        payloads, keys, fields, sequence_ids, publish_time, per_entry, *, by_highest=false
    ))]
    #[allow(clippy::too_many_arguments)]
    fn encode<'py>(
        &self,
        py: Python<'py>,
        payloads: &Bound<'py, PyAny>,
        keys: Option<&Bound<'py, PyAny>>,
        fields: Option<&Bound<'py, PyAny>>,
        sequence_ids: &Bound<'py, PyAny>,
        publish_time: u64,
        per_entry: usize,
        by_highest: bool,
    ) -> PyResult<(Bound<'py, PyList>, Bound<'py, PyAny>)> {
        let messages = Messages::new(payloads, keys, fields)?;
        let columns = messages.columns(ids_of(sequence_ids, messages.payloads.len())?);
        let per_entry = per_entry.max(1);
        let mut frames = FRAMES.take();
        frames.clear();
        let mut put_all = |compress: &mut Compress| {
            let count = columns.payloads.len();
            for start in (0..count).step_by(per_entry) {
                let stop = count.min(start.saturating_add(per_entry));
                let given = columns.payloads[start];
                if stop - start > 1 {
                    put_batch(&mut frames.bodies, &columns, start..stop).map_err(cannot_be_sent)?;
                }
                let size = compress(&mut frames, given)?;
                let highest = columns.id(stop - 1);
                let entry = Entry {
                    compressed: size.map(|size| (self.compression, size)),
                    ids: (if by_highest { highest } else { columns.id(start) }, highest),
                    publish_time,
                    key: columns.key(start),
                    fields: columns.fields(start),
                    messages: stop - start,
                };
                frames.put_head(&self.producer, &entry, given).map_err(cannot_be_sent)?;
            }
            PyResult::Ok(())
        };
        if self.compression == 0 {
            py.detach(|| put_all(&mut |_, _| Ok(None)))?;
        } else {
            put_all(&mut |frames, given| {
                let body = frames.body(given);
                if body.is_empty() {
                    return Ok(None);
                }
                let size = body.len();
                let compressed = self.compress.call1(py, (self.compression, body))?;
                frames.replace_body(as_bytes(compressed.into_bound(py))?.as_bytes());
                Ok(Some(size))
            })?;
        }
        let firsts = || columns.payloads.iter().step_by(per_entry).copied();
        let ends = frames.ends(firsts());
        let buffers = match frames.only(columns.payloads[0]) {
            Some((head, payload)) if payload.len() >= LARGE => {
                let same = |own: &Bound<PyBytes>| std::ptr::eq(own.as_bytes(), payload);
                let own = messages.payloads.value(0).filter(same);
                let payload = own.unwrap_or_else(|| PyBytes::new(py, payload));
                PyList::new(py, [PyBytes::new(py, head), payload])?
            }
            _ => {
                let size = ends.last().map_or(0, |end| *end as usize);
                let data = PyBytes::new_with(py, size, |out| {
                    frames.write(firsts(), out);
                    Ok(())
                })?;
                PyList::new(py, [data])?
            }
        };
        keep(frames);
        Ok((buffers, long_array(py, &ends)?))
    }
}

/// Compresses the next frame's body, given its message's payload; returns its size before, if so.
type Compress<'a> = dyn FnMut(&mut Frames, &[u8]) -> PyResult<Option<usize>> + 'a;

/// Columns of messages, held as long as their bytes are used.
struct Messages<'py> {
    payloads: Column<'py>,
    keys: Option<Column<'py>>,
    fields: Option<Column<'py>>,
}

/// Byte strings: Python's, of which some may be None, or those of a `ByteColumn` in one piece.
pub(crate) enum Column<'py> {
    Values(Vec<Option<Bound<'py, PyBytes>>>),
    Joined { data: Bound<'py, PyBytes>, edges: Vec<usize> },
}

impl<'py> Messages<'py> {
    fn new(
        payloads: &Bound<'py, PyAny>,
        keys: Option<&Bound<'py, PyAny>>,
        fields: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Self> {
        let payloads = Column::new(payloads)?;
        let keys = keys.map(Column::new).transpose()?;
        let fields = fields.map(Column::new).transpose()?;
        for column in [&keys, &fields] {
            if column.as_ref().is_some_and(|column| column.len() != payloads.len()) {
                return Err(PyValueError::new_err("columns must be of equal length"));
            }
        }
        if payloads.lacks_some() || fields.as_ref().is_some_and(Column::lacks_some) {
            return Err(PyTypeError::new_err("only keys may be None"));
        }
        Ok(Messages { payloads, keys, fields })
    }

    fn columns(&self, ids: Ids) -> encode::Columns<'_> {
        encode::Columns {
            payloads: self.payloads.slices().flatten().collect(),
            keys: self.keys.as_ref().map(|column| column.slices().collect()),
            fields: self.fields.as_ref().map(|column| column.slices().flatten().collect()),
            ids,
        }
    }
}

impl<'py> Column<'py> {
    fn new(column: &Bound<'py, PyAny>) -> PyResult<Self> {
        if !column.is_instance_of::<PyList>() {
            if let Some(joined) = column.getattr_opt(intern!(column.py(), "joined"))? {
                let edges = column.getattr(intern!(column.py(), "edges"))?;
                return Column::joined(as_bytes(joined.call0()?)?, &edges);
            }
        }
        let values = column.try_iter()?.map(|item| {
            let item = item?;
            (!item.is_none()).then(|| as_bytes(item)).transpose()
        });
        values.collect::<PyResult<_>>().map(Column::Values)
    }

    /// `edges` is a memoryview of numbers of 32 or 64 bits, the first of which is the data's start.
    pub(crate) fn joined(data: Bound<'py, PyBytes>, edges: &Bound<'py, PyAny>) -> PyResult<Self> {
        let width: usize = edges.getattr(intern!(edges.py(), "itemsize"))?.extract()?;
        let edges = as_bytes(edges.call_method0(intern!(edges.py(), "tobytes"))?)?;
        let edges = column_edges(edges.as_bytes(), width, data.as_bytes().len());
        let edges = edges.map_err(|_| PyValueError::new_err("a column's edges are not in it"))?;
        Ok(Column::Joined { data, edges })
    }

    fn len(&self) -> usize {
        match self {
            Column::Values(values) => values.len(),
            Column::Joined { edges, .. } => edges.len() - 1,
        }
    }

    fn lacks_some(&self) -> bool {
        matches!(self, Column::Values(values) if values.iter().any(Option::is_none))
    }

    /// A value that is an object of its own.
    fn value(&self, index: usize) -> Option<Bound<'py, PyBytes>> {
        match self {
            Column::Values(values) => values[index].clone(),
            Column::Joined { .. } => None,
        }
    }

    pub(crate) fn slices(&self) -> Box<dyn ExactSizeIterator<Item = Option<&[u8]>> + '_> {
        match self {
            Column::Values(values) => {
                Box::new(values.iter().map(|item| item.as_ref().map(|item| item.as_bytes())))
            }
            Column::Joined { data, edges } => {
                let data = data.as_bytes();
                Box::new(edges.windows(2).map(|pair| Some(&data[pair[0]..pair[1]])))
            }
        }
    }
}

fn as_bytes<'py>(data: Bound<'py, PyAny>) -> PyResult<Bound<'py, PyBytes>> {
    match data.cast_into::<PyBytes>() {
        Ok(data) => Ok(data),
        Err(error) => {
            let data = error.into_inner();
            let bytes = data.py().get_type::<PyBytes>().call1((data,))?;
            Ok(bytes.cast_into::<PyBytes>()?)
        }
    }
}

/// The first sequence id, or all of them: numbers of 63 bits that increase.
fn ids_of(given: &Bound<'_, PyAny>, count: usize) -> PyResult<Ids> {
    let none = || PyValueError::new_err("no messages, or no sequence ids for them");
    if let Ok(first) = given.extract::<u64>() {
        let end = first.checked_add(count as u64).filter(|end| count > 0 && *end <= 1 << 63);
        return end.map(|_| Ids::From(first)).ok_or_else(none);
    }
    let own: Vec<u64> = given.extract().map_err(|_| none())?;
    let last = own.last().is_some_and(|last| *last < 1 << 63);
    if !last || own.len() != count || own.windows(2).any(|pair| pair[0] >= pair[1]) {
        return Err(none());
    }
    Ok(Ids::Own(own))
}

fn cannot_be_sent(_: Unusual) -> PyErr {
    PyValueError::new_err("an entry has 4 GiB or more, or fields that no message has")
}

// --- buffers ---------------------------------------------------------------------------------

/// From this size on a buffer is handed over; a smaller one is cheaper to copy.
const MIN_LENT: usize = 16 << 10;

/// Memory with the values of a buffer; they stay as they are while Python refers to it.
#[pyclass(module = "pulsar_spark._kernel", frozen)]
struct Memory {
    #[pyo3(get)]
    address: usize,
    #[pyo3(get)]
    size: usize,
    values: Box<dyn Values>,
}

#[pymethods]
impl Memory {
    fn __bytes__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        self.values.copied(py)
    }
}

trait Values: Send + Sync {
    fn copied<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>>;
}

impl<T: Plain> Values for Lent<T> {
    fn copied<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        T::copied(py, self)
    }
}

pub(crate) fn lent<T: Plain>(py: Python<'_>, values: Lent<T>) -> PyResult<Object> {
    let (address, size) = (values.as_ptr() as usize, size_of_val(&values[..]));
    if size < MIN_LENT {
        return Ok(T::copied(py, &values)?.into_any().unbind());
    }
    Ok(Py::new(py, Memory { address, size, values: Box::new(values) })?.into_any())
}

fn binary_buffers(py: Python<'_>, column: &mut Binary) -> PyResult<Object> {
    let bits = column.validity.bits().map(|bits| PyBytes::new(py, bits));
    let (offsets, data) = (lent(py, column.offsets.lend())?, lent(py, column.data.lend())?);
    let fields = (bits, offsets, data, column.validity.nulls);
    Ok(fields.into_pyobject(py)?.into_any().unbind())
}

fn fixed_buffers<T: Plain>(py: Python<'_>, column: &mut Fixed<T>) -> PyResult<Object> {
    let bits = column.validity.bits().map(|bits| PyBytes::new(py, bits));
    let fields = (bits, lent(py, column.data.lend())?, column.validity.nulls);
    Ok(fields.into_pyobject(py)?.into_any().unbind())
}

fn map_buffers(py: Python<'_>, column: &mut Maps) -> PyResult<Object> {
    let fields = PyTuple::new(
        py,
        [
            Plain::copied(py, &column.offsets)?.into_any().unbind(),
            binary_buffers(py, &mut column.keys)?,
            binary_buffers(py, &mut column.values)?,
        ],
    )?;
    Ok(fields.into_any().unbind())
}

/// What a buffer's values are; numbers are written in the machine's own order.
pub(crate) trait Plain: Copy + Send + Sync + 'static {
    fn copied<'py>(py: Python<'py>, values: &[Self]) -> PyResult<Bound<'py, PyBytes>>;
}

impl Plain for u8 {
    fn copied<'py>(py: Python<'py>, values: &[u8]) -> PyResult<Bound<'py, PyBytes>> {
        Ok(PyBytes::new(py, values))
    }
}

macro_rules! plain_numbers {
    ($($kind:ty),*) => {$(
        impl Plain for $kind {
            fn copied<'py>(py: Python<'py>, values: &[Self]) -> PyResult<Bound<'py, PyBytes>> {
                PyBytes::new_with(py, size_of_val(values), |data| {
                    for (to, value) in data.chunks_exact_mut(size_of::<Self>()).zip(values) {
                        to.copy_from_slice(&value.to_ne_bytes());
                    }
                    Ok(())
                })
            }
        }
    )*};
}

plain_numbers!(i32, u64, i64);

#[pymodule]
fn _kernel(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("CONTRACT", CONTRACT)?;
    module.add_class::<ValueDecoder>()?;
    module.add_class::<ValueEncoder>()?;
    module.add_class::<BlockDecoder>()?;
    module.add_class::<Columns>()?;
    module.add_class::<Memory>()?;
    module.add_class::<SendEncoder>()?;
    module.add_function(wrap_pyfunction!(hash_values, module)?)?;
    module.add_function(wrap_pyfunction!(scan_messages, module)?)?;
    module.add_function(wrap_pyfunction!(scan_receipts, module)?)
}
