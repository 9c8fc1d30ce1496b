"""The clocks of a process. Code without I/O does not read them: it receives `now` as an argument."""

import time

monotonic = time.monotonic
"""Seconds of CLOCK_MONOTONIC, which all processes of a host share."""

thread_seconds = time.thread_time
"""CPU seconds of this thread. Waiting for a CPU core or for other threads does not count."""


def wall_ms() -> int:
    """Milliseconds since 1970."""
    return time.time_ns() // 1_000_000
