"""Options as text → values, checked against the table of options."""

from __future__ import annotations

import logging

import pytest

from pulsar_spark.errors import InvalidOffset, OptionError, UnsupportedFeature
from pulsar_spark.spark.datasource import PulsarDataSource
from pulsar_spark.spark.options.resolve import resolve
from pulsar_spark.spark.options.table import Scope
from pulsar_spark.testing import EmbeddedBroker

SECRET = "canary-7b1f"
BASE = {"service.url": "pulsar://localhost:6650"}


def test_keys_are_case_insensitive_and_defaults_fill_in() -> None:
    values = resolve({"SERVICE.URL": "pulsar://h", "POLLTIMEOUT": "5s"}, Scope.READ)
    assert values["service.url"] == "pulsar://h"
    assert values["pollTimeout"] == 5.0
    assert values["failOnDataLoss"] is True
    assert "pollTimeout" in values
    assert "failOnDataLoss" not in values


@pytest.mark.parametrize(
    "alias,key,text,value",
    [
        ("serviceUrl", "service.url", "pulsar://h", "pulsar://h"),
        ("pollTimeoutMs", "pollTimeout", "1500", 1.5),
        ("pulsar.reader.readCompacted", "readCompacted", "true", True),
    ],
)
def test_names_of_the_scala_connector_are_aliases(
    alias: str, key: str, text: str, value: object
) -> None:
    assert resolve({alias: text}, Scope.READ)[key] == value


@pytest.mark.fault(99)
@pytest.mark.parametrize(
    "wrong,nearest",
    [
        ("startingOffset", "startingOffsets"),
        ("service.uri", "service.url"),
        ("failOnDataLos", "failOnDataLoss"),
        ("pulsar.client.authParam", "pulsar.client.authParams"),
        ("authParams", "pulsar.client.authParams"),
        ("pulsar.reader.tlsKeyFilePath", "pulsar.client.tlsKeyFilePath"),
        ("topicPattern", "topicsPattern"),
        ("pulsar.producer.cryptoFailureActions", "pulsar.producer.cryptoFailureAction"),
        ("pulsar.reader.cryptoFailureActions", "pulsar.reader.cryptoFailureAction"),
        ("pulsar.producer.compressiontypes", "pulsar.producer.compressionType"),
    ],
)
def test_a_misspelt_option_is_an_error_with_the_nearest_name(wrong: str, nearest: str) -> None:
    with pytest.raises(OptionError) as caught:
        resolve({**BASE, wrong: SECRET}, Scope.READ)
    assert wrong in str(caught.value)
    assert f"Did you mean '{nearest}'?" in str(caught.value)
    assert SECRET not in str(caught.value)


@pytest.mark.fault(99)
@pytest.mark.parametrize(
    "unknown",
    [
        "zzzzqqqq",
        "pulsar.client.zzzz",
        # The prefix alone resembles nothing.
        "pulsar.producer.abcMo",
        "pulsar.reader.size",
        "maxFiles",
        "header",
        "rowsPerSecond",
    ],
)
def test_an_option_like_no_other_is_an_error_without_a_guess_or_a_list(unknown: str) -> None:
    with pytest.raises(OptionError) as caught:
        resolve({unknown: SECRET}, Scope.READ)
    text = str(caught.value)
    assert f"{unknown!r} is not an option" in text
    assert "docs/options.md" in text
    assert "Did you mean" not in text
    assert len(text) < 200
    assert SECRET not in text


@pytest.mark.fault(99)
@pytest.mark.parametrize(
    "key,value",
    [
        ("pollTimeout", "soon"),
        ("pollTimeout", "0"),
        ("failOnDataLoss", "maybe"),
        ("mode", "IGNORE"),
        ("partitionsPerTopicPartition", "0"),
        ("minPartitions", "-3"),
        ("pulsar.client.memoryLimitBytes", "10"),
        ("pulsar.client.maxLookupRedirects", "100000"),
        ("pulsar.reader.receiverQueueSize", "0"),
        ("pulsar.client.keepAliveIntervalSeconds", "0"),
    ],
)
def test_a_value_out_of_range_is_an_error_that_names_option_and_value(key: str, value: str) -> None:
    with pytest.raises(OptionError) as caught:
        resolve({**BASE, key: value}, Scope.READ)
    assert key in str(caught.value)
    assert value in str(caught.value)
    assert "Expected" in str(caught.value)


@pytest.mark.fault(99)
def test_two_names_of_one_option_may_not_disagree() -> None:
    with pytest.raises(OptionError, match=r"service\.url and serviceUrl are the same"):
        resolve({"service.url": "pulsar://a", "serviceUrl": "pulsar://b"}, Scope.READ)
    assert resolve({"service.url": "a", "serviceUrl": "a"}, Scope.READ)["service.url"] == "a"


