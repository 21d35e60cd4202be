"""PEM that options give as text or as a path."""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path

import pytest

from pulsar_spark.engine.authentication.providers import TokenAuth
from pulsar_spark.engine.options import AuthOptions, TlsOptions
from pulsar_spark.engine.pem import is_path, pem_content, read_pem
from pulsar_spark.errors import AuthenticationError, CryptoError, printable
from tests.engine.damaged_pem import damaged, shows
from tests.support.certificates import Authority


@pytest.fixture
def pem(tmp_path: Path) -> str:
    return Path(Authority(tmp_path).client()[1]).read_text()


def test_text_is_taken_as_it_is_and_a_path_is_read(pem: str, tmp_path: Path) -> None:
    path = tmp_path / "M1/keys/of/production/servers/in/the/first/region/a.pem"
    path.parent.mkdir(parents=True)
    path.write_text(pem)
    for value in (pem, f"content:{pem}", str(path)):
        assert read_pem(value, "the.option", CryptoError, "") == pem.encode()
    assert pem_content(str(path)) is None


@pytest.mark.parametrize(
    "path",
    [
        "/nowhere/key.pem",
        "keys/" + "k" * 300,
        "my/" + "k" * 60,
        "MyCompany/pulsar/certs/production/clientkeypem",
        "data/key.pem",
        "a\0b",
    ],
)
def test_a_path_that_cannot_be_read_is_named(path: str) -> None:
    with pytest.raises(CryptoError, match=r"^the file .* of the\.option cannot be read") as caught:
        read_pem(path, "the.option", CryptoError, "Put it there.")
    assert (printable(path) in str(caught.value), caught.value.remedy) == (True, "Put it there.")


@pytest.mark.fault(96)
def test_a_key_with_damaged_lines_is_an_error_and_shown_nowhere(pem: str) -> None:
    for text in damaged(pem):
        with pytest.raises(CryptoError, match="is neither a path nor PEM") as caught:
            read_pem(text, "the.option", CryptoError, "")
        assert not shows(caught.value, pem)
        assert not shows(AuthOptions("tls", certificate_file=text, key_file=text), pem)
        assert not shows(TlsOptions(text, text, text), pem)


@pytest.mark.fault(96)
@pytest.mark.parametrize("form", ["{}", " {}", "data:application/x-pem-file;base64,{}"])
@pytest.mark.parametrize("before", ["", "\n", "Bag Attributes\n    localKeyID: 1\n"])
@pytest.mark.parametrize("encode", [base64.b64encode, base64.urlsafe_b64encode])
def test_a_key_in_base64_is_an_error_and_shown_nowhere(
    pem: str, form: str, before: str, encode: Callable[[bytes], bytes]
) -> None:
    """As secrets of Kubernetes are, and URLs of Java's clients."""
    encoded = encode((before + pem).encode()).decode()
    text = form.format(encoded)
    with pytest.raises(CryptoError, match="is neither a path nor PEM") as caught:
        read_pem(text, "the.option", CryptoError, "")
    assert encoded[100:140] not in str(caught.value)
    for shown in (
        AuthOptions("tls", certificate_file=text, key_file=text),
        TlsOptions(text, text, text),
    ):
        assert encoded[100:140] not in repr(shown)
    assert not is_path(text)


@pytest.mark.fault(96)
def test_credentials_in_place_of_a_path_are_shown_nowhere() -> None:
    url, token = "https://user:passw0rd@vault/key.pem", "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJ0In0.c2ln"
    with pytest.raises(CryptoError, match="cannot be read") as caught:
        read_pem(url, "the.option", CryptoError, "")
    assert "passw0rd" not in str(caught.value)
    assert "passw0rd" not in repr(TlsOptions(url, url, url))
    options = AuthOptions("token", token_file=f"/{token}")
    with pytest.raises(
        AuthenticationError, match=r"^the token file /\*\*\* cannot be read"
    ) as refused:
        TokenAuth(token_file=f"/{token}").auth_data()
    assert token[5:] not in f"{refused.value} {options!r}"
