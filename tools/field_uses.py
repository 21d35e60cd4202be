"""Finds in the source where the package writes and reads the protocol's fields.

Annotations, constructors and the interface itself give a variable's message type, in simple cases.
Otherwise a field counts as read if a field of its name is read.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

from google.protobuf.descriptor import Descriptor

from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.frame_parts import BODY_FIELDS
from pulsar_spark.protocol.validation import ANSWERS

PACKAGE = Path(__file__).parent.parent / "pulsar_spark"

_MESSAGES: dict[str, Descriptor] = dict(pb.DESCRIPTOR.message_types_by_name)
_CHANGES = {"CopyFrom", "MergeFrom", "SetInParent", "add", "append", "extend"}
# Usual names of untyped variables with a command or its body.
_UNTYPED = {"answer", "body", "command", "event"}
# Functions that return the message whose class is their first argument, or look at it.
_TYPED = {"cast", "parse"}
_READS = _TYPED | {"isinstance"}
# The fields of commands by the names of their types, and of their bodies' messages.
_TYPES = {pb.BaseCommand.Type.Name(number): name for number, name in BODY_FIELDS.items()}
_BODIES: dict[str, str] = {
    field.message_type.name: field.name
    for field in pb.BaseCommand.DESCRIPTOR.fields
    if field.message_type is not None
}


class Uses:
    """The modules that write and read each field, such as ``CommandAck.ack_type``."""

    def __init__(self) -> None:
        self.built: dict[str, set[str]] = defaultdict(set)
        self.handled: dict[str, set[str]] = defaultdict(set)
        # Reads by a field's name alone, where the message type is unknown.
        self._named: dict[str, set[str]] = defaultdict(set)

    def add_named(self, name: str, module: str) -> None:
        """A module reads a field of this name, of some message."""
        self._named[name].add(module)

    def handles(self, field: str) -> set[str]:
        """Return the modules that read a field, or else those that read one of its name."""
        message, _, name = field.partition(".")
        if field in self.handled or message == "BaseCommand":
            return self.handled[field]
        return self._named[name]


class _Known:
    """The package's annotations: the messages that functions and attributes return."""

    def __init__(self, trees: Iterable[ast.Module]) -> None:
        self.gives: dict[str, str] = {}
        # The keys of dictionaries that functions return.
        self._keys: dict[str, set[str]] = {}
        # How functions that get the class of a command's body go on to make the command.
        self._makers: dict[str, list[ast.Call]] = defaultdict(list)
        for tree in trees:
            for node in ast.walk(tree):
                if isinstance(node, ast.FunctionDef):
                    self._add(node.name, _annotated(node.returns))
                    self._keys[node.name] = set(_keys(node))
                    self._makers[node.name].extend(_passing_on(node))
                elif isinstance(node, ast.AnnAssign):
                    target = node.target
                    name = target.attr if isinstance(target, ast.Attribute) else None
                    if isinstance(target, ast.Name):
                        name = target.id
                    if name:
                        self._add(name, _annotated(node.annotation))

    def _add(self, name: str, message: str) -> None:
        if message:
            # A name with several messages is ambiguous.
            self.gives[name] = message if self.gives.get(name, message) == message else ""

    def fields_of(self, node: ast.Call, *callers: str) -> set[str]:
        """Return the fields that a call sets: those it names, and those the function adds."""
        found = {str(part.value) for part in node.args if isinstance(part, ast.Constant)}
        added = [
            part for part in node.args if isinstance(part, ast.Call) and _called(part) == "dict"
        ]
        for keyword in [*node.keywords, *(one for part in added for one in part.keywords)]:
            if keyword.arg is not None:
                found.add(keyword.arg)
            elif isinstance(keyword.value, ast.Call):
                found |= self._keys.get(_called(keyword.value), set())
        name = _called(node)
        if name not in callers:
            for call in self._makers[name]:
                found |= self.fields_of(call, name, *callers)
        return found


