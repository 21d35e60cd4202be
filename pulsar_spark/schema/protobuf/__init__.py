"""PROTOBUF_NATIVE and PROTOBUF topics: values ↔ columns."""
