"""The world as the direct producer's front sees it: clocks, its lock, and the sender thread."""

import random
import threading
from collections.abc import Callable
from typing import NamedTuple, Protocol

from ...runtime.clock import monotonic


class SenderWaker(Protocol):
    """What is asked of the sender thread."""

    @property
    def is_current(self) -> bool: ...
    def wake(self) -> None: ...
    def want_topic(self, topic: str) -> None: ...


class Environment(NamedTuple):
    """The world as the front sees it. `now`: CLOCK_MONOTONIC seconds; `wall`: ms since 1970, None: the system's clock, read by
    the kernel; `condition`: the lock of everything here, on which callers wait; `random31`: numbers from 0 to 2^31 - 1; `new_condition`: makes
    a condition of the same lock, for one caller to wait on."""

    now: Callable[[], float]
    wall: Callable[[], int] | None
    condition: threading.Condition
    random31: Callable[[], int]
    new_condition: Callable[[], threading.Condition]


def system_environment() -> Environment:
    """The system's clocks and threads."""
    lock = threading.Lock()
    shared = threading.Condition(lock)
    return Environment(monotonic, None, shared, lambda: random.getrandbits(31), lambda: threading.Condition(lock))
