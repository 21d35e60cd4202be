"""Our numbers against protobuf's."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.varints import NUMBERS, varint

longs = st.integers(0, 2**63 - 1) | st.integers(0, 300)


def proto_number(value: int) -> bytes:
    return pb.CommandCloseProducer(producer_id=0, request_id=value).SerializeToString()[3:]


@given(longs)
def test_numbers_are_those_of_protobuf(value: int) -> None:
    digits = proto_number(value)
    assert varint(value) == digits
    assert NUMBERS[digits] == value
