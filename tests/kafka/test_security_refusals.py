"""Whoever may not come in, or whom we may not believe, is refused with a clear reason: by exceptions of the direct producer, and
by the daemon's /healthz, while its records wait."""

import re
import socket
import subprocess
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import monotonic
from typing import Final, NamedTuple

import pytest
from penstock.api.errors import AuthenticationError
from penstock.client import Producer
from penstock.config.errors import ConfigError
from penstock.producer import DirectProducer

from tests.harness.certificates import EXPIRED, Authority
from tests.harness.daemon import Daemon
from tests.harness.kdc import REALM
from tests.harness.ports import free_ports
from tests.harness.processes import end, start_tied, wait_until
from tests.harness.secure_kafka import IN_THE_CLEAR, OPEN, OUT_OF_DATE, STRANGER, USER, WRONG_NAME, SecureKafka, Way

TOPIC: Final = OPEN + "refused"
PATIENCE_S: Final = 8.0
TOLD_S: Final = 20.0


class Case(NamedTuple):
    """Something wrong, and what is to be said of it."""

    name: str
    way: Way
    reason: str
    """A regular expression."""
    address: str = ""
    """A listener that is not the way's own."""
    changed: Callable[["World"], Mapping[str, str]] = lambda world: {}


class World:
    """What the cases need beyond the node: bad certificates and keys, and a server that speaks TLS 1.0 only."""

    def __init__(self, secure: SecureKafka, folder: Path, old_port: int) -> None:
        self.secure = secure
        self.old = f"localhost:{old_port}"
        authority = secure.authority
        self.expired_client = authority.issue(USER, hosts=(), validity=EXPIRED).write(folder / "expired-client.pem")
        self.unknown_client = Authority("Nobody Knows").issue(USER, hosts=()).write(folder / "unknown-client.pem")
        self.ghost = secure.kdc.add("ghost")
        secure.kdc.forget("ghost")
        self.outdated = secure.kdc.add("outdated")
        secure.kdc.change_key("outdated")


UNTRUSTED: Final = r"certificate of localhost is not to be trusted: "


def _wrong_password(world: World) -> Mapping[str, str]:
    return {"sasl.password.file": str(world.secure.files.wrong_password)}


CASES: Final = (
    Case("password-of-plain", Way.PLAIN, r"Invalid username or password", changed=_wrong_password),
    Case("password-of-scram-256", Way.SCRAM_256, r"invalid credentials", changed=_wrong_password),
    Case("password-of-scram-512", Way.SCRAM_512, r"invalid credentials", changed=_wrong_password),
    Case(
        "user-of-scram",
        Way.SCRAM_256,
        r"invalid credentials",
        changed=lambda world: {"sasl.username": "nobody"},
    ),
    Case(
        "secret-of-the-token-server",
        Way.OAUTH,
        r"401.*invalid_client|invalid_client.*wrong secret",
        changed=lambda world: {"sasl.oauthbearer.client.secret.file": str(world.secure.files.wrong_password)},
    ),
    Case(
        "token-for-another-audience",
        Way.OAUTH,
        r"invalid_token",
        changed=lambda world: {"sasl.oauthbearer.client.id": STRANGER},
    ),
    Case(
        "token-server-of-an-unknown-authority",
        Way.OAUTH,
        "its certificate is not believed",
        changed=lambda world: {"sasl.oauthbearer.truststore.location": str(world.secure.files.other_trust)},
    ),
    Case(
        "principal-nobody-knows",
        Way.KERBEROS,
        rf"ghost@{re.escape(REALM)}' not found in Kerberos database",
        changed=lambda world: {
            "sasl.kerberos.keytab": str(world.ghost),
            "sasl.kerberos.principal": f"ghost@{REALM}",
        },
    ),
    Case(
        "keytab-that-is-outdated",
        Way.KERBEROS,
        r"Preauthentication failed|Password incorrect|Decrypt integrity check failed",
        changed=lambda world: {
            "sasl.kerberos.keytab": str(world.outdated),
            "sasl.kerberos.principal": f"outdated@{REALM}",
        },
    ),
    Case("expired-server", Way.TLS, UNTRUSTED + "it has expired", address=OUT_OF_DATE),
    Case("server-of-another-name", Way.TLS, r"not valid for '?localhost", address=WRONG_NAME),
    Case(
        "server-of-an-unknown-authority",
        Way.TLS,
        UNTRUSTED + "an authority that is not known",
        changed=lambda world: {"ssl.truststore.location": str(world.secure.files.other_trust)},
    ),
    Case("server-with-tls-1.0", Way.TLS, r"(?i)protocol", address="old"),
    Case(
        "no-tls-where-tls-is-spoken",
        Way.PLAIN,
        "this listener speaks TLS",
        changed=lambda world: {"security.protocol": "SASL_PLAINTEXT", "sasl.allow_plaintext": "true"},
    ),
    Case("sasl-where-none-is-wanted", Way.PLAIN, "the broker wants no SASL on this listener", address=Way.TLS),
    Case(
        "mechanism-that-is-not-offered", Way.SCRAM_256, "does not take SASL mechanism SCRAM-SHA-256", address=Way.PLAIN
    ),
    Case("no-client-certificate", Way.MTLS, "the broker wants a certificate of us", address=Way.MTLS),
    Case(
        "expired-client",
        Way.MTLS,
        "the broker does not take our certificate",
        changed=lambda world: {"ssl.keystore.location": str(world.expired_client)},
    ),
    Case(
        "client-of-an-unknown-authority",
        Way.MTLS,
        "the broker does not take our certificate",
        changed=lambda world: {"ssl.keystore.location": str(world.unknown_client)},
    ),
)
# A daemon is four processes: one case for each kind of refusal.
DAEMON_CASES: Final = (
    "password-of-scram-256",
    "token-for-another-audience",
    "principal-nobody-knows",
    "expired-server",
    "server-of-another-name",
    "server-of-an-unknown-authority",
    "server-with-tls-1.0",
    "client-of-an-unknown-authority",
)


