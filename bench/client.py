"""One client process of a benchmark: `python -m bench.client TASK-AS-JSON`.

Makes its payloads, connects, sends a few records to be warm, says `ready`, waits for a line, sends, waits until all is
delivered, and prints a result as JSON: wall clock and its own CPU, in seconds.
"""

import json
import os
import resource
import sys
import time
from collections.abc import Callable
from typing import NamedTuple

from bench.payloads import Chunk, chunks

WARM_RECORDS = 2_000
FLUSH_S = 120.0


class Task(NamedTuple):
    """What a client process does."""

    side: str
    """`penstock` or `confluent`."""
    address: str
    """The daemon's socket, or the cluster's bootstrap servers."""
    topic: str
    records: int
    value_bytes: int
    keyed: bool
    codec: str
    batch_bytes: int
    linger_ms: int


class Result(NamedTuple):
    """What it cost."""

    wall_s: float
    cpu_s: float


class Side(NamedTuple):
    """How one side sends a chunk, and waits until everything sent is delivered."""

    send: Callable[[Chunk], None]
    flush: Callable[[], None]


def confluent(task: Task) -> Side:
    """librdkafka from Python: `produce()` for each record, without a callback."""
    from confluent_kafka import Producer

    producer = Producer(
        {
            "bootstrap.servers": task.address,
            "enable.idempotence": True,
            "acks": "all",
            "compression.type": task.codec,
            "batch.size": task.batch_bytes,
            # Its cap on records a batch would otherwise be reached long before the bytes.
            "batch.num.messages": 1_000_000,
            "linger.ms": task.linger_ms,
            "partitioner": "murmur2_random",
            "queue.buffering.max.messages": 1_000_000,
            "queue.buffering.max.kbytes": 1_048_576,
            "log_level": 3,
        }
    )
    produce, topic = producer.produce, task.topic

    def send(chunk: Chunk) -> None:
        keys: list[bytes] | list[None] = chunk.keys or [None] * len(chunk.values)
        for value, key in zip(chunk.values, keys, strict=True):
            while True:
                try:
                    produce(topic, value, key)
                except BufferError:
                    _ = producer.poll(0.005)
                else:
                    break

    def flush() -> None:
        left = producer.flush(FLUSH_S)
        if left:
            sys.exit(f"{left} records were not delivered")

    return Side(send, flush)


def penstock(task: Task) -> Side:
    """Our client: `send_many` of a thousand records at `delivered`, a session with a client id.

    The answers tell no offsets, as `produce()` without a callback tells none.
    """
    from penstock.client import Producer

    producer = Producer(task.address, client_id=f"bench-{os.getpid()}", level="delivered", detail="none")

    def send(chunk: Chunk) -> None:
        _ = producer.send_many(task.topic, chunk.values, keys=chunk.keys)

    def flush() -> None:
        producer.flush(FLUSH_S)

    return Side(send, flush)


def measure(side: Side, columns: list[Chunk], records: int) -> Result:
    """Send so many records and wait for them."""
    begin, cpu = time.monotonic(), _cpu_s()
    for number in range(records // len(columns[0].values)):
        side.send(columns[number % len(columns)])
    side.flush()
    return Result(time.monotonic() - begin, _cpu_s() - cpu)


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def main() -> None:
    """Do the task on the command line."""
    task = Task(**json.loads(sys.argv[1]))
    columns = chunks(value_bytes=task.value_bytes, keyed=task.keyed)
    side = penstock(task) if task.side == "penstock" else confluent(task)
    _ = measure(side, columns, WARM_RECORDS)
    print("ready", flush=True)
    if sys.stdin.readline().strip() == "go":
        print(json.dumps(measure(side, columns, task.records)._asdict()), flush=True)


if __name__ == "__main__":
    main()
