"""The page on secure connections: each of its examples reaches a real broker once its addresses and files are those of the test."""

import logging
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest
from penstock.cli.checks import ServerCheck, check_servers
from penstock.config.load import load
from penstock.config.model import KafkaSettings
from penstock.producer import DirectProducer

from tests.harness.kdc import REALM
from tests.harness.readers import read_topic
from tests.harness.secure_kafka import MECHANISMS, OPEN, PASSWORD, SECRET, USER, SecureKafka, Way
from tests.harness.token_server import Registered

PAGE: Final = Path(__file__).parents[2] / "docs/howto/secure-kafka.md"
EXAMPLE: Final = re.compile(r"^```(toml|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
WAY_OF: Final = {mechanism: way for way, mechanism in MECHANISMS.items()}


def examples(language: str) -> list[str]:
    return [text for kind, text in EXAMPLE.findall(PAGE.read_text()) if kind == language]


def here(text: str, secure: SecureKafka, folder: Path) -> str:
    """The example with what the test has."""
    files = secure.files
    token = folder / "token"
    _ = token.write_text(secure.tokens.token(USER, Registered(SECRET)))
    token.chmod(0o600)
    stand_ins = {
        r"/[\w/.-]*kafka-authorities\.pem": str(files.trust),
        r"/[\w/.-]*login-authority\.pem": str(files.trust),
        r"/[\w/.-]*producer\.pem": str(files.client),
        r"/[\w/.-]*kafka\.password": str(files.password),
        r"/[\w/.-]*oauth\.secret": str(files.secret),
        r"/[\w/.-]*\.keytab": str(files.keytab),
        r"https://login\.example[\w/]*": secure.tokens.token_url,
        r"/var/run/secrets/kafka/token": str(token),
        r"penstock@EXAMPLE\.COM": f"{USER}@{REALM}",
        r'username = "\w+"': f'username = "{USER}"',
        r'client\.id = "\w+"': f'client.id = "{USER}"',
    }
    for pattern, stand_in in stand_ins.items():
        text = re.sub(pattern, stand_in, text)
    return text


def way(kafka: KafkaSettings) -> Way:
    if kafka.sasl_mechanism is not None:
        return WAY_OF[kafka.sasl_mechanism]
    return Way.MTLS if kafka.ssl_keystore_location is not None else Way.TLS


def test_every_example_of_settings_reaches_a_broker(secure: SecureKafka, tmp_path: Path) -> None:
    seen: set[Way] = set()
    for text in examples("toml"):
        file = tmp_path / "penstock.toml"
        lines = [line for line in here(text, secure, tmp_path).splitlines() if not line.startswith("bootstrap.servers")]
        # Where an example leaves the authorities to the system, they are the test's here.
        if not any(line.startswith("ssl.truststore.location") for line in lines):
            lines.append(f'ssl.truststore.location = "{secure.files.trust}"')
        _ = file.write_text("\n".join([*lines, 'bootstrap.servers = "localhost:1"']))
        kafka = load(file).kafka
        server = secure.bootstrap(way(kafka))
        assert check_servers(kafka.model_copy(update={"bootstrap_servers": server})) == [ServerCheck(server, "")], text
        seen.add(way(kafka))
    assert seen >= {Way.TLS, Way.MTLS, Way.SCRAM_512, Way.OAUTH, Way.KERBEROS}


def test_the_example_of_the_direct_producer_sends(secure: SecureKafka, topic_name: str, tmp_path: Path) -> None:
    (example,) = examples("python")
    topic = secure.cluster.create_topic(OPEN + topic_name, 1)
    text = here(example, secure, tmp_path).replace('"broker-1.example:9093"', f'"{secure.bootstrap(Way.SCRAM_512)}"')
    text = text.replace('"events"', f'"{topic}"').replace('username": "app"', f'username": "{USER}"')
    done = subprocess.run([sys.executable, "-c", text], text=True, capture_output=True, timeout=180, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    assert [record.value for record in read_topic(secure.cluster, topic)] == [b"hello"]


def test_nothing_that_is_secret_is_logged_at_debug(
    secure: SecureKafka, topic_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    topic = secure.cluster.create_topic(OPEN + topic_name, 1)
    for each in (Way.PLAIN, Way.SCRAM_512, Way.OAUTH):
        with DirectProducer({"bootstrap.servers": secure.bootstrap(each), **secure.settings(each)}) as producer:
            _ = producer.send(topic, b"value").result(60)
    assert "metadata_broker_connected" in caplog.text
    token_begins = "eyJ"
    for told in (PASSWORD, SECRET, token_begins):
        assert told not in caplog.text
