"""The embedded broker with one rule changed: each change is noticed by an exchange with a real broker, or by a scenario.

A change that nothing notices would mean that its rule is never exercised.
"""

from collections.abc import Iterator

import pytest

from tests.core import test_broker_recognition as recognition
from tests.core import test_broker_replication as replication
from tests.harness.broker_mutants import MUTANTS, OF_REPLICAS, changed
from tests.harness.replays import Replay, load

CASES = {name: case for name, case in load().items() if not case["stricter"]}


def differing() -> Iterator[str]:
    """Recorded exchanges that are answered otherwise, or not at all."""
    for name, case in CASES.items():
        try:
            if Replay(case).differences():
                yield name
        except AssertionError:
            yield name


def test_without_a_change_nothing_is_noticed() -> None:
    assert list(differing()) == []


@pytest.mark.parametrize("name", MUTANTS)
def test_a_changed_rule_is_noticed_by_a_recorded_exchange(name: str) -> None:
    with changed(MUTANTS[name]):
        noticed = next(differing(), None)
    assert noticed is not None


@pytest.mark.parametrize("name", OF_REPLICAS)
def test_a_changed_rule_of_replicas_is_noticed_by_its_scenario(name: str) -> None:
    change, scenario = OF_REPLICAS[name]
    notices = getattr(replication, scenario, None) or getattr(recognition, scenario)
    notices()
    with changed(change), pytest.raises(AssertionError):
        notices()
    notices()
