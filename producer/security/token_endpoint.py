"""Queries a token endpoint with one POST over TLS (RFC 6749 4.4). It blocks: call it on a helper thread only.

Connecting is limited in time, the whole response in time and bytes. Redirections are not followed, proxies are not
used.
"""

import base64
import http.client
import io
import socket
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import quote_plus, urlencode, urlsplit

from ...runtime.clock import monotonic
from .tokens import TokenError

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

ANSWER_BYTES_MAX: Final = 256 << 10
"""Limit for status line, headers and body together."""


class TokenEndpointConfig(NamedTuple):
    """The endpoint's URL and timeouts, and the client's id and scope."""

    url: str
    client_id: str
    scope: str
    truststore: Path | None
    """None: the system's CAs."""
    urlencodes: bool
    """Whether client id and secret are form-encoded before they are put into the header (RFC 6749 2.3.1)."""
    connect_timeout_s: float
    read_timeout_s: float


def request_token(endpoint: TokenEndpointConfig, secret: str) -> tuple[int, bytes]:
    """Query the endpoint and return the response's status and body.

    Raises:
        TokenError: there is no valid response; the text has the reason.
    """
    try:
        context = _context(endpoint.truststore)
    except OSError as error:
        raise TokenError(f"{endpoint.truststore or 'the authorities of the system'}: {error}") from error
    url = urlsplit(endpoint.url)
    host, port = url.hostname or "", url.port or 443
    try:
        with _connected(host, port, context, endpoint.connect_timeout_s) as connected:
            return _post(connected, endpoint, secret)
    except TimeoutError:
        raise TokenError("no whole answer within the time") from None
    except ssl.SSLCertVerificationError as error:
        raise TokenError(f"its certificate is not believed: {error.verify_message}") from error
    except (OSError, UnicodeError) as error:
        text = error.strerror if isinstance(error, OSError) else None
        raise TokenError(text or str(error)) from error
    except (http.client.HTTPException, ValueError, OverflowError) as error:
        raise TokenError(f"the answer is not HTTP: {type(error).__name__}") from error


def _context(truststore: Path | None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=truststore)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def _connected(host: str, port: int, context: ssl.SSLContext, timeout_s: float) -> ssl.SSLSocket:
    """A TLS connection to the first of the host's addresses that accepts one. `timeout_s` covers all attempts."""
    deadline = monotonic() + timeout_s
    last: OSError = OSError(f"no address of {host}")
    for family, kind, protocol, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        opened = socket.socket(family, kind, protocol)
        try:
            opened.settimeout(_left_s(deadline))
            opened.connect(address)
            opened.settimeout(_left_s(deadline))
            return context.wrap_socket(opened, server_hostname=host)
        except OSError as error:
            opened.close()
            last = error
    raise last


def _left_s(deadline: float) -> float:
    left_s = deadline - monotonic()
    if left_s <= 0:
        raise TimeoutError
    return left_s


def _post(connected: ssl.SSLSocket, endpoint: TokenEndpointConfig, secret: str) -> tuple[int, bytes]:
    url = urlsplit(endpoint.url)
    target = (url.path or "/") + (f"?{url.query}" if url.query else "")
    form = {"grant_type": "client_credentials"} | ({"scope": endpoint.scope} if endpoint.scope else {})
    body = urlencode(form).encode()
    port = f":{url.port}" if url.port else ""
    host = f"[{url.hostname}]" if ":" in (url.hostname or "") else url.hostname
    headers = {
        "Host": f"{host}{port}",
        "Authorization": f"Basic {_basic(endpoint, secret)}",
        "Content-Type": "application/x-www-form-urlencoded",
        "Content-Length": str(len(body)),
        "Accept": "application/json",
        "Accept-Encoding": "identity",
        "Connection": "close",
    }
    deadline = monotonic() + endpoint.read_timeout_s
    connected.settimeout(_left_s(deadline))
    connected.sendall(_head(target, headers) + body)
    answer = http.client.HTTPResponse(_BoundedSocketReader(connected, deadline), method="POST")  # type: ignore[arg-type]  # it only calls makefile()
    try:
        answer.begin()
        if answer.getheader("Content-Encoding", "identity").lower() != "identity":
            raise TokenError("the answer is compressed, though it was asked not to be")
        # A fixed limit instead of Content-Length: a header must not make us allocate memory for bytes that never come.
        body = answer.read(ANSWER_BYTES_MAX)
        if answer.length:
            raise TokenError("the answer ends before its end")
        return answer.status, body
    finally:
        answer.close()


def _basic(endpoint: TokenEndpointConfig, secret: str) -> str:
    pair = (endpoint.client_id, secret)
    user, password = (quote_plus(text) for text in pair) if endpoint.urlencodes else pair
    return base64.b64encode(f"{user}:{password}".encode()).decode()


def _head(target: str, headers: Mapping[str, str]) -> bytes:
    lines = [f"POST {target} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("ascii")


class _BoundedSocketReader(io.RawIOBase):
    """The file that `http.client` reads the response from. Enforces the deadline and the size limit."""

    def __init__(self, connected: ssl.SSLSocket, deadline: float) -> None:
        super().__init__()
        self._connected = connected
        self._deadline = deadline
        self._left_bytes = ANSWER_BYTES_MAX

    def makefile(self, _mode: str) -> io.BufferedReader:
        return io.BufferedReader(self)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "WriteableBuffer") -> int:
        """Implements `io.RawIOBase.readinto`. Raises TokenError beyond the size limit."""
        self._connected.settimeout(_left_s(self._deadline))
        count = self._connected.recv_into(buffer)
        self._left_bytes -= count
        if self._left_bytes < 0:
            raise TokenError(f"an answer of more than {ANSWER_BYTES_MAX:,} bytes")
        return count
