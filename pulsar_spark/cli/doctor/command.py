"""``doctor``: connect to a cluster step by step, and say which step fails and what to change."""

from __future__ import annotations

import argparse
from typing import Any

from pulsar_spark.cli.arguments import (
    Commands,
    add_admin_url,
    add_command,
    add_connection,
    given_options,
    take_admin_url,
    whole_number,
)
from pulsar_spark.cli.doctor.steps import FAILED, OK, SKIPPED
from pulsar_spark.cli.environment import environment
from pulsar_spark.cli.output import print_json, print_table, progress
from pulsar_spark.errors import OptionError, printable

_DESCRIPTION = """\
Connect to a cluster step by step, as Spark would: name resolution, TCP, TLS, CONNECT, login,
lookup, partitions, permission to read and to write, schema, retention, transactions. Each step
shows its result and, if it fails, what to change. Nothing is written, and no topic, subscription
or schema is created.

The exit status is 0 if no step failed, 1 if one did, 2 for wrong usage.
"""


def add_parser(commands: Commands) -> None:
    """Add the command to the command line."""
    parser = add_command(
        commands, "doctor", "find out why a connection does not work", _DESCRIPTION, run
    )
    add_connection(parser, "the topic to check; without it, the steps on topics are skipped")
    add_admin_url(parser, "the doctor reads the namespace's retention there")
    spark = parser.add_argument_group("executors")
    spark.add_argument(
        "--executors",
        action="store_true",
        help="run the steps on every Spark executor too, in a small job",
    )
    spark.add_argument(
        "--master",
        metavar="URL",
        help="Spark's master, such as spark://host:7077 or sc://host:15002; without it, "
        "as spark-submit or Spark's configuration says",
    )
    spark.add_argument(
        "--tasks",
        type=whole_number(1, 100_000),
        metavar="N",
        help="how many tasks to run (one per slot)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Run the steps and print them; return 0 if none failed."""
    options = given_options(arguments)
    if (arguments.master or arguments.tasks) and not arguments.executors:
        raise OptionError("--master and --tasks are for --executors", "Add --executors.")
    from pulsar_spark.cli.doctor.examination import examine

    admin_url = take_admin_url(arguments, options)
    steps = [step.to_json() for step in examine(options, admin_url, quiet=arguments.json)]
    report: dict[str, Any] = {"steps": steps, "ok": True}
    if arguments.executors:
        from pulsar_spark.cli.doctor.executors import examine_executors

        with progress("asking the executors", quiet=arguments.json):
            report["executors"] = examine_executors(
                options, admin_url, arguments.master, arguments.tasks
            )
    report["ok"] = not _failed(steps) and all(found["ok"] for found in report.get("executors", ()))
    if arguments.json:
        print_json(report)
    else:
        _show(report)
    return 0 if report["ok"] else 1


def _failed(steps: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [step for step in steps if step["status"] == FAILED]


def _show(report: dict[str, Any]) -> None:
    here = ", ".join(f"{name} {version}" for name, version in environment().items())
    print(printable(here))
    print()
    columns = ("step", "status", "seconds", "detail")
    steps = report["steps"]
    print_table(columns, [tuple(step.values())[: len(columns)] for step in steps])
    executors = report.get("executors", ())
    if executors:
        print()
        print_table(
            ("executor", "status", "python", "pulsar_spark", "implementation", "detail"),
            [_executor(found) for found in executors],
        )
    failed = [(step["name"], step) for step in _failed(steps)]
    failed += [
        (f"{step['name']} on {found['host']}", step)
        for found in executors
        for step in _failed(found["steps"])
    ]
    _advise("What to do:", failed)
    for title, status in (("What to look after:", OK), ("What was not looked at:", SKIPPED)):
        _advise(title, [(step["name"], step) for step in steps if step["status"] == status])


def _advise(title: str, steps: list[tuple[str, dict[str, Any]]]) -> None:
    """Print the steps' remedies under a title, each once; nothing if there are none."""
    remedies: dict[str, list[str]] = {}
    for name, step in steps:
        names = remedies.setdefault(step["remedy"], [])
        if name not in names:
            names.append(name)
    remedies.pop("", None)
    if remedies:
        print(f"\n{title}")
    for remedy, names in remedies.items():
        print(printable(f"  {', '.join(names)}: {remedy}"))


def _executor(found: dict[str, Any]) -> tuple[str, ...]:
    """Return an executor's row: where it is, what runs there, and what fails."""
    wrong = "; ".join(f"{step['name']}: {step['detail']}" for step in _failed(found["steps"]))
    here = found["environment"]
    return (
        f"{found['host']} ({found['executor']})",
        "ok" if found["ok"] else "failed",
        *(here.get(name, "-") for name in ("python", "pulsar_spark", "implementation")),
        wrong or "no step failed",
    )
