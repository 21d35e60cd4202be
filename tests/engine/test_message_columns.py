"""Columns of messages: each row has what its columns hold, and nothing else."""

from __future__ import annotations

import pytest

from pulsar_spark.engine.batching import Solo
from pulsar_spark.engine.message_columns import MessageColumns, pairs
from pulsar_spark.errors import InvalidRow
from pulsar_spark.protocol.batches import MessageFields


def test_a_row_takes_from_every_column() -> None:
    columns = MessageColumns(
        [b"1", None],
        keys=["k", b"\xff"],
        ordering_keys=[None, b"o"],
        event_times=[None, 5],
        properties=[None, {"a": "b"}],
        deliver_at=[None, 9],
        sequence_ids=[None, 7],
        null_keys=[True, False],
    )
    assert list(columns.rows()) == [
        (MessageFields(b"1", "k", null_key=True), None),
        (
            MessageFields(
                None,
                "/w==",
                key_is_base64=True,
                ordering_key=b"o",
                properties=[("a", "b")],
                event_time=5,
                sequence_id=7,
            ),
            Solo(deliver_at=9),
        ),
    ]
    assert len(columns) == 2
    assert not columns.plain


def test_missing_columns_are_missing_in_all_rows() -> None:
    columns = MessageColumns([b"1", b"2"])
    assert list(columns.rows()) == [(MessageFields(b"1"), None), (MessageFields(b"2"), None)]
    assert list(columns.rows(1)) == [(MessageFields(b"2"), None)]
    assert list(columns.rows(0, 1)) == [(MessageFields(b"1"), None)]
    assert columns.plain


@pytest.mark.fault(95)
def test_an_empty_key_is_a_key_and_none_is_not() -> None:
    (empty, _), (none, _) = MessageColumns([b"", b""], keys=["", None]).rows()
    assert (empty.key, none.key) == ("", None)


@pytest.mark.fault(95)
def test_string_keys_become_utf8_and_others_leave_it_to_the_rows() -> None:
    assert MessageColumns([b""] * 2, keys=["a", "ü"]).text_keys() == [b"a", "ü".encode()]
    assert MessageColumns([b""] * 2, keys=["a", None]).text_keys() is None
    assert MessageColumns([b""] * 2, keys=["a", b"b"]).text_keys() is None


@pytest.mark.fault(95)
def test_a_key_that_utf8_cannot_express_is_an_error_of_its_row() -> None:
    columns = MessageColumns([b""] * 3, keys=["a", "\ud800", "b"], first_row=100)
    with pytest.raises(InvalidRow, match="row 101"):
        columns.text_keys()


@pytest.mark.parametrize("name", ["keys", "properties", "sequence_ids"])
def test_columns_have_one_length(name: str) -> None:
    with pytest.raises(InvalidRow, match=f"2 payloads were given with 1 {name}"):
        MessageColumns([b"", b""], **{name: [None]})  # type: ignore[arg-type]


@pytest.mark.fault(95)
def test_properties_can_repeat_a_name_if_they_are_pairs() -> None:
    assert pairs([("a", "1"), ("a", "2")]) == [("a", "1"), ("a", "2")]
    assert pairs({"b": "2", "a": "1"}) == [("b", "2"), ("a", "1")]
    assert pairs(None) == pairs({}) == ()
