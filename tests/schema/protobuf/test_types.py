"""The rules for numbers and names of fields."""

from __future__ import annotations

import pytest

from pulsar_spark.errors import SchemaMismatch
from pulsar_spark.schema.protobuf.types import (
    MessageField,
    Type,
    check_number,
    check_unique,
    type_name,
)


@pytest.mark.parametrize("number", [1, 18_999, 20_000, 2**29 - 1])
def test_numbers_that_fields_have(number: int) -> None:
    assert check_number(number, "a") == number


@pytest.mark.parametrize("number", [-1, 0, 19_000, 19_999, 2**29])
def test_numbers_that_fields_have_not(number: int) -> None:
    with pytest.raises(SchemaMismatch, match="'a' the number"):
        check_number(number, "a")


def test_a_field_has_a_name() -> None:
    with pytest.raises(SchemaMismatch):
        check_number(1, "")


@pytest.mark.parametrize("number, name", [(1, "b"), (2, "a")])
def test_names_and_numbers_are_there_once(number: int, name: str) -> None:
    first = MessageField(1, "a", Type.TYPE_INT32)
    check_unique("M", [first, MessageField(2, "b", Type.TYPE_INT32)])
    with pytest.raises(SchemaMismatch, match="message M with two fields of one"):
        check_unique("M", [first, MessageField(number, name, Type.TYPE_INT32)])


def test_types_are_named_as_in_proto_files() -> None:
    assert type_name(Type.TYPE_SFIXED64) == "sfixed64"
