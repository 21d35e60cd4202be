"""Commands that only brokers send; test_commands.py tests that all builders round-trip."""

from __future__ import annotations

import pytest

from pulsar_spark.errors import LocalProtocolError
from pulsar_spark.protocol import answers
from pulsar_spark.protocol import pulsar_api_pb2 as pb


def test_a_refused_question_carries_the_error_alone() -> None:
    command = answers.partitioned_metadata_response(4, error=pb.TopicNotFound, message="no")
    body = command.partitionMetadataResponse
    assert (body.response, body.error) == (body.Failed, pb.TopicNotFound)
    assert not body.HasField("partitions")


def test_an_answer_that_the_interface_does_not_have_is_a_local_error() -> None:
    with pytest.raises(LocalProtocolError):
        answers.error(-1, 0, "")
    with pytest.raises(LocalProtocolError):
        answers.consumer_stats_response(1, speed=5)
