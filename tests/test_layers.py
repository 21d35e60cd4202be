"""Imports run one way, the protocol is pure, and imports have no side effects."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "pulsar_spark"

# The other layers that modules of each layer may import.
ALLOWED: dict[str, set[str]] = {
    "policies": set(),
    "errors": {"policies"},
    "logs": {"errors"},
    "protocol": {"errors", "logs"},
    "engine": {"policies", "errors", "logs", "protocol"},
    "schema": {"errors", "logs", "protocol", "engine"},
    "client": {"errors", "logs", "protocol", "engine", "schema"},
    "spark": {"errors", "logs", "protocol", "engine", "schema"},
    "progress": {"errors", "protocol", "engine", "schema", "spark"},
    "testing": {"errors", "logs", "protocol"},
    "cli": {"errors", "protocol", "engine", "schema", "client", "spark", "progress", "testing"},
    "__main__": {"errors", "cli"},
    "pytest_plugin": {"testing"},
    "__init__": {
        *("errors", "logs", "protocol", "engine", "schema", "client", "spark", "progress"),
        "testing",
    },
}

# The protocol has no I/O, clocks or threads, and nothing that only Spark needs.
IMPURE = {
    "asyncio",
    "datetime",
    "multiprocessing",
    "pyarrow",
    "pyspark",
    "random",
    "select",
    "selectors",
    "signal",
    "socket",
    "ssl",
    "subprocess",
    "threading",
    "time",
}

MODULES = sorted(path.relative_to(ROOT).as_posix() for path in PACKAGE.rglob("*.py"))
NAMES = [path.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for path in MODULES]


def imports(path: Path) -> Iterator[str]:
    """Yield the full names of all imports in a module, also within functions."""
    return imported_by(ast.parse(path.read_text("utf-8")), path)


def imported_by(tree: ast.Module, path: Path) -> Iterator[str]:
    """Yield the full names of all imports in a syntax tree."""
    package = list(path.relative_to(ROOT).parent.parts)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parent = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*parent, *([node.module] if node.module else [])])
            # `from package import x` may import the module package.x.
            yield from (f"{base}.{alias.name}" for alias in node.names)


def layer(module: str) -> str:
    """Return the layer of a dotted name within pulsar_spark; names of the package itself are
    of the layer __init__."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and parts[1] in ALLOWED else "__init__"


def run_python(script: str, *arguments: str) -> str:
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", script, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.parametrize("module", MODULES)
def test_imports_run_one_way(module: str) -> None:
    own = Path(module).parts[1].removesuffix(".py")
    assert own in ALLOWED, f"say in ALLOWED what {own} may import"
    for name in imports(ROOT / module):
        if name.split(".")[0] != "pulsar_spark":
            continue
        target = layer(name)
        # __version__ and the like; the package itself imports nothing that is heavy.
        if target == "__init__":
            continue
        assert target == own or target in ALLOWED[own], f"{module} must not import {name}"


@pytest.mark.parametrize("module", [m for m in MODULES if m.startswith("pulsar_spark/protocol/")])
def test_the_protocol_is_pure(module: str) -> None:
    found = {name.split(".")[0] for name in imports(ROOT / module)} & IMPURE
    assert not found


def test_nothing_of_the_package_imports_the_tests_or_tools() -> None:
    for module in MODULES:
        roots = {name.split(".")[0] for name in imports(ROOT / module)}
        only_pytest_loads_it = {"pytest"} if module.endswith("pytest_plugin.py") else set()
        elsewhere = {"tests", "tools", "benchmarks", "pytest"} - only_pytest_loads_it
        assert not roots & elsewhere, module


def test_no_modules_import_each_other_in_a_circle() -> None:
    """So the order of imports does not matter, and each module can be the first."""
    needs = {
        name: {module_of(found) for found in imported_at_once(ROOT / path)} - {name, None}
        for name, path in zip(NAMES, MODULES, strict=True)
    }
    try:
        list(TopologicalSorter(needs).static_order())
    except CycleError as error:
        pytest.fail(" imports ".join(reversed(error.args[1])))


# Circles that are meant, each as one: a codec and its formats, and the embedded broker.
MEANT = {
    "codec": re.compile(
        r"pulsar_spark\.schema\.(codec|column_(decoder|encoder)|declared|plain_values|primitives"
        r"|(avro|json|protobuf)\..*)"
    ),
    "testing": re.compile(r"pulsar_spark\.testing\..*"),
}


def test_only_meant_modules_need_each_others_types_in_a_circle() -> None:
    """Imports for types and those within functions count here."""

    def group(name: str | None) -> str | None:
        found = (kind for kind, names in MEANT.items() if names.fullmatch(name or ""))
        return next(found, name)

    needs: dict[str | None, set[str | None]] = {}
    for name, path in zip(NAMES, MODULES, strict=True):
        found = {group(module_of(each)) for each in imports(ROOT / path)}
        # The package itself has little but the version.
        needs.setdefault(group(name), set()).update(found - {group(name), None, "pulsar_spark"})
    try:
        list(TopologicalSorter(needs).static_order())
    except CycleError as error:
        pytest.fail(" needs ".join(reversed(error.args[1])))


