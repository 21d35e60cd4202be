"""Errors: one class per kind, picklable, with context and without secrets."""

from __future__ import annotations

import pickle
from time import process_time

import pytest

from pulsar_spark import errors
from pulsar_spark.errors import (
    AuthorizationError,
    BrokerError,
    NotAllowed,
    PulsarError,
    TopicNotFound,
    UnknownServerError,
    from_server_error,
    listed,
    redact,
)
from pulsar_spark.policies import BACKLOG_QUOTA
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


@pytest.mark.parametrize(
    "what, topic, text",
    [
        ("No", None, "No. Ask."),
        ("No.", None, "No. Ask."),
        ("No: ['a']", None, "No: ['a']. Ask."),
        ("No: ['a']", "t", "No: ['a'] [topic t] Ask."),
        ("No t in ['t']", "t", "No t in ['t']. Ask."),
        ("Not host[:port]", None, "Not host[:port]. Ask."),
    ],
)
def test_what_and_remedy_are_two_sentences(what: str, topic: str | None, text: str) -> None:
    assert str(AuthorizationError(what, "Ask.", topic=topic)) == text


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


def test_every_server_error_says_what_to_do() -> None:
    remedies = {code: from_server_error(code, "text").remedy for code in pb.ServerError.values()}
    assert all(remedies.values())
    for code in (pb.ProducerBlockedQuotaExceededError, pb.ProducerBlockedQuotaExceededException):
        assert BACKLOG_QUOTA.where in remedies[code]


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
        "\x1b",
        "\x1b[",
        "\x1b[0m",
        "\x1b]a",
        "\x9d",
        "\x9d\x1b\\",
        "a\n",
        "//a:b",
        "//a:b/",
        "//a:1/",
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
    assert steps(300_000) < 5


@pytest.mark.fault(148)
@pytest.mark.parametrize("unit", ["x", "\x1b", "\U000e0001", "\x1b[0m"])
def test_a_brokers_text_is_bounded(unit: str) -> None:
    assert len(str(from_server_error(0, unit * 100_000))) < 2_000


CONTROLS = [
    *map(chr, (*range(0x20), *range(0x7F, 0xA0))),
    *map(chr, (0x61C, 0x200B, *range(0x200E, 0x2010), *range(0x2028, 0x202F))),
    *map(chr, (*range(0x2066, 0x206A), 0xFEFF, 0xE0001)),
]
HOSTILE = "no\x1b]0;owned\x07\x1b[2J\n2026-01-01 00:00:00 INFO root: all is well" + "".join(
    CONTROLS
)


@pytest.mark.fault(148)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_no_text_of_an_error_has_a_line_break_or_what_a_terminal_obeys(
    kind: type[PulsarError],
) -> None:
    error = kind(HOSTILE, HOSTILE, topic=HOSTILE, message_id=HOSTILE, broker=HOSTILE, role=HOSTILE)
    for one in (error, error.with_context(), pickle.loads(pickle.dumps(error))):
        texts = [str(one), repr(one), *map(str, one.args), *map(str, vars(one).values())]
        assert not set("".join(texts)) & set(CONTROLS)
        assert "no\\x1b]0;owned\\x07\\x1b[2J\\n2026" in one.what
        # Escaping twice changes nothing: errors are made of other errors' texts.
        again: PulsarError = kind(one.what, one.remedy, topic=one.topic, message_id=one.message_id)
        again = again.with_context(broker=one.broker, role=one.role)
        assert str(one) == str(error) == str(again)


@pytest.mark.fault(148)
def test_a_text_that_is_only_long_is_cut() -> None:
    error = NotAllowed("x" * 10_000_000, "y" * 10_000_000, topic="z" * 10_000_000)
    assert len(str(error)) < 300_000
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


@pytest.mark.fault(97, 148)
@pytest.mark.parametrize("cut", ["\n", "\x1b[0m", "\x1b[31;1m", "\x9b0m", "\u202e", "\0", "\x1b(B"])
@pytest.mark.parametrize("secret", ["correct-horse", "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhIn0.c2ln"])
def test_a_secret_with_control_characters_inside_is_a_secret(cut: str, secret: str) -> None:
    for text in (
        secret[:6] + cut + secret[6:],
        f"you said {cut.join(secret)}, but {secret}",
        f"{cut}Authorization: Bearer{cut} {secret[:3]}{cut}{secret[3:]}{cut}; no",
        f"token:{secret[:9]}{cut}{secret[9:]}",
        f"\x1b]0;{secret}\x07{secret}",
    ):
        shown = str(from_server_error(3, text, [secret]))
        assert "***" in shown
        for part in (secret, secret[:3], secret[-3:], secret[6:9]):
            assert part not in shown, (text, shown)


@pytest.mark.fault(148)
def test_control_characters_take_nothing_else_out_of_a_text() -> None:
    assert redact("a\x1b[31mb\nc //d", ["x\ny"]) == "a\x1b[31mb\nc //d"
    shown = str(from_server_error(3, "a\x1b[31mb\nsecret=xy; c\u202ed", ["zz"]))
    assert "a\\x1b[31mb\\nsecret=***; c\\u202ed" in shown
    assert redact("a sec\0ret", ["sec\0ret"]) == redact("a s\0ecret", ["sec\0ret"]) == "a ***"
    assert str(from_server_error(3, "ein Büchlein 📕 «é»")).endswith("«é»" + _after("«é»"))


def _after(text: str) -> str:
    return str(from_server_error(3, text)).partition(text)[2]


@pytest.mark.fault(149)
@pytest.mark.parametrize(
    "url",
    [
        "s3a://{}@bucket/checkpoint",
        "s3a://KEY:{}@bucket/checkpoint",
        "s3a://KEY:a/{}+b=@bucket/checkpoint",
        "pulsar://user:p@{}@host:6650",
    ],
)
def test_credentials_in_a_url_are_removed(url: str) -> None:
    shown = redact(url.format("hunter2"))
    assert "hunter2" not in shown
    assert shown.endswith(url.partition("{}")[2].rpartition("@")[2])


def test_a_url_without_credentials_is_kept() -> None:
    for text in (
        "persistent://public/default/a@b",
        "pulsar://host:6650/a@b",
        "http://host:8080/admin, mail to a@b",
    ):
        assert redact(text) == text


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
    (22, "Exceed maximum message size", "maxMessageSize"),
    (22, "Exceeds max allowed delivery delay of 5000 milliseconds", "maxDeliveryDelayInMillis"),
    (22, "Cannot send messages to a shadow topic", "source topic"),
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


def test_a_secret_in_another_case_of_letters_is_redacted() -> None:
    assert redact("you sent AbC-token-İ, or abc-TOKEN-İ", ["abc-token-İ"]) == (
        "you sent ***, or ***"
    )
    assert redact(b"TO\x00KEN1", [b"token1"]) == "***"
    # Letters that change their length with their case leave all others at their places.
    assert redact("İİ SECRET1 ß", ["secret1"]) == "İİ *** ß"
