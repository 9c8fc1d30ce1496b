"""Our table of the settings of Kafka's producer beside Kafka's own, and what each setting takes beside what Kafka takes."""

import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final, Literal, cast, get_args, get_origin

from penstock.config.direct import DirectSettings, direct_settings
from penstock.config.errors import ConfigError
from penstock.config.kafka_names import EVERY_DEFAULT, KAFKA_DEFAULTS
from penstock.config.security import MechanismName

from tests.harness.kafka_node import kafka_libs

FOLDER: Final = Path(__file__).parents[1] / "java"
VERSION: Final = "4.3.1"
NUMBERS: Final = (
    *("-2", "-1", "0", "1", "2", "9", "10", "17", "18", "22", "23", "99", "100", "999", "1000", "4999", "5000"),
    *("2147483647", "2147483648", "9223372036854775807", "9223372036854775808", "-131072", "-131073"),
    *(" 7 ", "+7", "0x7", "7.0", "7e3", "abc", ""),
)
FRACTIONS: Final = ("0.5", "0.49", "1.0", "1.01", "0", "0.25", ".2", "0.26", "2e-1", "5.e-1", "1,0", "-0.1", " 0.1 ")
TRUTHS: Final = ("true", "FALSE", " true ", "yes", "1", "")
# Where Kafka takes what makes no sense, or what would be changed silently.
STRICTER: Final[Mapping[str, Callable[[str], bool]]] = {
    "acks": lambda text: text in ("0", "1"),  # not beside idempotence
    "retries": lambda text: text == "0",  # the same
    "max.in.flight.requests.per.connection": lambda text: int(text) > 5,  # the same
    "batch.size": lambda text: int(text) > 32 << 20,  # more than buffer.memory
    "buffer.memory": lambda text: int(text) < 16_384,  # less than batch.size: nothing could ever be sent
    "delivery.timeout.ms": lambda text: int(text) < 30_005,  # less than linger.ms and one request
    # Beside the protocol alone: who the producer is has no default here.
    "security.protocol": lambda text: text.strip().upper() in ("SASL_PLAINTEXT", "SASL_SSL"),
    "sasl.mechanism": lambda text: text.strip().upper() not in get_args(MechanismName),
    "ssl.endpoint.identification.algorithm": lambda text: text.strip().lower() not in ("https", ""),
    "sasl.login.connect.timeout.ms": lambda text: int(text) < 1,
    "sasl.login.read.timeout.ms": lambda text: int(text) < 1,
    "sasl.login.retry.backoff.ms": lambda text: int(text) < 1 or int(text) > 2**31 - 1,
    "sasl.login.retry.backoff.max.ms": lambda text: int(text) < 1 or int(text) > 2**31 - 1,
    "client.dns.lookup": lambda text: text == "resolve_canonical_bootstrap_servers_only",  # not built yet
    "metrics.num.samples": lambda text: int(text) > 1_000,  # windows are memory
    "transaction.timeout.ms": lambda text: int(text) < 1,  # which brokers refuse
    # A wait of nothing asks without a pause.
    "request.timeout.ms": lambda text: int(text) < 1,
    "retry.backoff.ms": lambda text: int(text) < 1,
    "retry.backoff.max.ms": lambda text: int(text) < 1,
    "reconnect.backoff.ms": lambda text: int(text) < 1,
    "reconnect.backoff.max.ms": lambda text: int(text) < 1,
    "socket.connection.setup.timeout.ms": lambda text: int(text) < 100,
    "socket.connection.setup.timeout.max.ms": lambda text: int(text) < 100,
    "connections.max.idle.ms": lambda text: int(text) < 1_000,
    "metadata.max.age.ms": lambda text: int(text) < 1_000,
}


def ask_kafka(program: str, version: str, given: str = "") -> list[str]:
    """Run a program against Kafka's own client library; its lines."""
    jars = ":".join(
        str(jar) for pattern in ("kafka-clients*.jar", "slf4j-api*.jar") for jar in kafka_libs(version).glob(pattern)
    )
    command = ["java", "-cp", jars, str(FOLDER / program)]
    return subprocess.run(
        command, input=given, check=True, text=True, capture_output=True, timeout=180
    ).stdout.splitlines()


def listed(version: str) -> dict[str, str]:
    """Kafka's settings and their defaults."""
    pairs = (line.partition("\t") for line in ask_kafka("ListProducerSettings.java", version))
    return {name: default for name, _, default in pairs}


def candidates() -> Iterator[tuple[str, str]]:
    """Texts to try for each setting that both have."""
    for field in DirectSettings.model_fields.values():
        name = str(field.alias)
        if name not in KAFKA_DEFAULTS or name in ("bootstrap.servers", "client.id"):
            continue
        literals = [kind for kind in (field.annotation, *get_args(field.annotation)) if get_origin(kind) is Literal]
        choices = [str(choice) for kind in literals for choice in get_args(kind)]
        texts = {int: NUMBERS, float: (*NUMBERS, *FRACTIONS), bool: TRUTHS}.get(cast("type", field.annotation), ())
        if choices:
            texts = (*choices, *(choice.upper() for choice in choices), *(choice.title() for choice in choices))
            texts += (f" {choices[0]}", "", "abc", "SSL", "resolve_canonical_bootstrap_servers_only", "true")
        yield from ((name, text) for text in texts)


def is_taken(name: str, text: str) -> bool:
    try:
        _ = direct_settings({"bootstrap.servers": "localhost:9092", name: text})
    except ConfigError:
        return False
    return True


def test_the_table_is_kafkas_own() -> None:
    assert listed(VERSION) == KAFKA_DEFAULTS


def test_no_setting_of_an_older_kafka_is_unknown() -> None:
    assert set(listed("3.9.2")) - set(EVERY_DEFAULT) == set()


def test_the_direct_producer_takes_what_kafka_takes_but_for_what_is_stricter_here() -> None:
    pairs = list(candidates())
    answers = ask_kafka("CheckSettings.java", VERSION, "".join(f"{name}\t{text}\n" for name, text in pairs))
    assert len(answers) == len(pairs) > 500
    wrong: list[tuple[str, str, str]] = []
    for (name, text), answer in zip(pairs, answers, strict=True):
        kafka = answer == "true"
        stricter = kafka and name in STRICTER and STRICTER[name](text)
        if is_taken(name, text) != (kafka and not stricter):
            wrong.append((name, text, answer))
    assert wrong == []
