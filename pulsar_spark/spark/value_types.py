"""The Spark type of a read's values, from the schemas of its topics.

In the middle of an upgrade some topics have the next version of a schema already, others not yet:
then one version is chosen that the values of all of them are read as.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice

from pyspark.sql.types import BinaryType, DataType, StructType

from pulsar_spark.errors import OptionError, SchemaMismatch, listed
from pulsar_spark.logs import get_logger
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.schema_info import BYTES, SchemaInfo
from pulsar_spark.schema.codec import (
    NO_SCHEMA,
    Losses,
    check_types,
    count_aliases,
    identity,
    is_decoded,
    is_record,
    key_value_parts,
    losses_of,
    record_name,
    typed_columns,
    value_schema,
)
from pulsar_spark.schema.table.names import KEY, VALUE
from pulsar_spark.spark.compat import spark_schema, spark_type

logger = get_logger(__name__)

Older = Callable[[str], Iterable[SchemaInfo]]
"""Returns a topic's schemas before its newest one, newest first."""
Columns = Callable[[SchemaInfo], Collection[str] | None]
"""Returns the columns that are read with a schema, None if it lacks one of them."""

_MOST_VERSIONS = 32
_MOST_ASKED = 200
_TOPICS_ASKED = 3
_LOSSES_SHOWN = 8
_SHOWN = 3
_RAW = "valueFormat=raw reads the values as bytes."
_BINARY = StructType().add(VALUE, BinaryType())


@dataclass(frozen=True, slots=True)
class ValueType:
    """How values are decoded: with the `schema` of a topic, or as raw bytes. Plain data."""

    schema: SchemaInfo | None = None

    @property
    def fields(self) -> StructType:
        """The columns of the value."""
        if self.schema is None:
            return _BINARY
        left_out = typed_columns(self.schema).left_out
        return StructType([each for each in self.all_fields if each.name not in left_out])

    @property
    def all_fields(self) -> StructType:
        """The columns of the value, also those that differ from others only in case."""
        return _BINARY if self.schema is None else spark_schema(typed_columns(self.schema).fields)

    @property
    def key_type(self) -> DataType | None:
        """The type of the topic's keys, None if these are the message keys, in bytes."""
        key = None if self.schema is None else typed_columns(self.schema).key
        return None if key is None else spark_type(key)


def _no_older(topic: str) -> Iterable[SchemaInfo]:
    return ()


def value_type(
    schemas: Mapping[str, SchemaInfo | None],
    *,
    allow_different: bool,
    older: Older = _no_older,
    columns: Columns | None = None,
) -> ValueType:
    """Return the type of the values of topics with these schemas.

    Records that differ in name alone are one schema, and versions of one record are read as one of
    them: if `columns` are given, as one that has those of the query. Raises OptionError for topics
    with other schemas, unless they are allowed: then values are bytes. Raises SchemaMismatch for a
    schema that cannot be converted to columns, and as `older`. Logs a warning if values, or fields
    of them, are not decoded.
    """
    versions = versions_of(schemas)
    if not versions or (len(versions) > 1 and allow_different):
        return ValueType()
    common = _common(versions, older, columns) if len(versions) > 1 else None
    schema = common or versions[0].schema
    return ValueType() if schema.type == BYTES else _decoded(schema, list(schemas))


def _common(
    versions: Sequence[Version], older: Older, columns: Columns | None
) -> SchemaInfo | None:
    try:
        if columns is None:
            return common_version(versions, older)
        return version_for(versions, older, columns)
    except SchemaMismatch as error:
        remedy = "Read them separately, or set allowDifferentTopicSchemas=true to read raw values."
        if are_of_one_name(versions):
            remedy = f".schema(…) with the columns that fit reads them together. {remedy}"
        raise OptionError(
            f"the topics have different schemas ({described(versions)}), which cannot be read as "
            f"one: {error.what}",
            remedy,
        ) from None


_ALSO: Mapping[int, frozenset[int]] = {
    pb.Schema.Json: frozenset((BYTES, pb.Schema.String)),
    pb.Schema.String: frozenset((BYTES, pb.Schema.Json)),
    pb.Schema.Avro: frozenset((BYTES,)),
    pb.Schema.ProtobufNative: frozenset((BYTES,)),
}
"""The types of schemas that say nothing against a type that the user gives."""


