"""TLS: verification and client certificates, and a TLS socket.

`Transport` uses it like a plain non-blocking socket. OpenSSL's state must not be used by two
threads at once. So it works on memory buffers, under a lock that is held for computation only:
one thread reads the socket and another writes it without the lock.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import select
import socket
import ssl
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence

from pulsar_spark.engine.connections.addresses import parse_service_url
from pulsar_spark.engine.connections.polling import wait_connecting
from pulsar_spark.engine.deadline import Deadline
from pulsar_spark.engine.options import ClientOptions, TlsOptions
from pulsar_spark.engine.pem import BEGIN, pem_content, read_pem
from pulsar_spark.errors import TlsError
from pulsar_spark.logs import get_logger
from pulsar_spark.protocol.blocks import Buffer

logger = get_logger(__name__)

_TRUST = "pulsar.client.tlsTrustCertsFilePath"
_CERTIFICATE = "pulsar.client.tlsCertificateFilePath"
_KEY = "pulsar.client.tlsKeyFilePath"

_RECORD = 16 * 1024
"""The maximum size of a TLS record."""
_READ_BUFFER = 512 * 1024 + 2 * _RECORD
_HANDSHAKE_READ = 64 * 1024
_CHUNK = 128 * 1024
"""How many bytes are encrypted at once; they are written before more are encrypted."""

TO_PEM = (
    "Java key stores are converted by two commands: keytool -importkeystore -srckeystore STORE "
    "-destkeystore store.p12 -deststoretype PKCS12; openssl pkcs12 -in store.p12 -nodes -out "
    "store.pem. "
)
"""How to convert JKS and PKCS#12 to PEM."""

_SHIP = (
    "It has to be a file on every machine that reads or writes messages: put it there, or give its "
    "PEM text as content:-----BEGIN …"
)


# --- verification and client certificates -----------------------------------------------------


def tls_context(options: ClientOptions) -> ssl.SSLContext | None:
    """Return the SSL context of connections, None if the service URL has no TLS.

    Reads certificates and keys now. Raises TlsError that names the option if they are unusable.
    """
    if not parse_service_url(options.service_url).tls:
        return None
    wanted = options.tls_in_use
    context = client_context()
    context.options |= ssl.OP_NO_RENEGOTIATION
    # Without a name in subjectAltName the subject's counts, as for Pulsar's Java and C++ clients.
    context.hostname_checks_common_name = True
    # A trusted intermediate certificate suffices, as in Java.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.check_hostname = wanted.verify_hostname and not wanted.allow_insecure
    context.verify_mode = ssl.CERT_NONE if wanted.allow_insecure else ssl.CERT_REQUIRED
    if wanted.trust_certs_file is None:
        context.load_default_certs()
    else:
        load_trusted(context, wanted.trust_certs_file)
    if wanted.certificate_file is not None and wanted.key_file is not None:
        _load_identity(context, wanted.certificate_file, wanted.key_file)
    return context


