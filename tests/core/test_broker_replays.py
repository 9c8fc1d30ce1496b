"""What real brokers answered, recorded by tests/kafka/record_exchanges.py, is what the embedded broker answers."""

import pytest

from tests.harness.replays import Replay, load

CASES = load()
EXACT = [name for name, case in CASES.items() if not case["stricter"]]
STRICTER = [name for name, case in CASES.items() if case["stricter"]]


@pytest.mark.parametrize("name", EXACT)
def test_a_recorded_exchange_is_answered_alike(name: str) -> None:
    assert Replay(CASES[name]).differences() == []


@pytest.mark.parametrize("name", STRICTER)
def test_what_kafka_takes_and_is_damaged_is_refused(name: str) -> None:
    replay = Replay(CASES[name])
    (sent, *_) = CASES[name]["steps"]
    told = replay._ask(sent)
    assert told != sent["told"]
    assert told["error"] != 0
    assert told["base_offset"] == -1


def test_both_versions_are_recorded() -> None:
    assert {name.partition(": ")[0] for name in CASES} == {"3.9.2", "4.3.1"}
    assert len(CASES) >= 345
