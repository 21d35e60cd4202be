"""Refusals have an existing ServerError."""

from __future__ import annotations

import pytest

from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.testing.refusals import Refusal, server_error


def test_codes_are_given_by_number_or_name() -> None:
    assert server_error("ServiceNotReady") == pb.ServiceNotReady
    assert server_error(6) == pb.ServiceNotReady


@pytest.mark.parametrize("code", ["NoSuchError", 999])
def test_other_codes_are_an_error(code: int | str) -> None:
    with pytest.raises(ValueError):
        server_error(code)


def test_a_refusal_keeps_code_and_message() -> None:
    refusal = Refusal(pb.ConsumerBusy, "taken")
    assert (refusal.code, refusal.message, str(refusal)) == (pb.ConsumerBusy, "taken", "taken")
