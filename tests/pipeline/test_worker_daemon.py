"""Spark's Python workers are forked by our daemon, which has them acknowledge what they get at once."""

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from penstock.pipeline import worker_daemon
from pyspark.sql import SparkSession


def test_workers_are_forked_by_it(spark: SparkSession) -> None:
    def parent(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
            said = Path(f"/proc/{int(status['PPid'])}/cmdline").read_text().split("\0")
            yield pa.RecordBatch.from_pydict({"said": [" ".join(said)]})

    [row] = spark.range(1, numPartitions=1).mapInArrow(parent, "said string").collect()
    assert "-m penstock.pipeline.worker_daemon" in row["said"]


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6, socket.AF_UNIX])
def test_every_task_begins_with_acknowledgements_at_once(monkeypatch: pytest.MonkeyPatch, family: int) -> None:
    done: list[Any] = []

    class Sock:
        def setsockopt(self, *what: int) -> None:
            done.append(what)

    def task(sock: Sock, authenticated: bool) -> int:
        done.append((sock, authenticated))
        return 7

    sock = Sock()
    sock.family = family  # type: ignore[attr-defined]
    monkeypatch.setattr(worker_daemon, "_worker", task)
    assert [worker_daemon.worker(sock, authenticated) for authenticated in (False, True)] == [7, 7]  # type: ignore[arg-type]
    quick = [] if family == socket.AF_UNIX else [(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)]
    assert done == [*quick, (sock, False), *quick, (sock, True)]