def client_context() -> ssl.SSLContext:
    """Return the basis of all our TLS contexts: TLS 1.2 or later, everything verified."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def answers_with_tls(sock: socket.socket) -> bool:
    """Whether a peer answers a TLS handshake, whatever its certificate; raises OSError.

    The socket is of no other use then.
    """
    context = client_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        context.wrap_socket(sock).close()
    except ssl.SSLError as error:
        return error.reason in _REFUSALS | _OLD
    return True


def tls_identity(options: ClientOptions) -> bytes:
    """Return a digest of the current certificates and key; raises TlsError."""
    digest = hashlib.sha256()
    if parse_service_url(options.service_url).tls:
        wanted = options.tls_in_use
        for value, option in (
            (wanted.trust_certs_file, _TRUST),
            (wanted.certificate_file, _CERTIFICATE),
            (wanted.key_file, _KEY),
        ):
            pem = b"" if value is None else _read(value, option)
            digest.update(hashlib.sha256(pem).digest())
    return digest.digest()


def warn_of_insecure(options: ClientOptions) -> None:
    """Warn of options that leave connections unencrypted or unverified, though it may not show."""
    wanted = options.tls
    if not parse_service_url(options.service_url).tls:
        if wanted != TlsOptions():
            logger.warning(
                "TLS options are set but have no effect, because service.url is without TLS. With "
                "TLS it is pulsar+ssl://host:6651 or https://host:8443"
            )
    elif wanted.allow_insecure:
        logger.warning(
            "pulsar.client.tlsAllowInsecureConnection=true: the brokers' certificates are not "
            "checked, so an attacker on the network can read and change what is sent"
        )
    elif not wanted.verify_hostname:
        logger.warning(
            "pulsar.client.tlsHostnameVerificationEnable=false: any host with a certificate of a "
            "trusted authority is accepted as the broker"
        )


def load_trusted(context: ssl.SSLContext, value: str) -> None:
    """Make a context trust the certificates in PEM text or in a file; raises TlsError."""
    pem = _read(value, _TRUST).decode("ascii", "ignore")
    try:
        context.load_verify_locations(cadata=pem)
    except (ssl.SSLError, ValueError) as error:
        raise TlsError(
            f"{_TRUST} has no readable certificate ({_reason(error)})",
            "It has to be PEM: -----BEGIN CERTIFICATE-----.",
        ) from None


# A certificate and the key of another one: of the same kind, and of another kind, as RSA beside EC.
_MISMATCHES = frozenset({"KEY_VALUES_MISMATCH", "NO_CERTIFICATE_ASSIGNED"})


def _load_identity(context: ssl.SSLContext, certificate: str, key: str) -> None:
    _read(certificate, _CERTIFICATE)
    _read(key, _KEY)
    try:
        with _as_file(certificate) as certificate_path, _as_file(key) as key_path:
            _load_chain(context, certificate_path, key_path)
    except ssl.SSLError as error:
        if error.reason in _MISMATCHES:
            raise TlsError(
                f"the key in {_KEY} does not belong to the certificate in {_CERTIFICATE}",
                "Give the key with which the certificate was requested.",
            ) from None
        raise TlsError(
            f"{_CERTIFICATE} and {_KEY} cannot be used ({_reason(error)})",
            "They have to be PEM: a certificate with those between it and the root, and its key.",
        ) from None
    except OSError as error:
        raise TlsError(
            f"{_CERTIFICATE} and {_KEY} cannot be read: {error.strerror or error}", _SHIP
        ) from None


def _load_chain(context: ssl.SSLContext, certificate: str, key: str) -> None:
    """As `load_cert_chain`, up to three times if the key does not belong to the certificate.

    OpenSSL reads one after the other, even of one file, and both may be replaced in between.
    """
    for last in (False, False, True):
        try:
            context.load_cert_chain(certificate, key, password=_no_password)
            return
        except ssl.SSLError as error:
            if last or error.reason not in _MISMATCHES:
                raise


def _no_password() -> str:
    raise TlsError(
        f"the key of {_KEY} is encrypted",
        "Decrypt it: openssl pkey -in encrypted.key -out client.key; and guard the file.",
    )


def _read(value: str, option: str) -> bytes:
    """Return the content of PEM text or of a file; raises TlsError."""
    data = read_pem(value, option, TlsError, _SHIP)
    if pem_content(value) is None and BEGIN.encode() not in data:
        raise TlsError(
            f"the file {value} of {option} is not PEM",
            f"It has to have lines that begin with -----BEGIN. {TO_PEM}",
        )
    return data


@contextlib.contextmanager
def _as_file(value: str) -> Iterator[str]:
    """Yield a path with this PEM: OpenSSL reads keys from files only."""
    text = pem_content(value)
    if text is None:
        yield value
        return
    # Only its owner can read it, and it is deleted at once.
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", suffix=".pem") as file:
        file.write(text)
        file.flush()
        yield file.name


# --- the socket -------------------------------------------------------------------------------


class TlsSocket:
    """A connected socket with TLS. It does not block, and raises the errors of such sockets.

    One thread may receive while another sends.
    """

    def __init__(self, sock: socket.socket, context: ssl.SSLContext, host: str) -> None:
        self._socket = sock
        self._host = host
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._lock = threading.Lock()
        # The following is guarded by _lock, as are the two buffers.
        self._tls = context.wrap_bio(
            self._incoming, self._outgoing, server_hostname=host.partition("%")[0]
        )
        # The following belong to the thread that receives.
        self._buffer = bytearray(_READ_BUFFER)
        self._early = b""
        self._ended = False
        # The following belong to the thread that sends.
        self._unsent = memoryview(b"")
        self._taken = 0

    def shake_hands(self, deadline: Deadline, cancelled: Callable[[], bool]) -> None:
        """Agree on keys and check the certificate.

        Raises TlsError if that fails, OSError if the connection breaks.
        """
        while True:
            try:
                done = self._step()
            except ssl.SSLError as error:
                # Tell the peer why, if it still listens.
                with contextlib.suppress(OSError):
                    self._socket.send(self._outgoing.read())
                raise self._explained(error) from None
            self._send_all(self._outgoing.read(), deadline, cancelled)
            if done:
                self._early = bytes(self._decrypt(b""))
                return
            self._wait(select.POLLIN, deadline, cancelled)
            try:
                data = self._socket.recv(_HANDSHAKE_READ)
            except (BlockingIOError, InterruptedError):
                continue
            if not data:
                raise OSError(
                    errno.ECONNRESET,
                    "the connection was closed in the TLS handshake (is it the port for TLS, and "
                    "does it want a client certificate?)",
                )
            self._incoming.write(data)

    def _step(self) -> bool:
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        return True

    def _send_all(self, data: bytes, deadline: Deadline, cancelled: Callable[[], bool]) -> None:
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[self._socket.send(rest) :]
            except (BlockingIOError, InterruptedError):
                self._wait(select.POLLOUT, deadline, cancelled)

    def _wait(self, events: int, deadline: Deadline, cancelled: Callable[[], bool]) -> None:
        what = "answer to the TLS handshake"
        wait_connecting(self._socket.fileno(), events, deadline, cancelled, what)

    def recv(self, size: int) -> bytes | memoryview:
        """Return received data, ``b""`` at the end of the stream; reads `size` bytes of the socket.

        The next call may change it, if it is a view. Raises TlsError if the peer rejects our
        certificate only now.
        """
        if self._early:
            data, self._early = self._early, b""
            return data
        while not self._ended:
            data = self._socket.recv(size)
            if not data:
                break
            try:
                plain = self._decrypt(data)
            except ssl.SSLError as error:
                raise self._explained(error) from None
            # A part of a record, or one of TLS itself, contains no data.
            if plain:
                return plain
        return b""

    def _decrypt(self, data: bytes) -> bytes | memoryview:
        """Return the data of all complete records: data left here would wake nobody."""
        view = memoryview(self._buffer)
        pieces: list[bytes] = []
        filled = 0
        with self._lock:
            self._incoming.write(data)
            while not self._ended:
                if filled + _RECORD > len(view):
                    pieces.append(bytes(view[:filled]))
                    filled = 0
                try:
                    # With a buffer it returns a number of bytes; its type is declared for the case
                    # without.
                    count = int(self._tls.read(_RECORD, view[filled : filled + _RECORD]))
                except ssl.SSLWantReadError:
                    break
                except ssl.SSLZeroReturnError:
                    count = 0
                self._ended = not count
                filled += count
        rest = view[:filled]
        return b"".join([*pieces, rest]) if pieces else rest

    def sendmsg(self, buffers: Sequence[Buffer]) -> int:
        """Write some of the first bytes of `buffers` and return their number.

        After BlockingIOError the next call must start with the same bytes: they are encrypted
        already, and count once the socket has accepted all of their ciphertext.
        """
        if not self._unsent:
            data = _first_bytes(buffers, _CHUNK)
            if not data:
                return 0
            with self._lock:
                self._tls.write(data)
                self._unsent = memoryview(self._outgoing.read())
            self._taken = len(data)
        while self._unsent:
            self._unsent = self._unsent[self._socket.send(self._unsent) :]
        return self._taken

    def fileno(self) -> int:
        """Return the socket's file descriptor."""
        return self._socket.fileno()

    def setsockopt(self, level: int, name: int, value: int) -> None:
        """Set an option of the socket."""
        self._socket.setsockopt(level, name, value)

    def shutdown(self, how: int) -> None:
        """Shut the connection down. Frames have lengths, so TLS's close_notify is not needed."""
        self._socket.shutdown(how)

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def _explained(self, error: ssl.SSLError) -> TlsError | OSError:
        return explained(error, self._host)


