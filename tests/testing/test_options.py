"""Options out of range are errors before anything starts."""

from __future__ import annotations

from typing import Any

import pytest

from pulsar_spark.errors import OptionError
from pulsar_spark.testing import EmbeddedBroker
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
        {"rest": 65536},
        {"policy_check_interval": 0},
    ],
)
def test_values_out_of_range_are_named(option: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match=next(iter(option))):
        EmbeddedBroker(**option)


@pytest.mark.parametrize("value,port", [(False, None), (True, 0), (0, 0), (1, 1), (8080, 8080)])
def test_an_admin_rest_is_off_or_at_a_port(value: bool | int, port: int | None) -> None:
    assert BrokerOptions(rest=value).rest_port == port


def test_the_broker_takes_every_option() -> None:
    defaults = BrokerOptions()
    given = {name: getattr(defaults, name) for name in OPTION_NAMES if name != "name"}
    assert EmbeddedBroker(**given).options == defaults
