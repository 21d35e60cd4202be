"""Programs written for the official Python client run here; only the import differs."""

from __future__ import annotations

import io
from contextlib import redirect_stdout

import pytest

from tests.integration.brokers import Broker

pytest.importorskip("pulsar", reason="pulsar-client is not installed")

OFFICIAL = "import pulsar\n"
OURS = "import pulsar_spark.client as pulsar\n"

CONSUMER = """
import pulsar

client = pulsar.Client(URL)
consumer = client.subscribe(TOPIC, "my-subscription",
                            properties={"consumer-name": "test", "consumer-id": "1"})
producer = client.create_producer(TOPIC, block_if_queue_full=True, batching_enabled=True,
                                  batching_max_publish_delay_ms=10)
for i in range(10):
    producer.send_async(f"hello-{i}".encode("utf-8"), None)
producer.flush()

received = 0
while True:
    try:
        msg = consumer.receive(timeout_millis=60000 if received < 10 else 100)
        print("Received message '{0}' of {1}".format(msg.data().decode("utf-8"),
                                                      consumer.subscription_name()))
        consumer.acknowledge(msg)
        received += 1
    except pulsar.Timeout:
        print("Stop receiving messages")
        break
    except pulsar.Interrupted:
        print("Interrupted")
        break
client.close()
"""

LISTENER = """
import threading
import pulsar

done = threading.Event()

class Server(object):
    def __init__(self):
        self.client = pulsar.Client(URL)
        self.producer = self.client.create_producer(TOPIC + "-replies")
        self.consumer = self.client.subscribe(TOPIC, "rpc-server", pulsar.ConsumerType.Shared,
                                              message_listener=self.on_request)

    def on_request(self, consumer, message):
        print("Request {0} of {1}".format(message.data().decode("utf-8"), message.partition_key()))
        self.producer.send(message.data() + b" bar", partition_key=message.partition_key())
        consumer.acknowledge(message)

class Client(object):
    def __init__(self):
        self.client = pulsar.Client(URL)
        self.producer = self.client.create_producer(TOPIC)
        self.consumer = self.client.subscribe(TOPIC + "-replies", "rpc-client",
                                              message_listener=self.on_response)
        self.consumer.resume_message_listener()

    def on_response(self, consumer, message):
        print("Response {0} of {1}".format(message.data().decode("utf-8"), consumer.topic()))
        consumer.acknowledge(message)
        done.set()

client = Client()
server = Server()
client.producer.send(b"foo", partition_key="me")
assert done.wait(60)
client.client.close()
server.client.close()
"""

READER = """
import pulsar

client = pulsar.Client(URL)
producer = client.create_producer(TOPIC)
ids = [producer.send(b"msg-%d" % i) for i in range(10)]

reader = client.create_reader(TOPIC, pulsar.MessageId.earliest)
while reader.has_message_available():
    msg = reader.read_next()
    print("Read {0} at {1}".format(msg.data(), msg.message_id().entry_id()))
reader.seek(ids[6])
print(reader.read_next(timeout_millis=60000).data())
stored = ids[3].serialize()
reader.close()

reader = client.create_reader(TOPIC, pulsar.MessageId.deserialize(stored))
print(reader.read_next().data())
client.close()
"""

BATCH_RECEIVE = """
import pulsar

client = pulsar.Client(URL)
consumer = client.subscribe(
    TOPIC, "batch", pulsar.ConsumerType.Shared,
    initial_position=pulsar.InitialPosition.Earliest,
    batch_receive_policy=pulsar.ConsumerBatchReceivePolicy(10, -1, 60000))
producer = client.create_producer(TOPIC)
for i in range(25):
    producer.send(b"%d" % i, properties={"n": str(i)})
for _ in range(2):
    msgs = consumer.batch_receive()
    print(len(msgs), sorted(int(msg.properties()["n"]) for msg in msgs))
    for msg in msgs:
        consumer.acknowledge(msg)
client.close()
"""

DEAD_LETTERS = """
import pulsar

client = pulsar.Client(URL)
consumer = client.subscribe(
    TOPIC, "sub", pulsar.ConsumerType.Shared,
    negative_ack_redelivery_delay_ms=100,
    initial_position=pulsar.InitialPosition.Earliest,
    dead_letter_policy=pulsar.ConsumerDeadLetterPolicy(
        max_redeliver_count=2, dead_letter_topic=TOPIC + "-dead",
        initial_subscription_name="init-sub"))
dead = client.subscribe(TOPIC + "-dead", "dead")
producer = client.create_producer(TOPIC)
producer.send(b"bad", properties={"a": "1"})
for _ in range(3):
    msg = consumer.receive(60000)
    print("Received {0}, redelivered {1} times".format(msg.data(), msg.redelivery_count()))
    consumer.negative_acknowledge(msg)
letter = dead.receive(60000)
print(letter.data(), sorted(letter.properties()), letter.properties()["REAL_TOPIC"])
dead.acknowledge(letter)
try:
    consumer.receive(100)
except pulsar.Timeout:
    print("No more")
try:
    client.subscribe(TOPIC, "x", consumer_type="Shared")
except ValueError:
    print("Not a type")
client.close()
try:
    consumer.receive()
except pulsar.AlreadyClosed:
    print("Closed")
"""