def _first_bytes(buffers: Sequence[Buffer], limit: int) -> Buffer:
    """Join small buffers, up to `limit` bytes: each write makes a record."""
    pieces: list[memoryview] = []
    size = 0
    for buffer in buffers:
        if size >= limit:
            break
        piece = memoryview(buffer).cast("B")[: limit - size]
        if len(piece):
            pieces.append(piece)
            size += len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


# --- errors -----------------------------------------------------------------------------------

_UNTRUSTED = (
    f"Set {_TRUST} to the PEM certificates of the authority that signed the broker's certificate."
)
_OTHER_HOST = (
    "Use the name that the certificate is for in service.url, and as the brokers' advertised "
    "addresses; or have the certificate made for this name. "
    "pulsar.client.tlsHostnameVerificationEnable=false gives up the check."
)
_VALIDITY = "Have the broker's certificate renewed, and check the clock of this machine."

_VERIFICATION: dict[int, tuple[str, str]] = {
    9: ("is not valid yet", _VALIDITY),
    10: ("has expired", _VALIDITY),
    18: ("is self-signed, and not among the trusted ones", _UNTRUSTED),
    19: ("is of an authority that is not trusted here (its root is self-signed)", _UNTRUSTED),
    20: ("is of an authority that is not trusted here", _UNTRUSTED),
    21: ("is of an authority that is not trusted here", _UNTRUSTED),
    62: ("is not for this host: none of its subject alternative names is {host}", _OTHER_HOST),
    64: ("is not for this address: {host} is not among its subject alternative names", _OTHER_HOST),
}
"""OpenSSL's X509_V_ERR numbers → what is wrong with the certificate, and the remedy."""