def written_with(found: SchemaInfo, given: SchemaInfo) -> SchemaInfo:
    """Return the schema of values on a topic with the schema `found`, where the user gives one."""
    return given if found.type in _ALSO[given.type] else found


def check_given(schemas: Mapping[str, SchemaInfo | None], given: SchemaInfo) -> None:
    """Raise OptionError for a topic whose values are of another type than the user gives.

    Logs a warning if fields of the given schema are no columns.
    """
    for topic, found in schemas.items():
        try:
            check_types(written_with(found or NO_SCHEMA, given), given)
        except SchemaMismatch as error:
            raise OptionError(
                f"valueFormat does not fit the topic's schema: {error.what}",
                "valueFormat=auto reads by the topic's schema, raw reads bytes.",
                topic=topic,
            ) from None
    _tell_left_out(given, schemas)


def check_alike(
    schemas: Mapping[str, SchemaInfo | None], wanted: SchemaInfo, names: Collection[str]
) -> None:
    """Raise SchemaMismatch for a topic whose schema does not match the query's columns `names`.

    Values of another record would be read as rows of nulls, because missing fields are null.
    Versions of one record have the same name and fields in common; others the same fields.
    """
    for topic, schema in schemas.items():
        if schema is None or schema == wanted:
            continue
        if wanted.type != pb.Schema.KeyValue or schema.type != wanted.type:
            _check_record(topic, "values", schema, wanted)
            continue
        found, parts = key_value_parts(schema), key_value_parts(wanted)
        _check_record(topic, "values", found.value, parts.value)
        if KEY in names:
            _check_record(topic, "keys", found.key, parts.key)


def _check_record(topic: str, part: str, found: SchemaInfo, wanted: SchemaInfo) -> None:
    if not is_record(found) or not is_record(wanted) or identity(found) == identity(wanted):
        return
    name, wanted_name = record_name(found), record_name(wanted)
    what = f"the topic's {part} are records {name!r}, those of the query {wanted_name!r}"
    if name == wanted_name:
        try:
            fields = set(typed_columns(found).fields.names)
            wanted_fields = set(typed_columns(wanted).fields.names)
        except SchemaMismatch:
            # It cannot be columns, but the query's version can, and its messages may have that
            # version.
            return
        try:
            left_out = losses_of(found, wanted, list(wanted_fields)).left_out
        except SchemaMismatch:
            left_out = tuple(fields - wanted_fields)
        if not fields or not wanted_fields or not fields.issubset(left_out):
            return
        what = f"the topic's {part} are records {name!r} that have no field of those of the query"
    raise SchemaMismatch(
        what,
        "Read the topics separately, or set allowDifferentTopicSchemas=true: then fields that "
        "records do not have are null.",
        topic=topic,
    )


def _tell_left_out(schema: SchemaInfo, topics: Collection[str]) -> None:
    left_out = typed_columns(schema).left_out
    if left_out:
        logger.warning(
            "Fields of the schema of %s are no columns: %s.",
            listed(topics, _SHOWN),
            "; ".join(f"{name!r}, because {why}" for name, why in left_out.items()),
        )


def _decoded(schema: SchemaInfo, topics: list[str]) -> ValueType:
    try:
        if is_decoded(schema):
            _tell_left_out(schema, topics)
            return ValueType(schema)
    except SchemaMismatch as error:
        named = listed(topics, _SHOWN)
        raise SchemaMismatch(error.what, error.remedy or _RAW, topic=named) from None
    logger.warning(
        "The schema of %s is %s, which this version cannot decode: the column value has the "
        "bytes. Set valueFormat=raw to confirm that.",
        listed(topics, _SHOWN),
        schema.type_name,
    )
    return ValueType()


# --- topics whose newest schemas differ -----------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Version:
    """A schema, and the topics that have it as their newest one, with the version it is there."""

    schema: SchemaInfo
    topics: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class _Reader:
    """A schema, and what the values of each version, in their order, lose that are read with it."""

    schema: SchemaInfo
    losses: Sequence[Losses]

    @property
    def partial(self) -> int:
        return sum(len(each.partial) for each in self.losses)

    @property
    def left_out(self) -> int:
        return sum(len(each.left_out) for each in self.losses)


def _by_loss(reader: _Reader) -> tuple[int, int]:
    return reader.left_out, -count_aliases(reader.schema)


