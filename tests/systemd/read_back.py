"""Runs inside the box: reads the topic with confluent-kafka and writes how often each number was found, as one JSON line.

`python -m tests.systemd.read_back BROKERS TOPIC`.
"""

import json
import sys
import time
from collections import Counter

from confluent_kafka import Consumer, TopicPartition


def main() -> int:
    servers, topic = sys.argv[1:3]
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "reader", "enable.auto.commit": False})
    partitions = consumer.list_topics(topic, timeout=20).topics[topic].partitions
    ends = {index: consumer.get_watermark_offsets(TopicPartition(topic, index), timeout=20)[1] for index in partitions}
    consumer.assign([TopicPartition(topic, index, 0) for index in ends])
    times: Counter[int] = Counter()
    disorder = 0
    latest: dict[bytes, int] = {}
    waiting = {index for index, end in ends.items() if end}
    silent_since = time.monotonic()
    while waiting:
        messages = consumer.consume(1000, timeout=0.2)
        if messages:
            silent_since = time.monotonic()
        elif time.monotonic() - silent_since > 30:
            raise TimeoutError(f"partitions {sorted(waiting)} could not be read")
        for message in messages:
            number = int(message.value())
            disorder += number < latest.get(message.key(), -1)
            latest[message.key()] = number
            times[number] += 1
            if message.offset() + 1 >= ends[message.partition()]:
                waiting.discard(message.partition())
    consumer.close()
    doubled = sum(1 for count in times.values() if count > 1)
    sys.stdout.write(json.dumps({"distinct": len(times), "doubled": doubled, "disorder": disorder}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
