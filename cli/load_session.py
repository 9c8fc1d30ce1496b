"""One session of `penstock loadgen`, in its own process.

Reads its `LoadSpec` as JSON from the command line. Writes JSON lines: `{"acknowledged": n}` a few times a second, then
the `LoadResult`.
"""

import json
import resource
import sys
import threading
import time
from collections.abc import Callable
from random import Random
from typing import Final, NamedTuple, cast

from ..client import FrameMetadata, Future, Producer
from ..client.arguments import LevelName

_TELL_S: Final = 0.2
_VARIANTS: Final = 8
_LATENCIES_MAX: Final = 200_000


class LoadSpec(NamedTuple):
    """Load of one session. `rate` 0: as fast as possible; `key_bytes` 0: no keys."""

    socket: str
    topic: str
    seconds: float
    rate: int
    value_bytes: int
    key_bytes: int
    frame_records: int
    level: str
    unanswered_frames: int
    seed: int


class LoadResult(NamedTuple):
    """Measurements of one session. CPU in microseconds; latencies of frames in ms, from `send` to the answer."""

    sent: int
    acknowledged: int
    failed: int
    seconds: float
    cpu_us: int
    latencies_ms: list[float]
    first_error: str


class LoadSession:
    """Sends frames of prepared records and counts their answers."""

    def __init__(self, order: LoadSpec, tell: Callable[[dict[str, object]], None]) -> None:
        self._order = order
        self._report = tell
        self._told_at = 0.0
        self._random = Random(order.seed)  # noqa: S311 - payload, not secrets
        self._frames = [self._columns() for _ in range(_VARIANTS)]
        self.sent = 0
        self.acknowledged = 0
        self.failed = 0
        self.latencies_ms: list[float] = []
        self.first_error = ""
        self._in_flight = threading.Semaphore(order.unanswered_frames)

    def _columns(self) -> tuple[list[bytes], list[bytes] | None]:
        count = self._order.frame_records
        values = [self._random.randbytes(self._order.value_bytes // 2).hex().encode() for _ in range(count)]
        keys = [self._random.randbytes(self._order.key_bytes) for _ in range(count)] if self._order.key_bytes else None
        return values, keys

    def run(self) -> LoadResult:
        """Send for the given time, wait for every answer, and return the measurements."""
        producer = Producer(self._order.socket, level=cast("LevelName", self._order.level), detail="none")
        before = resource.getrusage(resource.RUSAGE_SELF)
        began = time.monotonic()
        end = began + self._order.seconds
        turn = 0
        while (now := time.monotonic()) < end:
            count = self._due(now - began)
            if count == 0:
                time.sleep(0.001)
                continue
            self._send(producer, turn, count, now)
            turn += 1
            self._progress(now)
        producer.flush(timeout=120)
        seconds = time.monotonic() - began
        after = resource.getrusage(resource.RUSAGE_SELF)
        producer.close(timeout=10)
        cpu_us = int((after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) * 1e6)
        return LoadResult(
            self.sent, self.acknowledged, self.failed, seconds, cpu_us, self.latencies_ms, self.first_error
        )

    def _due(self, elapsed: float) -> int:
        """Return the number of records to send now: a frame, or fewer if the rate does not allow a frame yet."""
        if self._order.rate == 0:
            return self._order.frame_records
        return min(self._order.frame_records, max(0, int(elapsed * self._order.rate) - self.sent))

    def _send(self, producer: Producer, turn: int, count: int, now: float) -> None:
        _ = self._in_flight.acquire()
        values, keys = self._frames[turn % _VARIANTS]
        if count < len(values):
            values, keys = values[:count], keys[:count] if keys else None
        future = producer.send_many(self._order.topic, values, keys=keys)
        self.sent += count
        future.add_done_callback(lambda done: self._answered(done, count, now))

    def _answered(self, done: Future[FrameMetadata], count: int, sent_at: float) -> None:
        self._in_flight.release()
        error = done.exception()
        if error is not None:
            self.failed += count
            self.first_error = self.first_error or f"{type(error).__name__}: {error}"
            return
        self.acknowledged += count
        if len(self.latencies_ms) < _LATENCIES_MAX:
            self.latencies_ms.append((time.monotonic() - sent_at) * 1000)

    def _progress(self, now: float) -> None:
        if now - self._told_at >= _TELL_S:
            self._told_at = now
            self._report({"acknowledged": self.acknowledged})


def _write(item: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(item) + "\n")
    sys.stdout.flush()


def main() -> int:
    order = LoadSpec(**json.loads(sys.argv[1]))
    _write(LoadSession(order, _write).run()._asdict())
    return 0


if __name__ == "__main__":
    sys.exit(main())
