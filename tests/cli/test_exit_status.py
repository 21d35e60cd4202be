"""The exit status and message of each command: the table of docs/command-line.md."""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import pty
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from pulsar_spark.cli import main as cli
from pulsar_spark.cli.main import Status
from pulsar_spark.testing import EmbeddedBroker
from tests.integration.pages import DOCS
from tests.spark.topics import store

SECONDS = 60.0
ON_A_TOPIC = "--service-url URL --topic t"
NOWHERE = "--service-url pulsar://127.0.0.1:1 --option pulsar.client.operationTimeoutMs=300"

# Command line (URL is a broker with a topic t), exit status, and a word of its output.
TABLE = [
    ("--version", Status.DONE, "pulsar_spark"),
    ("--help", Status.DONE, "commands:"),
    ("peek --help", Status.DONE, "--follow"),
    (f"doctor {ON_A_TOPIC}", Status.DONE, "transactions"),
    ("topics --service-url URL", Status.DONE, "persistent://public/default/t"),
    (f"peek {ON_A_TOPIC}", Status.DONE, "hello"),
    (f"subscriptions {ON_A_TOPIC} --subscription s", Status.DONE, "does not exist"),
    (f"sink {ON_A_TOPIC}", Status.DONE, "committed"),
    ("sink --service-url URL --list", Status.DONE, "committed"),
    (f"bench {ON_A_TOPIC}", Status.DONE, "CPU µs/row"),
    ("schema t --service-url URL", Status.DONE, "value"),
    ("schema missing --service-url URL", Status.FAILED, "does not exist"),
    ("schema --service-url URL", Status.WRONG_USAGE, "--topic TOPIC"),
    ("schema --service-url URL --topic t", Status.DONE, "value"),
    ("schema t --service-url URL --topic t", Status.WRONG_USAGE, "twice"),
    ("send --service-url URL --topic t --message x", Status.DONE, "1 message sent"),
    ("send t --service-url URL --message x", Status.DONE, "1 message sent"),
    ("send missing --service-url URL --message x", Status.FAILED, "--create"),
    ("send t hello --service-url URL", Status.WRONG_USAGE, "did you mean --message hello?"),
    ("send t h --service-url URL", Status.WRONG_USAGE, "did you mean --message h?"),
    ("send --topic t canary --service-url URL", Status.WRONG_USAGE, "as --message TEXT, or"),
    (
        "send t --service-url URL --property x",
        Status.WRONG_USAGE,
        "a property is written KEY=VALUE",
    ),
    (
        "send t --service-url URL --message x --property a=b --property a=b",
        Status.WRONG_USAGE,
        "a property is given twice",
    ),
    ("send a/b --service-url URL --message x", Status.WRONG_USAGE, "error:"),
    ("lag --service-url URL", Status.WRONG_USAGE, "--checkpoint"),
    ("lag --service-url URL --checkpoint /nowhere", Status.WRONG_USAGE, "/nowhere"),
    ("lag --service-url URL --checkpoint . --interval 0", Status.WRONG_USAGE, "--interval"),
    (f"demo {NOWHERE}", Status.FAILED, "refused"),
    (f"schema t {NOWHERE}", Status.FAILED, "refused"),
    (f"send t {NOWHERE} --message x", Status.FAILED, "refused"),
    (f"bench {NOWHERE} --topic t", Status.FAILED, "error: "),
    ("bench --service-url URL --topic missing --write", Status.FAILED, "--create"),
    (f"bench {ON_A_TOPIC} --write", Status.WRONG_USAGE, "only bench writes to"),
    (f"doctor {NOWHERE} --topic t", Status.FAILED, "What to do:"),
    (f"topics {NOWHERE}", Status.FAILED, "error: "),
    (f"peek {NOWHERE} --topic t", Status.FAILED, "error: "),
    (f"subscriptions {NOWHERE} --topic t --subscription s", Status.FAILED, "error: "),
    (f"sink {NOWHERE} --topic t", Status.FAILED, "error: "),
    ("topics --service-url URL --topic missing", Status.FAILED, "does not exist"),
    ("peek --service-url URL --topic missing", Status.FAILED, "does not exist"),
    (f"subscriptions {ON_A_TOPIC} --subscription s --drop", Status.FAILED, "does not exist"),
    *(
        (
            f"{command} --token-file /no/such/file",
            Status.WRONG_USAGE,
            "the token file /no/such/file cannot be read: No such file or directory. Give",
        )
        for command in (
            f"peek {ON_A_TOPIC}",
            "topics --service-url URL",
            "schema t --service-url URL",
            "send t --service-url URL --message x",
            f"subscriptions {ON_A_TOPIC} --subscription s",
            f"sink {ON_A_TOPIC}",
            f"bench {ON_A_TOPIC}",
            "demo --service-url URL",
        )
    ),
    (
        "topics --service-url URL --option pulsar.client.authPluginClassName=token "
        "--option pulsar.client.authParams=file:///no/such/file",
        Status.WRONG_USAGE,
        "the token file /no/such/file cannot be read",
    ),
    ("topics --service-url URL --token-file /", Status.WRONG_USAGE, "Is a directory"),
    # It examines what others refuse.
    ("doctor --service-url URL --token-file /no/such/file", Status.FAILED, "/no/such/file"),
    ("", Status.WRONG_USAGE, "usage:"),
    ("nonsense", Status.WRONG_USAGE, "usage:"),
    ("peek", Status.WRONG_USAGE, "--service-url"),
    ("peek", Status.WRONG_USAGE, "PULSAR_SERVICE_URL"),
    ("peek --profile /no/such/file", Status.WRONG_USAGE, "/no/such/file cannot be read"),
    (f"peek {ON_A_TOPIC} --count many", Status.WRONG_USAGE, "'many' is not a number"),
    (f"peek {ON_A_TOPIC} --count -1", Status.WRONG_USAGE, "'-1' is not a number"),
    # An argument that is not understood may be a credential.
    (f"peek {ON_A_TOPIC} --token canary", Status.WRONG_USAGE, "arguments: --token; did"),
    (f"peek {ON_A_TOPIC} --token=canary", Status.WRONG_USAGE, "did you mean --token-file?"),
    (f"peek {ON_A_TOPIC} --zzzz canary", Status.WRONG_USAGE, "arguments: --zzzz\n"),
    ("--json", Status.WRONG_USAGE, "unrecognized arguments: --json"),
    (f"peek {ON_A_TOPIC} eyJcanary.canary", Status.WRONG_USAGE, "a word"),
    (f"peek {ON_A_TOPIC} {'canary' * 10}", Status.WRONG_USAGE, "a word"),
    (f"peek {ON_A_TOPIC} --topics canary", Status.WRONG_USAGE, "did you mean --topic?"),
    ("peek --service-url URL orders", Status.WRONG_USAGE, "did you mean --topic orders?"),
    ("topics --service-url URL orders", Status.WRONG_USAGE, "did you mean --topic orders?"),
    ("topics --service-url URL etl/raw", Status.WRONG_USAGE, "did you mean --namespace etl/raw?"),
    ("peek --service-url URL etl/raw", Status.WRONG_USAGE, "'etl/raw' belongs to no argument\n"),
    (f"peek {ON_A_TOPIC} follow", Status.WRONG_USAGE, "'follow' belongs to no argument; did you"),
    (f"peek {ON_A_TOPIC} follow", Status.WRONG_USAGE, "did you mean --follow?"),
    *(
        (f"peek --service-url URL {word}", Status.WRONG_USAGE, f"did you mean --topic {word}?")
        for word in ("plain", "logs", "json-topic", "option1")
    ),
    (f"peek {ON_A_TOPIC} --limit 3", Status.WRONG_USAGE, "did you mean --count?"),
    (f"peek {ON_A_TOPIC} --from x", Status.WRONG_USAGE, "did you mean --first?"),
    ("send t --from x", Status.WRONG_USAGE, "unrecognized arguments: --from\n"),
    ("schema t --version 3", Status.WRONG_USAGE, "unrecognized arguments: --version\n"),
    ("lag --checkpoint c --subscription s", Status.WRONG_USAGE, "arguments: --subscription\n"),
    ("--service-url URL topics", Status.WRONG_USAGE, "write --service-url after the command"),
    ("--service-url=URL topics", Status.WRONG_USAGE, "write --service-url after the command"),
    ("schema --topic a --topic b", Status.WRONG_USAGE, "--topic: give it once"),
    ("peek --count 10 --count=10 --topic t", Status.WRONG_USAGE, "--count: give it once"),
    ("topics --service-url URL --namespace a/b", Status.DONE, "a/b has no topics"),
    ("topics --service-url URL --namespace a/b --require", Status.FAILED, "a/b has no topics"),
    ("topics --service-url URL --pattern zz.* --require", Status.FAILED, "topic that matches"),
    ("topics --service-url URL --require", Status.DONE, "persistent://public/default/t"),
    ("peek --service-url pulsar://me:canary@h --topic t", Status.WRONG_USAGE, "service.url"),
    (f"peek {ON_A_TOPIC} --option canary", Status.WRONG_USAGE, "KEY=VALUE"),
    (f"peek {ON_A_TOPIC} --option authParams=canary", Status.WRONG_USAGE, "authParams"),
    (f"peek {ON_A_TOPIC} --option nonsense", Status.WRONG_USAGE, "KEY=VALUE"),
    (f"peek {ON_A_TOPIC} --option nonsense=1", Status.WRONG_USAGE, "error:"),
    ("peek --service-url URL --topic a/b", Status.WRONG_USAGE, "error:"),
    ("peek --service-url kafka://host --topic t", Status.WRONG_USAGE, "pulsar://"),
    ("topics --service-url URL --namespace default", Status.WRONG_USAGE, "--namespace"),
    # Only the admin REST knows all names.
    (
        f"subscriptions {ON_A_TOPIC}",
        Status.WRONG_USAGE,
        "--subscription NAME, --checkpoint FOLDER, or",
    ),
    (f"subscriptions {ON_A_TOPIC}", Status.WRONG_USAGE, "--admin-url"),
    (f"subscriptions {ON_A_TOPIC} --drop", Status.WRONG_USAGE, "no subscription is named"),
    (f"doctor {ON_A_TOPIC} --master local", Status.WRONG_USAGE, "--executors"),
    ("sink --service-url URL --finish orders", Status.WRONG_USAGE, "--topic"),
    ("bench --service-url URL", Status.WRONG_USAGE, "no topic is given"),
    (f"bench {ON_A_TOPIC} --create", Status.WRONG_USAGE, "--create is for --write"),
    (f"bench {ON_A_TOPIC} --size=0", Status.WRONG_USAGE, "'0' is not a number"),
    (f"bench {ON_A_TOPIC} --size=9", Status.WRONG_USAGE, "--size is for --write"),
    ("doctor", Status.WRONG_USAGE, "no cluster is given"),
    ("doctor --service-url localhost:6650", Status.WRONG_USAGE, "Write pulsar://host:6650"),
    ("doctor --service-url URL --option no-pair", Status.WRONG_USAGE, "KEY=VALUE"),
    ("doctor --service-url URL --option tpoic=orders", Status.WRONG_USAGE, "mean 'topic'?"),
    ("doctor --service-url URL --option topic=a --topic b", Status.WRONG_USAGE, "given twice"),
    ("doctor --service-url URL --topic a/b", Status.WRONG_USAGE, "'a/b' is not a topic name"),
    ("doctor --service-url URL --option topicsPattern=a.*", Status.WRONG_USAGE, "no topicsPattern"),
    ("doctor --service-url URL --token canary", Status.WRONG_USAGE, "did you mean --token-file?"),
    ("doctor --service-url URL --tasks 3", Status.WRONG_USAGE, "are for --executors"),
    ("doctor --service-url URL --admin-url pulsar://h", Status.WRONG_USAGE, "http://host:8080"),
    ("doctor --service-url URL --executors --tasks 0", Status.WRONG_USAGE, "'0' is not a number"),
    ("peek --service-url URL", Status.WRONG_USAGE, "no topic is given"),
    (f"peek {ON_A_TOPIC} --first --follow", Status.WRONG_USAGE, "not allowed with"),
    ("subscriptions --service-url URL", Status.WRONG_USAGE, "no subscription is named"),
    ("subscriptions --service-url URL --subscription s", Status.WRONG_USAGE, "Give --topic TOPIC"),
    (
        f"subscriptions {ON_A_TOPIC} --admin-url http://localhost --drop",
        Status.WRONG_USAGE,
        "no subscription is named",
    ),
    (
        f"subscriptions {ON_A_TOPIC} --subscription s --checkpoint /data",
        Status.WRONG_USAGE,
        "cannot be used together",
    ),
    (
        "subscriptions --service-url URL --checkpoint /nowhere",
        Status.WRONG_USAGE,
        "the folder of checkpointLocation",
    ),
    ("subscriptions --service-url URL --checkpoint s3://b/f", Status.WRONG_USAGE, "or name the"),
    ("topics --service-url URL --topic a --pattern b", Status.WRONG_USAGE, "used together"),
    ("topics --service-url URL --pattern (", Status.WRONG_USAGE, "not a regular expression"),
    (
        "topics --service-url URL --pattern a --option topicsPattern=b",
        Status.WRONG_USAGE,
        "Leave --pattern out",
    ),
    # A broker connects to no cluster.
    ("broker --service-url pulsar://canary", Status.WRONG_USAGE, "runs a broker of its own"),
    ("broker --option authParams=canary", Status.WRONG_USAGE, "runs a broker of its own"),
    ("broker --profile canary", Status.WRONG_USAGE, "runs a broker of its own"),
    ("broker --token-file canary", Status.WRONG_USAGE, "runs a broker of its own"),
    ("broker --port 65536", Status.WRONG_USAGE, "65,535"),
    ("broker --port 0 --topic a/b", Status.WRONG_USAGE, "error:"),
    ("demo --rows 0", Status.WRONG_USAGE, "--rows"),
    ("--completion powershell", Status.WRONG_USAGE, "usage:"),
]


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as running:
        running.create_topic("t")
        store(running, "t", [b"hello"] * 100)
        yield running


