"""The pace of a loop's rounds: at once while little is moved, apart while much is."""

import os
from collections.abc import Iterator

import pytest
from penstock.runtime.clock import monotonic
from penstock.runtime.loop import BUSY_BYTES, GAP_S, READ, Loop

ROUNDS = 20


class AlwaysReadable:
    """A loop that never has to wait, and moves so many bytes in every round."""

    def __init__(self, nbytes: int) -> None:
        self.loop = Loop()
        self.began: list[float] = []
        self._nbytes = nbytes
        self._fd = os.eventfd(1, os.EFD_NONBLOCK)
        self.loop.add(self._fd, READ, self._event)

    def _event(self, _events: int) -> None:
        self.began.append(monotonic())
        self.loop.add_moved_bytes(self._nbytes)

    def go_round(self) -> None:
        """So many rounds, as `run` makes them."""
        for _ in range(ROUNDS):
            _ = self.loop.run_once(None)

    def close(self) -> None:
        """Let go of the descriptors."""
        self.loop.close()
        os.close(self._fd)


@pytest.fixture(params=[0, BUSY_BYTES])
def readable(request: pytest.FixtureRequest) -> Iterator[AlwaysReadable]:
    """With nothing moved, and with much."""
    made = AlwaysReadable(int(request.param))
    yield made
    made.close()


@pytest.mark.parametrize("readable", [BUSY_BYTES], indirect=True)
def test_rounds_begin_apart_while_much_is_moved(readable: AlwaysReadable) -> None:
    readable.go_round()
    assert readable.loop.is_busy
    gaps = [later - earlier for earlier, later in zip(readable.began[1:], readable.began[2:], strict=False)]
    # Callbacks come a moment after their round began, one time later than another.
    assert sum(gaps) / len(gaps) >= 0.9 * GAP_S


@pytest.mark.parametrize("readable", [0, 100], indirect=True)
def test_a_round_with_little_to_move_is_followed_at_once(readable: AlwaysReadable) -> None:
    readable.go_round()
    assert not readable.loop.is_busy
    assert min(later - earlier for earlier, later in zip(readable.began, readable.began[1:], strict=False)) < GAP_S


def test_a_socket_that_was_removed_in_the_same_round_is_not_called() -> None:
    loop = Loop()
    fds = [os.eventfd(1, os.EFD_NONBLOCK) for _ in range(2)]
    called: list[int] = []

    def call(fd: int) -> None:
        called.append(fd)
        for other in fds:
            loop.remove(other)

    for fd in fds:
        loop.add(fd, READ, lambda _events, fd=fd: call(fd))
    _ = loop.run_once(None)
    assert len(called) == 1
    loop.close()
    for fd in fds:
        os.close(fd)
