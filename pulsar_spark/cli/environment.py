"""Versions on this side, which a bug report should start with."""

from __future__ import annotations

import os
import platform
import shutil
import socket
import subprocess
from functools import cache
from importlib.metadata import PackageNotFoundError, version

from pulsar_spark import __version__
from pulsar_spark.protocol.implementation import description

_PACKAGES = ("pyspark", "pyarrow", "protobuf")
_JAVA_SECONDS = 20.0


def environment(*, with_java: bool = True) -> dict[str, str]:
    """Return this process's versions; runs Java to ask for its version."""
    from pulsar_spark.engine.codecs import available_codecs

    found = {
        "host": socket.gethostname(),
        "pulsar_spark": __version__,
        "implementation": description(),
        "python": platform.python_version(),
    }
    found.update((package, package_version(package)) for package in _PACKAGES)
    if with_java:
        found["java"] = _java_version()
    found["codecs"] = ", ".join(available_codecs())
    return found


def package_version(package: str) -> str:
    """Return an installed package's version, or that it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


@cache
def _java_version() -> str:
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java")
    if java is None:
        return "not found"
    try:
        # Java prints it to stderr.
        done = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=_JAVA_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{java} cannot be run ({type(error).__name__})"
    return (done.stderr or done.stdout).strip().partition("\n")[0]
