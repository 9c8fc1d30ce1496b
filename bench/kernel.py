"""What the compiled kernel costs a record, beside kafka-python's own code for the same work. Nothing is sent anywhere.

    .venv/bin/python bench/kernel.py

CPU time of this process, best of several rounds, in nanoseconds a record.
"""

import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgpack
from kafka.partitioner.default import murmur2
from kafka.record.default_records import DefaultRecordBatchBuilder
from penstock.producer.kernel import frames
from penstock.producer.records.batch_builder import BatchBuilder, Stamp
from penstock.producer.records.compression import Codec, Levels, make_compressor
from penstock.wire.record_ids import RecordId

ROUNDS = 7
SECONDS = 0.1
RECORDS = 1000
PARTITIONS = 12
BATCH_BYTES = 262_144
CODECS: Sequence[Codec] = ("none", "lz4", "zstd", "snappy", "gzip")


def cost_ns(work: Callable[[], int]) -> float:
    """Nanoseconds a record; `work` returns how many records it did."""
    best = float("inf")
    for _ in range(ROUNDS):
        began, done = time.process_time(), 0
        while (spent := time.process_time() - began) < SECONDS:
            done += work()
        best = min(best, spent / done * 1e9)
    return best


def frame(size: int, *, keyed: bool) -> bytes:
    keys = [os.urandom(16) for _ in range(RECORDS)] if keyed else None
    values = [(b'{"id":%d,"name":"user %d","city":"x"}' % (i, i * 7) * (size // 20 + 1))[:size] for i in range(RECORDS)]
    packed: bytes = msgpack.packb([2, 7, 2, "orders", None, keys, values, None, None])
    return packed


def scattered(body: bytes, partitions: int) -> frames.ScatteredFrame:
    head = frames.read_head(body, 0, len(body))
    return frames.scatter(
        body,
        0,
        len(body),
        head.position,
        partition_count=partitions,
        sticky=0,
        ignore_keys=False,
        now_ms=1_700_000_000_000,
        header_count_max=100,
        record_bytes_max=1 << 20,
        reserved_headers=(),
        want_partitions=False,
    )


def batches(part: frames.SliceRows, codec: Codec, id_header: bytes = b"") -> Callable[[], int]:
    """Fill a batch with copies of a slice, close it."""
    data, compressor = bytearray(BATCH_BYTES), make_compressor(codec, Levels())

    def work() -> int:
        builder = BatchBuilder(data, 0, limit=BATCH_BYTES)
        position, left = 48, 1
        while left:
            taken = builder.append(
                part.data,
                48,
                len(part.data),
                part.count,
                own_timestamps=False,
                slice_ts=part.base_ts,
                id_header=id_header,
            )
            position, left = taken.position, taken.records == part.count
        assert position > 0
        _ = builder.close(Stamp(1, 0, 0), compressor)
        return builder.count

    return work


def kafka_python(keys: Sequence[bytes], values: Sequence[bytes]) -> Callable[[], int]:
    def work() -> int:
        builder: Any = DefaultRecordBatchBuilder(2, 0, False, 1, 0, 0, BATCH_BYTES)
        for i, value in enumerate(values):
            builder.append(i, 1_700_000_000_000, keys[i], value, [])
        builder.build()
        return len(values)

    return work


def main() -> None:
    keys = [os.urandom(16) for _ in range(RECORDS)]
    ours = cost_ns(lambda: sum(frames.murmur2(key) >= 0 for key in keys))
    theirs = cost_ns(lambda: sum(murmur2(key) != 0 for key in keys))
    print(f"murmur2, called from Python: {ours:6.1f}   kafka-python {theirs:8.1f}   ratio {ours / theirs:.3f}")
    for size in (100, 1000):
        for keyed in (False, True):
            body = frame(size, keyed=keyed)
            route = cost_ns(lambda body=body: scattered(body, PARTITIONS).count)  # type: ignore[misc]
            (part,) = scattered(body, 1).slices
            costs = [f"{codec} {cost_ns(batches(part, codec)):6.1f}" for codec in CODECS]
            id_header = RecordId(1, 0, 0, 1_700_000_000_000).header()
            costs += [f"{codec} with ids {cost_ns(batches(part, codec, id_header)):6.1f}" for codec in ("none", "lz4")]
            named = "keyed" if keyed else "keyless"
            print(f"{size:5} B {named:8} frame to slices {route:6.1f}   slice to batch: {'   '.join(costs)}")
        builder = cost_ns(kafka_python(keys, [b"v" * size] * RECORDS))
        print(f"{size:5} B keyed    kafka-python's batch builder, none: {builder:8.1f}")


if __name__ == "__main__":
    main()
