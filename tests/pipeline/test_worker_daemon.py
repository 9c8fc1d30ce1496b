"""Spark's Python workers are forked by our daemon, which has them acknowledge what they get at once."""

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from penstock.pipeline.worker_daemon import with_quickack
from pyspark import daemon
from pyspark.sql import SparkSession


def test_workers_are_forked_by_it(spark: SparkSession) -> None:
    def parent(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
            said = Path(f"/proc/{int(status['PPid'])}/cmdline").read_text().split("\0")
            yield pa.RecordBatch.from_pydict({"said": [" ".join(said)], "worker": [daemon.worker.__qualname__]})

    [row] = spark.range(1, numPartitions=1).mapInArrow(parent, "said string, worker string").collect()
    assert "-m penstock.pipeline.worker_daemon" in row["said"]
    assert row["worker"] == "with_quickack.<locals>.run_task"


class Sock:
    def __init__(self, family: socket.AddressFamily, done: list[object]) -> None:
        self.family = family
        self.done = done

    def setsockopt(self, *what: int) -> None:
        self.done.append(what)


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6, socket.AF_UNIX])
def test_every_task_begins_with_acknowledgements_at_once(family: socket.AddressFamily) -> None:
    done: list[object] = []

    def task(_: socket.socket, authenticated: bool) -> int:
        done.append(authenticated)
        return 7

    told = with_quickack(task)
    sock: Any = Sock(family, done)
    assert [told(sock, authenticated) for authenticated in (False, True)] == [7, 7]
    quick = [] if family == socket.AF_UNIX else [(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)]
    assert done == [*quick, False, *quick, True]
