"""Run tests with several versions of Spark and of Pulsar.

``python -m tools.matrix`` runs all of both, ``python -m tools.matrix 4.0 4.3`` some versions of
Spark, ``python -m tools.matrix oldest`` the oldest one available here, and ``python -m tools.matrix
--pulsar 3.0.7`` some of Pulsar.

Versions of Spark run the smoke tests, and those of SQL, pipelines, Connect, and of Delta Lake and
Iceberg, which have no jars for the newest Spark. Each has an environment in .venv-matrix, made by
uv if it is installed, and kept. Versions of Pulsar run the integration tests on a real broker, with
this interpreter; their servers are in the tests' cache. Unavailable versions are reported and left
out. It is only a failure if nothing could be run and CI is true.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ENVIRONMENTS = ROOT / ".venv-matrix"
TESTS = tuple(
    f"tests/integration/test_{name}.py"
    for name in ("matrix_smoke", "sql", "sql_page", "pipelines", "connect", "lakehouse")
)
TEST_TOOLS = (
    "pytest>=9.0.3",
    "pytest-timeout>=2.3",
    "hypothesis>=6.100",
    "pyyaml>=6.0",
    "trustme>=1.1",
)

# In addition to the one that `make test` uses.
PULSARS = ("3.0.7", "3.3.6", "4.2.4")
PULSAR_TESTS = ("tests/integration", "-m", "real_broker and not slow")
PULSAR_VARIABLE = "PULSAR_SPARK_TEST_PULSAR"

# If they are available: the oldest Spark runs with the oldest supported Python, newer ones with
# those that `make test` does not have.
PYTHONS = {"4.0": "3.10", "4.1": "3.12", "4.2": "3.13", "4.3": "3.14"}
SPARKS = ("4.0", "4.1", "4.2", "4.3")

PASSED = "passed"
FAILED = "FAILED"

_INSTALL_SECONDS = 1800
_TEST_SECONDS = 1800
_PULSAR_TEST_SECONDS = 5400


class Unavailable(Exception):
    """A Python or Spark version is not available here."""


@dataclass(frozen=True)
class Pair:
    """A version of Spark, and of Python; None for this interpreter's."""

    spark: str
    python: str | None

    def __str__(self) -> str:
        version = self.python or ".".join(map(str, sys.version_info[:2]))
        return f"Spark {self.spark} with Python {version}"

    @property
    def folder(self) -> Path:
        """The folder of its environment."""
        return ENVIRONMENTS / f"spark-{self.spark}"


def find_python(version: str | None) -> str:
    """Return an interpreter of a version, such as ``3.10``. Raises Unavailable."""
    candidates = [[sys.executable]] if version is None else [[f"python{version}"]]
    if version is not None and shutil.which("uv"):
        candidates += _listed(["uv", "python", "find", version])
    if version is not None and shutil.which("pyenv"):
        candidates += [[found] for found in _pyenv_pythons(version)]
    for candidate in candidates:
        try:
            answer = _output([*candidate, "-c", "import sys; print(*sys.version_info[:2])"])
        except (OSError, subprocess.SubprocessError):
            # pyenv puts this name on the path even for versions that are not active.
            continue
        if version is None or answer.split() == version.split("."):
            return candidate[0]
    raise Unavailable(f"there is no Python {version}")


def _listed(command: list[str]) -> list[list[str]]:
    try:
        return [[line] for line in _output(command).splitlines()]
    except (OSError, subprocess.SubprocessError):
        return []


def _pyenv_pythons(version: str) -> list[str]:
    found = _listed(["pyenv", "root"])
    folders = Path(found[0][0], "versions").glob(f"{version}.*") if found else ()
    return [str(folder / "bin" / "python") for folder in folders]