PRODUCER = """
import threading
import pulsar

client = pulsar.Client(URL, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
check = client.subscribe(TOPIC, "check")
producer = client.create_producer(
    TOPIC, block_if_queue_full=True, batching_enabled=True, batching_max_publish_delay_ms=10,
    properties={"producer-name": "test", "producer-id": "1"},
    batching_type=pulsar.BatchingType.KeyBased)
for i in range(3):
    try:
        print(producer.send("hello".encode("utf-8"), None) is not None)
    except Exception as e:
        print("Failed to send message: %s" % e)
told = threading.Semaphore(0)

def callback(res, msg_id):
    print("sent", res == pulsar.Result.Ok, msg_id.entry_id() >= 0)
    told.release()

for i in range(3):
    producer.send_async(b"async-%d" % i, callback, partition_key="k")
producer.flush()
for _ in range(3):
    assert told.acquire(timeout=60)
producer.close()
for _ in range(6):
    msg = check.receive(60000)
    print("{0} {1} {2}".format(msg.data(), msg.partition_key(), msg.properties()))
    check.acknowledge_cumulative(msg)
client.close()
"""

NEGATIVE = """
import pulsar

client = pulsar.Client(URL)
consumer = client.subscribe(TOPIC, "sub", pulsar.ConsumerType.Shared,
                            negative_ack_redelivery_delay_ms=100)
producer = client.create_producer(TOPIC)
for i in range(3):
    producer.send(b"%d" % i)
seen = []
while len(seen) < 4:
    msg = consumer.receive(60000)
    again = msg.redelivery_count() > 0
    if msg.data() == b"1" and not again:
        consumer.negative_acknowledge(msg)
    else:
        consumer.acknowledge(msg)
    seen.append((msg.data(), again))
for data, again in sorted(seen):
    print(data, again)
consumer.unsubscribe()
client.close()
"""

TABLE_VIEW = """
import pulsar

client = pulsar.Client(URL)
producer = client.create_producer(TOPIC)
for key, value in (("a", b"1"), ("b", b"2"), ("a", b"3")):
    producer.send(value, partition_key=key)
view = client.create_table_view(TOPIC, subscription_name="view")
print(len(view), view.get("a"), view.get("none"), view)
found = {}
view.for_each(lambda key, value: found.update({key: value}))
print(sorted(found.items()))
view.close()
client.close()
"""

TYPED = """
import pulsar
from pulsar.schema import AvroSchema, StringSchema

client = pulsar.Client(URL)
schema = AvroSchema(None, schema_definition={
    "type": "record", "name": "Company", "fields": [
        {"name": "name", "type": "string"},
        {"name": "employees", "type": {"type": "array", "items": "string"}},
        {"name": "labels", "type": ["null", {"type": "map", "values": "string"}]}]})
consumer = client.subscribe(TOPIC, "typed", schema=schema)
producer = client.create_producer(TOPIC, schema=schema)
producer.send({"name": "co", "employees": ["ann", "bob"], "labels": {"x": "y"}})
producer.send({"name": "empty", "employees": [], "labels": None})
for _ in range(2):
    msg = consumer.receive(60000)
    print(msg.value())
    consumer.acknowledge(msg)
try:
    client.create_producer(TOPIC, schema=StringSchema())
except pulsar.IncompatibleSchema:
    print("Incompatible")
client.close()
"""

PROGRAMS = {
    "producer": PRODUCER,
    "negative acknowledgements": NEGATIVE,
    "table view": TABLE_VIEW,
    "typed": TYPED,
    "consumer": CONSUMER,
    "listener": LISTENER,
    "reader": READER,
    "batch receive": BATCH_RECEIVE,
    "dead letters": DEAD_LETTERS,
}


def output_of(program: str, broker: Broker, topic: str) -> list[str]:
    """Run a program and return its output, without the name of its topic."""
    names = {"URL": broker.service_url, "TOPIC": topic}
    shown = io.StringIO()
    with redirect_stdout(shown):
        exec(compile(program, "<program>", "exec"), names)
    return shown.getvalue().replace(topic, "TOPIC").splitlines()


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_prints_the_same_with_either_client(broker: Broker, name: str) -> None:
    program = PROGRAMS[name]
    assert OFFICIAL in program
    expected = output_of(program, broker, broker.create_topic())
    assert len(expected) >= 2
    ours = program.replace(OFFICIAL, OURS).replace("from pulsar.", "from pulsar_spark.client.")
    found = output_of(ours, broker, broker.create_topic())
    assert found == expected
