"""One producer process of `bench/direct.py`: `python -m bench.direct_client TASK-AS-JSON`.

Makes its payloads, connects, sends a few records to be warm, says `ready`, waits for a line, sends, waits until all is delivered,
and prints a result as JSON: wall clock and its own CPU (all threads) in seconds, and, where it was to send at a rate, how long
records took from the call to their callback.
"""

import json
import resource
import sys
import time
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from bench.payloads import Chunk, chunks

WARM_RECORDS: Final = 20_000
FLUSH_S: Final = 120.0
TICK_S: Final = 0.001

Settings = dict[str, object]
Done = Callable[[int], None]
"""Told how many records were delivered."""


class Task(NamedTuple):
    """What a producer process does."""

    side: str
    bootstrap: str
    topic: str
    records: int
    value_bytes: int
    keyed: bool
    codec: str
    batch_bytes: int
    linger_ms: int
    rate: int
    """Records a second; 0: as fast as it goes, and no callbacks."""


class Result(NamedTuple):
    """What it cost."""

    wall_s: float
    cpu_s: float
    p50_ms: float = 0.0
    p99_ms: float = 0.0


class Side(NamedTuple):
    """How one side sends records, and waits until everything sent is delivered. `send` calls back when there is something to call."""

    send: Callable[[Chunk, Done | None], None]
    flush: Callable[[], None]
    poll: Callable[[], None] = lambda: None
    """Lets callbacks run where a library has no thread for them."""


def direct(task: Task, *, many: bool) -> Side:
    """Ours, in this process."""
    from penstock.producer.direct.producer import DirectProducer

    producer = DirectProducer(
        {
            "bootstrap.servers": task.bootstrap,
            "compression.type": task.codec,
            "batch.size": task.batch_bytes,
            "linger.ms": task.linger_ms,
        }
    )
    topic = task.topic

    def send_each(chunk: Chunk, done: Done | None) -> None:
        send, keys = producer.send, _keys(chunk)
        if done is None:
            for value, key in zip(chunk.values, keys, strict=True):
                _ = send(topic, value, key)
        else:
            told = done
            for value, key in zip(chunk.values, keys, strict=True):
                _ = send(topic, value, key, on_ack=lambda _place, _error: told(1))

    def send_all(chunk: Chunk, done: Done | None) -> None:
        if done is None:
            _ = producer.send_many(topic, chunk.values, chunk.keys)
        else:
            count, told = len(chunk.values), done
            _ = producer.send_many(topic, chunk.values, chunk.keys, on_ack=lambda _places, _error: told(count))

    return Side(send_all if many else send_each, lambda: producer.flush(FLUSH_S))


def confluent(task: Task, *, many: bool) -> Side:
    """librdkafka from Python: `produce()`, or `produce_batch()`."""
    from confluent_kafka import Producer

    producer = Producer(
        {
            "bootstrap.servers": task.bootstrap,
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
    topic = task.topic

    def send_each(chunk: Chunk, done: Done | None) -> None:
        produce = producer.produce
        more = {} if done is None else {"on_delivery": lambda _error, _message: done(1)}
        for value, key in zip(chunk.values, _keys(chunk), strict=True):
            while True:
                try:
                    produce(topic, value, key, **more)
                except BufferError:
                    _ = producer.poll(0.005)
                else:
                    break

    def send_all(chunk: Chunk, done: Done | None) -> None:
        messages: list[dict[str, bytes | None]] = (
            [{"value": value} for value in chunk.values]
            if chunk.keys is None
            else [{"value": value, "key": key} for value, key in zip(chunk.values, chunk.keys, strict=True)]
        )
        more = {} if done is None else {"on_delivery": lambda _error, _message: done(1)}
        while messages:
            _ = producer.produce_batch(topic, messages, **more)
            messages = [message for message in messages if "_error" in message]
            if messages:
                _ = producer.poll(0.005)
                for message in messages:
                    del message["_error"]

    def flush() -> None:
        left = producer.flush(FLUSH_S)
        if left:
            sys.exit(f"{left} records were not delivered")

    return Side(send_all if many else send_each, flush, lambda: producer.poll(0) and None)


def kafka_python(task: Task) -> Side:
    """Kafka's producer written in Python, for each record."""
    from kafka import KafkaProducer

    producer = KafkaProducer(
        bootstrap_servers=task.bootstrap,
        enable_idempotence=True,
        acks="all",
        compression_type=None if task.codec == "none" else task.codec,
        batch_size=task.batch_bytes,
        linger_ms=task.linger_ms,
    )
    topic = task.topic

    def send_each(chunk: Chunk, done: Done | None) -> None:
        for value, key in zip(chunk.values, _keys(chunk), strict=True):
            future = producer.send(topic, value, key)
            if done is not None:
                _ = future.add_callback(lambda _place, told=done: told(1))

    return Side(send_each, lambda: producer.flush(FLUSH_S))


SIDES: Final[dict[str, Callable[[Task], Side]]] = {
    "direct send": lambda task: direct(task, many=False),
    "direct send_many": lambda task: direct(task, many=True),
    "confluent produce": lambda task: confluent(task, many=False),
    "confluent produce_batch": lambda task: confluent(task, many=True),
    "kafka-python send": kafka_python,
}


def _keys(chunk: Chunk) -> Sequence[bytes | None]:
    return chunk.keys or [None] * len(chunk.values)


def measure(side: Side, columns: list[Chunk], records: int) -> Result:
    """Send so many records as fast as it goes, and wait for them."""
    begin, cpu = time.monotonic(), _cpu_s()
    for number in range(records // len(columns[0].values)):
        side.send(columns[number % len(columns)], None)
    side.flush()
    return Result(time.monotonic() - begin, _cpu_s() - cpu)


def measure_paced(side: Side, columns: list[Chunk], records: int, rate: int) -> Result:
    """Send a few records each millisecond, and note how long each call's records took until they were told delivered."""
    a_tick = max(1, round(rate * TICK_S))
    pieces = [
        Chunk(chunk.values[at : at + a_tick], chunk.keys[at : at + a_tick] if chunk.keys else None)
        for chunk in columns
        for at in range(0, len(chunk.values) - a_tick + 1, a_tick)
    ]
    took: list[float] = []
    clock = time.monotonic
    begin, cpu = clock(), _cpu_s()
    for tick in range(records // a_tick):
        due = begin + tick * TICK_S
        while (left := due - clock()) > 0:
            side.poll()
            time.sleep(min(left, TICK_S / 2))
        sent = clock()

        def done(count: int, sent: float = sent) -> None:
            took.extend([clock() - sent] * count)

        side.send(pieces[tick % len(pieces)], done)
        side.poll()
    side.flush()
    wall = clock() - begin
    took.sort()
    assert len(took) == records // a_tick * a_tick, f"{len(took)} of {records} records were told delivered"
    return Result(wall, _cpu_s() - cpu, took[len(took) // 2] * 1000, took[len(took) * 99 // 100] * 1000)


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def main() -> None:
    """Do the task on the command line."""
    task = Task(**json.loads(sys.argv[1]))
    columns = chunks(value_bytes=task.value_bytes, keyed=task.keyed)
    side = SIDES[task.side](task)
    _ = measure(side, columns, WARM_RECORDS)
    print("ready", flush=True)
    if sys.stdin.readline().strip() == "go":
        result = (
            measure_paced(side, columns, task.records, task.rate) if task.rate else measure(side, columns, task.records)
        )
        print(json.dumps(result._asdict()), flush=True)


if __name__ == "__main__":
    main()