def _keys(function: ast.FunctionDef) -> Iterator[str]:
    for node in ast.walk(function):
        if isinstance(node, ast.Dict):
            for key in filter(None, node.keys):
                for part in ast.walk(key):
                    if isinstance(part, ast.Constant) and isinstance(part.value, str):
                        yield part.value


def _passing_on(function: ast.FunctionDef) -> Iterator[ast.Call]:
    """Yield the calls that a function hands the class of a body to, which it was given."""
    nodes = list(ast.walk(function))
    names = {
        node.arg if isinstance(node, ast.arg) else ast.unparse(node.target)
        for node in nodes
        if isinstance(node, ast.arg | ast.AnnAssign)
        and node.annotation is not None
        and re.fullmatch(r"Callable\[.*, Message\]", ast.unparse(node.annotation))
    }
    for node in nodes:
        if isinstance(node, ast.Call) and names & {ast.unparse(part) for part in node.args}:
            yield node


def _called(node: ast.Call) -> str:
    """Return the called function's name."""
    name: str = getattr(node.func, "attr", getattr(node.func, "id", ""))
    return name


def _annotated(annotation: ast.expr | None) -> str:
    """Return the message in an annotation, alone or as a collection's item."""
    if annotation is None:
        return ""
    found = {name for node in ast.walk(annotation) if (name := _message(node))}
    return found.pop() if len(found) == 1 else ""


def _is_types(node: ast.expr) -> bool:
    """Whether an expression is the enum of command types, under any name."""
    if isinstance(node, ast.Name):
        return node.id in ("T", "_T", "_Type")
    return isinstance(node, ast.Attribute) and node.attr == "BaseCommand"


