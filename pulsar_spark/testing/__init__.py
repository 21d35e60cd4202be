"""An in-memory broker for tests: it speaks the real protocol, to any Pulsar client.

::

    with EmbeddedBroker() as broker:
        broker.create_topic("events", partitions=4)
        broker.faults.error("LOOKUP", "ServiceNotReady", times=2)
        ...  # connect to broker.service_url
"""

from pulsar_spark.testing.broker import EmbeddedBroker
from pulsar_spark.testing.faults import Faults
from pulsar_spark.testing.policies import BacklogQuota, Retention, TopicPolicies

__all__ = ["BacklogQuota", "EmbeddedBroker", "Faults", "Retention", "TopicPolicies"]
