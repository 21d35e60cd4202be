"""Errors: one class per kind, picklable, with context and without secrets."""

from __future__ import annotations

import pickle
from time import process_time

import pytest

from pulsar_spark import errors
from pulsar_spark.errors import (
    AuthorizationError,
    BrokerError,
    PulsarError,
    TopicNotFound,
    UnknownServerError,
    from_server_error,
    listed,
    redact,
)
from pulsar_spark.protocol import pulsar_api_pb2 as pb

KINDS = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, PulsarError) and kind is not PulsarError
]


def test_the_base_class_itself_is_not_raised() -> None:
    with pytest.raises(TypeError):
        PulsarError("something")


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.fault(98)
def test_an_error_survives_pickling_with_its_context(kind: type[PulsarError]) -> None:
    error = kind("It broke", "Mend it.", topic="t", partition=3, message_id="1:2", broker="b:1")
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is kind
    assert str(copy) == str(error)
    assert (copy.topic, copy.partition, copy.message_id, copy.broker) == ("t", 3, "1:2", "b:1")


def test_the_text_has_what_where_and_remedy() -> None:
    text = str(AuthorizationError("No", "Ask.", topic="t", role="r"))
    assert text == "No [topic t, role r] Ask."


def test_a_long_list_is_cut_and_says_how_many_more() -> None:
    assert listed(["a", "b", "c"], 3) == "a, b, c"
    assert listed(iter(["a", "b", "c"]), 1) == "a and 2 more"
    assert listed([]) == ""


def test_context_is_filled_in_without_overwriting() -> None:
    error = TopicNotFound("gone", topic="t").with_context(topic="other", broker="b")
    assert (error.topic, error.broker) == ("t", "b")


def test_every_server_error_has_its_class() -> None:
    named = {kind.code for kind in BrokerError.__subclasses__()}
    assert named == set(pb.ServerError.values())
    for code in pb.ServerError.values():
        assert from_server_error(code, "text").code == code
    assert type(from_server_error(999, "text")) is UnknownServerError


@pytest.mark.parametrize(
    "text, secret",
    [
        ("bad token: eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhIn0.c2ln", "eyJ"),
        ("failed for pulsar://user:hunter2@host:6650", "hunter2"),
        ("password=hunter2 refused", "hunter2"),
        ("Authorization: Bearer abcdefghijklmnop", "abcdefghijklmnop"),
        ("-----BEGIN RSA PRIVATE KEY-----\nhunter2\n-----END RSA PRIVATE KEY-----", "hunter2"),
    ],
)
def test_what_looks_like_a_credential_is_removed(text: str, secret: str) -> None:
    assert secret not in redact(text)
    assert secret not in str(from_server_error(3, text))


@pytest.mark.fault(97)
@pytest.mark.parametrize(
    "secret", ["hunter2", "a b;c", "geheim€", "with \udc80 half a pair", b"\xff\xfe bytes", "$1\\1"]
)
def test_a_known_secret_is_removed_wherever_it_stands(secret: str | bytes) -> None:
    raw = secret if isinstance(secret, bytes) else secret.encode("utf-8", "surrogatepass")
    texts: list[str | bytes] = [raw, b"cannot log in: " + raw + b"!" + raw]
    if isinstance(secret, str):
        texts += [secret, f"you said {secret}, but"]
    for text in texts:
        shown = redact(text, ["", secret, secret[:3]])
        assert str(from_server_error(3, text, ["", secret])).count("***") == shown.count("***")
        assert "***" in shown
        for part in (raw.decode("utf-8", "replace"), repr(secret)[2:-1], "hunter"):
            assert part not in shown
        shown.encode()


@pytest.mark.fault(97)
def test_a_secret_at_the_bound_of_a_brokers_text_is_not_cut_in_two() -> None:
    for length in range(960, 1010):
        shown = str(
            from_server_error(3, "x" * length + "correct-horse-battery", ["correct-horse-battery"])
        )
        assert "cor" not in shown
        assert "eyJ" not in str(
            from_server_error(3, " " * length + "eyJhbGciOiJIUzI1NiJ9.eyJzdW.c2ln")
        )


@pytest.mark.fault(97)
@pytest.mark.parametrize("text", [b"\xff\xfe", "half \udc80 a pair", "\0", b"", ""])
def test_any_text_of_a_peer_can_be_shown(text: str | bytes) -> None:
    redact(text, ["\ud800", b"\xff"]).encode()
    str(from_server_error(0, text)).encode()


