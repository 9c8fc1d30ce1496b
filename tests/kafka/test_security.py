"""Every way to say who one is, on real brokers, through the direct producer and the daemon: TLS, mutual TLS, PLAIN, SCRAM,
OAUTHBEARER and GSSAPI, for longer than two of the broker's sessions last."""

import subprocess
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka import Producer

from tests.harness.checker import judge
from tests.harness.daemon import Daemon
from tests.harness.kafka_node import kafka_libs
from tests.harness.kdc import REALM
from tests.harness.ledger import Ledger
from tests.harness.load import Load
from tests.harness.load_client import Job
from tests.harness.processes import wait_until
from tests.harness.readers import read_topic
from tests.harness.secure_kafka import (
    MECHANISMS,
    OPEN,
    PASSWORD,
    ROTATED,
    SECRET,
    SESSION_MS,
    USER,
    SecureKafka,
    Way,
    write_secret,
)

from .conftest import count_from

SEND_S: Final = count_from("PENSTOCK_SESSION_S", 16)
RATE: Final = 40
CHANGING: Final = Way.SCRAM_512
"""One more user comes in this way, whose password is changed in the broker first and in the file when it is refused."""
# A session's end is no event for records: no longer than an overloaded machine may take for a request.
LONGEST_WAIT_S: Final = 8.0


def of_librdkafka(secure: SecureKafka, way: Way) -> dict[str, str]:
    """The settings that let a peer in that way."""
    files = secure.files
    settings = {
        "bootstrap.servers": secure.bootstrap(way),
        "security.protocol": "SASL_SSL" if way in MECHANISMS else "SSL",
        "ssl.ca.location": str(files.trust),
        "log_level": "2",
    }
    if way in MECHANISMS:
        settings["sasl.mechanism"] = MECHANISMS[way]
    if way is Way.MTLS:
        settings |= {"ssl.certificate.location": str(files.client), "ssl.key.location": str(files.client)}
    elif way is Way.OAUTH:
        settings |= {
            "sasl.oauthbearer.method": "oidc",
            "sasl.oauthbearer.client.id": USER,
            "sasl.oauthbearer.client.secret": SECRET,
            "sasl.oauthbearer.token.endpoint.url": secure.tokens.token_url,
            "https.ca.location": str(files.trust),
        }
    elif way in MECHANISMS:
        settings |= {"sasl.username": USER, "sasl.password": PASSWORD}
    return settings


def send_by_java(secure: SecureKafka, topic: str, folder: Path) -> None:
    """One record through Kerberos: librdkafka's wheels come without it."""
    version = secure.cluster.version
    config = folder / "client.properties"
    _ = config.write_text(
        "security.protocol=SASL_SSL\nsasl.mechanism=GSSAPI\nsasl.kerberos.service.name=kafka\n"
        f"ssl.truststore.type=PEM\nssl.truststore.location={secure.files.trust}\n"
        "sasl.jaas.config=com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true storeKey=true "
        f'keyTab="{secure.files.keytab}" principal="{USER}@{REALM}";\n'
    )
    old = version.startswith("3.")
    _ = subprocess.run(
        [
            *("java", "-Xmx64m", "-XX:TieredStopAtLevel=1", f"-Djava.security.krb5.conf={secure.kdc.config_path}"),
            *("-cp", f"{kafka_libs(version)}/*"),
            "kafka.tools.ConsoleProducer" if old else "org.apache.kafka.tools.ConsoleProducer",
            *("--bootstrap-server", secure.bootstrap(Way.KERBEROS), "--topic", topic),
            *("--producer.config" if old else "--command-config", str(config)),
        ],
        input=b"from Java\n",
        check=True,
        timeout=240,
        capture_output=True,
    )


