"""A process that consumes, transforms and produces in transactions, by the direct producer and kafka-python's consumer:
`python -m tests.harness.transform_loop BOOTSTRAP TRANSACTIONAL-ID GROUP FROM-TOPIC TO-TOPIC`.

Each record of the first topic goes to the same partition of the second, with its value turned round. It ends at the end of the
first topic, and tells the offsets it committed on standard output, one total a line.
"""

import sys
from typing import Final

from kafka import KafkaConsumer, TopicPartition
from penstock.producer import DirectProducer

RECORDS_MAX: Final = 400
"""A transaction."""


def transform(value: bytes) -> bytes:
    """What becomes of a value."""
    return value[::-1]


def consumer_of(bootstrap: str, group: str, topic: str) -> KafkaConsumer:
    """At the offsets that the group has committed."""
    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap.split(","),
        group_id=group,
        isolation_level="read_committed",
        enable_auto_commit=False,
        auto_offset_reset="earliest",
    )
    partitions = consumer.partitions_for_topic(topic)
    assert partitions, f"nothing is known of {topic}"
    consumer.assign([TopicPartition(topic, number) for number in sorted(partitions)])
    return consumer


def main() -> None:
    """Until everything has been carried over."""
    bootstrap, transactional_id, group, source, target = sys.argv[1:]
    producer = DirectProducer({"bootstrap.servers": bootstrap, "transactional.id": transactional_id, "linger.ms": 0})
    # Before the offsets are read: what an earlier process left open is ended by it.
    producer.init_transactions()
    consumer = consumer_of(bootstrap, group, source)
    ends = consumer.end_offsets(consumer.assignment())
    while any(consumer.position(part) < end for part, end in ends.items()):
        polled = consumer.poll(timeout_ms=500, max_records=RECORDS_MAX)
        if not polled:
            continue
        producer.begin_transaction()
        for part, records in polled.items():
            for record in records:
                _ = producer.send(target, transform(record.value), partition=part.partition)
        offsets = {(part.topic, part.partition): records[-1].offset + 1 for part, records in polled.items()}
        producer.send_offsets_to_transaction(offsets, group)
        producer.commit_transaction()
        print(sum(consumer.position(part) for part in ends), flush=True)
    consumer.close()
    producer.close()


if __name__ == "__main__":
    main()