@pytest.fixture(autouse=True)
def keep_signals() -> Iterator[None]:
    """The command `broker` installs its own handlers."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_the_page_tells_every_status() -> None:
    page = (DOCS / "command-line.md").read_text("utf-8")
    told = re.findall(r"^\| (\d+) \|", page, re.MULTILINE)
    assert [int(number) for number in told] == sorted(Status)


def test_an_implementation_that_does_not_exist_is_a_wrong_usage() -> None:
    command = [sys.executable, "-m", "pulsar_spark", "--version"]
    environment = {**os.environ, "PULSAR_SPARK_IMPL": "canary"}
    ended = subprocess.run(command, check=False, env=environment, capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (Status.WRONG_USAGE, "")
    assert ended.stderr.startswith("error: PULSAR_SPARK_IMPL is")
    assert ended.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "line, status, told", TABLE, ids=[line.replace("URL", "u") for line, *_ in TABLE]
)
def test_each_command_ends_with_what_the_table_says(
    line: str,
    status: Status,
    told: str,
    broker: EmbeddedBroker,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = [broker.service_url if word == "URL" else word for word in line.split()]
    try:
        ended: object = cli.main(words)
    except SystemExit as exited:
        ended = exited.code or 0
    shown = capsys.readouterr()
    assert ended == status, shown
    assert told in shown.out + shown.err
    if status in (Status.WRONG_USAGE,) or shown.err.startswith("error:"):
        # The output contains nothing else.
        assert shown.out == ""
    assert "Traceback" not in shown.err
    assert "canary" not in shown.err


def _take_interrupts() -> None:
    # A job that a shell runs in the background ignores SIGINT, and so do its children.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def start(*arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "pulsar_spark", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=dict(os.environ),
        preexec_fn=_take_interrupts,  # noqa: PLW1509 (it starts no thread and takes no lock)
    )


def test_ctrl_c_ends_a_command_quietly(broker: EmbeddedBroker) -> None:
    process = start("peek", "--service-url", broker.service_url, "--topic", "t", "--follow")
    try:
        assert process.stdout is not None
        assert b"__publishTime" in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=SECONDS)
    finally:
        process.kill()
    assert (process.returncode, errors) == (Status.INTERRUPTED, b"")


def test_ctrl_c_ends_what_waits_for_a_silent_host_and_gives_the_terminal_its_cursor() -> None:
    pytest.importorskip("rich", reason="rich is not installed")
    ours, theirs = pty.openpty()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"pulsar://127.0.0.1:{silent.getsockname()[1]}"
        process = subprocess.Popen(
            [sys.executable, "-m", "pulsar_spark", "topics", "--service-url", url],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={**os.environ, "TERM": "xterm"},
            preexec_fn=_take_interrupts,  # noqa: PLW1509 (it starts no thread and takes no lock)
        )
        os.close(theirs)
        shown = b""
        try:
            while b"listing topics" not in shown:
                shown += os.read(ours, 4096)
            process.send_signal(signal.SIGINT)
            # At its end a terminal is an error to read from.
            with contextlib.suppress(OSError):
                while piece := os.read(ours, 4096):
                    shown += piece
            assert process.wait(SECONDS) == Status.INTERRUPTED
        finally:
            process.kill()
            process.wait()
            os.close(ours)
    assert b"Traceback" not in shown
    assert shown.rindex(b"\x1b[?25h") > shown.rindex(b"\x1b[?25l")


def test_a_reader_that_goes_away_ends_a_command_quietly(broker: EmbeddedBroker) -> None:
    # More than a pipe holds.
    store(broker, "t", [b"x" * 900] * 2_000)
    place = ["--service-url", broker.service_url, "--topic", "t", "--count", "2000"]
    process = start("peek", *place)
    try:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline()
        process.stdout.close()
        errors = process.stderr.read()
        process.stderr.close()
        assert process.wait(SECONDS) == Status.READER_GONE
    finally:
        process.kill()
    assert errors == b""


def test_a_closed_stdout_is_no_reason_to_fail(broker: EmbeddedBroker) -> None:
    line = f"{sys.executable} -m pulsar_spark topics --service-url {broker.service_url} >&-"
    done = subprocess.run(
        line, shell=True, capture_output=True, env=dict(os.environ), timeout=SECONDS, check=False
    )
    assert (done.returncode, done.stderr) == (0, b"")


def test_no_terminal_obeys_what_is_logged(
    broker: EmbeddedBroker, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("pulsar_spark"), "propagate", False)

    def log(*_: object) -> None:
        logging.getLogger("pulsar_spark.engine").warning("the broker says %s", "a\x1b[2Jb")

    broker.faults.call("PARTITIONED_METADATA", log)
    assert cli.main(["topics", "--service-url", broker.service_url, "--topic", "t"]) == 0
    assert capsys.readouterr().err == "warning: the broker says a\\x1b[2Jb\n"
    assert logging.getLogger("pulsar_spark").handlers == []


def test_ctrl_c_ends_the_doctor_at_once_while_several_hosts_are_silent() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        host = f"127.0.0.1:{silent.getsockname()[1]}"
        process = start("doctor", "--service-url", f"pulsar://{host},localhost:{host[10:]}")
        try:
            connections = [silent.accept()[0] for _ in range(4)]
            # Two only tested whether anybody listens; the others sent CONNECT.
            assert [len(connection.recv(1)) for connection in connections].count(1) == 2
            process.send_signal(signal.SIGINT)
            before = time.monotonic()
            output, errors = process.communicate(timeout=SECONDS)
        finally:
            process.kill()
        for connection in connections:
            connection.close()
    assert (process.returncode, output, errors) == (Status.INTERRUPTED, b"", b"")
    # A login may wait for ten seconds.
    assert time.monotonic() - before < 8


def test_output_that_has_no_such_character_shows_its_number(broker: EmbeddedBroker) -> None:
    broker.create_topic("bücher")
    done = subprocess.run(
        [sys.executable, "-m", "pulsar_spark", "topics", "--service-url", broker.service_url],
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        timeout=SECONDS,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert rb"persistent://public/default/b\xfccher" in done.stdout


def test_without_rich_and_shtab_commands_work(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "rich.console", None)
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert cli.main(["topics", "--service-url", broker.service_url]) == 0
    with pytest.raises(SystemExit) as ended:
        cli.main(["--completion", "bash"])
    assert ended.value.code == Status.FAILED
    assert 'pip install "pulsar-spark[cli]"' in capsys.readouterr().err


@pytest.mark.parametrize("command", ["doctor", "topics", "subscriptions", "sink"])
def test_json_is_one_value(
    command: str, broker: EmbeddedBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    named = ["--subscription", "s"] if command == "subscriptions" else []
    place = ["--service-url", broker.service_url, "--topic", "t"]
    assert cli.main([command, *place, *named, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) is not None


def test_the_broker_in_memory_tells_its_address_as_json() -> None:
    process = start("broker", "--port", "0", "--json")
    try:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["service_url"].startswith("pulsar://127.0.0.1")
        process.terminate()
        assert process.wait(SECONDS) == Status.DONE
    finally:
        process.kill()
        process.communicate()


def test_every_command_takes_json() -> None:
    names = [
        name
        for action in cli.parser()._actions
        if isinstance(action, argparse._SubParsersAction)
        for name, parser in action.choices.items()
        if any("--json" in known.option_strings for known in parser._actions)
    ]
    page = (DOCS / "command-line.md").read_text("utf-8")
    assert names == re.findall(r"^## ([a-z]+)$", page, re.MULTILINE)
