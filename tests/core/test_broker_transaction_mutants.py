"""The embedded broker with one rule of transactions changed: each change is noticed by a recorded conversation, or by a scenario."""

from collections.abc import Iterator

import pytest

from tests.core import test_broker_transaction_moves as moves
from tests.core import test_broker_transactions as steps
from tests.harness.broker_mutants import changed
from tests.harness.transaction_mutants import MUTANTS, OF_SCENARIOS
from tests.harness.transaction_replays import TransactionReplay, load

CASES = load()
NOTICED = (AssertionError, KeyError, pytest.fail.Exception)


def differing() -> Iterator[str]:
    """Recorded conversations that go otherwise."""
    for name, case in CASES.items():
        if TransactionReplay(case).differences():
            yield name


@pytest.mark.parametrize("name", MUTANTS)
def test_a_changed_rule_is_noticed_by_a_recorded_conversation(name: str) -> None:
    with changed(MUTANTS[name]):
        noticed = next(differing(), None)
    assert noticed is not None


@pytest.mark.parametrize("name", OF_SCENARIOS)
def test_a_changed_rule_that_is_not_recorded_is_noticed_by_its_scenario(name: str) -> None:
    change, scenario = OF_SCENARIOS[name]
    notices = getattr(moves, scenario, None) or getattr(steps, scenario)
    notices()
    with changed(change), pytest.raises(NOTICED):
        notices()
    notices()