def versions_of(schemas: Mapping[str, SchemaInfo | None]) -> list[Version]:
    """Return the different schemas of topics; those that differ in names alone are one.

    It is the one with most aliases, which find what older versions call otherwise.
    """
    found: dict[object, tuple[SchemaInfo, dict[str, int]]] = {}
    # Most topics have the same definition, which is large.
    known: dict[object, object] = {}
    for topic, each in schemas.items():
        schema = each or NO_SCHEMA
        stored = schema.type, schema.schema_data, frozenset(schema.properties.items())
        if stored not in known:
            known[stored] = own = identity(schema)
            before, topics = found.get(own, (None, {}))
            if before is None or count_aliases(schema) > count_aliases(before):
                found[own] = schema, topics
        number = int.from_bytes(schema.found_as[1], "big") if schema.found_as else 0
        found[known[stored]][1][topic] = number
    return [Version(*each) for each in found.values()]


def described(versions: Iterable[Version]) -> str:
    """Return the types of schemas, and some of the topics that have each."""
    return "; ".join(f"{each.schema.type_name}: {listed(each.topics, _SHOWN)}" for each in versions)


def all_columns(schema: SchemaInfo) -> Collection[str]:
    """Return the columns that are read if the query does not choose any."""
    return (*typed_columns(schema).fields.names, KEY)


def common_version(versions: Sequence[Version], older: Older) -> SchemaInfo:
    """Return the one of several versions that the values of all can be read as.

    If one has all fields of the others, it is that, otherwise the newest; if nothing says which of
    those with all fields is newer, the one with most aliases. Raises SchemaMismatch if values of
    one of them cannot be read as any other, or if nothing says which is the newer one; and as
    `older`.
    """
    readers = _readers(versions, all_columns)
    whole = [each for each in readers if not each.left_out]
    if len(whole) == 1:
        return whole[0].schema
    order = _Order(versions, older)
    chosen = whole or [each for each in readers if order.knows(each)]
    if not chosen:
        lost = chain.from_iterable(each.losses for each in readers)
        fields = sorted({path for each in lost for path in each.left_out})
        raise SchemaMismatch(f"each lacks fields of another one: {listed(fields, _LOSSES_SHOWN)}")
    return order.newest([each.schema for each in sorted(chosen, key=lambda each: each.left_out)])


def version_for(versions: Sequence[Version], older: Older, columns: Columns) -> SchemaInfo | None:
    """Return a version that has the columns of a query, and that the values of all can be read as.

    None if none has these columns, but all are of one type. Raises as `common_version`; and as
    `older`, which is only asked if no topic's newest version will do.
    """
    problem: SchemaMismatch | None = None
    try:
        if readers := _readers(versions, columns):
            return min(readers, key=_by_loss).schema
    except SchemaMismatch as error:
        problem = error
    others = chain.from_iterable(older(next(iter(each.topics))) for each in versions)
    for tried in _tried(others, versions, columns):
        if isinstance(tried, _Reader):
            return tried.schema
        problem = problem or tried
    if problem is not None:
        raise problem
    for version in versions:
        check_types(version.schema, versions[0].schema)
    return None


def are_of_one_name(versions: Sequence[Version]) -> bool:
    """Whether these are records of one name: columns can be chosen that all of them have."""
    names = {(each.schema.type, record_name(value_schema(each.schema))) for each in versions}
    return len(names) == 1 and None not in names.pop()


def nearest(
    candidates: Sequence[SchemaInfo], versions: Sequence[Version], older: Older, columns: Columns
) -> SchemaInfo:
    """Return the one of several schemas that reads the values of the versions with least loss.

    Of those that lose as much, it is the newest, as `common_version` has it. Raises as `older`,
    which is only asked about these.
    """

    def loss(candidate: SchemaInfo) -> tuple[int, int]:
        unreadable = partial = 0
        for version in versions[:_MOST_VERSIONS]:
            try:
                lost = _losses(version.schema, candidate, columns(candidate) or ())
            except SchemaMismatch:
                unreadable += 1
            else:
                partial += len(lost.partial)
        return unreadable, partial

    losses = {number: loss(each) for number, each in enumerate(candidates[:_MOST_VERSIONS])}
    least = min(losses.values())
    found = [candidates[number] for number, lost in losses.items() if lost == least]
    if len(found) == 1:
        return found[0]
    return _Order(versions, older).newest(found)


