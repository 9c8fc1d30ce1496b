"""Non-blocking reads and writes on one connected socket: plain, or through TLS."""

import contextlib
import errno
import os
import re
import socket
import ssl
from typing import Final, Protocol

from ...runtime.loop import READ, WRITE
from ..protocol.framing import SendBuffer

_ENDS: Final = (ssl.SSLEOFError, ssl.SSLSyscallError)
"""Python's exceptions for a socket that was closed or reset while OpenSSL used it; they do not distinguish the two."""
_RECORD_BYTES: Final = 16_384
"""Maximum payload of one TLS record (RFC 8446 5.1); OpenSSL accepts no more in one call."""


class TransportError(Exception):
    """TLS failed. `authentication_failed`: one side did not authenticate the other, or they have no TLS version or
    cipher suite in common, so an immediate retry would not help."""

    def __init__(self, text: str, *, refused: bool) -> None:
        super().__init__(text)
        self.authentication_failed = refused


class Transport(Protocol):
    """Interface of both transports. Socket errors are raised as OSError, TLS errors as TransportError."""

    @property
    def needs_any_event(self) -> bool:
        """Whether a read waits for writability or a write for readability: every event must then trigger both."""
        ...

    def write(self, out: SendBuffer) -> int:
        """Write as many bytes of `out` as possible and return their number. A byte counts as written once the kernel
        has taken its whole encoded form."""
        ...

    def read(self, space: memoryview) -> int:
        """Read available bytes into `space` and return their number; 0 if the peer has closed its side.

        Raises:
            BlockingIOError: nothing is available.
        """
        ...

    def has_buffered_data(self) -> bool:
        """Whether bytes are buffered above the socket, for which no event will come."""
        ...

    def events(self, *, pending: bool) -> int:
        """The events to watch the descriptor for. `pending`: bytes are waiting to be written."""
        ...

    def close(self, *, says_goodbye: bool) -> None:
        """Close the socket. `says_goodbye`: first send the TLS close alert, if that does not block."""
        ...


class PlainTransport:
    """A socket without TLS."""

    def __init__(self, opened: socket.socket) -> None:
        self._socket: Final = opened

    @property
    def needs_any_event(self) -> bool:
        return False

    def write(self, out: SendBuffer) -> int:
        before = out.pending_bytes
        while buffers := out.gather():
            try:
                written = self._socket.sendmsg(buffers)
            except BlockingIOError:
                break
            out.written(written)
        return before - out.pending_bytes

    def read(self, space: memoryview) -> int:
        return self._socket.recv_into(space)

    def has_buffered_data(self) -> bool:
        return False

    def events(self, *, pending: bool) -> int:
        return READ | WRITE if pending else READ

    def close(self, *, says_goodbye: bool) -> None:  # noqa: ARG002 - closing TCP already signals the end
        self._socket.close()


class TlsTransport:
    """A socket through OpenSSL. OpenSSL writes a record before it accepts the next one, so the kernel has taken every
    byte that OpenSSL has accepted."""

    def __init__(self, opened: socket.socket, context: ssl.SSLContext, host: str, *, shows_certificate: bool) -> None:
        """`host`: the name that the certificate must match. Closes `opened` on failure.

        Raises:
            TransportError: no certificate can match such a name.
            OSError: the socket is no longer connected.
        """
        self._host: Final = host
        self._shows_certificate: Final = shows_certificate
        self._read_wants_write = False
        self._write_wants_read = False
        try:
            self._socket: Final = context.wrap_socket(
                opened, do_handshake_on_connect=False, server_hostname=host.rstrip(".")
            )
        except ValueError as error:
            opened.close()
            raise TransportError(f"no certificate can be for the host name {host!r}: {error}", refused=True) from error

    @property
    def needs_any_event(self) -> bool:
        return self._read_wants_write or self._write_wants_read

    def handshake(self) -> bool:
        """Continue the handshake. Returns True once it is complete and the peer is verified.

        Raises:
            TransportError: the handshake failed.
        """
        self._read_wants_write = False
        try:
            self._socket.do_handshake()
        except ssl.SSLWantReadError:
            return False
        except ssl.SSLWantWriteError:
            self._read_wants_write = True
            return False
        except (*_ENDS, ConnectionError) as error:
            text = "the connection ended during the TLS handshake (does this listener speak TLS?)"
            raise TransportError(text, refused=False) from error
        except ssl.SSLError as error:
            raise self._fault(error) from error
        return True

    def write(self, out: SendBuffer) -> int:
        before = out.pending_bytes
        while piece := out.piece(_RECORD_BYTES):
            self._write_wants_read = False
            try:
                written = self._socket.send(piece)
            except ssl.SSLWantWriteError:
                break
            except ssl.SSLWantReadError:
                self._write_wants_read = True
                break
            except _ENDS as error:
                self._raise_pending_alert()
                raise ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET)) from error
            except ssl.SSLError as error:
                raise self._fault(error) from error
            except OSError:
                self._raise_pending_alert()
                raise
            out.written(written)
        return before - out.pending_bytes

    def read(self, space: memoryview) -> int:
        self._read_wants_write = False
        try:
            return self._socket.recv_into(space)
        except ssl.SSLWantReadError:
            raise BlockingIOError from None
        except ssl.SSLWantWriteError:
            self._read_wants_write = True
            raise BlockingIOError from None
        except ssl.SSLError as error:
            raise self._fault(error) from error

    def has_buffered_data(self) -> bool:
        return self._socket.pending() > 0

    def events(self, *, pending: bool) -> int:
        return READ | WRITE if pending or self._read_wants_write else READ

    def close(self, *, says_goodbye: bool) -> None:
        if says_goodbye:
            # Sends our close alert without waiting for the peer's.
            with contextlib.suppress(OSError, ValueError):
                _ = self._socket.unwrap()
        self._socket.close()

    def _raise_pending_alert(self) -> None:
        """After a failed write, read the alert that explains it: with TLS 1.3 a broker may refuse our certificate after
        the handshake and close the connection before we write.

        Raises:
            TransportError: the broker sent an alert.
        """
        try:
            _ = self._socket.recv(1)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError, *_ENDS):
            return
        except ssl.SSLError as error:
            raise self._fault(error) from error
        except OSError:
            return

    def _fault(self, error: ssl.SSLError) -> TransportError:
        if isinstance(error, ssl.SSLCertVerificationError):
            why = _CERTIFICATE_ERRORS.get(error.verify_code, error.verify_message)
            return TransportError(f"TLS: the certificate of {self._host} is not to be trusted: {why}", refused=True)
        reason = error.reason or str(error)
        if reason in _WANTS_CERTIFICATE and not self._shows_certificate:
            return TransportError("TLS: the broker wants a certificate of us (ssl.keystore.location)", refused=True)
        text = _REASONS.get(reason)
        if text is None:
            alert = _ALERT.match(reason)
            text = f"the broker sent the alert: {_plain(alert[1])}" if alert else _plain(reason)
        return TransportError(f"TLS: {text}", refused=not isinstance(error, _ENDS))


