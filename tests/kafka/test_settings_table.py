"""Our table of the settings of Kafka's producer beside Kafka's own."""

import subprocess
from pathlib import Path
from typing import Final

from penstock.config.kafka_names import EVERY_DEFAULT, KAFKA_DEFAULTS

from tests.harness.kafka_node import kafka_libs

SOURCE: Final = Path(__file__).parents[1] / "java/ListProducerSettings.java"


def listed(version: str) -> dict[str, str]:
    """Kafka's settings and their defaults, told by its own client library."""
    jars = ":".join(
        str(jar) for pattern in ("kafka-clients*.jar", "slf4j-api*.jar") for jar in kafka_libs(version).glob(pattern)
    )
    lines = subprocess.run(
        ["java", "-cp", jars, str(SOURCE)], check=True, text=True, capture_output=True, timeout=60
    ).stdout.splitlines()
    pairs = (line.partition("\t") for line in lines)
    return {name: default for name, _, default in pairs}


def test_the_table_is_kafkas_own() -> None:
    assert listed("4.3.1") == KAFKA_DEFAULTS


def test_no_setting_of_an_older_kafka_is_unknown() -> None:
    assert set(listed("3.9.2")) - set(EVERY_DEFAULT) == set()
