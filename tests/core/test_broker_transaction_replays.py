"""What real brokers told transactional clients, recorded by tests/kafka/record_transactions.py, is what the embedded broker tells."""

import pytest

from tests.harness.transaction_replays import TransactionReplay, load

CASES = load()


@pytest.mark.parametrize("name", CASES)
def test_a_recorded_conversation_goes_alike(name: str) -> None:
    assert TransactionReplay(CASES[name]).differences() == []


def test_both_versions_are_recorded() -> None:
    versions = [name.partition(": ")[0] for name in CASES]
    assert (versions.count("3.9.2"), versions.count("4.3.1")) >= (30, 43)