def _output(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    return done.stdout.strip()


def prepare(pair: Pair) -> Path:
    """Return the interpreter of a pair's environment, created if missing. Raises Unavailable."""
    python = pair.folder / "bin" / "python"
    wanted = _digest(pair)
    ready = pair.folder / ".ready"
    if ready.exists() and ready.read_text() == wanted:
        return python
    interpreter = find_python(pair.python)
    errors: list[str] = []
    for commands in _ways(pair, interpreter, python):
        shutil.rmtree(pair.folder, ignore_errors=True)
        try:
            for command in commands:
                subprocess.run(command, check=True, timeout=_INSTALL_SECONDS)
            break
        except (OSError, subprocess.SubprocessError) as error:
            errors.append(str(error))
    else:
        raise Unavailable(f"it cannot be installed: {'; '.join(errors)}")
    ready.write_text(wanted)
    return python


def _digest(pair: Pair) -> str:
    """Return a digest that shows whether an environment is up to date."""
    packages = "\n".join([*_packages(pair), ""])
    project = (ROOT / "pyproject.toml").read_bytes()
    return hashlib.sha256(packages.encode() + project).hexdigest()


def _packages(pair: Pair) -> list[str]:
    return [f"pyspark=={pair.spark}.*", *TEST_TOOLS, "-e", f"{ROOT}[all]"]


def _ways(pair: Pair, interpreter: str, python: Path) -> list[list[list[str]]]:
    """Return the commands that create an environment, with uv if installed."""
    packages = _packages(pair)
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    plain = [[interpreter, "-m", "venv", str(pair.folder)], [*pip, *packages]]
    if shutil.which("uv") is None:
        return [plain]
    by_uv = [
        ["uv", "venv", "--quiet", "--python", interpreter, str(pair.folder)],
        ["uv", "pip", "install", "--quiet", "--python", str(python), *packages],
    ]
    return [by_uv, plain]


def test(pair: Pair, python: Path, further: list[str]) -> bool:
    """Run the tests; returns whether all passed."""
    # Variables such as SPARK_HOME would select another Spark.
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYSPARK")}
    environment.pop("SPARK_HOME", None)
    command = [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", "-rs", *TESTS]
    command += ["-m", "not slow"]
    # Old versions of PySpark leave their own sockets to the garbage collector.
    command += ["-W", "ignore::pytest.PytestUnraisableExceptionWarning", *further]
    print(f"{pair}:", flush=True)
    done = subprocess.run(command, cwd=ROOT, env=environment, timeout=_TEST_SECONDS, check=False)
    return done.returncode == 0


def choose(spark: str) -> Pair:
    """Return the pair for a version of Spark."""
    wanted = PYTHONS.get(spark)
    if wanted is not None:
        try:
            find_python(wanted)
        except Unavailable as error:
            print(f"Spark {spark} is run with another Python than {wanted}: {error}", flush=True)
            wanted = None
    return Pair(spark, wanted)


def run(sparks: list[str], further: list[str], *, only_first: bool) -> dict[Pair, str]:
    """Run the tests with each version, or the first available one; returns outcomes."""
    outcomes: dict[Pair, str] = {}
    for spark in sparks:
        pair = choose(spark)
        try:
            python = prepare(pair)
        except Unavailable as error:
            outcomes[pair] = f"left out: {error}"
            continue
        outcomes[pair] = PASSED if test(pair, python, further) else FAILED
        if only_first:
            break
    return outcomes


def obtain_pulsar(version: str) -> None:
    """Download a version's server to the tests' cache. Raises Unavailable."""
    script = "from tests.support.real_broker import prepare; prepare()"
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        env=os.environ | {PULSAR_VARIABLE: version},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        timeout=_INSTALL_SECONDS,
        check=False,
    )
    if done.returncode:
        raise Unavailable(" ".join(done.stderr.split("BrokerUnavailable:")[-1].split())[-500:])


def test_pulsar(version: str, further: list[str]) -> bool:
    """Run the integration tests on a version's server; returns whether all passed."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-rs"]
    print(f"Pulsar {version}:", flush=True)
    done = subprocess.run(
        [*command, *PULSAR_TESTS, *further],
        cwd=ROOT,
        env=os.environ | {PULSAR_VARIABLE: version},
        timeout=_PULSAR_TEST_SECONDS,
        check=False,
    )
    return done.returncode == 0


def run_pulsars(versions: list[str], further: list[str]) -> dict[str, str]:
    """Run the tests on each available server version; returns outcomes."""
    outcomes: dict[str, str] = {}
    for version in versions:
        try:
            obtain_pulsar(version)
        except Unavailable as error:
            outcomes[f"Pulsar {version}"] = f"left out: {error}"
            continue
        outcomes[f"Pulsar {version}"] = PASSED if test_pulsar(version, further) else FAILED
    return outcomes


def main() -> int:
    """Run what the command line names; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tools.matrix", description=__doc__)
    parser.add_argument("spark", nargs="*", help="versions of Spark, or oldest; default: all")
    parser.add_argument("--pulsar", nargs="+", help="versions of Pulsar; default: all")
    arguments, further = parser.parse_known_args()
    chosen = bool(arguments.spark or arguments.pulsar)
    oldest = arguments.spark == ["oldest"]
    sparks = list(SPARKS) if oldest or not chosen else arguments.spark
    pulsars = arguments.pulsar or ([] if chosen else list(PULSARS))
    outcomes = {
        str(pair): outcome for pair, outcome in run(sparks, further, only_first=oldest).items()
    }
    outcomes |= run_pulsars(pulsars, further)
    for name, outcome in outcomes.items():
        print(f"{name}: {outcome}")
    if FAILED in outcomes.values():
        return 1
    return int(os.environ.get("CI") == "true" and PASSED not in outcomes.values())


if __name__ == "__main__":
    sys.exit(main())
