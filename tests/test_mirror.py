"""Each module has a test file of its own, and each such file a module.

The tests of pulsar_spark/client/reader.py are in tests/client/test_reader.py; where they are too
many for one file, further ones are named for what they look at: test_reader_resuming.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "pulsar_spark"
TESTS = ROOT / "tests"

# Modules without a test file of their own, and why.
EXEMPT: dict[str, str] = {
    "schema/codec.py": "says what codecs are and does nothing; each codec has its tests",
    "protocol/events.py": "plain data; test_connection.py checks every event where it arises",
}

# Test files without a module of that name, and why.
EXTRA: dict[str, str] = {
    "protocol/test_golden.py": "recorded conversations go through all of the layer",
    "testing/test_official_client.py": "the official client meets the embedded broker as a whole",
}

# Not mirrors of a package: what is tested across all of it, and what tests share.
OTHER_FOLDERS = {"data", "integration", "notebooks", "support", "benchmarks", "tools"}

# Test files for generated modules have the plain name.
RENAMED = {"protocol/pulsar_api_pb2.py": "protocol/test_pulsar_api.py"}


def mirror(module: str) -> str:
    """Return the test file of a module; both relative, to the package and to tests/."""
    path = Path(module)
    return RENAMED.get(module, path.with_name(f"test_{path.name}").as_posix())


def modules() -> list[str]:
    return sorted(
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        if path.name not in ("__init__.py", "__main__.py")
    )


def mirrored_tests() -> list[str]:
    found = (path.relative_to(TESTS) for path in TESTS.glob("*/**/test_*.py"))
    return sorted(path.as_posix() for path in found if path.parts[0] not in OTHER_FOLDERS)


@pytest.mark.parametrize("module", modules())
def test_each_module_has_a_test_file(module: str) -> None:
    if module in EXEMPT:
        assert not (TESTS / mirror(module)).exists(), f"{module} needs no exemption any more"
    else:
        assert (TESTS / mirror(module)).is_file(), f"tests/{mirror(module)} is missing"


@pytest.mark.parametrize("test", mirrored_tests())
def test_each_test_file_has_a_module(test: str) -> None:
    assert test in EXTRA or any(
        test == own or test.startswith(own.removesuffix(".py") + "_")
        for own in map(mirror, modules())
    )


def test_exemptions_are_for_modules_that_exist() -> None:
    assert set(EXEMPT) <= set(modules())
    assert set(EXTRA) <= set(mirrored_tests())


def test_each_folder_of_tests_is_a_package() -> None:
    for path in TESTS.rglob("test_*.py"):
        assert (path.parent / "__init__.py").is_file(), path
