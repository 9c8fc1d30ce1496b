"""Tokens from a real endpoint over TLS, from one that is hostile in every way we know, and from a file that is replaced."""

import base64
import json
import logging
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple, Self

import pytest
from penstock.api.errors import AuthenticationError
from penstock.config.security import SecuritySettings
from penstock.producer.protocol.backoff import Backoff
from penstock.producer.security.mechanisms import mechanism_for
from penstock.producer.security.oauthbearer import OAuthBearerMechanism, TokenEndpoint, TokenFile, TokenRefreshTiming
from penstock.producer.security.sasl import BlockingStep
from penstock.producer.security.token_endpoint import TokenEndpointConfig
from penstock.producer.security.tokens import RefreshWindow

from tests.harness.certificates import EXPIRED, Authority
from tests.harness.processes import wait_until
from tests.harness.token_server import Registered, TokenServer

AT_HALF_TIME: Final = RefreshWindow(0.5, 0.0, 0.0, 0.0)
NO_WAIT: Final = Backoff(0.001, 0.001)
TIME_S: Final = 0.4
"""For who is to be given up."""
PATIENCE_S: Final = 10.0
WITHIN_S: Final = 12.0
"""Sooner than any of those who never end or take long would have ended."""
Behaviour = Callable[[ssl.SSLSocket, threading.Event], None]


class Place(NamedTuple):
    """Files of one test."""

    authority: Authority
    truststore: Path
    certificate: Path
    secret: Path


@pytest.fixture
def place(tmp_path: Path) -> Place:
    authority = Authority()
    secret = tmp_path / "client.secret"
    _ = secret.write_text("s3cret\n")
    secret.chmod(0o600)
    return Place(
        authority,
        authority.write(tmp_path / "authorities.pem"),
        authority.issue("tokens").write(tmp_path / "tokens.pem"),
        secret,
    )


class Hostile:
    """Listens for TLS on the loopback and does with each connection what it was told to. Use it in a `with`."""

    def __init__(self, certificate: Path | None, behaviour: Behaviour) -> None:
        """Without a certificate nothing of TLS is said: the behaviour has the bare connection."""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        if certificate is not None:
            self._context.load_cert_chain(certificate)
        self._encrypted = certificate is not None
        self._behaviour = behaviour
        self._over = threading.Event()
        self.connections = 0
        self._thread = threading.Thread(target=self._serve, daemon=True)

    @property
    def url(self) -> str:
        return f"https://localhost:{self._listener.getsockname()[1]}/token"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(60)

    def _serve(self) -> None:
        while not self._over.is_set():
            try:
                connected, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            try:
                connected.settimeout(5)
                if self._encrypted:
                    connected = self._context.wrap_socket(connected, server_side=True)
                self._behaviour(connected, self._over)  # type: ignore[arg-type]  # bare where TLS is not spoken
            except OSError:
                # The peer went away: as it should.
                pass
            finally:
                connected.close()


def source(
    url: str,
    place: Place,
    *,
    window: RefreshWindow = AT_HALF_TIME,
    retry: Backoff = NO_WAIT,
    time_s: float = PATIENCE_S,
    **other: object,
) -> TokenEndpoint:
    endpoint = TokenEndpointConfig(
        url, "me", "", place.truststore, urlencodes=False, connect_timeout_s=time_s, read_timeout_s=time_s
    )
    return TokenEndpoint(endpoint._replace(**other), place.secret, TokenRefreshTiming(window, retry), lambda: 0.0)  # type: ignore[arg-type]  # a test's choice of fields


def request(connected: socket.socket) -> bytes:
    """Everything that was asked."""
    asked = b""
    while b"\r\n\r\n" not in asked:
        more = connected.recv(65_536)
        if not more:
            return asked
        asked += more
    head, _, body = asked.partition(b"\r\n\r\n")
    length = int(
        next(line.split(b":")[1] for line in head.split(b"\r\n") if line.lower().startswith(b"content-length"))
    )
    while len(body) < length:
        body += connected.recv(65_536)
    return head + b"\r\n\r\n" + body


