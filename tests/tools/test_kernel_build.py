"""A build has the compiled kernel where it can be built, and otherwise says why it has not."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tools.kernel_build import (
    AUTO,
    LIBRARY,
    MISSING,
    OFF,
    REQUIRE,
    VARIABLE,
    KernelBuild,
    platform_tag,
)

ROOT = Path(__file__).parents[2]
PURE = re.compile(r"pulsar_spark-[\d.]+-py3-none-any\.whl")

Build = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def build(tmp_path: Path) -> Build:
    """Builds a wheel into `tmp_path` with this environment's hatchling, and a cargo of ours."""

    def run(
        setting: str, cargo: str | None, kind: str = "wheel"
    ) -> subprocess.CompletedProcess[str]:
        folder = tmp_path / "bin"
        folder.mkdir()
        if cargo is not None:
            (folder / "cargo").write_text(f"#!/bin/sh\n{cargo}\n")
            (folder / "cargo").chmod(0o755)
        return subprocess.run(
            [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(tmp_path)],
            cwd=ROOT,
            env={**os.environ, VARIABLE: setting, "PATH": f"{folder}:/bin"},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    return run


def makes(library: Path) -> str:
    """Return a cargo that has made a library."""
    library.write_bytes(b"a library")
    message = {"reason": "compiler-artifact", "filenames": ["lib.rlib", str(library)]}
    return f"echo '{json.dumps(message)}'"


def only_wheel(folder: Path) -> tuple[str, zipfile.ZipFile]:
    (found,) = folder.glob("*.whl")
    return found.name, zipfile.ZipFile(found)


@pytest.mark.parametrize("setting", [AUTO, REQUIRE, ""])
def test_a_wheel_with_the_kernel_is_for_one_platform_and_any_python(
    tmp_path: Path, build: Build, setting: str
) -> None:
    done = build(setting, makes(tmp_path / "libpulsar_spark_kernel.so"))
    assert done.returncode == 0, done.stderr
    name, wheel = only_wheel(tmp_path)
    assert name.endswith(f"-cp310-abi3-{platform_tag()}.whl")
    with wheel:
        assert wheel.read(LIBRARY) == b"a library"
        assert MISSING not in wheel.namelist()
        (metadata,) = (wheel.read(name) for name in wheel.namelist() if name.endswith("/WHEEL"))
        assert b"Root-Is-Purelib: false" in metadata


FAILS = "echo 'warning: old' >&2; echo 'error: rustc 1.60 is not supported' >&2; exit 101"


@pytest.mark.parametrize(
    "setting, cargo, why",
    [
        (AUTO, None, "cargo was not found"),
        (AUTO, FAILS, "error: rustc 1.60 is not supported"),
        (AUTO, "true", "cargo made no shared library"),
        (OFF, "exit 1", f"built with {VARIABLE}=off"),
    ],
)
def test_a_wheel_without_the_kernel_is_for_all_and_says_why(
    tmp_path: Path, build: Build, setting: str, cargo: str | None, why: str
) -> None:
    done = build(setting, cargo)
    assert done.returncode == 0, done.stderr
    assert "pure Python, which is slower" in done.stdout + done.stderr
    name, wheel = only_wheel(tmp_path)
    assert PURE.fullmatch(name)
    with wheel:
        assert LIBRARY not in wheel.namelist()
        assert why in wheel.read(MISSING).decode()


@pytest.mark.parametrize(
    "setting, cargo, why",
    [
        (REQUIRE, None, "cargo was not found"),
        (REQUIRE, FAILS, "rustc 1.60 is not supported"),
        ("always", "true", "'always': set it to auto, require or off"),
    ],
)
def test_a_build_that_cannot_do_what_is_asked_fails(
    tmp_path: Path, build: Build, setting: str, cargo: str | None, why: str
) -> None:
    done = build(setting, cargo)
    assert done.returncode != 0
    assert why in done.stderr
    assert not list(tmp_path.glob("*.whl"))


def test_an_archive_of_the_sources_has_what_the_kernel_is_built_from(
    tmp_path: Path, build: Build
) -> None:
    assert build(REQUIRE, None, "sdist").returncode == 0
    (found,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(found) as archive:
        names = [name.partition("/")[2] for name in archive.getnames()]
    for name in ("native/Cargo.toml", "native/Cargo.lock", "native/src/lib.rs", "pyproject.toml"):
        assert name in names
    assert "tools/kernel_build.py" in names
    assert not [name for name in names if name.startswith(("native/target", LIBRARY, MISSING))]


def test_a_clone_that_is_installed_editable_has_one_of_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "pulsar_spark"
    folder.mkdir()
    library = tmp_path / "libpulsar_spark_kernel.so"
    nothing: Any = None
    hook = KernelBuild(str(tmp_path), {}, nothing, nothing, "", "wheel")
    for setting, expected in ((OFF, MISSING), (AUTO, LIBRARY), (OFF, MISSING)):
        (tmp_path / "cargo").write_text(f"#!/bin/sh\n{makes(library)}\n")
        (tmp_path / "cargo").chmod(0o755)
        monkeypatch.setenv(VARIABLE, setting)
        monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
        data: dict[str, dict[str, str]] = {"force_include": {}}
        hook.initialize("editable", data)
        hook.finalize("editable", data, "")
        assert data == {"force_include": {}}
        assert [path.relative_to(tmp_path).as_posix() for path in folder.iterdir()] == [expected]


# --- what is built, in environments of its own ----------------------------------------------------


def test_a_wheel_that_is_imported_as_a_zip_says_that_it_is_pure_python(
    tmp_path: Path, build: Build
) -> None:
    assert build(AUTO, makes(tmp_path / "libpulsar_spark_kernel.so")).returncode == 0
    (wheel,) = tmp_path.glob("*.whl")
    script = (
        "import pulsar_spark; from pulsar_spark.protocol.implementation import description\n"
        "print(pulsar_spark.__file__); print(description())"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(wheel), "PULSAR_SPARK_IMPL": ""},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    place, told = done.stdout.splitlines()
    assert place.startswith(str(wheel))
    assert told.startswith("python (pure Python: slower")
    assert "zip" in told


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_sources_are_installed_and_run_in_an_empty_environment_without_and_with_cargo(
    tmp_path: Path, build: Build
) -> None:
    assert build(OFF, None, "sdist").returncode == 0
    (sources,) = tmp_path.glob("*.tar.gz")
    environment = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
    environment["CARGO_TARGET_DIR"] = str(ROOT / "native" / "target")
    python = tmp_path / "venv" / "bin" / "python"

    def run(*arguments: str, **more: str) -> str:
        done = subprocess.run(
            [str(python), "-m", *arguments],
            cwd=tmp_path,
            env={**environment, **more},
            capture_output=True,
            text=True,
            timeout=900,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "venv")], check=True, timeout=120)
    install = ("pip", "install", "--quiet", "--disable-pip-version-check", str(sources))
    run(*install, **{VARIABLE: AUTO, "PATH": without_cargo(environment["PATH"])})
    told = run("pulsar_spark", "--version")
    assert "pure Python: slower" in told
    assert "cargo was not found when the package was built" in told
    # It writes to a topic and reads from it.
    assert "pure Python: slower" in run("pulsar_spark", "demo")
    run(*install, "--force-reinstall", "--no-deps", **{VARIABLE: REQUIRE})
    assert "native (compiled kernel)" in run("pulsar_spark", "--version")
    assert "native (compiled kernel)" in run("pulsar_spark", "demo")


def without_cargo(path: str) -> str:
    return os.pathsep.join(
        folder for folder in path.split(os.pathsep) if not Path(folder, "cargo").exists()
    )
