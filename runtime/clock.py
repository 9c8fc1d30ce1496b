"""The clocks of a process. Cores never read them: they are given `now`."""

import time

monotonic = time.monotonic
"""Seconds of CLOCK_MONOTONIC, which all processes of a host share."""

thread_seconds = time.thread_time
"""Seconds that this thread has computed; waiting for a core, or for other threads, does not count."""


def wall_ms() -> int:
    """Milliseconds since 1970."""
    return time.time_ns() // 1_000_000
