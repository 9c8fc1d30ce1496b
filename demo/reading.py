"""Reads the topic back with confluent-kafka and compares it with what the applications say they sent."""

import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

READ_TIMEOUT_S = 60.0


@dataclass
class Found:
    """What lies in the topic, by application: how often each number, and how many came after a larger one in a partition."""

    times: dict[str, Counter[int]] = field(default_factory=lambda: defaultdict(Counter))
    out_of_order: Counter[str] = field(default_factory=Counter)


def read_back(bootstrap: str, topic: str, begin: dict[int, int]) -> Found:
    """Everything from offsets `begin` (by partition) to the end offsets of this moment.

    Raises:
        KafkaException: the brokers cannot be read.
    """
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "penstock-demo", "enable.auto.commit": False})
    found = Found()
    latest: dict[tuple[str, int], int] = {}
    try:
        ends = end_offsets(consumer, topic)
        consumer.assign([TopicPartition(topic, index, begin.get(index, 0)) for index in ends])
        waiting = {index for index, end in ends.items() if end > begin.get(index, 0)}
        silent_since = time.monotonic()
        while waiting:
            # `consume` waits until it has all it was asked for: ask for a little patience at a time.
            messages: list[Any] = consumer.consume(5_000, timeout=0.2)
            if messages:
                silent_since = time.monotonic()
            elif time.monotonic() - silent_since > READ_TIMEOUT_S:
                raise KafkaException(
                    KafkaError(KafkaError._TIMED_OUT, f"partitions {sorted(waiting)} could not be read")
                )
            for message in messages:
                if message.error():
                    raise KafkaException(message.error())
                _note(found, latest, message)
                if message.offset() + 1 >= ends[message.partition()]:
                    waiting.discard(message.partition())
    finally:
        consumer.close()
    return found


def end_offsets(consumer: Consumer, topic: str) -> dict[int, int]:
    """End offset of every partition."""
    partitions = consumer.list_topics(topic, timeout=30).topics[topic].partitions
    return {index: consumer.get_watermark_offsets(TopicPartition(topic, index), timeout=30)[1] for index in partitions}


def _note(found: Found, latest: dict[tuple[str, int], int], message: Any) -> None:  # noqa: ANN401 - confluent-kafka has no types
    name, number_text, _ = message.value().decode().split(" ", 2)
    number = int(number_text)
    place = (name, message.partition())
    if number < latest.get(place, -1) and found.times[name][number] == 0:
        found.out_of_order[name] += 1
    found.times[name][number] += 1
    latest[place] = max(number, latest.get(place, -1))
