"""The tables about streams."""

from __future__ import annotations

from benchmarks.streams import Latency, latency_table


def test_kafka_has_a_column_only_if_it_was_measured() -> None:
    ours = Latency(rows=[100.0] * 9, rare=[50.0] * 9, batches=[40.0] * 3, empty=[20.0] * 3)
    kafka = Latency(rows=[70.0] * 9, rare=[30.0] * 9, batches=[25.0] * 3)
    alone = latency_table(ours).splitlines()
    both = latency_table(ours, kafka).splitlines()
    assert {line.count("|") for line in alone} == {3}
    assert {line.count("|") for line in both} == {4}
    assert both[0].endswith("| ms | Spark's Kafka source, ms |")
    assert any("median" in line and line.endswith("| 100 | 70 |") for line in both)
    assert any(line.endswith("| 20 | |") for line in both)
