"""Our numbers against protobuf's."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.varints import NUMBERS, encode_number, number_runs

longs = st.integers(0, 2**63 - 1) | st.integers(0, 300)


def proto_number(value: int) -> bytes:
    return pb.CommandCloseProducer(producer_id=0, request_id=value).SerializeToString()[3:]


@given(longs)
def test_numbers_are_those_of_protobuf(value: int) -> None:
    digits = proto_number(value)
    assert encode_number(value) == digits
    assert NUMBERS[digits] == value


@given(st.sampled_from([0, 120, 16380, 2**21 - 5, 2**28, 2**35, 2**56]), st.integers(1, 400))
def test_runs_hold_consecutive_numbers_of_equal_length(first: int, count: int) -> None:
    runs = list(number_runs(first, count))
    assert [number for run in runs for number in run] == [
        encode_number(value) for value in range(first, first + count)
    ]
    assert all(len({len(number) for number in run}) == 1 for run in runs)
