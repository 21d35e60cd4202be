"""Code that two formats need exists once: no helper of six or more lines has a copy."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import pytest

SCHEMA = Path(__file__).resolve().parents[2] / "pulsar_spark" / "schema"
LONGEST = 5
"""Lines that a helper may have, besides its docstring, and stand in two places."""


class _Nameless(ast.NodeTransformer):
    """Replaces a function's own names by numbers, and strips underscores of other names."""

    def __init__(self) -> None:
        self._own: dict[str, str] = {}

    def visit_arg(self, node: ast.arg) -> ast.arg:
        node.annotation = None
        node.arg = self._own.setdefault(node.arg, f"own{len(self._own)}")
        return node

    def visit_Name(self, node: ast.Name) -> ast.Name:
        if isinstance(node.ctx, ast.Store):
            self._own.setdefault(node.id, f"own{len(self._own)}")
        node.id = self._own.get(node.id, node.id.lstrip("_"))
        return node


def bare(function: ast.FunctionDef) -> str:
    """Return a function's code independently of its own names."""
    copied = ast.parse(ast.unparse(function)).body[0]
    assert isinstance(copied, ast.FunctionDef)
    if ast.get_docstring(copied) is not None:
        copied.body = copied.body[1:]
    copied.name, copied.returns, copied.decorator_list = "f", None, []
    return ast.unparse(_Nameless().visit(copied))


def twins(trees: dict[str, ast.Module]) -> list[list[str]]:
    """Return the places of equal functions that are longer than allowed."""
    places = defaultdict(list)
    for name, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                text = bare(node)
                if text.count("\n") > LONGEST:
                    places[text].append(f"{name}: {node.name}")
    return [found for found in places.values() if len(found) > 1]


def test_no_helper_stands_in_two_formats() -> None:
    paths = sorted(SCHEMA.rglob("*.py"))
    trees = {str(path.relative_to(SCHEMA)): ast.parse(path.read_text("utf-8")) for path in paths}
    assert not twins(trees)


FLOOR_DIVIDE = '''
def floor_divide(numbers: pa.Array, divisor: int) -> pa.Array:
    """Round down."""
    quotient = pc.divide(numbers, number(divisor))
    if divisor == 1:
        return numbers
    back = pc.multiply(quotient, number(divisor))
    rest = pc.subtract(numbers, back)
    return pc.subtract(quotient, pc.less(rest, ZERO))
'''
RENAMED = """
def _halved(values, by):
    quotients = pc.divide(values, _number(by))
    if by == 1:
        return values
    whole = pc.multiply(quotients, _number(by))
    left = pc.subtract(values, whole)
    return pc.subtract(quotients, pc.less(left, _ZERO))
"""


@pytest.mark.parametrize(
    "other,found",
    [
        (RENAMED, [["a.py: floor_divide", "b.py: _halved"]]),
        (RENAMED.replace("less(", "greater("), []),
        ("\n".join(RENAMED.splitlines()[:3]), []),
    ],
)
def test_names_make_no_difference(other: str, found: list[list[str]]) -> None:
    assert twins({"a.py": ast.parse(FLOOR_DIVIDE), "b.py": ast.parse(other)}) == found
