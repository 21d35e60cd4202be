"""The official package's names and parameters all exist here, or have a reason why not."""

from __future__ import annotations

import enum
import inspect
from collections.abc import Iterator
from typing import Any

import pytest

import pulsar_spark.client as ours

official = pytest.importorskip("pulsar", reason="pulsar-client is not installed")
pytest.importorskip("pulsar.schema")

FUNCTIONS = "Pulsar Functions run in the brokers' own workers, which bring the official package"
FAILOVER = "a client of several clusters is not built: make one with the other service URL"
BUILDER = "an object of the official package's C++ library"
NOT_HERE = {
    "AuthenticationAthenz": "Athenz is not built; a class of one's own logs in by any method",
    "AutoClusterFailover": FAILOVER,
    "BatchReceivePolicy": BUILDER,
    "Context": FUNCTIONS,
    "DeadLetterPolicyBuilder": BUILDER,
    "Function": FUNCTIONS,
    "IdentitySerDe": FUNCTIONS,
    "KeySharedPolicy": BUILDER,
    "LookupError": "what keeps a lookup from its answer is raised by its own class",
    "MessageBatch": "it parses batches that a broker's REST gives, which nothing here asks for",
    "PickleSerDe": FUNCTIONS,
    "SerDe": FUNCTIONS,
    "ServiceInfo": FAILOVER,
    "ServiceInfoProvider": FAILOVER,
}
NO_MEMBER = {
    "Client.get_service_info": FAILOVER,
    "ConsumerBatchReceivePolicy.policy": BUILDER,
    "ConsumerDeadLetterPolicy.policy": BUILDER,
    "ConsumerKeySharedPolicy.policy": BUILDER,
}
SCHEMAS = ("BytesSchema", "StringSchema", "JsonSchema", "AvroSchema", "ProtobufNativeSchema")
# Created by the client, never by its users.
MADE_HERE = {"Consumer", "EncryptionContext", "EncryptionKey", "Message", "Producer", "Reader"}
MADE_HERE |= {"TableView", "Authentication"}
OTHER_DEFAULT = {
    "Client.__init__(tls_validate_hostname)": "host names are verified unless that is switched off",
    **{
        f"Client.{name}(schema)": "None is BytesSchema()"
        for name in ("create_producer", "create_reader", "create_table_view", "subscribe")
    },
}


def public_names() -> list[str]:
    return [
        name
        for name in dir(official)
        if not name.startswith("_")
        and inspect.isclass(getattr(official, name))
        and getattr(official, name).__module__ not in ("typing", "datetime")
    ]


def counterparts() -> Iterator[tuple[str, Any, Any]]:
    for name in public_names():
        if name not in NOT_HERE:
            yield name, getattr(official, name), getattr(ours, name)
    for name in SCHEMAS:
        yield f"schema.{name}", getattr(official.schema, name), getattr(ours.schema, name)


def methods() -> Iterator[tuple[str, Any, Any]]:
    """Yield each official method that is written in Python, with ours."""
    for name, theirs, own in counterparts():
        if issubclass(theirs, BaseException):
            continue
        constructor = [] if name in MADE_HERE else ["__init__"]
        for member in [*constructor, *(each for each in dir(theirs) if not each.startswith("_"))]:
            full = f"{name}.{member}"
            passed_over = member in INTERNAL or full in NO_MEMBER
            if inspect.isfunction(getattr(theirs, member)) and not passed_over:
                yield full, getattr(theirs, member), getattr(own, member, None)


# From the base class of schemas, and from wrappers of C++ objects.
INTERNAL = {"attach_client", "decode_message", "wrap", "encode_dict"}


def test_each_public_class_is_here_or_has_its_reason() -> None:
    missing = {name for name in public_names() if not hasattr(ours, name)}
    assert missing == set(NOT_HERE)


def test_each_method_takes_the_same_parameters_in_the_same_order() -> None:
    differing: dict[str, Any] = {}
    for full, theirs, own in methods():
        if own is None:
            differing[full] = "missing"
            continue
        wanted = list(inspect.signature(theirs).parameters)
        found = list(inspect.signature(own).parameters)
        if found[: len(wanted)] != wanted:
            differing[full] = (wanted, found)
    assert differing == {}


def test_each_parameter_has_the_same_default() -> None:
    differing = set()
    for full, theirs, own in methods():
        found = inspect.signature(own).parameters
        for name, parameter in inspect.signature(theirs).parameters.items():
            if repr(parameter.default) == repr(inspect.Parameter.empty) or name not in found:
                continue
            default = found[name].default
            same = default == parameter.default or getattr(default, "name", None) == getattr(
                parameter.default, "name", ""
            )
            if not same:
                differing.add(f"{full}({name})")
    assert differing == set(OTHER_DEFAULT)


def test_each_enum_has_the_same_members() -> None:
    for name, theirs, own in counterparts():
        if not (isinstance(own, type) and issubclass(own, enum.Enum)):
            continue
        members = theirs.__members__
        assert {key: int(value) for key, value in members.items()} == {
            key: int(value.value) for key, value in own.__members__.items()
        }, name


def test_reasons_are_only_for_what_is_there() -> None:
    for name in NOT_HERE:
        assert hasattr(official, name)
    for full in NO_MEMBER:
        *path, member = full.split(".")
        theirs: Any = official
        for step in path:
            theirs = getattr(theirs, step)
        assert hasattr(theirs, member), full
