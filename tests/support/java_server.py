"""JVMs that run parts of Pulsar for the tests: small, fast to start, stopped by their own pid.

They listen on loopback only, on their own ports, in their own folders. Nothing is left of them when
they are closed, or when the tests are killed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tests.support.pulsar_distribution import BrokerUnavailable, Distribution

START_SECONDS = 90.0
STOP_SECONDS = 30.0

# Both ends of a connection are on this machine. An outgoing connection can take a port from the
# system's range for them, even the connection of a client to a stopped broker on that port.
# Embedded brokers of other tests use the ports from 20000 on.
_PORTS = range(10000, 20000)

_JVM_FLAGS = (
    "-Xms64m",
    "-Xmx256m",
    "-XX:MaxDirectMemorySize=256m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "--add-opens=java.base/java.io=ALL-UNNAMED",
    "--add-opens=java.base/java.util.zip=ALL-UNNAMED",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/jdk.internal.misc=ALL-UNNAMED",
    "--add-opens=java.base/jdk.internal.platform=ALL-UNNAMED",
    "--add-opens=java.management/sun.management=ALL-UNNAMED",
    "--add-opens=jdk.management/com.sun.management.internal=ALL-UNNAMED",
    "-Djava.net.preferIPv4Stack=true",
    "-Dio.netty.tryReflectionSetAccessible=true",
    "-Dlog4j.shutdownHookEnabled=false",
    "-Dlog4j2.is.webapp=false",
    "-Dbookkeeper.metadata.bookie.drivers="
    "org.apache.pulsar.metadata.bookkeeper.PulsarMetadataBookieDriver",
    "-Dbookkeeper.metadata.client.drivers="
    "org.apache.pulsar.metadata.bookkeeper.PulsarMetadataClientDriver",
)

_LOG4J = """\
appender.file.type=File
appender.file.name=file
appender.file.fileName={folder}/server.log
appender.file.immediateFlush=true
appender.file.layout.type=PatternLayout
appender.file.layout.pattern=%d{{HH:mm:ss.SSS}} [%t] %-5level %c{{1.}} - %msg%n
rootLogger.level=info
rootLogger.appenderRef.file.ref=file
"""

_TROUBLE = re.compile(r"\] (WARN|ERROR) ")
_LINE = 300

_FOLDER_PREFIX = "pulsar-spark-broker-"


class WorkingFolder:
    """A temporary folder; `close` removes it.

    If its process was killed, the next one removes it.
    """

    def __init__(self) -> None:
        _remove_abandoned_folders()
        self.path = Path(tempfile.mkdtemp(prefix=_FOLDER_PREFIX))
        self._owner = open(self.path / "owner", "w")  # noqa: SIM115 - held until `close`
        fcntl.flock(self._owner, fcntl.LOCK_EX)

    def close(self) -> None:
        """Remove it with its content."""
        shutil.rmtree(self.path, ignore_errors=True)
        self._owner.close()


class JavaServer:
    """A JVM that runs one main class in `folder`; it can be started again after a stop.

    Changes of its configuration file take effect at the next start.
    """

    def __init__(
        self,
        distribution: Distribution,
        folder: Path,
        main: str,
        arguments: Sequence[str],
        flags: Sequence[str] = (),
    ) -> None:
        """`flags` are the JVM's, in addition to those that make it small and fast to start."""
        folder.mkdir(exist_ok=True)
        self.folder = folder
        self.archive_flag = f"-XX:SharedArchiveFile={distribution.archive}"
        self.log = folder / "server.log"
        self._distribution = distribution
        self._command = [main, *arguments]
        self._flags = flags
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def running(self) -> bool:
        """Whether it was started, was not stopped, and did not end by itself."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """Its process id. Raises RuntimeError while it does not run."""
        if self._process is None:
            raise RuntimeError("the server does not run")
        return self._process.pid

    def write_conf(self, name: str, settings: Mapping[str, object]) -> Path:
        """Write a file of settings into the folder and return its path."""
        path = self.folder / name
        path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        return path

    def launch(self, *arguments: str) -> None:
        """Start the JVM, with further arguments, and do not wait for it."""
        if self.running:
            raise RuntimeError("the server runs already")
        log4j = self.folder / "log4j2.properties"
        log4j.write_text(_LOG4J.format(folder=self.folder))
        command = [
            *_parent_death_signal(),
            self._distribution.java,
            *_JVM_FLAGS,
            *self._flags,
            self.archive_flag,
            f"-Dlog4j.configurationFile={log4j}",
            # Native libraries are unpacked there, and a kill leaves them behind.
            f"-Djava.io.tmpdir={self.folder}",
            "-cp",
            f"{self._distribution.lib}/*",
            *self._command,
            *arguments,
        ]
        environment = {k: v for k, v in os.environ.items() if not k.startswith("PULSAR_")}
        with open(self.folder / "console.log", "ab") as console:
            self._process = subprocess.Popen(
                command,
                cwd=self.folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=subprocess.STDOUT,
            )

    def wait_until(self, ready: Callable[[], bool], seconds: float = START_SECONDS) -> None:
        """Wait until `ready`, whose OSErrors count as a no. Raises BrokerUnavailable."""
        assert self._process is not None
        deadline = time.monotonic() + seconds
        while True:
            if self._process.poll() is not None:
                raise BrokerUnavailable(f"the server ended by itself:\n{self.log_tail()}")
            with contextlib.suppress(OSError):
                if ready():
                    return
            if time.monotonic() > deadline:
                raise BrokerUnavailable(
                    f"the server was not ready in {seconds:.0f} s:\n{self.log_tail()}"
                )
            time.sleep(0.05)

    def run_to_its_end(self, seconds: float = START_SECONDS) -> None:
        """Start it and wait for it to end by itself. Raises BrokerUnavailable if it fails."""
        self.launch()
        assert self._process is not None
        try:
            status = self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            status = -1
        finally:
            self.kill()
        if status:
            raise BrokerUnavailable(f"{self._command[0]} failed:\n{self.log_tail()}")

    def stop(self) -> None:
        """Shut it down cleanly."""
        if self._process is None:
            return
        self._process.terminate()
        # A frozen process does not end before it is resumed.
        self._process.send_signal(signal.SIGCONT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_SECONDS)
        self.kill()

    def kill(self) -> None:
        """Kill it."""
        if self._process is None:
            return
        self._process.kill()
        self._process.wait(STOP_SECONDS)
        self._process = None

    def pause(self) -> None:
        """Freeze the process: connections stay open, nothing answers."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Resume a frozen process. Raises RuntimeError if it ended by itself."""
        if not self.running:
            raise RuntimeError(f"the server ended by itself:\n{self.log_tail()}")
        os.kill(self.pid, signal.SIGCONT)

    def log_tail(self, lines: int = 15) -> str:
        """Return the end of its output, for error messages."""
        text = ""
        for path in (self.log, self.folder / "console.log"):
            if path.exists():
                text += "".join(path.read_text("utf-8", "replace").splitlines(True)[-lines:])
        return text

    def troubles(self, lines: int = 12) -> str:
        """Return the last warnings and errors of its log, a line each."""
        if not self.log.exists():
            return ""
        with open(self.log, encoding="utf-8", errors="replace") as log:
            found = deque((line for line in log if _TROUBLE.search(line)), maxlen=lines)
        return "".join(f"{line.rstrip()[:_LINE]}\n" for line in found)


def free_ports(count: int) -> list[int]:
    """Return free ports of 127.0.0.1 that no outgoing connection will get."""
    ports: list[int] = []
    for port in random.SystemRandom().sample(_PORTS, 200):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        ports.append(port)
        if len(ports) == count:
            return ports
    raise BrokerUnavailable("there are no free ports")


def _remove_abandoned_folders() -> None:
    """Remove working folders of killed tests: nobody holds the lock of their `owner` file."""
    for owner in Path(tempfile.gettempdir()).glob(f"{_FOLDER_PREFIX}*/owner"):
        with contextlib.suppress(OSError), open(owner) as file:
            # A new one may not be locked yet.
            if time.time() - os.fstat(file.fileno()).st_mtime > 60:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(owner.parent, ignore_errors=True)


def _parent_death_signal() -> list[str]:
    """Have the system kill the server when the tests are killed, if it can.

    To the system, the parent is the thread that starts the process. Only the main thread is sure
    to live as long as the tests.
    """
    setpriv = shutil.which("setpriv")
    if setpriv is None or threading.current_thread() is not threading.main_thread():
        return []
    return [setpriv, "--pdeathsig", "TERM"]