def test_the_harness_lets_other_clients_in_every_way(secure: SecureKafka, topic_name: str, tmp_path: Path) -> None:
    topic = secure.cluster.create_topic(OPEN + topic_name, 1)
    for way in Way:
        if way is Way.KERBEROS:
            send_by_java(secure, topic, tmp_path)
        else:
            producer = Producer(of_librdkafka(secure, way))
            producer.produce(topic, b"from librdkafka")
            assert producer.flush(20) == 0, way
    assert secure.cluster.record_count(topic) == len(Way)


def refusals(counts: Mapping[str, Mapping[str, int]], way: Way) -> int:
    """How many sessions of a listener were not prolonged."""
    return counts[way].get("failed-reauthentication-total", 0)


def longest_wait_s(ledger: Ledger) -> float:
    """From a call to its answer."""
    return max(outcome.at - ledger.frames[number].sent_at for number, outcome in ledger.outcomes())


@pytest.mark.timeout(180 + SEND_S)
def test_records_flow_through_the_ends_of_sessions_whoever_the_producer_is(
    secure: SecureKafka, topic_name: str, tmp_path: Path
) -> None:
    topic = secure.cluster.create_topic(OPEN + topic_name, 3)

    def job(name: str, through: str, address: str, chosen: Mapping[str, str]) -> Job:
        return Job(
            through=through,
            address=address,
            client=f"{name}-{through}".lower(),
            topic=topic,
            ledger=str(tmp_path / f"{name}-{through}.ledger"),
            records=RATE * SEND_S,
            rate=RATE,
            settings=chosen,
        )

    password = write_secret(tmp_path / "password", PASSWORD)
    rotated = {**secure.settings(CHANGING, user=ROTATED), "sasl.password.file": str(password)}
    settings = {**{str(way): (way, secure.settings(way)) for way in Way}, ROTATED: (CHANGING, rotated)}
    with ExitStack() as stack:
        daemons = {
            name: stack.enter_context(Daemon(secure.bootstrap(way), shards=1, kafka=chosen))
            for name, (way, chosen) in settings.items()
        }
        for daemon in daemons.values():
            daemon.start(ready=False)
        for daemon in daemons.values():
            daemon.wait_ready()
        before = secure.jmx.by_listener()
        jobs = [job(name, "direct", secure.bootstrap(way), chosen) for name, (way, chosen) in settings.items()]
        jobs += [job(name, "penstock", str(daemon.socket_path), {}) for name, daemon in daemons.items()]
        with Load(jobs, tmp_path, together=True) as load:
            load.wait_answered(len(jobs) * RATE)
            secure.change_password(ROTATED, "another one")
            _ = wait_until(
                lambda: refusals(secure.jmx.by_listener(), CHANGING) - refusals(before, CHANGING) >= 2,
                seconds=2 * SESSION_MS / 1000,
                what="both whose password was changed are refused when their sessions end",
                every=0.5,
            )
            _ = write_secret(password, "another one")
            load.wait_done(seconds=SEND_S + 90)
        after = secure.jmx.by_listener()
        ledgers = load.ledgers()
        figures = judge(ledgers, read_topic(secure.cluster, topic))
    print(
        f"\nKafka {secure.cluster.version}, {SEND_S} s: {figures.summary()}, longest wait {figures.longest_wait_s:.2f} s"
    )
    figures.assert_clean()
    for ledger in ledgers:
        if ROTATED not in ledger.client:
            assert longest_wait_s(ledger) < LONGEST_WAIT_S, ledger.client
    # The direct producer's connection and the daemon's, each at the end of every session.
    least = 2 * (SEND_S * 1000 // SESSION_MS)
    for way in MECHANISMS:
        grown = Counter(after[way])
        grown.subtract(before[way])
        prolonged = grown["successful-reauthentication-total"]
        ended = grown["failed-reauthentication-total"] + grown["failed-authentication-total"]
        print(f"{way}: {prolonged} sessions prolonged, {ended} logins refused")
        assert prolonged >= least, way
        assert grown["expired-connections-killed-count"] == 0, way
        assert (ended == 0) == (way is not CHANGING), way
