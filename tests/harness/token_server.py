"""An authorization server for tests: OAuth 2 client credentials (RFC 6749, 4.4) over TLS, and the keys (RFC 7517) to check by."""

import base64
import json
import ssl
import threading
import time
import urllib.parse
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple, Self

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa

ISSUER: Final = "https://tokens.test"
AUDIENCE: Final = "kafka"
KEY_ID: Final = "test-key"
BODY_BYTES_MAX: Final = 1 << 16


class Registered(NamedTuple):
    """What a client may have."""

    secret: str
    audience: str = AUDIENCE
    lifetime_s: int = 3600


def _base64url(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


def _number(value: int) -> str:
    return _base64url(value.to_bytes((value.bit_length() + 7) // 8, "big"))


class TokenServer:
    """`https://localhost:PORT/token` and `/jwks`, served by threads of this process. Use it in a `with`."""

    def __init__(self, clients: Mapping[str, Registered], certificate: Path) -> None:
        """Listen on the loopback and serve; `certificate` is a PEM file with key and chain."""
        self._clients = dict(clients)
        self._key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self.asked: list[str] = []
        """Client ids of the answered requests for a token, in order."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                length = min(int(self.headers.get("Content-Length") or 0), BODY_BYTES_MAX)
                form = urllib.parse.parse_qs(self.rfile.read(length).decode())
                status, answer = server.answer_token(self.headers.get("Authorization"), form)
                self._answer(status, answer)

            def do_GET(self) -> None:
                self._answer(200, server.keys())

            def _answer(self, status: int, answer: Mapping[str, object]) -> None:
                body = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                _ = self.wfile.write(body)

            def log_message(self, *args: object) -> None:
                """Say nothing."""

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def finish_request(self, request: object, client_address: object) -> None:
                """In the thread of the request: a peer that is slow with its handshake holds up nobody."""
                try:
                    with context.wrap_socket(request, server_side=True) as encrypted:  # type: ignore[arg-type]
                        _ = Handler(encrypted, client_address, self)
                except OSError:
                    # The peer did not like the certificate, say: that is its test's subject.
                    return

        self._server = Server(("127.0.0.1", 0), Handler)
        self.port = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self._thread.start()

    def register(self, client: str, registered: Registered) -> None:
        """Take a client that was not known, or change what it may have."""
        self._clients[client] = registered

    @property
    def token_url(self) -> str:
        """Where clients get a token."""
        return f"https://localhost:{self.port}/token"

    @property
    def keys_url(self) -> str:
        """Where brokers get the keys."""
        return f"https://localhost:{self.port}/jwks"

    def answer_token(
        self, authorization: str | None, form: Mapping[str, list[str]]
    ) -> tuple[int, Mapping[str, object]]:
        """Status and body for a request with this header and form (RFC 6749, 5.1 and 5.2)."""
        if form.get("grant_type") != ["client_credentials"]:
            return 400, {"error": "unsupported_grant_type"}
        scheme, _, packed = (authorization or "").partition(" ")
        if scheme.lower() != "basic":
            return 401, {"error": "invalid_client", "error_description": "no credentials"}
        client, _, secret = base64.b64decode(packed).decode().partition(":")
        registered = self._clients.get(urllib.parse.unquote_plus(client))
        if registered is None or registered.secret != urllib.parse.unquote_plus(secret):
            return 401, {"error": "invalid_client", "error_description": "wrong secret"}
        self.asked.append(client)
        token = self.token(client, registered)
        return 200, {"access_token": token, "token_type": "Bearer", "expires_in": registered.lifetime_s}

    def token(self, subject: str, registered: Registered) -> str:
        """A signed token (RFC 7519), RS256."""
        now = int(time.time())
        head = {"alg": "RS256", "typ": "JWT", "kid": KEY_ID}
        claims = {
            "iss": ISSUER,
            "aud": registered.audience,
            "sub": subject,
            "iat": now,
            "exp": now + registered.lifetime_s,
        }
        signed = f"{_base64url(json.dumps(head).encode())}.{_base64url(json.dumps(claims).encode())}"
        signature = self._key.sign(signed.encode(), padding.PKCS1v15(), hashes.SHA256())
        return f"{signed}.{_base64url(signature)}"

    def keys(self) -> Mapping[str, object]:
        """The public key, as a JWK set."""
        numbers = self._key.public_key().public_numbers()
        key = {
            "kty": "RSA",
            "use": "sig",
            "alg": "RS256",
            "kid": KEY_ID,
            "n": _number(numbers.n),
            "e": _number(numbers.e),
        }
        return {"keys": [key]}

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)

    def __enter__(self) -> Self:
        """For `with`; it serves already."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, at: TracebackType | None
    ) -> None:
        """Stop serving."""
        self.close()
