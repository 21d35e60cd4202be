"""Keys of Java's client that have no option here."""

from __future__ import annotations

from pulsar_spark.spark import java_options


def test_ignored_and_refused_keys_are_apart_and_filed_in_lower_case() -> None:
    assert not set(java_options.IGNORED) & set(java_options.REFUSED)
    for lower, key in java_options.IGNORED.items():
        assert lower == key.lower()
    for lower, (key, remedy) in java_options.REFUSED.items():
        assert lower == key.lower()
        assert remedy


def test_what_chooses_whom_to_trust_or_where_to_connect_is_refused() -> None:
    for name in ("useKeyStoreTls", "tlsTrustStorePath", "proxyServiceUrl", "sslFactoryPlugin"):
        assert f"pulsar.client.{name}".lower() in java_options.REFUSED


def test_harmless_values_belong_to_refused_keys() -> None:
    assert set(java_options.HARMLESS_VALUES) <= set(java_options.REFUSED)
