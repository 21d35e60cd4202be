"""A raw pump: frames that were made beforehand, sent as fast as the broker takes them.

It shows what the broker itself takes: a writer that had nothing else to do could not be faster.
"""

from __future__ import annotations

import itertools
import selectors
import time
from collections import deque
from collections.abc import Sequence

from benchmarks.drain import RawConnection
from benchmarks.measure import Measurement
from benchmarks.workloads import Workload
from pulsar_spark.engine.codecs import compress
from pulsar_spark.protocol import commands
from pulsar_spark.protocol import pulsar_api_pb2 as pb
from pulsar_spark.protocol.implementation import scan_receipts
from pulsar_spark.protocol.send_encoder import PythonSendEncoder

_BLOCK_BYTES = 16 * 1024 * 1024
_PIECE = 1024 * 1024
_TIMEOUT = 30.0
_CODECS = {"NONE": pb.NONE, "LZ4": pb.LZ4}
# Of each receipt there are so many numbers.
_NUMBERS = 4


class Pump(RawConnection):
    """One connection with one producer, and the frames that it is to send.

    The first messages of a workload are sent again and again, until there are `messages`.
    """

    def __init__(self, service_url: str, topic: str, workload: Workload, messages: int) -> None:
        super().__init__(service_url, "pump")
        self._send(commands.build(pb.CommandProducer, topic=topic, producer_id=1, request_id=1))
        self._name = self._wait(pb.BaseCommand.PRODUCER_SUCCESS).producer_success.producer_name
        self._unsent: deque[memoryview] = deque()
        self._unconfirmed = 0
        together = max(_BLOCK_BYTES // workload.size // workload.batch, 1) * workload.batch
        whole, rest = divmod(messages, together)
        self._add(workload, min(together, messages), whole)
        self._add(workload, rest, 1)
        self._socket.setblocking(False)

    def _add(self, workload: Workload, messages: int, times: int) -> None:
        made = list(itertools.islice(workload.made(), messages if times else 0))
        if made:
            encoder = PythonSendEncoder(1, self._name, b"", _CODECS[workload.compression], compress)
            buffers, ends = encoder.encode(
                [message.value for message in made],
                [message.key.encode() for message in made],
                None,
                0,
                int(time.time() * 1000),
                workload.batch,
            )
            self._unsent += [memoryview(b"".join(buffers))] * times
            self._unconfirmed += len(ends) * times

    def fileno(self) -> int:
        """Return what to wait for."""
        return self._socket.fileno()

    def send(self) -> bool:
        """Send what the socket takes; return whether there is more."""
        frames = self._unsent.popleft()
        rest = frames[self._socket.send(frames[:_PIECE]) :]
        if rest:
            self._unsent.appendleft(rest)
        return bool(self._unsent)

    def receive(self) -> bool:
        """Take receipts; return whether more are to come."""
        data = self._socket.recv(_PIECE)
        if not data:
            raise ConnectionError("the broker closed the connection")
        self._received += data
        end, _, receipts = scan_receipts(bytes(self._received), 0, _PIECE)
        if not receipts and 4 <= len(self._received) >= 4 + self._frame_size():
            # A PING: what we send is answer enough.
            end = 4 + self._frame_size()
        del self._received[:end]
        self._unconfirmed -= len(receipts) // _NUMBERS
        return self._unconfirmed > 0


def run(service_url: str, workload: Workload, partitions: Sequence[str]) -> Measurement:
    """Send a workload with one connection for each partition and producer, all at once."""
    names = [name for name in partitions for _ in range(workload.producers)]
    each, rest = divmod(workload.messages, len(names))
    pumps = [
        Pump(service_url, name, workload, each + (number < rest))
        for number, name in enumerate(names)
    ]
    try:
        cpu, started = time.process_time(), time.perf_counter()
        _pump(pumps)
        seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - cpu
    finally:
        for pump in pumps:
            pump.close()
    return Measurement(seconds, cpu_seconds)


def _pump(pumps: Sequence[Pump]) -> None:
    with selectors.DefaultSelector() as selector:
        for pump in pumps:
            selector.register(pump, selectors.EVENT_READ | selectors.EVENT_WRITE, pump)
        while selector.get_map():
            ready = selector.select(_TIMEOUT)
            if not ready:
                raise TimeoutError(f"the broker took nothing for {_TIMEOUT:g} s")
            for key, events in ready:
                pump = key.data
                if events & selectors.EVENT_WRITE and not pump.send():
                    selector.modify(pump, selectors.EVENT_READ, pump)
                if events & selectors.EVENT_READ and not pump.receive():
                    selector.unregister(pump)
