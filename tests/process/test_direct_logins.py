"""The direct producer where nobody believes who it is: who waits is told, and the producer goes on trying."""

from pathlib import Path
from time import monotonic
from typing import Final

import pytest
from penstock.api.errors import AuthenticationError, MetadataTimeoutError
from penstock.producer import DirectProducer

from tests.fakes.scripted_broker import Peer, ScriptedBroker
from tests.fakes.secure_broker import SASL_RANGES, authenticate_body, handshake_body, server_context
from tests.harness.certificates import Authority
from tests.harness.ports import free_ports

pytestmark = pytest.mark.process
PATIENCE_S: Final = 20.0
_REFUSED: Final = 58


def refusing(peer: Peer) -> None:
    _ = peer.greet(SASL_RANGES)
    peer.send(peer.read().correlation_id, handshake_body(mechanisms=("PLAIN",)))
    asked = peer.read()
    peer.send(asked.correlation_id, authenticate_body(asked.version, code=_REFUSED, text="wrong password"))
    _ = peer.wait_for_end()


@pytest.fixture
def login(tmp_path: Path) -> dict[str, object]:
    password = tmp_path / "password"
    password.touch(0o600)
    _ = password.write_text("open sesame\n")
    return {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "ali",
        "sasl.password.file": str(password),
        "sasl.allow_plaintext": True,
    }


def test_who_waits_for_a_topic_is_told_that_the_login_was_refused(login: dict[str, object]) -> None:
    began = monotonic()
    with ScriptedBroker(refusing, refusing) as broker:
        bootstrap = f"127.0.0.1:{broker.port}"
        with DirectProducer({"bootstrap.servers": bootstrap, "max.block.ms": 60_000, **login}) as producer:
            told: list[BaseException | None] = []
            future = producer.send("t", b"v", on_ack=lambda _, error: told.append(error))
            raised = future.exception(PATIENCE_S)
            assert isinstance(raised, AuthenticationError)
            assert "authentication failed: wrong password" in str(raised)
            assert raised.topic == "t"
            assert told == [raised]
            # It goes on trying, and says so to who waits next.
            with pytest.raises(AuthenticationError, match="wrong password"):
                _ = producer.partitions_for("t")
    assert monotonic() - began < PATIENCE_S


def test_a_broker_that_is_not_believed_is_told_to_who_waits(tmp_path: Path) -> None:
    context = server_context(Authority("A Stranger").issue("a broker"), tmp_path)

    def script(peer: Peer) -> None:
        with pytest.raises((OSError, EOFError)):
            peer.socket = context.wrap_socket(peer.socket, server_side=True)

    with ScriptedBroker(script) as broker:
        settings = {
            "bootstrap.servers": f"127.0.0.1:{broker.port}",
            "security.protocol": "SSL",
            "ssl.truststore.location": str(Authority().write(tmp_path / "authority.pem")),
        }
        with DirectProducer(settings) as producer, pytest.raises(AuthenticationError, match="not to be trusted"):
            _ = producer.partitions_for("t")


def test_a_wait_in_vain_tells_why_no_broker_could_be_asked() -> None:
    (port,) = free_ports(1)
    with DirectProducer({"bootstrap.servers": f"127.0.0.1:{port}", "max.block.ms": 300}) as producer:
        error = producer.send("t", b"v").exception(PATIENCE_S)
    assert isinstance(error, MetadataTimeoutError)
    assert "Connection refused" in str(error)
    assert error.cause is not None
    assert str(port) in error.cause
