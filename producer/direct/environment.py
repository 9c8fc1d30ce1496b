"""The world as the direct producer's front sees it: clocks, its lock, and the sender thread."""

import random
import threading
from collections.abc import Callable
from typing import NamedTuple, Protocol

from ...runtime.clock import monotonic


class Wake(Protocol):
    """What is asked of the sender thread."""

    @property
    def is_current(self) -> bool: ...
    def wake(self) -> None: ...
    def want_topic(self, topic: str) -> None: ...


class Seams(NamedTuple):
    """The world as the front sees it. `now`: CLOCK_MONOTONIC seconds; `wall`: ms since 1970, None: the system's clock, read by
    the kernel; `shared`: the lock of everything here, on which callers wait; `random31`: numbers from 0 to 2^31 - 1; `apart`: makes
    a condition of the same lock, for one caller to wait on."""

    now: Callable[[], float]
    wall: Callable[[], int] | None
    shared: threading.Condition
    random31: Callable[[], int]
    apart: Callable[[], threading.Condition]


def real_seams() -> Seams:
    """The system's clocks and threads."""
    lock = threading.Lock()
    shared = threading.Condition(lock)
    return Seams(monotonic, None, shared, lambda: random.getrandbits(31), lambda: threading.Condition(lock))
