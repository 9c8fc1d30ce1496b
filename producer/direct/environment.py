"""The front's dependencies that tests replace: clocks, random numbers, locks, and the sender thread."""

import random
import threading
from collections.abc import Callable
from typing import NamedTuple, Protocol
from uuid import UUID

from ...runtime.clock import monotonic


class SenderPort(Protocol):
    """The methods of the sender thread that the front and the producer call."""

    @property
    def is_current(self) -> bool: ...
    def start(self) -> None: ...
    def wake(self) -> None: ...
    def want_topic(self, topic: str) -> None: ...
    def request_topic(self, topic: str) -> None: ...
    def topic_of(self, number: int) -> tuple[str, int]: ...
    def close(self, timeout_s: float | None) -> None: ...
    def join(self, timeout_s: float | None = None) -> bool: ...
    def after_fork(self) -> None: ...
    def instance_id(self, timeout_s: float) -> UUID | None: ...


class Environment(NamedTuple):
    """The front's clocks, lock and random numbers. `now`: CLOCK_MONOTONIC seconds; `wall`: ms since 1970, None: the
    kernel reads the system's clock; `condition`: has the front's only lock, and callers wait on it; `random31`: numbers
    from 0 to 2^31 - 1; `new_condition`: makes a condition with the same lock, for one caller to wait on."""

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