def module_of(name: str) -> str | None:
    """Return the module of ours that has a name, or that the name is."""
    while name and name not in NAMES:
        name = name.rpartition(".")[0]
    return name or None


def imported_at_once(path: Path) -> Iterator[str]:
    """Yield the full names of a module's imports at module level."""
    tree = ast.parse(path.read_text("utf-8"))
    later = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
    left: list[ast.AST] = [tree]
    kept: list[ast.stmt] = []
    while left:
        node = left.pop()
        if isinstance(node, later) or (
            isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")
        ):
            continue
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            kept.append(node)
        left += ast.iter_child_nodes(node)
    tree.body = kept
    return imported_by(tree, path)


def test_all_lines_of_logs_are_escaped() -> None:
    """Only the package itself has another logger, for lines of its own."""
    for module in MODULES:
        if module in ("pulsar_spark/logs.py", "pulsar_spark/__init__.py"):
            continue
        for node in ast.walk(ast.parse((ROOT / module).read_text("utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "logging.getLogger":
                assert ast.unparse(node.args[0]) == "'pulsar_spark'", f"{module}:{node.lineno}"


def test_no_two_public_classes_have_one_name() -> None:
    """What protoc generates has the protocol's names, and is only used as `pb.Name`."""
    homes: dict[str, list[str]] = {}
    for module in MODULES:
        if module.endswith("_pb2.py"):
            continue
        for node in ast.parse((ROOT / module).read_text("utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes.setdefault(node.name, []).append(module)
    assert not {name: found for name, found in homes.items() if len(found) > 1}


def test_importing_all_modules_starts_nothing() -> None:
    script = """
import importlib, sys, threading
before = threading.active_count()
for name in sys.argv[1:]:
    importlib.import_module(name)
    assert threading.active_count() == before, name
"""
    run_python(script, *(name for name in NAMES if not name.endswith("__main__")))


@pytest.mark.slow
def test_each_module_can_be_imported_alone_and_starts_nothing() -> None:
    """Each import runs in a fork of a process that has loaded only foreign modules."""
    script = """
import importlib, os, sys, threading, traceback
import asyncio, crc32c, lz4.block, pyarrow, pyspark.sql, ssl
from google.protobuf import descriptor_pool, message_factory
for name in sys.argv[1:]:
    sys.stdout.flush()
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        continue
    before = threading.active_count()
    try:
        importlib.import_module(name)
        print(name, "ok" if threading.active_count() == before else "started a thread")
    except BaseException:
        print(name, traceback.format_exc())
    sys.stdout.flush()
    os._exit(0)
"""
    names = [name for name in NAMES if not name.endswith("__main__")]
    lines = run_python(script, *names).splitlines()
    assert not [line for line in lines if not line.endswith(" ok")]
    assert len(lines) == len(names)


def test_the_protocol_loads_neither_spark_nor_arrow_nor_sockets_of_ours() -> None:
    modules = [name for name in NAMES if name.startswith("pulsar_spark.protocol")]
    loaded = run_python(f"import sys, {', '.join(modules)}; print(*sys.modules)").split()
    assert not {"pyarrow", "pyspark", "asyncio", "ssl", "pulsar_spark.engine"} & set(loaded)


def test_the_broker_in_memory_loads_neither_spark_nor_arrow() -> None:
    script = """
import sys
from pulsar_spark.testing import EmbeddedBroker
with EmbeddedBroker():
    print(*sys.modules)
"""
    assert not {"pyarrow", "pyspark", "pulsar_spark.engine"} & set(run_python(script).split())


def test_the_module_that_spark_discovers_is_cheap() -> None:
    """Spark imports it in every session and every Python worker, with or without Pulsar."""
    if not (ROOT / "pyspark_pulsar.py").exists():
        pytest.fail("pyspark_pulsar.py is missing")
    loaded = run_python("import sys, pyspark_pulsar; print(*sys.modules)").split()
    heavy = {"pyarrow", "pyspark.sql", "numpy", "pandas", "google.protobuf", "lz4", "crc32c"}
    assert not heavy & set(loaded)


def test_a_private_name_of_a_module_stays_in_its_layer() -> None:
    for module in MODULES:
        own = Path(module).parts[1].removesuffix(".py")
        for name in imports(ROOT / module):
            parts = name.split(".")
            if parts[0] == "pulsar_spark" and layer(name) not in (own, "__init__"):
                private = [p for p in parts if p.startswith("_") and not p.startswith("__")]
                assert not private, f"{module} imports {name}"


def test_each_package_is_covered_by_tests_of_its_own() -> None:
    packages = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    for package in packages:
        assert list((ROOT / "tests" / package).rglob("test_*.py")), f"tests/{package} has no test"


def test_each_folder_of_tests_is_a_package() -> None:
    for path in (ROOT / "tests").rglob("test_*.py"):
        assert (path.parent / "__init__.py").is_file(), path
