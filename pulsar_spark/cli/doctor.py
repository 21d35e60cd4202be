"""``doctor``: go to a cluster step by step, and say which step fails and what to change."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from pulsar_spark.cli.arguments import add_connection, given_options, resolved
from pulsar_spark.cli.environment import environment
from pulsar_spark.cli.output import print_json, print_table, progress
from pulsar_spark.errors import OptionError

if TYPE_CHECKING:
    from argparse import _SubParsersAction

    from pulsar_spark.cli.examination import Step

_DESCRIPTION = """\
Go to a cluster as Spark would, step by step: name resolution, TCP, TLS, CONNECT, logging in,
lookup, partitions, permission to read and to write, schema, retention, transactions. Each step is
shown with its result, and with what to change where it fails. Nothing is written, and no topic,
subscription or schema is created.

The exit status is 0 where no step failed, 1 where one did, 2 for wrong usage.
"""


def add_parser(commands: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the command line."""
    parser = commands.add_parser(
        "doctor",
        help="find out why a connection does not work",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_connection(parser, "the topic to look at; without it, steps on topics are skipped")
    parser.set_defaults(command=run)


def run(arguments: argparse.Namespace) -> int:
    """Take the steps and show them; return 0 if none failed."""
    options = given_options(arguments)
    steps = examine(options)
    here = environment()
    ok = all(step.status != "failed" for step in steps)
    if arguments.json:
        report: dict[str, Any] = {
            "steps": [step.to_json() for step in steps],
            "ok": ok,
            "environment": here,
        }
        print_json(report)
    else:
        _show(steps, here)
    return 0 if ok else 1


def examine(options: dict[str, str]) -> list[Step]:
    """Take all steps for the options of a read or write; raises OptionError for wrong ones."""
    from pulsar_spark.cli.examination import Examination
    from pulsar_spark.protocol.topic_name import TopicName
    from pulsar_spark.spark.options.read import client_options, single_topic
    from pulsar_spark.spark.options.table import Scope

    values = resolved(options, Scope.BOTH)
    if values["topicsPattern"]:
        raise OptionError("the doctor takes no topicsPattern", "Give a topic that it matches.")
    single, several = single_topic(values), values["topics"] or ()
    if single and several:
        raise OptionError("topic and topics cannot be used together", "Give one of them.")
    topics = [single] if single else [str(TopicName.parse(name)) for name in several]
    with (
        Examination(
            client_options(values),
            topics,
            exactly_once=values["deliveryGuarantee"] == "exactly-once",
        ) as examination,
        progress("beginning") as tell,
    ):
        return examination.run(lambda name: tell(f"looking at: {name}"))


def _show(steps: list[Step], here: dict[str, str]) -> None:
    print(", ".join(f"{name} {version}" for name, version in here.items()))
    print()
    print_table(
        ("step", "status", "seconds", "detail"),
        [(step.name, step.status, step.seconds, step.detail) for step in steps],
    )
    remedies: dict[str, list[str]] = {}
    for step in steps:
        if step.remedy:
            remedies.setdefault(step.remedy, []).append(step.name)
    if remedies:
        print("\nWhat to do:")
    for remedy, names in remedies.items():
        print(f"  {', '.join(names)}: {remedy}")