def saying(answer: bytes) -> Behaviour:
    def behave(connected: ssl.SSLSocket, _over: threading.Event) -> None:
        _ = request(connected)
        connected.sendall(answer)

    return behave


def http(body: bytes, status: str = "200 OK", *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def answering(answer: object, status: str = "200 OK", *headers: str) -> Behaviour:
    return saying(http(json.dumps(answer).encode(), status, *headers))


def endless(beginning: bytes, piece: bytes) -> Behaviour:
    def behave(connected: ssl.SSLSocket, over: threading.Event) -> None:
        _ = request(connected)
        connected.sendall(beginning)
        while not over.is_set():
            connected.sendall(piece)

    return behave


def dripping(text: bytes) -> Behaviour:
    def behave(connected: ssl.SSLSocket, over: threading.Event) -> None:
        _ = request(connected)
        for letter in text:
            connected.sendall(bytes([letter]))
            if over.wait(0.02):
                return

    return behave


def silent(connected: ssl.SSLSocket, over: threading.Event) -> None:
    _ = over.wait(60)


@contextmanager
def quickly() -> Iterator[None]:
    """What is inside ends within some seconds, far sooner than who answers would let it, and costs next to nothing."""
    began, used = time.monotonic(), time.process_time()
    yield
    assert time.monotonic() - began < WITHIN_S
    # The threads that answer are counted as well.
    assert time.process_time() - used < 3.0


GOOD: Final = {"access_token": "abc", "token_type": "Bearer", "expires_in": 3600}


@pytest.mark.parametrize(
    ("behaviour", "reason"),
    [
        (saying(http(b"<html>")), "the answer is not JSON"),
        (saying(http(b"[" * 200_000)), "the answer is not JSON"),
        (answering([]), "no JSON object"),
        (answering({**GOOD, "access_token": ["abc"]}), "access_token is not a string"),
        (answering({**GOOD, "access_token": "abc\x01auth=Bearer other"}), "characters that no token has"),
        (answering({**GOOD, "access_token": "abc\r\nX-Other: y"}), "characters that no token has"),
        (answering({**GOOD, "expires_in": {"h": 1}}), "expires_in is no number"),
        (answering({**GOOD, "expires_in": 0}), "already run out"),
        (answering({"error": "invalid_client\x1b[31m", "error_description": "no"}, "401 No"), r"status 401: invalid_client \[31m, no"),
        (answering({}, "500 No"), "status 500: refused without a reason"),
        (answering(GOOD, "302 Found", "Location: https://localhost:1/elsewhere"), "redirections are not followed"),
        (answering(GOOD, "200 OK", "Content-Encoding: gzip"), "compressed"),
        (saying(b""), "closed connection without response"),
        (saying(b"SSH-2.0-OpenSSH_9.2\r\n\r\n"), "not HTTP"),
        (saying(b"HTTP/1.1 99999 x\r\n\r\n"), "not HTTP"),
        (saying(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{"), "ends before its end"),
        (saying(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n{}" % 2**70), "ends before its end"),
        (saying(b"HTTP/1.1 200 OK\r\nContent-Length: -7\r\n\r\n{}"), "no access_token"),
        (saying(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\n{}\r\n"), "not HTTP"),
        (saying(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"f" * 40 + b"\r\n{}"), "not HTTP"),
        (saying(b"HTTP/1.1 200 \xff\xfe\r\n\xff: \xfe\r\n\r\n{}"), "no access_token"),
        (saying(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"), "not HTTP"),
        (endless(b"HTTP/1.1 200 OK\r\nContent-Length: 9999999999\r\n\r\n", b"x" * 65_536), "more than 262,144 bytes"),
        (endless(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1000\r\n" + b"x" * 4096 + b"\r\n"), "more than 262,144"),
        (endless(b"HTTP/1.1 200 OK\r\n", b"X-More: y\r\n"), "not HTTP|262,144"),
        (endless(b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 100 Continue\r\n\r\n"), "not HTTP|262,144"),
        (endless(b"", b"x" * 65_536), "not HTTP"),
        (dripping(b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 100), "within the time"),
        (dripping(http(json.dumps(GOOD).encode() + b" " * 1000)), "within the time"),
        (silent, "within the time"),
    ],
)  # fmt: skip
def test_whatever_a_hostile_endpoint_answers_is_refused_quickly_and_with_the_reason(
    place: Place, behaviour: Behaviour, reason: str
) -> None:
    time_s = TIME_S if "time" in reason else PATIENCE_S
    with Hostile(place.certificate, behaviour) as server, quickly():
        with pytest.raises(AuthenticationError, match=reason) as caught:
            _ = source(server.url, place, time_s=time_s).fetch_token()
        text = str(caught.value)
        assert server.url in text
        assert text.isprintable()
        assert "s3cret" not in text


def test_an_endpoint_that_takes_connections_and_never_speaks_tls_is_given_up(place: Place) -> None:
    with Hostile(None, silent) as server, quickly(), pytest.raises(AuthenticationError, match="within the time"):
        _ = source(server.url, place, time_s=TIME_S).fetch_token()


def test_an_endpoint_in_the_clear_is_told_no_secret(place: Place) -> None:
    heard: list[bytes] = []

    def listen(connected: ssl.SSLSocket, _over: threading.Event) -> None:
        heard.append(connected.recv(65_536))
        connected.sendall(http(json.dumps(GOOD).encode()))

    with Hostile(None, listen) as server, quickly(), pytest.raises(AuthenticationError):
        _ = source(server.url, place).fetch_token()
    assert base64.b64encode(b"me:s3cret") not in heard[0]


def test_an_endpoint_that_cannot_be_reached_is_named(place: Place) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"https://localhost:{listener.getsockname()[1]}/token"
    with quickly(), pytest.raises(AuthenticationError, match=f"no token from {url}: Connection refused"):
        _ = source(url, place).fetch_token()


@pytest.mark.parametrize(
    ("issue", "reason"),
    [
        (lambda place: Authority("Somebody").issue("tokens"), "not believed: .*(issuer|self)"),
        (lambda place: place.authority.issue("tokens", validity=EXPIRED), "not believed: certificate has expired"),
        (lambda place: place.authority.issue("tokens", hosts=("tokens.example",)), "not believed: .*ostname mismatch"),
    ],
)
def test_a_certificate_that_is_no_good_keeps_the_secret_at_home(
    place: Place, tmp_path: Path, issue: Callable[[Place], object], reason: str
) -> None:
    other = issue(place).write(tmp_path / "other.pem")  # type: ignore[attr-defined]  # a certificate
    with (
        TokenServer({"me": Registered("s3cret")}, other) as server,
        quickly(),
        pytest.raises(AuthenticationError, match=reason),
    ):
        _ = source(server.token_url, place).fetch_token()
    assert server.asked == []


def test_a_truststore_that_is_none_is_named(place: Place, tmp_path: Path) -> None:
    with pytest.raises(AuthenticationError, match=r"absent\.pem"):
        _ = source("https://localhost:1/", place, truststore=tmp_path / "absent.pem").fetch_token()


def test_a_token_is_fetched_once_for_all_who_ask_and_again_in_its_window(place: Place) -> None:
    with TokenServer({"me": Registered("s3cret", lifetime_s=4)}, place.certificate) as server:
        tokens = source(server.token_url, place)
        assert tokens.cached_token() is None
        first: list[str] = []
        asking = [threading.Thread(target=lambda: first.append(tokens.fetch_token())) for _ in range(8)]
        for thread in asking:
            thread.start()
        for thread in asking:
            thread.join(60)
        assert len(set(first)) == 1
        assert len(first) == 8
        assert server.asked == ["me"]
        assert tokens.cached_token() == first[0]
        _ = wait_until(lambda: tokens.cached_token() is None, seconds=10, what="the token's window")
        assert tokens.fetch_token() != first[0]
        assert server.asked == ["me", "me"]


def test_while_the_endpoint_is_away_the_old_token_serves_to_its_end(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    with TokenServer({"me": Registered("s3cret", lifetime_s=4)}, place.certificate) as server:
        tokens = source(server.token_url, place, window=AT_HALF_TIME._replace(factor=0.1))
        first = tokens.fetch_token()
    _ = wait_until(lambda: tokens.cached_token() is None, seconds=10, what="the token's window")
    with caplog.at_level(logging.WARNING):
        assert tokens.fetch_token() == first
    assert "token_refresh_failed" in caplog.text
    assert first not in caplog.text

    def refused() -> bool:
        try:
            _ = tokens.fetch_token()
        except AuthenticationError as error:
            return "Connection refused" in str(error)
        return False

    _ = wait_until(refused, seconds=10, what="the token's end")


def test_an_endpoint_that_fails_is_not_asked_again_at_once(place: Place) -> None:
    with Hostile(place.certificate, answering({}, "503 Busy")) as server:
        tokens = source(server.url, place, retry=Backoff(30.0, 30.0))
        for _ in range(20):
            with pytest.raises(AuthenticationError, match="status 503"):
                _ = tokens.fetch_token()
        assert server.connections == 1


def test_an_endpoint_that_goes_on_failing_is_asked_less_and_less_often(place: Place) -> None:
    with Hostile(place.certificate, answering({}, "503 Busy")) as server:
        tokens = source(server.url, place, retry=Backoff(0.01, 30.0))
        end = time.monotonic() + 1.0

        def over() -> bool:
            assert fetched_or_none(tokens) is None
            return time.monotonic() >= end

        _ = wait_until(over, seconds=PATIENCE_S, what="the second's end", every=0.005)
        # From 8 ms on each wait is twice the last one: seven fill a second.
        assert 2 <= server.connections <= 9


def test_a_new_secret_is_used_the_next_time(place: Place) -> None:
    with TokenServer({"me": Registered("another")}, place.certificate) as server:
        tokens = source(server.token_url, place)
        with pytest.raises(AuthenticationError, match="status 401: invalid_client, wrong secret"):
            _ = tokens.fetch_token()
        new = place.secret.with_suffix(".new")
        _ = new.write_text("another")
        new.chmod(0o600)
        _ = new.replace(place.secret)
        assert wait_until(lambda: fetched_or_none(tokens), seconds=5, what="a token")
        assert server.asked == ["me"]


def fetched_or_none(tokens: TokenEndpoint) -> str | None:
    try:
        return tokens.fetch_token()
    except AuthenticationError:
        return None


@pytest.mark.parametrize(("urlencodes", "pair"), [(False, b"m/e =:s3cret"), (True, b"m%2Fe+%3D:s3cret")])
def test_what_is_asked_is_what_rfc_6749_says(place: Place, urlencodes: bool, pair: bytes) -> None:
    heard: list[bytes] = []

    def listen(connected: ssl.SSLSocket, _over: threading.Event) -> None:
        heard.append(request(connected))
        connected.sendall(http(json.dumps(GOOD).encode()))

    with Hostile(place.certificate, listen) as server:
        tokens = source(f"{server.url}?tenant=1", place, client_id="m/e =", urlencodes=urlencodes, scope="a b")
        assert tokens.fetch_token() == "abc"
    head, _, body = heard[0].partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    assert lines[0] == b"POST /token?tenant=1 HTTP/1.1"
    assert b"Authorization: Basic " + base64.b64encode(pair) in lines
    assert body == b"grant_type=client_credentials&scope=a+b"


def test_the_settings_make_an_exchange_that_asks_off_the_loop_and_then_holds_the_token(place: Place) -> None:
    with TokenServer({"me": Registered("s3cret")}, place.certificate) as server:
        settings = SecuritySettings.model_validate(
            {
                "security.protocol": "SASL_SSL",
                "sasl.mechanism": "OAUTHBEARER",
                "sasl.oauthbearer.token.endpoint.url": server.token_url,
                "sasl.oauthbearer.client.id": "me",
                "sasl.oauthbearer.client.secret.file": str(place.secret),
                "sasl.oauthbearer.truststore.location": str(place.truststore),
                "sasl.oauthbearer.extensions": "logicalCluster=lkc-1,poolId=a",
            }
        )
        new = mechanism_for(settings)
        said = new("broker-1").initial_response()
        assert isinstance(said, BlockingStep)
        message = said.work()
        assert message is not None
        assert message.startswith(b"n,,\x01auth=Bearer ey")
        assert message.endswith(b"\x01logicalCluster=lkc-1\x01poolId=a\x01\x01")
        assert new("broker-2").initial_response() == message, "the same token, without asking"
        assert server.asked == ["me"]


# --- the exchange ----------------------------------------------------------------------------------------------------


def begun(token_file: Path) -> OAuthBearerMechanism:
    mechanism = OAuthBearerMechanism(TokenFile(token_file), {})
    assert mechanism.initial_response() == b"n,,\x01auth=Bearer abc\x01\x01"
    return mechanism


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    _ = path.write_text("abc\n")
    path.chmod(0o600)
    return path


def test_an_empty_answer_is_the_brokers_consent(token_file: Path) -> None:
    mechanism = begun(token_file)
    assert not mechanism.done
    assert mechanism.evaluate_challenge(b"") is None
    assert mechanism.done


@pytest.mark.parametrize(
    ("challenge", "reason"),
    [
        (
            b'{"status":"invalid_token","scope":"x","openid-configuration":"https://y"}',
            "status invalid_token, scope x, ",
        ),
        (b'{"status":7}', '{"status":7}'),
        (b"no JSON", "no JSON"),
        (b"[" * 5_000, r"\[\["),
    ],
)
def test_a_refusal_is_answered_with_the_one_byte_that_ends_it_and_is_then_told(
    token_file: Path, challenge: bytes, reason: str
) -> None:
    mechanism = begun(token_file)
    assert mechanism.evaluate_challenge(challenge) == b"\x01"
    assert not mechanism.done
    with pytest.raises(AuthenticationError, match=reason):
        _ = mechanism.evaluate_challenge(b"")
    assert not mechanism.done


def test_a_refusal_that_is_no_text_ends_it_at_once(token_file: Path) -> None:
    with pytest.raises(AuthenticationError, match="not valid UTF-8"):
        _ = begun(token_file).evaluate_challenge(b"\xff")


# --- a file ----------------------------------------------------------------------------------------------------------


def replace(path: Path, text: str, mode: int = 0o600) -> None:
    new = path.with_suffix(".new")
    _ = new.write_text(text)
    new.chmod(mode)
    _ = new.replace(path)


def test_a_token_file_is_read_again_when_it_is_replaced(token_file: Path) -> None:
    tokens = TokenFile(token_file)
    assert tokens.cached_token() == "abc"
    replace(token_file, "def")
    assert tokens.cached_token() == "def"


@pytest.mark.parametrize(("text", "mode"), [("", 0o600), ("def", 0o666)])
def test_while_a_new_token_file_is_no_good_the_old_token_serves(
    token_file: Path, text: str, mode: int, caplog: pytest.LogCaptureFixture
) -> None:
    tokens = TokenFile(token_file)
    assert tokens.cached_token() == "abc"
    replace(token_file, text, mode)
    with caplog.at_level(logging.WARNING):
        assert tokens.cached_token() == tokens.cached_token() == "abc"
    assert caplog.text.count("secret_reload_failed") == 1
    token_file.unlink()
    assert tokens.cached_token() == "abc"
    replace(token_file, "ghi")
    assert tokens.cached_token() == "ghi"


@pytest.mark.parametrize(("text", "reason"), [("a b", "characters"), ("a.eyJleHAiOjF9.c", "run out")])
def test_a_file_without_a_token_that_could_be_used_is_named(token_file: Path, text: str, reason: str) -> None:
    replace(token_file, text)
    with pytest.raises(AuthenticationError, match=f"{token_file} holds a token .*{reason}"):
        _ = TokenFile(token_file).cached_token()
