"""The producers of one topic: names, access modes, takeover."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.testing.refusals import Refusal

if TYPE_CHECKING:
    from pulsar_spark.testing.session import Session
    from pulsar_spark.testing.topic import Topic


class Producer:
    """A producer that is connected, or waits for exclusive access (`ready` false).

    One that is `fenced` is not told: its next SEND ends its connection.
    """

    def __init__(self, session: Session, topic: Topic, body: pb.CommandProducer, name: str) -> None:
        self.session = session
        self.topic = topic
        self.producer_id = body.producer_id
        self.request_id = body.request_id
        self.name = name
        self.epoch = body.epoch
        self.named_by_user = bool(body.producer_name) and body.user_provided_producer_name
        self.access_mode = int(body.producer_access_mode)
        self.topic_epoch: int | None = body.topic_epoch if body.HasField("topic_epoch") else None
        self.properties = {one.key: one.value for one in body.metadata}
        self.schema_version = b""
        self.ready = True
        self.fenced = False

    def succeeds(self, other: Producer) -> bool:
        """Whether this is the same producer after a reconnect on the same connection."""
        return (
            self.session is other.session
            and self.producer_id == other.producer_id
            and self.epoch > other.epoch
            and not self.named_by_user
        )


class TopicProducers:
    """The producers that may write to a topic, and those that wait for exclusive access.

    One that gets it is told, and so is one that waits and loses its turn to another.
    """

    def __init__(self) -> None:
        self.by_name: dict[str, Producer] = {}
        self.waiting: list[Producer] = []
        self.exclusive: Producer | None = None
        self.epoch: int | None = None

    def __len__(self) -> int:
        return len(self.by_name)

    def all(self) -> list[Producer]:
        """Those that may write, and those that wait."""
        return [*self.by_name.values(), *self.waiting]

    def holder(self, name: str) -> Producer | None:
        """Return the connected producer of this name."""
        return self.by_name.get(name)

    def add(self, producer: Producer) -> None:
        """Register a producer, or raise Refusal; the caller has checked that its name is free."""
        mode = producer.access_mode
        if mode == pb.Shared:
            if self.exclusive is not None or self.waiting:
                raise self._held(pb.ProducerBusy, "ProducerBusyException")
            producer.topic_epoch = self.epoch
        elif mode == pb.Exclusive:
            if self.by_name:
                raise self._held(pb.ProducerFenced, "ProducerFencedException")
            self._take_exclusive(producer)
        elif mode == pb.ExclusiveWithFencing:
            self._check_epoch(producer)
            for other in self.all():
                self.remove(other, promote=False)
                other.session.fence_producer(other)
            self._take_exclusive(producer)
        elif self.by_name:
            producer.ready = False
            self.waiting.append(producer)
            return
        else:
            self._take_exclusive(producer)
        self.by_name[producer.name] = producer

    def remove(self, producer: Producer, *, promote: bool = True) -> None:
        """Remove a producer, and register the next one that waits for exclusive access."""
        if producer in self.waiting:
            self.waiting.remove(producer)
            return
        if self.by_name.get(producer.name) is not producer:
            return
        del self.by_name[producer.name]
        if self.exclusive is producer:
            self.exclusive = None
        if promote and self.waiting and not self.by_name:
            heir = self.waiting.pop(0)
            self._take_exclusive(heir)
            self.by_name[heir.name] = heir
            heir.ready = True
            heir.session.announce_producer(heir)

    def _take_exclusive(self, producer: Producer) -> None:
        self._check_epoch(producer)
        if producer.topic_epoch is None or self.epoch is None:
            self.epoch = 0 if self.epoch is None else self.epoch + 1
        producer.topic_epoch = self.epoch
        self.exclusive = producer

    def _check_epoch(self, producer: Producer) -> None:
        if (
            producer.topic_epoch is not None
            and self.epoch is not None
            and producer.topic_epoch < self.epoch
        ):
            raise self._held(pb.ProducerFenced, "ProducerFencedException")

    def _held(self, code: int, exception: str) -> Refusal:
        if self.exclusive is not None:
            text = f"Topic has an existing exclusive producer: {self.exclusive.name}"
        else:
            text = "Topic has existing producers, or a newer exclusive one had it"
        package = "org.apache.pulsar.broker.service.BrokerServiceException"
        return Refusal(code, f"{package}${exception}: {text}")
