"""Row I22 and its surroundings: what a login that fails means for others, and for who waits."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from penstock.producer.metadata.topic_waits import TopicSnapshot, TopicWaits, WaitFailure, WaitReason
from penstock.producer.network.connection_state import ConnectionLimits, ConnectionState
from penstock.producer.network.socket_options import Security
from penstock.producer.protocol.backoff import Backoff

from tests.fakes.fake_net import FakeClient
from tests.fakes.metadata_net import MetadataNet, metadata_net, told
from tests.fakes.secure_broker import (
    AUTHENTICATE,
    HANDSHAKE,
    SASL_RANGES,
    authenticate_body,
    handshake_body,
    saying,
)

LIMITS = ConnectionLimits(reconnect=Backoff(0.05, 1.0))
RANGES_OF_SASL = {HANDSHAKE: (0, 1), AUTHENTICATE: (0, 2)}
REFUSED = 58


@pytest.mark.row("I22")
def test_the_answer_of_one_node_is_used_although_another_one_has_refused_us_meanwhile() -> None:
    with metadata_net() as world:
        first = world.greet()
        assert first.unread(), "the question is in flight"
        client = FakeClient(world.net)
        links = client.open("10.0.0.2", LIMITS, security=Security(sasl=saying(b"a word")))
        refusing = world.net.last
        refusing.accept()
        _ = refusing.greet(SASL_RANGES)
        refusing.answer(refusing.read(), handshake_body())
        refusing.answer(refusing.read(), authenticate_body(2, code=REFUSED, text="not you"))
        assert links.authentication_failed
        assert links.state is ConnectionState.DISCONNECTED
        assert client.lost == [([], "10.0.0.2:9092: authentication failed: not you")]
        asked = first.read()
        assert asked.api_key == 3
        world.net.sockets[0].answer(asked, told(1, 2))
        world.round()
        assert sorted(world.metadata.cluster.nodes) == [1, 2]
        assert world.lost == []


@pytest.fixture
def world(tmp_path: Path) -> Iterator[MetadataNet]:
    password = tmp_path / "password"
    password.touch(0o600)
    _ = password.write_text("open sesame\n")
    settings: dict[str, object] = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "ali",
        "sasl.password.file": str(password),
        "sasl.allow_plaintext": True,
    }
    with metadata_net(bootstrap="10.0.0.1:9092,10.0.0.2", **settings) as made:
        yield made


def refuse(world: MetadataNet) -> str:
    """The broker that is tried does not believe us. Returns where it is."""
    broker = world.net.last
    _ = world.greet(more=RANGES_OF_SASL)
    broker.answer(broker.read(), handshake_body(mechanisms=("PLAIN",)))
    asked = broker.read()
    assert b"\0ali\0open sesame" in asked.body
    broker.answer(asked, authenticate_body(asked.version, code=REFUSED, text="not you"))
    return str(broker.address[0])


@pytest.mark.row("I22")
def test_another_node_is_asked_at_once_and_the_one_that_refused_not_within_a_second(world: MetadataNet) -> None:
    began = world.net.now
    first = refuse(world)
    assert world.lost == [(f"{first}:9092: authentication failed: not you", False)]
    world.round()
    second = str(world.net.last.address[0])
    assert {first, second} == {"10.0.0.1", "10.0.0.2"}
    assert world.net.now == began
    assert refuse(world) == second
    assert world.lost[1][1], "nobody is left"
    tried = len(world.net.connects)
    while len(world.net.connects) == tried:
        world.wait()
    assert world.net.now - began >= 1.0


def test_logins_that_go_on_failing_are_no_storm(world: MetadataNet) -> None:
    began = world.net.now
    for _ in range(20):
        world.round()
        while world.net.last.closed:
            world.wait()
        _ = refuse(world)
    assert len(world.lost) == 20
    # Two brokers, and at least a second between two logins to the same one.
    assert world.net.now - began >= 9.0


def test_brokers_that_refuse_in_turn_are_told_once_each_until_one_has_answered(
    world: MetadataNet, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse_often() -> None:
        for _ in range(6):
            while world.net.last.closed:
                world.wait()
            _ = refuse(world)

    with caplog.at_level(logging.WARNING):
        refuse_often()
        assert caplog.text.count("metadata_problem") == 2
        while world.net.last.closed:
            world.wait()
        broker = world.net.last
        _ = world.greet(more=RANGES_OF_SASL)
        broker.answer(broker.read(), handshake_body(mechanisms=("PLAIN",)))
        asked = broker.read()
        broker.answer(asked, authenticate_body(asked.version))
        world.round()
        broker.answer(broker.read(), told(1, 2))
        assert not world.metadata.problems
        broker.hang_up()
        refuse_often()
    assert caplog.text.count("metadata_problem") == 5


def test_a_password_that_was_replaced_is_what_the_next_login_says(world: MetadataNet, tmp_path: Path) -> None:
    _ = refuse(world)
    _ = (tmp_path / "password").write_text("open barley\n")
    world.round()
    broker = world.net.last
    _ = world.greet(more=RANGES_OF_SASL)
    broker.answer(broker.read(), handshake_body(mechanisms=("PLAIN",)))
    asked = broker.read()
    assert b"\0ali\0open barley" in asked.body
    broker.answer(asked, authenticate_body(asked.version))
    world.round()
    assert world.metadata.connected_to is not None


# --- who waits -------------------------------------------------------------------------------------------------------


def unknown(_topic: str) -> TopicSnapshot:
    return TopicSnapshot(0, 0, 0)


def test_who_waits_is_released_by_a_refusal_and_who_comes_later_by_the_next_one() -> None:
    waits = TopicWaits(unknown)
    first = waits.begin("t", None, max_block_ms=60_000, now=0.0)
    second = waits.begin("u", 3, max_block_ms=60_000, now=0.0)
    assert waits.authentication_failed("not you") == [first, second]
    assert first.outcome == second.outcome == WaitFailure(WaitReason.UNAUTHENTICATED, "not you", None)
    third = waits.begin("t", None, max_block_ms=60_000, now=1.0)
    assert third.outcome is None
    assert waits.authentication_failed("still not you") == [third]
    assert waits.authentication_failed("still not you") == []


def test_a_wait_in_vain_tells_why_no_broker_could_be_asked_unless_one_answered_since() -> None:
    waits = TopicWaits(unknown)
    before = waits.begin("t", None, max_block_ms=1_000, now=0.0)
    waits.connection_failed("10.0.0.1:9092: Connection refused")
    assert waits.expire(1.0) == [before]
    assert isinstance(before.outcome, WaitFailure)
    assert before.outcome.cause == "10.0.0.1:9092: Connection refused"
    assert waits.begin("t", None, max_block_ms=0, now=1.0).outcome == before.outcome._replace(
        text="Topic t not present in metadata after 0 ms."
    )
    after = waits.begin("t", None, max_block_ms=1_000, now=1.0)
    assert waits.metadata_updated(1.5) == []
    assert waits.expire(2.0) == [after]
    assert isinstance(after.outcome, WaitFailure)
    assert after.outcome.cause is None
