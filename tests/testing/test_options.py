"""Options out of range are errors before anything starts."""

from __future__ import annotations

from typing import Any

import pytest

from pulsar_spark.errors import OptionError
from pulsar_spark.testing import EmbeddedBroker
from pulsar_spark.testing.namespaces import partitions_of
from pulsar_spark.testing.options import OPTION_NAMES, BrokerOptions


@pytest.mark.parametrize(
    "option",
    [
        {"port": 65536},
        {"port": -1},
        {"brokers": 0},
        {"brokers": 129},
        {"auto_create": -1},
        {"max_message_size": 0},
        {"memory_limit": 0},
        {"max_entries_per_ledger": 0},
        {"keep_alive_interval": 0},
        {"failover_delay": -1},
    ],
)
def test_values_out_of_range_are_named(option: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match=next(iter(option))):
        EmbeddedBroker(**option)


@pytest.mark.parametrize("value,partitions", [(True, 0), (False, None), (1, 1), (5, 5)])
def test_auto_creation_is_plain_off_or_a_number(value: int, partitions: int | None) -> None:
    assert partitions_of(value) == partitions


def test_the_broker_takes_every_option() -> None:
    defaults = BrokerOptions()
    given = {name: getattr(defaults, name) for name in OPTION_NAMES if name != "name"}
    assert EmbeddedBroker(**given).options == defaults
