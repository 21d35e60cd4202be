"""Get Pulsar's own server, once, and keep what tests need of it in a cache folder.

Maven fetches the distribution; only its lib/ is kept. A class data archive beside it, made by one
throw-away run, nearly halves the time that every later start takes. The folder can be kept
between runs of continuous integration; any number of processes may use it at once.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

VERSION = "4.0.8"
OLDEST_JAVA = 17

_ARTIFACT = f"org.apache.pulsar:pulsar-server-distribution:{VERSION}:tar.gz:bin"
_FETCH_SECONDS = 1200.0
_JAVA_VERSION = re.compile(r'version "(\d+)')


class BrokerUnavailable(Exception):
    """A real broker cannot be had on this machine; the text says why."""


@dataclass(frozen=True)
class Distribution:
    """What it takes to start a broker: the JVM, the jars, and the archive that speeds it up."""

    java: str
    lib: Path
    archive: Path


def cache_folder() -> Path:
    """Return the folder named by PULSAR_SPARK_TEST_CACHE, or the default one."""
    named = os.environ.get("PULSAR_SPARK_TEST_CACHE")
    return Path(named) if named else Path.home() / ".cache" / "pulsar-spark-tests"


def obtain() -> Distribution:
    """Return the distribution, fetched first if it is not in the cache yet.

    The archive may not exist yet; see `archive_lock`. Raises BrokerUnavailable.
    """
    java = _find_java()
    folder = cache_folder() / f"pulsar-{VERSION}"
    lib = folder / "lib"
    if not lib.is_dir():
        with lock(folder, _FETCH_SECONDS):
            if not lib.is_dir():
                _fetch(lib)
    # Java refuses (and ignores) the archive of another JVM, so each has its own.
    stamp = f"{java}:{os.stat(java).st_mtime_ns}:{os.stat(lib).st_mtime_ns}"
    name = hashlib.sha256(stamp.encode()).hexdigest()[:12]
    return Distribution(java, lib, folder / f"{name}.jsa")


@contextmanager
def lock(folder: Path, seconds: float) -> Iterator[None]:
    """Hold `folder` against other processes. Raises BrokerUnavailable after `seconds`."""
    folder.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + seconds
    with open(folder / "lock", "w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise BrokerUnavailable(
                        f"another process has held {folder} for {seconds:.0f} s"
                    ) from None
                time.sleep(0.2)
        yield


def _find_java() -> str:
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=f"{home}/bin") if home else shutil.which("java")
    if found is None:
        raise BrokerUnavailable("there is no java (JAVA_HOME and PATH were searched)")
    java = os.path.realpath(found)
    try:
        version = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=30, check=False
        ).stderr
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BrokerUnavailable(f"{java} does not run: {error}") from None
    match = _JAVA_VERSION.search(version)
    if match is None or int(match[1]) < OLDEST_JAVA:
        raise BrokerUnavailable(f"{java} is not Java {OLDEST_JAVA} or later")
    return java


def copy_artifact(artifact: str, folder: Path) -> None:
    """Let Maven put an artifact, as in `group:name:version:type`, into a folder.

    Raises BrokerUnavailable, which says why it cannot be had.
    """
    maven = shutil.which("mvn")
    if maven is None:
        raise BrokerUnavailable(f"there is no mvn to fetch {artifact} with")
    command = [maven, "-B", "-q", "dependency:copy", f"-Dartifact={artifact}"]
    command.append(f"-DoutputDirectory={folder}")
    try:
        result = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_FETCH_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise BrokerUnavailable(f"mvn took more than {_FETCH_SECONDS:.0f} s") from None
    if result.returncode:
        raise BrokerUnavailable(f"mvn could not fetch {artifact}: {result.stdout[-500:]}")


def _fetch(lib: Path) -> None:
    """Fill `lib`, which appears whole or not at all."""
    with tempfile.TemporaryDirectory(dir=lib.parent, prefix="fetch-") as folder:
        copy_artifact(_ARTIFACT, Path(folder))
        (tarball,) = Path(folder).glob("*.tar.gz")
        _unpack_lib(tarball, Path(folder, "lib"))
        os.rename(Path(folder, "lib"), lib)


def _unpack_lib(tarball: Path, target: Path) -> None:
    """Write the jars of the distribution's lib/ to `target`; nothing else in it is needed."""
    target.mkdir()
    with tarfile.open(tarball) as archive:
        for member in archive:
            parts = member.name.split("/")
            if len(parts) == 3 and parts[1] == "lib" and member.isfile():
                source = archive.extractfile(member)
                assert source is not None
                with source, open(target / parts[2], "wb") as file:
                    shutil.copyfileobj(source, file, 1 << 20)