@pytest.mark.fault(97)
@pytest.mark.parametrize(
    "unit",
    [
        "eyJ",
        "eyJaaaaa",
        "eyJaaaaa.",
        "//",
        "//a",
        "token",
        "token=",
        "token: ",
        "basic ",
        "bearer\t",
        "basic a",
        " ",
        "a",
        "basic aaaaaaaaaaaaaaaaaa",
        "=",
        "secret:\n",
        "@//",
        "\udc80",
    ],
)
def test_hostile_text_takes_no_longer_than_its_length(unit: str) -> None:
    def steps(size: int) -> float:
        text = (unit * size)[:size]
        begin = process_time()
        redact(text, [unit, "x" * 40])
        return process_time() - begin

    # Squares of this length would take minutes.
    assert steps(1_000_000) < 5


def test_a_brokers_text_is_bounded() -> None:
    assert len(str(from_server_error(0, "x" * 100_000))) < 2_000


# Answers of Pulsar 3.0.7, 4.0.8 and 4.2.4, and what the error names.
ANSWERS = [
    (5, "Topic reached max consumers limit", "maxConsumersPerTopic"),
    (5, "Subscription reached max consumers limit", "maxConsumersPerSubscription"),
    (5, "Topic reached max same address consumers limit", "maxSameAddressConsumersPerTopic"),
    (5, "Exclusive consumer is already connected", "give each its own name"),
    (5, "Subscription is of different type", "same type"),
    (16, "Topic 'persistent://a/b/c' reached max producers limit", "maxProducersPerTopic"),
    (16, "Topic 'c' reached max same address producers limit", "maxSameAddressProducersPerTopic"),
    (16, "$NamingException: Producer with name 'p' is already connected to topic", "producerName"),
    (16, "Topic has an existing exclusive producer: p", "exclusive access"),
    (22, "Exceed the maximum number of subscriptions of the topic: c", "maxSubscriptionsPerTopic"),
    (22, "Exceed maximum number of topics in namespace.", "maxTopicsPerNamespace"),
    (22, "Topic[{c}] doesn't support Exclusive sub type!", "subscriptionTypesEnabled"),
    (22, "due to the auto subscription creation is not allowed.", "autoSubscriptionCreation"),
    (22, "Subscribe limited by subscribe rate limit per consumer.", "subscribeRate"),
    (22, "Durable subscription with the same name already exists.", "own subscription name"),
    (1, "Encryption is required in persistent://a/b/c", "encryptionRequired"),
    (18, "without a schema to topics with a schema", "schemaValidationEnforced"),
    (18, "Schema not found and schema auto updating is disabled.", "isAllowAutoUpdateSchema"),
    (7, "Cannot create producer on topic with backlog quota exceeded", "backlogQuota"),
    (8, "Cannot create producer on topic with backlog quota exceeded", "backlogQuota"),
]


@pytest.mark.fault(140)
@pytest.mark.parametrize("code,text,named", ANSWERS)
def test_a_brokers_text_chooses_words_and_nothing_else(code: int, text: str, named: str) -> None:
    error = from_server_error(code, text)
    unknown = from_server_error(code, "in other words")
    assert named in str(error)
    assert text in str(error)
    assert type(error) is type(unknown)
    assert error.retryable == unknown.retryable
    # The same text with another code means nothing.
    other = from_server_error(2, text)
    assert other.remedy == from_server_error(2, "x").remedy


@pytest.mark.fault(140)
@pytest.mark.parametrize("code", sorted({code for code, _, _ in ANSWERS}))
def test_an_unknown_text_gets_advice_for_all_causes_of_its_code(code: int) -> None:
    error = from_server_error(code, "in other words")
    causes = {
        1: "metadata store",
        5: "maxConsumersPerTopic",
        7: "set-backlog-quota",
        8: "set-backlog-quota",
        16: "maxProducersPerTopic",
        18: "topic's schema",
        22: "the topic",
    }
    assert causes[code] in error.remedy


def test_each_policy_is_named_with_a_place_where_it_is_set() -> None:
    for kind, policy in errors.policies():
        assert issubclass(kind, BrokerError)
        assert "broker.conf" in policy.where or "pulsar-admin" in policy.where
