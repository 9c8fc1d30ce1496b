"""Certificates, authorities and passwords that are replaced in their files are used by the next connection: nothing is restarted."""

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from penstock.api.errors import AuthenticationError, TopicForbiddenError
from penstock.client import Producer
from penstock.producer import DirectProducer

from tests.harness.daemon import Daemon
from tests.harness.processes import wait_until
from tests.harness.secure_kafka import OPEN, SecureKafka, Way

ANSWER_S: Final = 30.0
# Connections that nothing was sent on for so long are closed, so that the next record makes a new one.
IDLE: Final = {"connections.max.idle.ms": 1_000}
REFUSED: Final = {"authority": "an authority that is not known", "password": "invalid credentials"}


@contextmanager
def producer_of(through: str, address: str, settings: dict[str, str | int]) -> Iterator[Any]:
    """A direct producer, or a client of a daemon of its own."""
    if through == "direct":
        patient = {"max.block.ms": int(1000 * ANSWER_S)}
        with DirectProducer({"bootstrap.servers": address, **patient, **settings}) as direct:
            yield direct
        return
    with Daemon(address, shards=1, kafka=settings) as daemon:
        daemon.start()
        with Producer(str(daemon.socket_path)) as client:
            yield client


def replace(path: Path, by: Path) -> None:
    """Put the contents of another file into place, as a tool that renews certificates does."""
    beside = path.with_name(path.name + ".new")
    _ = shutil.copyfile(by, beside)
    beside.chmod(0o600)
    _ = beside.replace(path)


def wrong_then_right(secure: SecureKafka, what: str) -> tuple[Way, str, Path, Path]:
    """How to come in, the setting that names the file, what is in it at first, and what replaces it."""
    files = secure.files
    return {
        "authority": (Way.TLS, "ssl.truststore.location", files.other_trust, files.trust),
        "password": (Way.SCRAM_512, "sasl.password.file", files.wrong_password, files.password),
    }[what]


def sent(producer: DirectProducer, topic: str) -> bool:
    """Whether a record arrives now. Raise what is no refusal to believe somebody."""
    try:
        return producer.send(topic, b"right").result(ANSWER_S).offset == 0
    except AuthenticationError:
        return False


@pytest.mark.parametrize("what", ["authority", "password"])
def test_the_direct_producer_goes_on_when_a_wrong_file_is_replaced(
    secure: SecureKafka, topic_name: str, tmp_path: Path, what: str
) -> None:
    topic = secure.cluster.create_topic(OPEN + topic_name, 1)
    way, setting, wrong, right = wrong_then_right(secure, what)
    used = tmp_path / "used"
    replace(used, wrong)
    settings: dict[str, str | int] = {**secure.settings(way), setting: str(used)}
    with producer_of("direct", secure.bootstrap(way), settings) as producer:
        with pytest.raises(AuthenticationError):
            _ = producer.send(topic, b"wrong").result(ANSWER_S)
        replace(used, right)
        _ = wait_until(lambda: sent(producer, topic), seconds=ANSWER_S, what="the new file is used")


@pytest.mark.parametrize("what", ["authority", "password"])
def test_records_wait_in_the_daemon_until_a_wrong_file_is_replaced(
    secure: SecureKafka, topic_name: str, tmp_path: Path, what: str
) -> None:
    topic = secure.cluster.create_topic(OPEN + topic_name, 1)
    way, setting, wrong, right = wrong_then_right(secure, what)
    used = tmp_path / "used"
    replace(used, wrong)
    settings: dict[str, str | int] = {**secure.settings(way), setting: str(used)}
    with Daemon(secure.bootstrap(way), shards=1, kafka=settings) as daemon:
        daemon.start()
        with Producer(str(daemon.socket_path)) as client:
            waiting = client.send(topic, b"waits", level="delivered")
            _ = wait_until(
                lambda: re.search(REFUSED[what], daemon.get("/healthz")[1]), seconds=ANSWER_S, what="it is refused"
            )
            assert not waiting.done()
            replace(used, right)
            assert waiting.result(ANSWER_S).offset == 0


@pytest.mark.parametrize("through", ["direct", "penstock"])
def test_the_next_connection_shows_the_certificate_that_took_the_others_place(
    secure: SecureKafka, topic_name: str, tmp_path: Path, through: str
) -> None:
    shared = secure.cluster.create_topic(OPEN + topic_name, 1)
    own = secure.cluster.create_topic(topic_name, 1)
    secure.allow("CN=second", own)
    used = tmp_path / "client.pem"
    first = secure.authority.issue("first", hosts=()).write(tmp_path / "first.pem")
    second = secure.authority.issue("second", hosts=()).write(tmp_path / "second.pem")
    replace(used, first)
    settings: dict[str, str | int] = {**secure.settings(Way.MTLS), "ssl.keystore.location": str(used)}
    with producer_of("direct", secure.bootstrap(Way.MTLS), settings) as denied:
        assert isinstance(denied.send(own, b"of the first").exception(ANSWER_S), TopicForbiddenError)
    with producer_of(through, secure.bootstrap(Way.MTLS), {**settings, **IDLE}) as producer:
        _ = producer.send(shared, b"of the first").result(ANSWER_S)
        replace(used, second)
        if through == "penstock":
            assert producer.send(own, b"of the second").result(ANSWER_S).offset == 0
        else:
            # What still goes over the first one's connection is refused. In the pauses it is closed.
            _ = wait_until(
                lambda: producer.send(own, b"of the second").exception(ANSWER_S) is None,
                seconds=ANSWER_S,
                what="the second certificate is shown",
                every=IDLE["connections.max.idle.ms"] / 500,
            )
