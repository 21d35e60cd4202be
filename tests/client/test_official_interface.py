"""What the official package's programs use is here, or the page says why not."""

from __future__ import annotations

import enum
import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator
from typing import Any

import pytest

import pulsar_spark.client as ours
import pulsar_spark.client.asyncio as our_asyncio
from pulsar_spark.client import (
    ConsumerBatchReceivePolicy,
    ConsumerDeadLetterPolicy,
    ConsumerKeySharedPolicy,
)
from tests.client.test_python_client_page import PAGE

official = pytest.importorskip("pulsar", reason="pulsar-client is not installed")
pytest.importorskip("pulsar.schema")
their_asyncio = pytest.importorskip("pulsar.asyncio")

_SECTION = PAGE.read_text("utf-8").partition("## Differences from the official client")[2]
_MISSING, _, _DIFFERENCES = _SECTION.partition("What a program can notice otherwise:")
MISSING = {
    name
    for row in re.findall(r"^\| (`.*?) \| ", _MISSING, re.M)
    for name in re.findall(r"`([^`]+)`", row)
}
DIFFERENCES = re.findall(r"^\d+\. (.*?)(?=^\d+\. |\Z)", _DIFFERENCES, re.M | re.S)

PREFIXES = {
    "": (official, ours),
    "schema.": (official.schema, ours.schema),
    "asyncio.": (their_asyncio, our_asyncio),
}
# Created by the client, never by its users; the official class has no constructor of its own.
OPERATORS = {"__init__", "__len__", "__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__"}
OPERATORS |= {"__str__", "__repr__"}
# What an object has and its class has not is looked for in one of these.
MADE = (
    ConsumerBatchReceivePolicy(1, 0, 0),
    ConsumerDeadLetterPolicy(1),
    ConsumerKeySharedPolicy(),
)
INSTANCES = {type(each): each for each in MADE}
NO_DEFAULT = inspect.Parameter.empty


def classes(module: Any) -> list[str]:
    return [
        name
        for name in dir(module)
        if not name.startswith("_")
        and inspect.isclass(getattr(module, name))
        and getattr(module, name).__module__ not in ("typing", "datetime")
    ]


def counterparts() -> Iterator[tuple[str, Any, Any]]:
    """Yield each official class and ours, with its name."""
    for prefix, (theirs, own) in PREFIXES.items():
        for name in classes(theirs):
            if hasattr(own, name):
                yield prefix + name, getattr(theirs, name), getattr(own, name)


def is_documented(name: str) -> bool:
    """Whether the page's table has a name, of a class, a member or (with ()) a constructor."""
    return name in MISSING or name.removeprefix("schema.") in MISSING


def members(theirs: Any) -> Iterator[str]:
    for member in dir(theirs):
        # Enums of the official package have those of pybind11.
        own = member in OPERATORS and inspect.isfunction(getattr(theirs, member))
        if own or not (member.startswith("_") or member in ("name", "value")):
            yield member


def listed(name: str, theirs: Any, member: str) -> bool:
    """Whether the page's table has a member of a class, or of one that the class inherits it of."""
    bases = [name, *(base.__name__ for base in theirs.__mro__)]
    return any(
        is_documented(f"{base}()" if member == "__init__" else f"{base}.{member}") for base in bases
    )


def functions() -> Iterator[tuple[str, Any, Any]]:
    """Yield each official method that is written in Python, and ours."""
    for name, theirs, own in counterparts():
        for member in members(theirs):
            found = getattr(theirs, member)
            is_python = inspect.isroutine(found) and hasattr(found, "__code__")
            if is_python and hasattr(own, member) and not listed(name, theirs, member):
                yield f"{name}.{member}", found, getattr(own, member)


def test_each_public_class_is_here_or_the_page_says_why_not() -> None:
    for prefix, (theirs, own) in PREFIXES.items():
        missing = {prefix + name for name in classes(theirs) if not hasattr(own, name)}
        assert {name for name in missing if name not in MISSING} == set()


