"""Run by test_spark_secrets.py in a process of its own, with Spark's default redaction.

Arguments: a folder for Spark's files, one for keys, and "classic", or "connect" for a session of
Spark Connect. It gives Spark secrets in every way that there is: each under a key that Spark shows,
another one under a key that it hides, and one as an option of a format. It prints all that Spark
can show of them. The last line is JSON: the secrets. For Spark Connect one option has to do.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import pulsar_spark
from pulsar_spark.testing import EmbeddedBroker
from tests.support.certificates import Authority

PLUGIN = "pulsar.client.authPluginClassName"
HIDDEN = {
    "pulsar.client.authParams": "pulsar.client.authParamsSecret",
    "pulsar.client.tlsKeyFilePath": "pulsar.client.tlsKeySecret",
    "pulsar.reader.cryptoPrivateKeyPath": "pulsar.reader.cryptoPrivateKeySecret",
}


def main(folder: Path, own: Path, connect: bool) -> None:
    """Use all secrets, and print what Spark shows of them."""
    builder: Any = SparkSession.builder
    builder = builder.remote("local[1]") if connect else builder.master("local[1]")
    events = folder / "events"
    events.mkdir()
    for key, value in {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": f"file://{events}",
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.warehouse.dir": str(own / "warehouse"),
        "spark.hadoop.javax.jdo.option.ConnectionURL": "jdbc:derby:memory:m;create=true",
    }.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    authority = Authority(own)
    secrets: dict[str, list[str]] = {}
    with (
        EmbeddedBroker() as plain,
        EmbeddedBroker(tls=authority.server(client_authority=authority)) as secure,
    ):
        for at in (plain, secure):
            at.create_topic("t")
        number = 0
        for option, hidden in HIDDEN.items():
            for kind, key in (("shown", option), ("hidden", hidden), ("format", option)):
                if connect and (kind == "shown" or number > 1):
                    continue
                number += 1
                broker, options, secret = one(plain, secure, authority, option, key, f"n{number}")
                secrets[f"{kind} {option}"] = secret
                options |= {"service.url": broker.service_url, "topic": "t"}
                print(f"--- {kind} {option}", flush=True)
                if kind == "format":
                    pulsar_spark.register(spark, name=f"n{number}", options=options)
                    source, options = f"n{number}", {}
                else:
                    source = "pulsar"
                where = own / f"c{number}"
                works = by_sql(spark, source, options, where.name)
                if kind != "shown":
                    works = chain(works, by_frames(spark, source, options, where))
                attempt(works)
    spark.stop()
    print(f"\n{json.dumps(secrets)}", flush=True)


def one(
    plain: EmbeddedBroker,
    secure: EmbeddedBroker,
    authority: Authority,
    option: str,
    key: str,
    name: str,
) -> tuple[EmbeddedBroker, dict[str, str], list[str]]:
    """Return a broker, options with a secret under a key, and what shows that secret."""
    if option.endswith("authParams"):
        secret = f"canary8b1f{name}x"
        return plain, {PLUGIN: "token", key: secret}, [secret]
    certificate, file = (Path(path) for path in authority.client(name))
    pem = file.read_text()
    lines = [line for line in pem.splitlines() if "-----" not in line and len(line) > 30]
    if option.startswith("pulsar.reader."):
        return plain, {key: pem}, lines
    tls = {
        "pulsar.client.tlsTrustCertsFilePath": authority.file,
        "pulsar.client.tlsCertificateFilePath": str(certificate),
    }
    return secure, {**tls, key: f"content:{pem}"}, lines


def attempt(works: Iterable[Callable[[], object]]) -> None:
    """Read and write, and print everything that Spark shows."""
    for work in works:
        try:
            print(work())
        except Exception as error:
            print(f"FAILED {error!r} {error}")


def by_frames(
    spark: SparkSession, source: str, options: dict[str, str], checkpoint: Path
) -> Iterator[Callable[[], object]]:
    """Yield each piece of work with DataFrames; it returns what Spark shows."""
    frame = spark.read.format(source).options(**options).load()
    yield lambda: frame.explain("extended")
    yield lambda: frame.explain("formatted")
    yield lambda: (frame, len(frame.collect()))

    def stream() -> object:
        loaded = spark.readStream.format(source).options(**options)
        copied = loaded.option("startingOffsets", "earliest").load()
        writer = copied.writeStream.format(source).options(**{**options, "topic": "copy"})
        writer = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
        query = writer.start()
        query.awaitTermination(240)
        query.explain(extended=True)
        return query.status, query.recentProgress, query.exception()

    yield stream


def by_sql(
    spark: SparkSession, source: str, options: dict[str, str], name: str
) -> Iterator[Callable[[], object]]:
    """Yield each piece of work with SQL, after a first row; it returns what Spark shows."""
    row = spark.range(1).selectExpr("string(id) value")
    yield lambda: row.write.format(source).mode("append").options(**options).save()
    given = ", ".join(f"`{key}` {json.dumps(value)}" for key, value in options.items())
    given = f"OPTIONS ({given})" if given else ""
    hints = ", ".join(f"`{key}` = {json.dumps(value)}" for key, value in options.items())
    hints = f"WITH ({hints})" if hints else ""
    for statement in (
        f"CREATE TEMPORARY VIEW v{name} USING {source} {given}",
        f"DESCRIBE EXTENDED v{name}",
        f"EXPLAIN EXTENDED SELECT * FROM v{name}",
        f"SELECT count(*) FROM v{name}",
        f"CREATE TABLE t{name} (value STRING) USING {source} {given}",
        f"DESCRIBE EXTENDED t{name}",
        f"SHOW CREATE TABLE t{name}",
        f"SHOW TBLPROPERTIES t{name}",
        f"EXPLAIN EXTENDED SELECT count(*) FROM t{name} {hints}",
        f"SELECT count(*) FROM t{name} {hints}",
        f"INSERT INTO t{name} {hints} VALUES ('x')",
    ):
        yield lambda statement=statement: [  # type: ignore[misc]
            str(cell) for found in spark.sql(statement).collect() for cell in found
        ]
    yield lambda: spark.read.options(**options).table(f"t{name}").explain("extended")
    yield lambda: row.writeTo(f"t{name}").options(**options).append()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3] == "connect")
