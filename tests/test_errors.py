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
