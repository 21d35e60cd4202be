"""Builds the compiled kernel into the package: hatchling runs this for each wheel.

PULSAR_SPARK_BUILD_KERNEL says whether: `auto` builds it if that is possible, `require` fails if it
is not, `off` leaves it out. A wheel with the kernel is for one platform and any Python from 3.10 on
(abi3); one without it is for all. Then, as pip shows no output of a build, the package says why.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

VARIABLE = "PULSAR_SPARK_BUILD_KERNEL"
AUTO, REQUIRE, OFF = "auto", "require", "off"

LIBRARY = "pulsar_spark/_kernel.abi3.so"
MISSING = "pulsar_spark/kernel-missing.txt"
"""Where the package says why it has no kernel."""

_SECONDS = 1800
_MAX_REASON = 300
# What Rust builds for if nobody says anything else.
_MACOS = {"arm64": "11.0", "x86_64": "10.12"}


class KernelMissing(Exception):
    """There is no kernel; the text says why."""


class KernelBuild(BuildHookInterface):  # type: ignore[type-arg]
    """Adds the kernel, or the reason why there is none, to a wheel or to an editable clone."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called by hatchling before it makes a wheel, `standard` or `editable`."""
        root = Path(self.root)
        self._made = Path(tempfile.mkdtemp())
        try:
            library = build(root)
        except KernelMissing as missing:
            found, place, others = self._made / "reason", MISSING, LIBRARY
            found.write_text(f"{missing}\n", "utf-8")
            self.app.display_warning(f"pure Python, which is slower: {missing}")
        else:
            found, place, others = library, LIBRARY, MISSING
        if version == "editable":
            # Python imports the clone's own files.
            (root / others).unlink(missing_ok=True)
            replace(found, root / place)
            return
        if place == LIBRARY:
            build_data.update(pure_python=False, tag=f"cp310-abi3-{platform_tag()}")
        build_data["force_include"][str(found)] = place

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Called by hatchling at the end."""
        shutil.rmtree(self._made, ignore_errors=True)


def replace(source: Path, target: Path) -> None:
    """Put a copy of a file in place of another at once: that one may be in use."""
    part = target.with_name(f"{target.name}.{os.getpid()}")
    shutil.copyfile(source, part)
    part.replace(target)


def build(root: Path) -> Path:
    """Build the kernel and return its library. Raises KernelMissing if there is to be none.

    Raises RuntimeError if it is required and cannot be built, ValueError for an unknown setting.
    """
    wanted = os.environ.get(VARIABLE) or AUTO
    if wanted not in (AUTO, REQUIRE, OFF):
        raise ValueError(f"{VARIABLE} is {wanted!r}: set it to {AUTO}, {REQUIRE} or {OFF}")
    if wanted == OFF:
        raise KernelMissing(f"the package was built with {VARIABLE}={OFF}")
    try:
        return _library(_cargo(root / "native" / "Cargo.toml"))
    except KernelMissing as missing:
        if wanted == REQUIRE:
            raise RuntimeError(f"{VARIABLE}={REQUIRE}, and {missing}") from missing
        raise


def _cargo(manifest: Path) -> str:
    """Run cargo and return its messages, which are lines of JSON."""
    command = ["cargo", "rustc", "--release", "--locked", "--lib", "--features", "python"]
    command += ["--manifest-path", str(manifest), "--message-format", "json-render-diagnostics"]
    if sys.platform == "darwin":
        # Python's own symbols are found when it loads the library.
        command += ["--", "-C", "link-arg=-undefined", "-C", "link-arg=dynamic_lookup"]
    try:
        done = subprocess.run(
            command,
            env={"PYO3_PYTHON": sys.executable, **os.environ},
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
    except FileNotFoundError:
        raise KernelMissing("cargo was not found when the package was built") from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise KernelMissing(f"cargo did not end well: {error}"[:_MAX_REASON]) from error
    if done.returncode:
        sys.stderr.write(done.stderr)
        raise KernelMissing(f"cargo failed: {_reason(done.stderr)}"[:_MAX_REASON])
    return done.stdout


def _reason(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("error")]
    return (errors or lines[-1:] or ["it does not say why"])[0]


def _library(messages: str) -> Path:
    for line in messages.splitlines():
        message = json.loads(line) if line.startswith("{") else {}
        for name in message.get("filenames", ()):
            if name.endswith((".so", ".dylib")) and "pulsar_spark" in Path(name).name:
                return Path(name)
    raise KernelMissing("cargo made no shared library")


def platform_tag() -> str:
    """Return the platform of a wheel with the kernel."""
    if sys.platform == "darwin":
        machine = platform.machine()
        system = os.environ.get("MACOSX_DEPLOYMENT_TARGET", _MACOS.get(machine, "11.0"))
        return f"macosx_{system.replace('.', '_')}_{machine}"
    return sysconfig.get_platform().replace("-", "_").replace(".", "_")
