"""Gets Pulsar's server once, and keeps what tests need of it in a cache folder.

Maven fetches the distribution; only its lib/ is kept. If a version's distribution is not published
as an archive, Maven collects the same jars as the broker's dependencies. A class data archive, made
by one throw-away run, nearly halves the time of every later start. The folder can be kept between
runs of continuous integration; any number of processes may use it at once.
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

import pytest

VERSION = os.environ.get("PULSAR_SPARK_TEST_PULSAR") or "4.0.8"
"""The version of Pulsar that the tests run with."""

as_embedded = pytest.mark.skipif(
    VERSION != "4.0.8", reason="the embedded broker answers as Pulsar 4.0 does"
)
"""For tests whose real and embedded broker give the same to the letter."""

OLDEST_JAVA = 17

# Versions that Maven assembles, with the logging bridge that their jars call.
_ASSEMBLED = {"3.0.7": "log4j-slf4j-impl", "4.2.4": "log4j-slf4j2-impl"}
_FETCH_SECONDS = 1200.0

# Without importing the parent's versions, Maven tries each dependency's for minutes.
_POM = """\
<project>
  <modelVersion>4.0.0</modelVersion>
  <groupId>tests</groupId>
  <artifactId>broker</artifactId>
  <version>1</version>
  <packaging>pom</packaging>
  <dependencyManagement>
    <dependencies>
      <dependency>
        <groupId>org.apache.pulsar</groupId>
        <artifactId>pulsar</artifactId>
        <version>{version}</version>
        <type>pom</type>
        <scope>import</scope>
      </dependency>
    </dependencies>
  </dependencyManagement>
  <dependencies>
    <dependency>
      <groupId>org.apache.pulsar</groupId>
      <artifactId>pulsar-broker</artifactId>
      <version>{version}</version>
    </dependency>
    <dependency>
      <groupId>org.apache.logging.log4j</groupId>
      <artifactId>log4j-core</artifactId>
    </dependency>
    <dependency>
      <groupId>org.apache.logging.log4j</groupId>
      <artifactId>{bridge}</artifactId>
    </dependency>
  </dependencies>
</project>
"""

# Other repositories named in poms answer slowly or not at all. Users' own settings are kept.
_SETTINGS = """\
<settings>
  <mirrors>
    <mirror>
      <id>central-alone</id>
      <mirrorOf>*</mirrorOf>
      <url>https://repo.maven.apache.org/maven2</url>
    </mirror>
  </mirrors>
</settings>
"""
_JAVA_VERSION = re.compile(r'version "(\d+)')


class BrokerUnavailable(Exception):
    """No real broker is available on this machine; the text says why."""


@dataclass(frozen=True)
class Distribution:
    """What starting a broker needs: the JVM, the jars, and the archive that speeds it up."""

    java: str
    lib: Path
    archive: Path


def cache_folder() -> Path:
    """Return the folder named by PULSAR_SPARK_TEST_CACHE, or the default one."""
    named = os.environ.get("PULSAR_SPARK_TEST_CACHE")
    return Path(named) if named else Path.home() / ".cache" / "pulsar-spark-tests"


def obtain() -> Distribution:
    """Return the distribution; fetch it if it is not in the cache yet.

    The archive may not exist yet; see `archive_lock`. Raises BrokerUnavailable.
    """
    java = _find_java()
    folder = cache_folder() / f"pulsar-{VERSION}"
    lib = folder / "lib"
    if not lib.is_dir():
        with lock(folder, _FETCH_SECONDS):
            if not lib.is_dir():
                _fetch(lib)
    # Java ignores the archive of another JVM, so each JVM has its own.
    stamp = f"{java}:{os.stat(java).st_mtime_ns}:{os.stat(lib).st_mtime_ns}"
    name = hashlib.sha256(stamp.encode()).hexdigest()[:12]
    return Distribution(java, lib, folder / f"{name}.jsa")


@contextmanager
def lock(folder: Path, seconds: float) -> Iterator[None]:
    """Lock `folder` against other processes. Raises BrokerUnavailable after `seconds`."""
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
    """Let Maven copy an artifact (`group:name:version:type`) into a folder.

    Raises BrokerUnavailable with the reason.
    """
    goal = ["dependency:copy", f"-Dartifact={artifact}", f"-DoutputDirectory={folder}"]
    _run_maven(artifact, goal, folder)


def _run_maven(what: str, arguments: list[str], folder: Path) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise BrokerUnavailable(f"there is no mvn to fetch {what} with")
    try:
        result = subprocess.run(
            [maven, "-B", "-q", *arguments],
            cwd=folder,
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
        raise BrokerUnavailable(f"mvn could not fetch {what}: {result.stdout[-500:]}")


def _fetch(lib: Path) -> None:
    """Create `lib`, completely or not at all."""
    with tempfile.TemporaryDirectory(dir=lib.parent, prefix="fetch-") as name:
        folder = Path(name)
        if VERSION in _ASSEMBLED:
            _assemble_lib(folder)
        else:
            artifact = f"org.apache.pulsar:pulsar-server-distribution:{VERSION}:tar.gz:bin"
            copy_artifact(artifact, folder)
            (tarball,) = folder.glob("*.tar.gz")
            _unpack_lib(tarball, folder / "lib")
        os.rename(folder / "lib", lib)


def _assemble_lib(folder: Path) -> None:
    """Let Maven fill lib/ in `folder` with the broker and its dependencies."""
    pom = _POM.format(version=VERSION, bridge=_ASSEMBLED[VERSION])
    (folder / "pom.xml").write_text(pom)
    goal = ["dependency:copy-dependencies", "-DincludeScope=runtime"]
    if not (Path.home() / ".m2" / "settings.xml").exists():
        (folder / "settings.xml").write_text(_SETTINGS)
        goal = ["-s", "settings.xml", *goal]
    _run_maven(f"Pulsar {VERSION}", [*goal, f"-DoutputDirectory={folder / 'lib'}"], folder)


def _unpack_lib(tarball: Path, target: Path) -> None:
    """Write the jars of the distribution's lib/ to `target`; the rest is not needed."""
    target.mkdir()
    with tarfile.open(tarball) as archive:
        for member in archive:
            parts = member.name.split("/")
            if len(parts) == 3 and parts[1] == "lib" and member.isfile():
                source = archive.extractfile(member)
                assert source is not None
                with source, open(target / parts[2], "wb") as file:
                    shutil.copyfileobj(source, file, 1 << 20)