def _message(node: ast.AST) -> str:
    """Return X for ``pb.X``, if that is a message."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return node.attr if node.value.id == "pb" and node.attr in _MESSAGES else ""
    return ""


class _Reader(ast.NodeVisitor):
    """Analyses one module."""

    def __init__(self, module: str, known: _Known, uses: Uses) -> None:
        self._module = module
        self._known = known
        self._uses = uses
        self._names: dict[str, str] = {}

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        outer, self._names = self._names, dict(self._names)
        for argument in [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]:
            self._names[argument.arg] = _annotated(argument.annotation)
        self.generic_visit(node)
        self._names = outer

    def visit_Assign(self, node: ast.Assign) -> None:
        self.visit(node.value)
        for target in node.targets:
            self._bind(target, self._type(node.value))
            self.visit(target)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)
        self._bind(node.target, _annotated(node.annotation))

    def visit_NamedExpr(self, node: ast.NamedExpr) -> None:
        self.visit(node.value)
        self._bind(node.target, self._type(node.value))

    def visit_For(self, node: ast.For) -> None:
        self._bind(node.target, self._type(node.iter))
        self.generic_visit(node)

    def _comprehended(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp) -> None:
        for part in node.generators:
            self._bind(part.target, self._type(part.iter))
        self.generic_visit(node)

    visit_ListComp = _comprehended
    visit_SetComp = _comprehended
    visit_GeneratorExp = _comprehended

    def visit_DictComp(self, node: ast.DictComp) -> None:
        for part in node.generators:
            self._bind(part.target, self._type(part.iter))
        self.generic_visit(node)

    def _bind(self, target: ast.expr, message: str) -> None:
        if isinstance(target, ast.Name):
            self._names[target.id] = message

    def visit_Attribute(self, node: ast.Attribute) -> None:
        owner = self._type(node.value)
        if owner:
            if node.attr in _MESSAGES[owner].fields_by_name:
                where = self._uses.handled
                if isinstance(node.ctx, ast.Store):
                    where = self._uses.built
                where[f"{owner}.{node.attr}"].add(self._module)
        elif isinstance(node.value, ast.Name) and node.value.id in _UNTYPED:
            self._uses.add_named(node.attr, self._module)
        if node.attr in _TYPES and _is_types(node.value):
            self._uses.handled[f"BaseCommand.{_TYPES[node.attr]}"].add(self._module)
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        # Only field names look like this.
        if isinstance(node.value, str) and re.fullmatch(r"[a-z]+([A-Z_][A-Za-z_]*)", node.value):
            self._uses.add_named(node.value, self._module)

    def visit_Tuple(self, node: ast.Tuple) -> None:
        # Field names in lists, for lookups.
        for part in node.elts:
            if isinstance(part, ast.Constant) and isinstance(part.value, str):
                self._uses.add_named(part.value, self._module)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        function = node.func
        name = _called(node)
        message = _message(function)
        for argument in () if name in _READS else node.args:
            if (body := _message(argument)) in _BODIES:
                self._uses.built[f"BaseCommand.{_BODIES[body]}"].add(self._module)
                message = body
        if name == "getattr" and isinstance(node.args[1], ast.Constant):
            self._uses.add_named(str(node.args[1].value), self._module)
        if message == "BaseCommand":
            self._envelope(node)
        elif message:
            for field in self._known.fields_of(node) & set(_MESSAGES[message].fields_by_name):
                self._uses.built[f"{message}.{field}"].add(self._module)
        if isinstance(function, ast.Attribute):
            self._method(function, node)
        self.generic_visit(node)

    def _envelope(self, node: ast.Call) -> None:
        for keyword in node.keywords:
            if keyword.arg == "type" and isinstance(keyword.value, ast.Attribute):
                if field := _TYPES.get(keyword.value.attr):
                    self._uses.built[f"BaseCommand.{field}"].add(self._module)
                self._uses.built["BaseCommand.type"].add(self._module)

    def _method(self, function: ast.Attribute, node: ast.Call) -> None:
        owner = self._type(function.value)
        if owner and function.attr == "HasField" and isinstance(node.args[0], ast.Constant):
            self._uses.handled[f"{owner}.{node.args[0].value!s}"].add(self._module)
        if function.attr in _CHANGES and isinstance(function.value, ast.Attribute):
            holder = self._type(function.value.value)
            if holder and function.value.attr in _MESSAGES[holder].fields_by_name:
                self._uses.built[f"{holder}.{function.value.attr}"].add(self._module)

    def _type(self, node: ast.expr) -> str:
        """Return the message of an expression or of its items; None if unknown."""
        if isinstance(node, ast.Name):
            return self._names.get(node.id, "")
        if isinstance(node, ast.Subscript | ast.Starred):
            return self._type(node.value)
        if isinstance(node, ast.NamedExpr):
            return self._type(node.value)
        if isinstance(node, ast.Attribute):
            return self._attribute(node)
        if isinstance(node, ast.Call):
            return self._returned(node)
        return ""

    def _attribute(self, node: ast.Attribute) -> str:
        owner = self._type(node.value)
        if not owner:
            return self._known.gives.get(node.attr, "")
        field = _MESSAGES[owner].fields_by_name.get(node.attr)
        inner = field.message_type if field is not None else None
        return inner.name if inner is not None else ""

    def _returned(self, node: ast.Call) -> str:
        function, name = node.func, _called(node)
        if message := _message(function):
            return message
        if name in _TYPED and node.args:
            return _annotated(node.args[0])
        if name == "FromString" and isinstance(function, ast.Attribute):
            return _message(function.value)
        return self._known.gives.get(name, "")


@cache
def uses() -> Uses:
    """Return where all fields are written and read."""
    trees = {
        path.relative_to(PACKAGE).as_posix(): ast.parse(path.read_text())
        for path in sorted(PACKAGE.rglob("*.py"))
        if not path.name.endswith("_pb2.py")
    }
    known = _Known(trees.values())
    found = Uses()
    for module, tree in trees.items():
        _Reader(module, known, found).visit(tree)
    for kind in ANSWERS:
        # Read by field number: see `answers_to`.
        found.handled[f"BaseCommand.{BODY_FIELDS[kind]}"].add("engine/connections/requests.py")
    return found
