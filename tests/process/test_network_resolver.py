"""Names are resolved off the loop, in bounded numbers, and nobody waits for those that hang."""

import threading
from collections.abc import Iterator
from time import monotonic
from typing import Final

import pytest
from penstock.producer.network.addresses import Address
from penstock.producer.network.resolver import Resolver
from penstock.runtime.loop import Loop

_WAIT_S: Final = 10.0
_HERE: Final = Address(2, ("127.0.0.1", 1))


class SlowNames:
    """A resolver of the system whose answers a test lets go."""

    def __init__(self) -> None:
        self.gate = threading.Semaphore(0)
        self.asked: list[str] = []

    def look_up(self, host: str, port: int) -> tuple[list[Address], str]:
        self.asked.append(host)
        assert self.gate.acquire(timeout=_WAIT_S)
        return ([], "unknown") if host.startswith("no-") else ([_HERE], "")


class Names:
    """A resolver on a loop, and what it answered."""

    def __init__(self) -> None:
        self.loop = Loop()
        self.slow = SlowNames()
        self.resolver = Resolver(self.loop, self.slow.look_up, threads_max=2)
        self.answers: list[tuple[str, list[Address], str]] = []

    def ask(self, host: str) -> int:
        return self.resolver.resolve(host, 9092, lambda addresses, error: self.answers.append((host, addresses, error)))

    def until(self, count: int) -> None:
        end = monotonic() + _WAIT_S
        while len(self.answers) < count:
            assert monotonic() < end, self.answers
            _ = self.loop.run_once(end)


@pytest.fixture
def names() -> Iterator[Names]:
    made = Names()
    yield made
    made.slow.gate.release(100)
    made.resolver.close()
    made.loop.close()


def test_an_address_in_numbers_is_answered_at_once_and_without_a_thread(names: Names) -> None:
    _ = names.ask("127.0.0.1")
    _ = names.ask("::1")
    assert [host for host, addresses, _ in names.answers if addresses] == ["127.0.0.1", "::1"]
    assert names.slow.asked == []


def test_a_name_is_answered_on_the_loop_when_it_is_known(names: Names) -> None:
    _ = names.ask("broker-1")
    assert names.answers == []
    names.slow.gate.release()
    names.until(1)
    assert names.answers == [("broker-1", [_HERE], "")]


def test_a_name_that_cannot_be_resolved_comes_with_the_reason(names: Names) -> None:
    names.slow.gate.release()
    _ = names.ask("no-such-name")
    names.until(1)
    assert names.answers == [("no-such-name", [], "unknown")]


def test_no_more_threads_run_than_allowed_and_the_rest_waits_its_turn(names: Names) -> None:
    for number in range(5):
        _ = names.ask(f"broker-{number}")
    assert sum(thread.name == "resolver" for thread in threading.enumerate()) == 2
    names.slow.gate.release(5)
    names.until(5)
    assert sorted(host for host, _, _ in names.answers) == [f"broker-{number}" for number in range(5)]


def test_a_question_taken_back_is_not_answered_and_costs_no_thread_if_it_still_waited(names: Names) -> None:
    first, _, third = (names.ask(f"broker-{number}") for number in range(3))
    names.resolver.cancel(first)
    names.resolver.cancel(third)
    names.resolver.cancel(third)
    names.slow.gate.release(3)
    names.until(1)
    _ = names.ask("broker-9")
    names.until(2)
    assert [host for host, _, _ in names.answers] == ["broker-1", "broker-9"]
    assert "broker-2" not in names.slow.asked


def test_closing_while_a_name_hangs_waits_for_nobody() -> None:
    names = Names()
    _ = names.ask("broker-1")
    names.resolver.close()
    names.slow.gate.release()
    for thread in threading.enumerate():
        if thread.name == "resolver":
            thread.join(_WAIT_S)
            assert not thread.is_alive()
    assert names.answers == []
    names.loop.close()


def test_closing_twice_leaves_alone_what_was_opened_in_between() -> None:
    first = Names()
    first.resolver.close()
    second = Names()
    first.resolver.close()
    second.slow.gate.release()
    _ = second.ask("broker-1")
    second.until(1)
    second.resolver.close()
    for names in (first, second):
        names.loop.close()
