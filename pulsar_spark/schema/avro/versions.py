"""The plans of several writers' versions → one plan, for values of all versions at once.

Avro writes fields in the order of their schema, without names or numbers. Consecutive versions have
most fields in common: these are read in one step for all values. A field that some versions lack,
or that has another type there, is read like the branches of a union: for the values of each version
by itself. Only the version's number is known beforehand, instead of being in the bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from difflib import SequenceMatcher

import pyarrow as pa

from pulsar_spark.schema.avro.resolution import (
    Constant,
    FieldStep,
    Plan,
    ReadByVersion,
    ReadNull,
    ReadRecord,
    ReadUnion,
)

MAX_VERSIONS = 16
"""Values of more versions are better read version by version."""


def joint_plan(plans: Sequence[Plan]) -> Plan:
    """Return a plan for values of several versions, in the order of `plans`.

    All plans have the same type, unless they only skip a value.
    """
    first = plans[0]
    if all(plan == first for plan in plans[1:]):
        return first
    found: Plan | None = None
    if all(plan.type == first.type for plan in plans):
        records = [plan for plan in plans if isinstance(plan, ReadRecord)]
        unions = [plan for plan in plans if isinstance(plan, ReadUnion)]
        if len(records) == len(plans):
            found = _record(records)
        elif len(unions) == len(plans):
            found = _union(unions)
    return found or ReadByVersion(tuple(plans), first.type)


def _union(plans: Sequence[ReadUnion]) -> ReadUnion | None:
    if len({len(plan.branches) for plan in plans}) > 1:
        return None
    branches = tuple(map(joint_plan, zip(*(plan.branches for plan in plans), strict=True)))
    return ReadUnion(branches, plans[0].type)


def _record(plans: Sequence[ReadRecord]) -> ReadRecord | None:
    """Return the plan of a record; None if versions have the same fields in another order."""
    fields = _Fields()
    for version, plan in enumerate(plans):
        fields.add(version, plan.steps)
    targets = [target for _, target in fields.names if target is not None]
    if len(set(targets)) < len(targets):
        return None
    steps = [
        FieldStep(
            name,
            joint_plan([_part(plan, own.get(v), target) for v, plan in enumerate(plans)]),
            target,
        )
        for (name, target), own in zip(fields.names, fields.steps, strict=True)
    ]
    defaults = tuple(item for item in plans[0].defaults if item.target not in targets)
    return ReadRecord(tuple(steps), defaults, plans[0].type)


class _Fields:
    """The fields of all versions, in an order that suits each version.

    `names` are their names and targets, `steps` each one's steps by version.
    """

    def __init__(self) -> None:
        self.names: list[tuple[str, int | None]] = []
        self.steps: list[dict[int, FieldStep]] = []

    def add(self, version: int, steps: Sequence[FieldStep]) -> None:
        """Put a version's fields where they are known, otherwise between their neighbours."""
        own = [(step.name, step.target) for step in steps]
        matcher = SequenceMatcher(None, self.names, own, autojunk=False)
        names: list[tuple[str, int | None]] = []
        found: list[dict[int, FieldStep]] = []
        for tag, start, stop, own_start, own_stop in matcher.get_opcodes():
            names += self.names[start:stop]
            found += self.steps[start:stop]
            new = [{version: step} for step in steps[own_start:own_stop]]
            if tag == "equal":
                for known, added in zip(self.steps[start:stop], new, strict=True):
                    known.update(added)
            else:
                names += own[own_start:own_stop]
                found += new
        self.names, self.steps = names, found


def _part(plan: ReadRecord, step: FieldStep | None, target: int | None) -> Plan:
    """Return how a version's records give a field: by their step, or without any bytes."""
    if step is not None:
        return step.plan
    if target is None:
        return ReadNull(pa.null())
    for default in plan.defaults:
        if default.target == target:
            return Constant(default.plan, default.data)
    return ReadNull(plan.type.field(target).type)
