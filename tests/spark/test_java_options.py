"""Keys of Java's client that have no option here."""

from __future__ import annotations

from pulsar_spark.spark import java_options
from pulsar_spark.spark.option_table import OPTIONS


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


def test_without_the_prefix_no_key_is_taken_for_an_option() -> None:
    names = {name.lower() for option in OPTIONS for name in (option.key, *option.aliases)}
    assert not names & set(java_options.UNPREFIXED)
    assert "topicname" not in java_options.UNPREFIXED
