"""Write docs/faults.md: the faults that tests cover, from the tests' own `fault` markers.

``python -m tools.fault_table`` writes the page, ``--check`` fails if it is outdated.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tools.pages import keep_current

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "faults.md"

SECTIONS: dict[str, dict[int, str]] = {
    "Network": {
        1: "connection refused, then accepted a few seconds later",
        2: "a host that swallows connection attempts",
        3: "name resolution fails; one of several service hosts is dead",
        4: "reset after every byte of the handshake",
        5: "half-open connection: the peer is gone without a word",
        6: "one byte a segment, delay, loss",
        7: "the peer stops reading: a write stalls",
        8: "Spark pauses for minutes in the middle of reading a partition",
        9: "Spark pauses for minutes between rows that are written",
        10: "hundreds of tasks reconnect at once",
    },
    "Brokers move": {
        11: "broker killed and restarted while a batch is read",
        12: "broker killed and restarted while rows are written",
        13: "the same with deduplication and fixed producer names",
        14: "topics unloaded every second",
        15: "the broker closes a consumer or producer, naming its new broker or not",
        16: "redirects without end, or to another scheme",
        17: "lookups that lead through a proxy",
        18: "service not ready, metadata error, persistence error, then success",
        19: "too many requests, then success",
        20: "topic migrated to another cluster",
        21: "two reasons to reconnect at the same time",
        22: "a message overtakes the answer to SUBSCRIBE",
        23: "permits over a reconnect",
        24: "requests answered twice, late, or never asked",
        25: "a producer that never becomes ready",
    },
    "Hostile or broken bytes": {
        26: "impossible frame sizes",
        27: "command sizes that do not fit their frame",
        28: "broken protobuf encoding",
        29: "nesting without end",
        30: "fields longer than what encloses them, ten-byte negative numbers",
        31: "missing, repeated and unknown fields, unknown commands",
        32: "wrong magic number",
        33: "no checksum, broker entry metadata, wrong checksum",
        34: "metadata sizes past the payload",
        35: "impossible numbers of messages in a batch",
        36: "batches with too few, too many or overlapping messages",
        37: "wrong uncompressed sizes",
        38: "decompression bombs, unknown codecs",
        39: "chunks out of order, repeated, unfinished, lying about their size",
        40: "an encrypted message without a key",
        41: "TLS, HTTP or SSH on the other end",
        42: "legal commands at the wrong time",
        102: "a broker that goes on for ever and delivers nothing of what was asked for",
        43: "impossible maximum message sizes from the broker",
        44: "hostile schemas and values",
        113: "definitions and values that cost far more time or memory than they are long",
        112: "a value that ends the process of a library that reads it, or is rounded by it",
    },
    "Authentication and TLS": {
        45: "wrong, missing or mismatched credentials",
        46: "a role without permission",
        47: "a token that expires while the connection lives",
        48: "an expired token that nobody renews",
        49: "authentication challenges at the wrong time or without end",
        50: "an OAuth2 endpoint that is broken or hostile",
        51: "certificates for another host, expired, self-signed, of another authority",
        52: "old TLS versions, missing client certificates, the insecure flag",
        53: "a lookup that would lead from TLS to plain text",
    },
    "Life of a topic": {
        54: "deleted during or between micro-batches",
        55: "deleted and created again between micro-batches",
        56: "terminated while it is read or written",
        57: "partitions added",
        58: "trimmed by retention or TTL before or inside the range",
        59: "deleted for being idle",
        60: "compacted, with tombstones",
        61: "the end of the range is a marker, an aborted entry or a null value",
        62: "a range that begins inside a batch, or in a deleted ledger",
        63: "empty topics, one message, ledger changes inside the range",
        64: "schema changed, deleted or incompatible",
        65: "no partitions, non-persistent topics, unusual names, very many topics",
        100: "many producers with interleaved chunked messages; chunks that are gone",
        101: "trimmed, or deleted and made again, while a range of it is read",
        126: "messages that expire (TTL) move the cursors of readers past what is stored",
        130: "a stream's subscription is removed, or its topic made again, while the query runs",
        131: "unread messages expire, are skipped or truncated, and no new ones come",
        193: "topics and partitions are found, and cannot be taken at that moment",
        132: "taken out of a stream's topics, and put back",
        160: "terminated, deleted or made again between the tasks and an exactly-once commit",
        161: "terminated, deleted or made again during an exactly-once commit",
        162: "terminated, deleted or made again while a decided commit waits for its driver",
        177: "deleted or made again while a task writes to it",
        163: "what retention or an administrator removed of a commit before it was checked",
        150: "what a stream never read expires, is skipped or truncated, while it runs or is down",
    },
    "Consumers and Spark": {
        66: "reader worker, executor or driver killed",
        67: "speculative execution",
        68: "limit, cancelled tasks, stopped queries",
        69: "the consumer of a failed attempt is still registered",
        70: "two queries on one subscription",
        71: "restart from the checkpoint at every stage of a batch",
        72: "damaged or foreign checkpoints",
        73: "the broker is down when a batch is committed",
        74: "AvailableNow while data keeps coming",
        75: "workers used again and again, forks",
        76: "ten thousand triggers without data",
        140: "a policy refuses a consumer, subscription, producer or topic",
        141: "topics that allow only few consumers, subscriptions and producers",
        142: "a policy refuses a question with the code of an answer",
        143: "an exactly-once sink whose records or topics allow no further consumer",
        144: "a backlog quota refuses a producer until the backlog is consumed",
        200: "a listener meets entries that cannot be read, of each kind",
        201: "a cumulative acknowledgement while very many entries are outstanding",
        202: "a client in a process whose freed memory must go back to the system",
        203: "a reader of hundreds of partitions, most of them idle or without an answer",
        204: "clients that are dropped without being closed",
        205: "a reader is closed while it pauses before it subscribes again",
        206: "a topic of a client is deleted and made again",
        207: "a broker refuses, after a first success, what it takes a moment later",
        208: "a broker refuses, after a first success, what a Spark task needs",
        210: "messages time out, are refused or lose their connection while the queue is full",
    },
    "Sink and transactions": {
        209: "a coordinator leaves the sink's own records out of a commit",
        77: "a row that cannot be encoded",
        78: "a writing task killed at any point",
        79: "the driver killed at any point of a commit",
        80: "the answer to a commit is lost",
        81: "transactions that time out",
        82: "the transaction coordinator restarts",
        83: "transactions or deduplication switched off",
        84: "an orphaned transaction blocks readers",
        85: "an old commit arrives late",
        86: "messages around the maximum size",
        87: "receipts out of order, repeated, or marked as duplicates; send errors",
        88: "fenced or busy producers, exceeded quotas",
        89: "the very last message fails",
        90: "bookies out of disk",
        103: "a sender that waits for its turn on a connection, or behind another sender",
        104: "many full partitions, batches that are due, and a client that is closed meanwhile",
        105: "a broker that comes back shortly before the send timeout",
        106: "more small messages, or batches in the making, than memory for them",
        107: "messages after one that was not acknowledged in time",
        194: "many keys in batches by key",
        191: "users' callbacks and functions that raise anything, SystemExit too",
        192: "a transaction's timeout that passes while something of it is pending",
        190: "a batch that is due while the queue is full, until there is room in whatever way",
        135: "sequence ids that start anew in each micro-batch",
        136: "rows that no message is made of; a task that acknowledged fewer than it was given",
        137: "a topic's policy that allows only smaller messages than the broker",
        165: "what killed tasks and drivers of an exactly-once sink leave open",
        166: "a sink's records that expire, are skipped or truncated, or exceed a quota",
        167: "two drivers of one exactly-once sink",
        168: "a batch write that a scheduler runs again",
        169: "another query's or checkpoint's micro-batch under a number that is committed",
        155: "a repeated micro-batch whose rows differ in one field, or exchanged one",
        170: "a sink's checkpoint restored from a backup, deleted, copied or spelt in another way",
        171: "two queries with one sinkId, one after the other and at the same time",
        172: "a job that a scheduler runs again, and writes in foreachBatch, with sinkRunId",
        173: "a query that never gives the same rows twice, with sinkRepeats=first",
        174: "a query whose sink's records expire, or are truncated",
        175: "a Spark killed before its decision, with the default transactionTimeout",
        176: "workers and executors of a cluster killed while they write, and speculation",
        180: "an open transaction holds a topic, and somebody asks whose it is",
        181: "a sink is repaired by hand: finished, aborted, accepted or reset",
    },
    "Memory, time, data, secrets": {
        91: "huge messages and a long queue",
        92: "a million tiny messages in one batch; tens of thousands of properties",
        93: "a clock that jumps",
        114: "numbers that two paths could round differently; zeros with a sign, NaNs",
        94: "impossible event and publish times",
        139: "times of the hour that clocks repeat, and of years that Python cannot hold",
        95: "null, empty, binary and unusual values and keys",
        96: "secrets in logs, errors, plans and checkpoints",
        97: "secrets in URLs and in what a broker says",
        145: "a secret option under a key that Spark shows in plans and in its event log",
        146: "an issuer's answer that is compressed, or has lines without end",
        147: "proxies of the environment, which are asked about a local issuer",
        148: "control characters and line breaks in what a broker says, and in its names",
        149: "credentials in the URL of a checkpoint, which an exactly-once sink is known by",
        151: "control characters and line breaks in lines of logs",
        98: "pickling of everything that Spark ships; nothing unpickled from a broker",
        99: "unknown, misspelt, contradictory options",
        125: "what a catalog adds to the options of a table, or keeps back of them",
    },
}

INTRO = """\
# What the tests make go wrong