_REFUSALS = frozenset(
    {
        "TLSV1_ALERT_UNKNOWN_CA",
        "TLSV1_ALERT_ACCESS_DENIED",
        "TLSV1_ALERT_DECRYPT_ERROR",
        "SSLV3_ALERT_HANDSHAKE_FAILURE",
        "SSLV3_ALERT_BAD_CERTIFICATE",
        "SSLV3_ALERT_UNSUPPORTED_CERTIFICATE",
        "SSLV3_ALERT_CERTIFICATE_REVOKED",
        "SSLV3_ALERT_CERTIFICATE_EXPIRED",
        "SSLV3_ALERT_CERTIFICATE_UNKNOWN",
        "TLSV13_ALERT_CERTIFICATE_REQUIRED",
        # Brokers send this if they do not know a certificate's authority.
        "TLSV1_ALERT_INTERNAL_ERROR",
    }
)
_OLD = frozenset(
    {"UNSUPPORTED_PROTOCOL", "TLSV1_ALERT_PROTOCOL_VERSION", "TLSV1_ALERT_INSUFFICIENT_SECURITY"}
)
_NOT_TLS = frozenset(
    {"WRONG_VERSION_NUMBER", "PACKET_LENGTH_TOO_LONG", "HTTP_REQUEST", "RECORD_LAYER_FAILURE"}
)


def explained(error: ssl.SSLError, host: str) -> TlsError | OSError:
    """Return the error to raise: TlsError if it is permanent."""
    if isinstance(error, ssl.SSLCertVerificationError):
        what, remedy = _VERIFICATION.get(
            error.verify_code, (f"was not accepted: {error.verify_message}", _UNTRUSTED)
        )
        return TlsError(f"the certificate of {host} {what.format(host=host)}", remedy)
    reason = error.reason or ""
    if reason in _REFUSALS:
        return TlsError(
            f"{host} does not take our certificate, or wants one ({_reason(error)})",
            f"Set {_CERTIFICATE} and {_KEY} to a certificate that the broker's authority signed, "
            "and that is still valid, and to its key.",
        )
    if reason in _OLD:
        return TlsError(
            f"{host} does not support TLS 1.2 or later ({_reason(error)})",
            "Have TLS 1.2 or 1.3 enabled on the broker; older versions are not secure.",
        )
    if reason in _NOT_TLS:
        return TlsError(
            f"what listens on {host} does not speak TLS",
            "Give the port for TLS (6651 unless changed, of the web service 8443), or a pulsar:// "
            "service URL.",
        )
    return OSError(errno.EPROTO, f"TLS failed ({_reason(error)})")


def _reason(error: Exception) -> str:
    reason = error.reason if isinstance(error, ssl.SSLError) else None
    return (reason or str(error)).replace("_", " ").lower()
