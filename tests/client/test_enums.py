"""Enums and results have the official client's names."""

from __future__ import annotations

import pulsar
import pytest

from pulsar_spark import errors
from pulsar_spark.client import enums
from pulsar_spark.client.enums import Result, result_of


@pytest.mark.parametrize(
    "name",
    [
        "BatchingType",
        "CompressionType",
        "ConsumerType",
        "InitialPosition",
        "PartitionsRoutingMode",
        "ProducerAccessMode",
        "Result",
    ],
)
def test_choices_have_the_names_numbers_and_texts_of_the_official_client(name: str) -> None:
    ours, theirs = getattr(enums, name), getattr(pulsar, name)
    expected = {key: (int(value), str(value)) for key, value in theirs.__members__.items()}
    assert {key: (int(value), str(value)) for key, value in ours.__members__.items()} == expected
    assert [f"{value}" for value in ours] == [text for _, text in expected.values()]


def test_no_error_is_ok() -> None:
    assert result_of(None) is Result.Ok


@pytest.mark.parametrize(
    "error,result",
    [
        (errors.OperationTimeout("late"), Result.Timeout),
        (errors.MessageTooLarge("big"), Result.MessageTooBig),
        (errors.ProducerQueueFull("full"), Result.ProducerQueueIsFull),
        (errors.ClosedError("closed"), Result.AlreadyClosed),
        (errors.TopicTerminated("over"), Result.TopicTerminated),
        (errors.ProducerFenced("fenced"), Result.ProducerFenced),
        (errors.NotAllowed("no"), Result.NotAllowedError),
        (errors.BrokerChecksumError("sum"), Result.ChecksumError),
        (errors.InvalidRow("odd"), Result.InvalidMessage),
        (errors.WrongType("odd"), Result.InvalidMessage),
        (errors.CorruptMessage("odd"), Result.UnknownError),
    ],
)
def test_an_error_has_its_result(error: errors.PulsarError, result: Result) -> None:
    assert result_of(error) is result


def test_broker_errors_of_a_send_have_results_of_their_own() -> None:
    unknown = {
        kind.__name__
        for kind in errors.BrokerError.__subclasses__()
        if result_of(kind("no")) is Result.UnknownError
    }
    assert unknown == {"UnknownServerError"}
