//! Decoding of Pulsar's messages into columns, for the Python package pulsar-spark.
//!
//! What is right is said there, in `pulsar_spark/protocol/blocks.py` and `block_decoder.py`.
//!
//! `wire` has numbers and sizes, `frame` what leads up to a payload, `batch` the messages in one,
//! `lz4` the codec that is here, `columns` the rows in the making, `decode` puts them together,
//! `encode` goes the other way. `avro`, `json` and `protobuf` read typed values into the columns of
//! `values`. `hashes` tells what a task has written, and `python` is what Python sees of it.

#![forbid(unsafe_code)]

pub mod avro;
pub mod batch;
pub mod columns;
pub mod decode;
pub mod encode;
pub mod frame;
pub mod hashes;
pub mod json;
pub mod lz4;
pub mod protobuf;
#[cfg(feature = "python")]
mod python;
#[cfg(feature = "python")]
mod python_values;
pub mod values;
pub mod wire;
