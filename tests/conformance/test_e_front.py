"""Rows of the accumulator that are the front's: a flush that is given up, and two callers who wait for the same chunk."""

import threading
from typing import Any

import pytest
from penstock.api.errors import WaitTimeoutError

from tests.fakes.front_bench import FrontBench, NoThread

PATIENCE_S = 10.0


class Woken(NoThread):
    """Counts who asks the sender thread for something."""

    def __init__(self) -> None:
        self.wakes = threading.Semaphore(0)

    def wake(self) -> None:
        self.wakes.release()


def bench_of(**settings: Any) -> tuple[FrontBench, Woken]:
    bench, thread = FrontBench({0: 1}, **settings), Woken()
    bench.front.connect_sender(thread)
    return bench, thread


@pytest.mark.row("E14")
def test_a_flush_that_is_given_up_leaves_no_trace() -> None:
    bench, thread = bench_of(**{"linger.ms": 1000})
    _ = bench.put(b"value", key=b"key")
    while thread.wakes.acquire(blocking=False):
        pass
    failures: list[BaseException] = []

    def flush() -> None:
        try:
            bench.front.flush(1.0)
        except WaitTimeoutError as error:
            failures.append(error)

    caller = threading.Thread(target=flush)
    caller.start()
    assert thread.wakes.acquire(timeout=PATIENCE_S)
    with bench.front.condition:
        assert bench.front.completion.flushes == 1
        assert bench.front.flushing
        bench.now += 1.0
        bench.front.condition.notify_all()
    caller.join(PATIENCE_S)
    assert [str(failure) for failure in failures] == ["not everything was settled within 1.0 s"]
    assert bench.front.completion.flushes == 0
    assert not bench.front.flushing


@pytest.mark.row("E32")
def test_of_two_callers_who_waited_for_memory_one_begins_the_chunk_and_the_other_gives_its_memory_back() -> None:
    bench, thread = bench_of(**{"buffer.memory": 4096, "batch.size": 1024, "linger.ms": 1000})
    pool = bench.front.pool
    assert pool.try_reserve(4096)
    callers = [threading.Thread(target=bench.send, args=("t", b"value", b"key"), kwargs={"partition": 0}) for _ in "ab"]
    for caller in callers:
        caller.start()
        assert thread.wakes.acquire(timeout=PATIENCE_S)
    with bench.front.condition:
        assert pool.queued == 2
        pool.release(4096)
        assert pool.queued == 0, "both have their memory"
        assert pool.reserved_bytes > 0
    for caller in callers:
        caller.join(PATIENCE_S)
    (chunk,) = bench.front.completion.unsettled.values()
    assert chunk.count == 2
    assert pool.reserved_bytes == chunk.reserved_bytes
    assert len(chunk.data or b"") == chunk.reserved_bytes