def test_two_names_of_an_option_for_something_else_may_not_disagree_either(
    caplog: pytest.LogCaptureFixture,
) -> None:
    names = {"subscription": "a", "predefinedSubscription": "b"}
    with pytest.raises(OptionError, match="subscription and predefinedSubscription are the same"):
        resolve({**BASE, **names}, Scope.READ)
    resolve({**BASE, "subscription": "a", "predefinedSubscription": "a"}, Scope.READ)
    assert caplog.text.endswith("are ignored: subscription\n")


def test_keys_of_spark_itself_pass() -> None:
    resolve(
        {
            "path": "t",
            "checkpointLocation": "/c",
            "queryName": "q",
            "__partition_columns": "[]",
            "spark.app.name": "a",
            "option.topic": "t",
        },
        Scope.READ,
    )


@pytest.mark.fault(99)
@pytest.mark.parametrize("name", ["__topic", "__KEY", "__messageId"])
def test_a_column_that_is_given_as_an_option_is_an_error(name: str) -> None:
    with pytest.raises(OptionError, match=f"'{name}' is not an option, but a column"):
        resolve({"service.url": "pulsar://h", name: "t"}, Scope.WRITE)


def test_keys_of_java_without_meaning_pass_with_one_log_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ignored = {
        "admin.url": "http://localhost:8080",
        "pulsar.client.numIoThreads": "3",
        "pulsar.client.statsIntervalSeconds": "60",
        "numListenerThreads": "2",
        "pulsar.admin.tlsTrustCertsFilePath": SECRET,
        "pulsar.producer.compressionType": "LZ4",
        "maxBytesPerTrigger": "1g",
    }
    with caplog.at_level(logging.INFO):
        resolve({**BASE, **{key.lower(): value for key, value in ignored.items()}}, Scope.READ)
    assert len(caplog.records) == 1
    message = caplog.records[0].getMessage()
    assert all(key.lower() in message.lower() for key in ignored)
    assert SECRET not in message


BATCHING = "pulsar.producer.batchingEnabled"