Each row is a fault that users' jobs meet sooner or later. Its tests carry its number as a marker
(`pytest.mark.fault`); `make test PYTEST_FLAGS="-m fault"` runs them all. This page is generated
from the markers by `python -m tools.fault_table`. A test that covers a part of a row counts for the
row. The end of the page lists what no test covers, and why.
"""


# The parts of a row that no test covers, and why.
WITHOUT_A_TEST: dict[int, str] = {
    6: "Packets are not lost or reordered: that needs control of the machine's network, and TCP "
    "hides everything but the delay, which is tested.",
    20: "No topic is migrated between two real clusters: the embedded broker sends the command.",
    90: "No real bookie's disk is filled. A producer only notices that receipts are missing, and "
    "that is tested.",
    93: "The system's clock is not changed: that needs administrator rights. Tested are the clock "
    "that deadlines use, and brokers' times that are out of order.",
}


def _rows(decorator: ast.expr) -> Iterator[int]:
    if (
        isinstance(decorator, ast.Call)
        and isinstance(decorator.func, ast.Attribute)
        and decorator.func.attr == "fault"
    ):
        for argument in decorator.args:
            if isinstance(argument, ast.Constant) and isinstance(argument.value, int):
                yield argument.value


@cache
def marked_tests() -> dict[int, list[str]]:
    """Return each row's tests, by their markers."""
    found: dict[int, list[str]] = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                for decorator in node.decorator_list:
                    for row in _rows(decorator):
                        name = path.relative_to(ROOT / "tests").as_posix()
                        found.setdefault(row, []).append(f"{name}::{node.name}")
    return found


def page() -> str:
    """Return the text of the page."""
    found = marked_tests()
    parts = [INTRO]
    for title, rows in SECTIONS.items():
        parts.append(f"## {title}\n\n| # | fault | tests |\n|---:|---|---|")
        for number, text in rows.items():
            tests = found.get(number, [])
            files = dict.fromkeys(test.partition("::")[0] for test in tests)
            shown = f"{len(tests)} in {', '.join(f'`{file}`' for file in files)}" if tests else "–"
            parts[-1] += f"\n| {number} | {text} | {shown} |"
        parts[-1] += "\n"
    numbers = [number for rows in SECTIONS.values() for number in rows]
    left = [str(number) for number in numbers if number not in found]
    parts.append("## What is not tested\n")
    parts.append("\n".join(f"- Row {number}: {why}" for number, why in WITHOUT_A_TEST.items()))
    rest = f"Rows without a test: {', '.join(left)}." if left else "Each row has a test."
    parts.append(f"\n{rest}\n")
    return "\n".join(parts)


def main() -> int:
    """Write the page, or check it."""
    return keep_current("tools.fault_table", __doc__, {PAGE: page})


if __name__ == "__main__":
    sys.exit(main())