def test_each_module_is_here_or_the_page_says_why_not() -> None:
    named = {found.name for found in pkgutil.iter_modules(official.__path__)}
    for name in sorted(named - MISSING - {"__about__"}):
        importlib.import_module(f"pulsar_spark.client.{name}")


def test_each_member_is_here_or_the_page_says_why_not() -> None:
    missing = set()
    for name, theirs, own in counterparts():
        where = INSTANCES.get(own, own)
        if not issubclass(theirs, BaseException):
            missing |= {
                f"{name}.{member}"
                for member in members(theirs)
                if not hasattr(where, member) and not listed(name, theirs, member)
            }
    assert missing == set()


def test_each_method_takes_the_same_parameters_in_the_same_order() -> None:
    differing: dict[str, Any] = {}
    for full, theirs, own in functions():
        wanted = [*inspect.signature(theirs).parameters]
        found = inspect.signature(own).parameters
        # Operators are given their operand by its place.
        if full.rpartition(".")[2] in OPERATORS - {"__init__"}:
            same = len(wanted) == len(found)
        else:
            more = [found[name] for name in [*found][len(wanted) :]]
            same = [*found][: len(wanted)] == wanted
            same = same and all(each.default is not NO_DEFAULT for each in more)
        if not same:
            differing[full] = (wanted, [*found])
    assert differing == {}


def is_same(theirs: Any, own: Any) -> bool:
    if type(theirs).__name__ == type(own).__name__ and type(theirs).__name__.endswith("Schema"):
        return True
    return own == theirs or getattr(own, "name", None) == getattr(theirs, "name", "")


def test_each_parameter_has_the_same_default_or_the_page_names_it() -> None:
    for full, theirs, own in functions():
        found = inspect.signature(own).parameters
        for name, parameter in inspect.signature(theirs).parameters.items():
            if parameter.default is not NO_DEFAULT and not is_same(
                parameter.default, found[name].default
            ):
                assert any(f"`{name}`" in each for each in DIFFERENCES), (full, name)


def test_each_class_has_the_bases_of_the_official_one() -> None:
    for name, theirs, own in counterparts():
        for base in theirs.__mro__:
            is_async = base.__module__ == their_asyncio.__name__
            homes = [our_asyncio] if is_async else [ours, ours.schema]
            found = [getattr(home, base.__name__, None) for home in homes]
            counterpart = next(filter(None, found), None)
            if base.__module__.partition(".")[0] in ("pulsar", "_pulsar"):
                assert counterpart is not None, (name, base)
                assert issubclass(own, counterpart), (name, base)


def test_each_enum_has_the_same_members() -> None:
    for name, theirs, own in counterparts():
        if issubclass(own, enum.Enum):
            members = theirs.__members__
            assert {key: int(value) for key, value in members.items()} == {
                key: int(value.value) for key, value in own.__members__.items()
            }, name


def test_types_of_schemas_have_the_same_numbers() -> None:
    theirs = importlib.import_module("_pulsar").SchemaType.__members__
    assert theirs.keys() <= ours.SchemaType.__members__.keys()
    assert {ours.SchemaType[name] for name in theirs} == {int(each) for each in theirs.values()}


def test_the_page_lists_only_what_is_missing() -> None:
    for name in MISSING:
        *path, member = name.removesuffix("()").split(".")
        theirs: Any = official
        own: Any = ours
        if path and f"{path[0]}." in PREFIXES:
            theirs, own = PREFIXES[f"{path.pop(0)}."]
        for step in path:
            theirs = getattr(theirs, step, None) or getattr(official.schema, step)
            own = getattr(own, step, None) or getattr(ours.schema, step)
        is_module = any(found.name == name for found in pkgutil.iter_modules(official.__path__))
        is_class = name.endswith("()") and (hasattr(theirs, member) or member == "Schema")
        assert is_module or is_class or hasattr(theirs, member), name
        assert is_class or not hasattr(own, member), name


def test_the_page_lists_at_most_eight_other_differences() -> None:
    assert 0 < len(DIFFERENCES) <= 8
