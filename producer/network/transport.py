"""The bytes of one connected socket: as they are, or through TLS. Neither blocks."""

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
"""What Python makes of a socket that ended or was reset while OpenSSL used it; which of them it was is lost."""
_RECORD_BYTES: Final = 16_384
"""The most that one record of TLS carries (RFC 8446 5.1); more is not taken in one call."""


class TransportError(Exception):
    """TLS cannot go on. `authentication_failed`: because one side does not believe the other, or they have nothing in common; it would not
    help to try again at once."""

    def __init__(self, text: str, *, refused: bool) -> None:
        super().__init__(text)
        self.authentication_failed = refused


class Transport(Protocol):
    """What a connection asks of either kind. Faults of the socket are raised as OSError, those of TLS as TransportError."""

    @property
    def needs_any_event(self) -> bool:
        """A read waits until it may write, or the reverse: every event is one for both."""
        ...

    def write(self, out: SendBuffer) -> int:
        """Hand over what is taken now. Returns how much that was; a byte is taken when the kernel has all that it became."""
        ...

    def read(self, space: memoryview) -> int:
        """Put what came into `space`. Returns how much; 0: the peer will say nothing more.

        Raises:
            BlockingIOError: nothing is there.
        """
        ...

    def has_buffered_data(self) -> bool:
        """Something can be read that no event would tell of."""
        ...

    def events(self, *, pending: bool) -> int:
        """What to watch the descriptor for; `pending`: there is something to write."""
        ...

    def close(self, *, says_goodbye: bool) -> None:
        """Close the socket. `says_goodbye`: tell the peer that nothing was cut off, if that takes no waiting."""
        ...


class PlainTransport:
    """A socket as it is."""

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

    def close(self, *, says_goodbye: bool) -> None:  # noqa: ARG002 - TCP says it by itself
        self._socket.close()


class TlsTransport:
    """A socket through OpenSSL, which writes a record before it takes the next: what it has taken, the kernel has."""

    def __init__(self, opened: socket.socket, context: ssl.SSLContext, host: str, *, shows_certificate: bool) -> None:
        """`host`: the name that the certificate must be for. `opened` is closed where this fails.

        Raises:
            TransportError: no certificate can be for such a name.
            OSError: the socket is not connected any more.
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
        """Go on with the handshake. True: it is done, and the peer is who it should be.

        Raises:
            TransportError: it has failed.
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
            # Sends the alert, and does not wait for the peer's.
            with contextlib.suppress(OSError, ValueError):
                _ = self._socket.unwrap()
        self._socket.close()

    def _raise_pending_alert(self) -> None:
        """A broker that refuses our certificate may do so after the handshake, and be gone before we write (TLS 1.3).

        Raises:
            TransportError: it said why it went.
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
"""OpenSSL's codes (x509_vfy.h); its own words do for the others: those of a wrong name tell the name."""
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