@contextmanager
def tls_1_0(certificate: Path) -> Iterator[int]:
    """The port of a server that speaks TLS 1.0 only: Java has none any more."""
    port = free_ports(1)[0]
    process = start_tied(
        [
            *("openssl", "s_server", "-tls1", "-cipher", "ALL:@SECLEVEL=0", "-quiet"),
            *("-accept", f"127.0.0.1:{port}", "-cert", str(certificate), "-key", str(certificate)),
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        _ = wait_until(lambda: _listens(port), seconds=20, what="openssl s_server listens")
        yield port
    finally:
        _ = end(process)


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def settings_of(case: Case, world: World) -> tuple[str, dict[str, str]]:
    """Address and settings."""
    settings = {**world.secure.settings(case.way), **case.changed(world)}
    if case.name == "no-client-certificate":
        del settings["ssl.keystore.location"]
    if case.address == "old":
        return world.old, settings
    return world.secure.bootstrap(case.address or case.way), settings


class Refused(NamedTuple):
    """What an application got."""

    error: BaseException | None
    after_s: float


def send_once(address: str, settings: Mapping[str, str]) -> Refused:
    """One record by a direct producer of its own."""
    began = monotonic()
    with DirectProducer({"bootstrap.servers": address, "max.block.ms": int(PATIENCE_S * 1000), **settings}) as producer:
        error = producer.send(TOPIC, b"never").exception(2 * PATIENCE_S)
    return Refused(error, monotonic() - began)


def health(daemon: Daemon, reason: str) -> str:
    """Everything that the daemon says is wrong, once the reason is among it or the time is over."""
    said = ""

    def look() -> bool:
        nonlocal said
        said = daemon.get("/healthz")[1]
        return re.search(reason, said) is not None

    try:
        _ = wait_until(look, seconds=TOLD_S, what="the reason shows in /healthz", every=0.2)
    except AssertionError:
        return said + daemon.describe()
    return said


class Told(NamedTuple):
    """What a daemon told."""

    health: str
    waits: bool
    """Whether the record that was handed to it still waited afterwards."""


@pytest.fixture(scope="module")
def world(secure_kafka: SecureKafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("refusals")
    secure_kafka.cluster.create_topic(TOPIC, 1)
    with tls_1_0(secure_kafka.folder / "server.pem") as port, secure_kafka.realm():
        yield World(secure_kafka, folder, port)


@pytest.fixture(scope="module")
def refused(world: World) -> Mapping[str, Refused]:
    """All cases at once, each with a direct producer: the waits overlap."""
    with ThreadPoolExecutor(len(CASES)) as threads:
        answers = threads.map(lambda case: send_once(*settings_of(case, world)), CASES)
        return dict(zip((case.name for case in CASES), answers, strict=True))


@pytest.fixture(scope="module")
def daemons(world: World) -> dict[str, Told]:
    """A daemon for each of its cases, all at once; a record is handed to each."""
    cases = [case for case in CASES if case.name in DAEMON_CASES]
    with ExitStack() as stack:
        started: dict[str, Daemon] = {}
        for case in cases:
            address, settings = settings_of(case, world)
            started[case.name] = stack.enter_context(Daemon(address, shards=1, kafka=settings))
            started[case.name].start(ready=False)
        told: dict[str, Told] = {}
        for case in cases:
            daemon = started[case.name]
            daemon.wait_ready()
            producer = stack.enter_context(Producer(str(daemon.socket_path)))
            waiting = producer.send(TOPIC, b"waits", level="delivered")
            told[case.name] = Told(health(daemon, case.reason), not waiting.done())
            producer.close(0)
        return told


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_direct_producer_says_why_it_is_refused(world: World, refused: Mapping[str, Refused], case: Case) -> None:
    error = refused[case.name].error
    print(error)
    assert isinstance(error, AuthenticationError)
    assert re.search(case.reason, str(error)), error
    assert refused[case.name].after_s < 2 * PATIENCE_S


@pytest.mark.parametrize("name", DAEMON_CASES)
def test_the_daemon_says_why_it_is_refused_and_keeps_its_records(
    world: World, daemons: dict[str, Told], name: str
) -> None:
    reason = next(case.reason for case in CASES if case.name == name)
    print(daemons[name].health)
    assert re.search(reason, daemons[name].health), daemons[name].health
    assert daemons[name].waits


def test_credentials_go_in_the_clear_only_where_that_is_allowed(world: World) -> None:
    secure = world.secure
    clear = {"bootstrap.servers": secure.bootstrap(IN_THE_CLEAR), "security.protocol": "SASL_PLAINTEXT"}

    def settings(way: Way) -> dict[str, str]:
        return {name: value for name, value in secure.settings(way).items() if not name.startswith("ssl.")} | clear

    with pytest.raises(ConfigError, match="would show the credentials of PLAIN to whoever listens"):
        _ = DirectProducer(settings(Way.PLAIN))
    for allowed in ({**settings(Way.PLAIN), "sasl.allow_plaintext": "true"}, settings(Way.KERBEROS)):
        with DirectProducer(allowed) as producer:
            assert producer.send(TOPIC, b"in the clear").result(PATIENCE_S).partition == 0