_ALERT: Final = re.compile("(?:SSLV3|TLSV1|TLSV13)_ALERT_(.+)")
_CERTIFICATE_ERRORS: Final = {
    9: "it is not valid yet",
    10: "it has expired",
    18: "it is signed by itself (ssl.truststore.location)",
    19: "an authority that is not known signed it (ssl.truststore.location)",
    20: "an authority that is not known signed it (ssl.truststore.location)",
    21: "an authority that is not known signed it (ssl.truststore.location)",
}
"""Texts by OpenSSL code (x509_vfy.h). Other codes use OpenSSL's own text; for a wrong host name it includes the
name."""
_OTHER_VERSIONS: Final = "the broker speaks no version of TLS that is allowed here (ssl.enabled.protocols)"
_NO_TLS: Final = "what the broker says is not TLS (does this listener speak TLS?)"
_REASONS: Final = {
    "WRONG_VERSION_NUMBER": _NO_TLS,
    "PACKET_LENGTH_TOO_LONG": _NO_TLS,
    "RECORD_LAYER_FAILURE": _NO_TLS,
    "HTTP_REQUEST": _NO_TLS,
    "UNSUPPORTED_PROTOCOL": _OTHER_VERSIONS,
    "NO_PROTOCOLS_AVAILABLE": _OTHER_VERSIONS,
    "TLSV1_ALERT_PROTOCOL_VERSION": _OTHER_VERSIONS,
    "NO_SHARED_CIPHER": "no cipher suite in common (ssl.cipher.suites)",
    "SSLV3_ALERT_HANDSHAKE_FAILURE": "nothing in common with the broker (ssl.enabled.protocols, ssl.cipher.suites), "
    "or it wants a certificate that it is not shown (ssl.keystore.location)",
    "TLSV1_ALERT_INSUFFICIENT_SECURITY": "our cipher suites are too weak for the broker (ssl.cipher.suites)",
    "TLSV1_ALERT_UNKNOWN_CA": "the broker does not know the authority that signed our certificate (ssl.keystore.location)",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "our certificate has expired (ssl.keystore.location)",
    "SSLV3_ALERT_CERTIFICATE_REVOKED": "our certificate is revoked (ssl.keystore.location)",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "the broker does not take our certificate (ssl.keystore.location)",
    "SSLV3_ALERT_BAD_CERTIFICATE": "the broker does not take our certificate (ssl.keystore.location)",
    "SSLV3_ALERT_UNSUPPORTED_CERTIFICATE": "the broker does not take certificates like ours (ssl.keystore.location)",
}
_WANTS_CERTIFICATE: Final = frozenset(
    {"TLSV13_ALERT_CERTIFICATE_REQUIRED", "SSLV3_ALERT_BAD_CERTIFICATE", "SSLV3_ALERT_CERTIFICATE_UNKNOWN"}
)


def _plain(reason: str) -> str:
    return reason.lower().replace("_", " ")