@pytest.mark.parametrize(
    "given, scope, told",
    [
        ({"schema.name": "R", "valueFormat": "raw"}, Scope.WRITE, "schema.name"),
        ({"schema.namespace": "a.b", "valueFormat": "string"}, Scope.WRITE, "schema.namespace"),
        ({"jsoncoercion": "java", "valueFormat": "raw"}, Scope.READS, "jsonCoercion"),
        ({"maxTriggerDelay": "5m"}, Scope.STREAM_READ, "maxTriggerDelay"),
        (
            {"pulsar.producer.batchingMaxBytes": "1m", BATCHING: "false"},
            Scope.STREAM_WRITE,
            "pulsar.producer.batchingMaxBytes",
        ),
        ({"schema.name": "R", "valueFormat": "avro"}, Scope.WRITE, ""),
        ({"schema.name": "R", "valueFormat": "raw"}, Scope.BOTH, ""),
        ({"maxTriggerDelay": "5m", "minMessagesPerTrigger": "9"}, Scope.STREAM_READ, ""),
        ({"pulsar.producer.batcherBuilder": "KEY_BASED"}, Scope.WRITE, ""),
    ],
)
def test_options_without_effect_beside_another_one_are_told(
    given: dict[str, str], scope: Scope, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    resolve({**BASE, **given}, scope)
    lines = [record.getMessage().rpartition(": ")[2] for record in caplog.records]
    assert lines == ([told] if told else [])


def test_one_read_tells_once_which_options_have_no_effect(
    caplog: pytest.LogCaptureFixture, broker: EmbeddedBroker
) -> None:
    broker.create_topic("t")
    options = {"service.url": broker.service_url, "topic": "t", "admin.url": "http://localhost:1"}
    idle = {"valueFormat": "raw", "jsonCoercion": "java", "maxTriggerDelay": "5m"}
    source = PulsarDataSource({**options, **idle, "maxMessagesPerTrigger": "5"})
    schema = source.schema()
    told = [record.getMessage().rpartition(": ")[2] for record in caplog.records]
    assert told == ["admin.url, jsonCoercion"]
    caplog.clear()
    source.reader(schema)
    told = [record.getMessage().rpartition(": ")[2] for record in caplog.records]
    assert told == ["maxTriggerDelay, maxMessagesPerTrigger"]
    caplog.clear()
    source.streamReader(schema)
    told = [record.getMessage().rpartition(": ")[2] for record in caplog.records]
    assert told == ["maxTriggerDelay"]


@pytest.mark.parametrize(
    "key,equivalent",
    [
        ("pulsar.client.useKeyStoreTls", "tlsTrustCertsFilePath"),
        ("pulsar.client.useKeyStoreTls", "keytool -importkeystore"),
        ("pulsar.client.tlsKeyStorePath", "openssl pkcs12"),
        ("useKeyStoreTls", "tlsTrustCertsFilePath"),
        ("pulsar.client.tlsTrustStorePassword", "tlsTrustCertsFilePath"),
        ("pulsar.client.useTls", "pulsar+ssl://"),
        ("pulsar.client.authParamMap", "pulsar.client.authParams"),
        ("pulsar.client.authentication", "pulsar.client.authParams"),
        ("pulsar.client.socks5ProxyAddress", "service.url"),
        ("pulsar.reader.cryptoKeyReader", "cryptoPrivateKeyPath"),
    ],
)
def test_keys_of_java_that_change_security_are_errors_that_name_the_equivalent(
    key: str, equivalent: str
) -> None:
    with pytest.raises(OptionError) as caught:
        resolve({**BASE, key: "true"}, Scope.READ)
    assert key in str(caught.value)
    assert equivalent in str(caught.value)
    assert "'true'" not in str(caught.value)


def test_such_a_key_passes_where_it_asks_for_nothing() -> None:
    resolve({**BASE, "pulsar.client.useKeyStoreTls": "false"}, Scope.READ)


@pytest.mark.parametrize(
    "key,value,scope",
    [
        ("pulsar.producer.cryptoFailureAction", "SEND", Scope.WRITE),
    ],
)
def test_what_is_documented_and_not_built_is_an_error(key: str, value: str, scope: Scope) -> None:
    with pytest.raises(UnsupportedFeature) as caught:
        resolve({**BASE, key: value}, scope)
    assert key in str(caught.value)
    assert SECRET not in str(caught.value)


def test_choices_are_taken_in_any_case() -> None:
    resolve({**BASE, "deliveryGuarantee": "At-Least-Once"}, Scope.WRITE)


def test_topics_to_read_are_no_target_of_a_write() -> None:
    for key in ("topics", "topicsPattern"):
        with pytest.raises(OptionError, match=key):
            resolve({**BASE, key: "a"}, Scope.WRITE)


@pytest.mark.fault(96, 99)
def test_an_error_redacts_what_looks_like_a_credential() -> None:
    with pytest.raises(OptionError) as caught:
        resolve({**BASE, "mode": f"token:{SECRET}"}, Scope.READ)
    assert SECRET not in str(caught.value)


@pytest.mark.fault(99)
@pytest.mark.parametrize(
    "key,value,scope",
    [
        ("maxMessagesPerTrigger", "garbage", Scope.READ),
        ("maxTriggerDelay", "soon", Scope.READ),
        ("waitingForNonExistedTopic", "maybe", Scope.READ),
        ("pulsar.producer.compressionType", "nope", Scope.READ),
        ("deliveryGuarantee", "twice", Scope.STREAM_READ),
        ("schema.name", "a-b", Scope.READ),
        ("failOnDataLoss", "perhaps", Scope.WRITE),
        ("pollTimeout", "-1", Scope.STREAM_WRITE),
        ("startingOffsets", "somewhere", Scope.WRITE),
        ("endingOffsets", '{"t": "1:"}', Scope.WRITE),
        ("startingTime", "yesterday", Scope.WRITE),
        ("endingTime", "soon", Scope.STREAM_READ),
        ("pulsar.reader.receiverQueueSize", "0", Scope.WRITE),
    ],
)
def test_values_of_options_for_something_else_have_to_make_sense(
    key: str, value: str, scope: Scope
) -> None:
    with pytest.raises((OptionError, InvalidOffset), match=key):
        resolve({**BASE, key: value}, scope)


def test_options_for_something_else_pass_where_they_make_sense() -> None:
    resolve(
        {**BASE, "maxMessagesPerTrigger": "5", "deliveryGuarantee": "exactly-once", "sinkId": "s"},
        Scope.READ,
    )
    resolve({**BASE, "startingOffsets": '{"t": "1:2"}', "startingTime": "-1h"}, Scope.WRITE)


@pytest.mark.parametrize("key", ["serviceUrlProvider", "pulsar.client.serviceUrlProvider"])
def test_a_provider_of_service_urls_is_refused(key: str) -> None:
    with pytest.raises(OptionError, match=r"serviceUrlProvider.*service\.url"):
        resolve({**BASE, key: "com.example.Provider"}, Scope.READ)