def _readers(versions: Sequence[Version], columns: Columns) -> list[_Reader]:
    """Return those that values of all can be read as, with as few exceptions as possible.

    None if no version has the columns. Raises SchemaMismatch if one has, but does not read all.
    """
    if len(versions) > _MOST_VERSIONS:
        raise SchemaMismatch(f"there are {len(versions)} of them")
    tried = list(_tried((each.schema for each in versions), versions, columns))
    found = [each for each in tried if isinstance(each, _Reader)]
    problems = [each for each in tried if isinstance(each, SchemaMismatch)]
    if problems and not found:
        raise problems[0]
    least = min((each.partial for each in found), default=0)
    return [each for each in found if each.partial == least]


def _tried(
    schemas: Iterable[SchemaInfo], versions: Sequence[Version], columns: Columns
) -> Iterator[_Reader | SchemaMismatch]:
    """Yield those of the schemas that have the columns, or why one does not read all versions."""
    for schema in schemas:
        try:
            if not is_decoded(schema):
                raise SchemaMismatch(f"values of the type {schema.type_name} stay bytes")
            if (names := columns(schema)) is not None:
                losses = [_losses(each.schema, schema, names) for each in versions]
                yield _Reader(schema, losses)
        except SchemaMismatch as error:
            yield error


def _losses(writer: SchemaInfo, reader: SchemaInfo, names: Collection[str]) -> Losses:
    """Return what is lost in the columns `names`, __key among them if it is read."""
    check_types(writer, reader)
    if reader.type != pb.Schema.KeyValue:
        return _losses_of_part(writer, reader, names)
    written, wanted = key_value_parts(writer), key_value_parts(reader)
    lost = _losses_of_part(written.value, wanted.value, names)
    if KEY not in names:
        return lost
    keys = _losses_of_part(written.key, wanted.key, None)
    return Losses(
        (*lost.left_out, *(f"{KEY}.{each}" for each in keys.left_out)),
        (*lost.partial, *(f"{KEY}.{each}" for each in keys.partial)),
    )


def _losses_of_part(
    writer: SchemaInfo, reader: SchemaInfo, names: Collection[str] | None
) -> Losses:
    if identity(writer) == identity(reader):
        return Losses()
    check_types(writer, reader)
    if not is_record(writer) or not is_record(reader):
        raise SchemaMismatch(f"{writer.type_name} and {reader.type_name} are no versions of one")
    record, other = record_name(writer), record_name(reader)
    if record != other:
        raise SchemaMismatch(f"some have records {record!r}, others {other!r}")
    fields = typed_columns(reader).fields.names
    return losses_of(writer, reader, [each for each in fields if names is None or each in names])


class _Order:
    """Which of several versions came later, as far as the topics' registries tell."""

    def __init__(self, versions: Sequence[Version], older: Older) -> None:
        self._places = [identity(each.schema) for each in versions]
        self._lines: list[list[object]] = []
        left = _MOST_ASKED
        for version in versions:
            later = [topic for topic, number in version.topics.items() if number]
            later.sort(key=lambda topic: -version.topics[topic])
            for topic in later[:_TOPICS_ASKED]:
                line = [identity(version.schema)]
                line += [identity(each) for each in islice(older(topic), max(left, 0))]
                left -= len(line)
                self._lines.append(line)

    def knows(self, reader: _Reader) -> bool:
        """Whether each version that loses fields was on a topic that also had the reader's."""
        own = identity(reader.schema)
        return all(
            any(own in line and self._places[place] in line for line in self._lines)
            for place, lost in enumerate(reader.losses)
            if lost.left_out
        )

    def newest(self, schemas: Sequence[SchemaInfo]) -> SchemaInfo:
        """Return the newest of these; of those with the same age the one with most aliases."""
        known = [identity(each) for each in schemas]

        def key(number: int) -> tuple[int, int]:
            newer = sum(self._precedes(known[number], each) for each in known)
            return newer, -count_aliases(schemas[number])

        return schemas[min(range(len(schemas)), key=key)]

    def _precedes(self, one: object, other: object) -> bool:
        return any(
            one in line and other in line and line.index(other) < line.index(one)
            for line in self._lines
        )
