//! Decoding of Pulsar's messages into columns, for the Python package pulsar-spark.
//!
//! What is right is said there, in `pulsar_spark/protocol/blocks.py` and `block_decoder.py`.
//!
//! `wire` has numbers and sizes, `frame` what leads up to a payload, `batch` the messages in one,
//! `lz4` the codec that is here, `columns` the rows in the making, `decode` puts them together,
//! `encode` goes the other way. `avro`, `json` and `protobuf` read typed values into the columns of
//! `values`, `avro_writing`, `json_writing` and `protobuf_writing` write them from the columns of `given`. `hashes` tells what a task has
//! written, and `python`, `python_values` and `value_encoder` are what Python sees of it.

#![forbid(unsafe_code)]

pub mod avro;
pub mod avro_writing;
pub mod batch;
pub mod columns;
pub mod decode;
pub mod encode;
pub mod frame;
pub mod given;
pub mod hashes;
pub mod json;
pub mod json_writing;
pub mod lz4;
pub mod protobuf;
pub mod protobuf_writing;
#[cfg(feature = "python")]
mod python;
#[cfg(feature = "python")]
mod python_values;
#[cfg(feature = "python")]
mod value_encoder;
pub mod values;
pub mod wire;
