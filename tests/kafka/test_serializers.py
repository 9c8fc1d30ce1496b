"""Our serializers beside Kafka's own: the recorded bytes are what its classes make today."""

from tests.harness.serialized import SERIALIZED
from tests.kafka.test_settings_table import VERSION, ask_kafka


def test_the_recorded_bytes_are_those_of_kafkas_serializers() -> None:
    given = "".join(f"{kind}\t{value}\n" for kind, value, _ in SERIALIZED)
    assert ask_kafka("Serialize.java", VERSION, given) == [recorded for _, _, recorded in SERIALIZED]
