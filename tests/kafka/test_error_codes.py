"""Our table of error codes beside the one in Kafka's own client library."""

import subprocess
from pathlib import Path
from typing import Final

import pytest
from penstock.producer.protocol.error_codes import ProduceErrorClass, classify_produce_error, error_name, is_known

from tests.harness.kafka_node import VERSIONS, kafka_libs

SOURCE: Final = Path(__file__).parents[1] / "java/ListErrors.java"
KEPT: Final = {
    ProduceErrorClass.RETRY,
    ProduceErrorClass.RETRY_REFRESH_METADATA,
    ProduceErrorClass.NEW_LEADER,
    ProduceErrorClass.CONFIRM_TOPIC,
}
# No broker answers Produce with these; what matters is only that no record is lost over one.
NEVER_OF_PRODUCE: Final = {8, 41, 70, 71, 106, 122, 123, 133}


@pytest.mark.parametrize("version", VERSIONS)
def test_every_code_has_kafkas_name_and_is_retried_where_kafka_retries(version: str) -> None:
    jars = ":".join(
        str(jar) for pattern in ("kafka-clients*.jar", "slf4j-api*.jar") for jar in kafka_libs(version).glob(pattern)
    )
    listed = subprocess.run(
        ["java", "-cp", jars, str(SOURCE)], check=True, text=True, capture_output=True, timeout=180
    ).stdout.splitlines()
    assert len(listed) > 100
    for line in listed:
        code_text, name, retriable, stale = line.split()
        code = int(code_text)
        assert error_name(code) == name
        assert is_known(code), line
        verdict = classify_produce_error(code, record_count=1, log_start=0).error_class
        if code in NEVER_OF_PRODUCE:
            assert verdict in KEPT | {ProduceErrorClass.UNKNOWN}
            continue
        assert (verdict in KEPT) == (retriable == "true"), line
        if verdict in KEPT:
            assert (verdict is not ProduceErrorClass.RETRY) == (stale == "true"), line
