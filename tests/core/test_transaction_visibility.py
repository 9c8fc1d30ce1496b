"""How soon it is known that a commit can be read, by what leaders of partitions answer."""

from typing import Final

from penstock.producer.protocol.backoff import Backoff
from penstock.producer.transactions.manager_state import TransactionLimits
from penstock.producer.transactions.visibility import (
    LastStableOffsetResult,
    OpenTransactionsResult,
    VisibilityCheck,
    VisibilityCheckKind,
    VisibilityTracker,
)

OURS: Final = 7
ANOTHERS: Final = 8
PART: Final = ("t", 0)
LIMITS: Final = TransactionLimits("x", 60_000, Backoff(0.1, 1.0))


def expecting() -> VisibilityTracker:
    visibility = VisibilityTracker(
        LIMITS.visibility_backoff, ask_leader_after_s=LIMITS.ask_leader_after_s, hanging_after_s=LIMITS.hanging_after_s
    )
    visibility.track(OURS, {PART: 41}, 0.0)
    return visibility


def next_look(visibility: VisibilityTracker) -> tuple[float, VisibilityCheck]:
    now = visibility.next_deadline()
    assert now is not None
    (look,) = visibility.take_checks(now)
    return now, look


def test_a_commit_beside_another_producers_long_transaction_is_known_within_a_tenth_of_a_second() -> None:
    visibility = expecting()
    seen, now = False, 0.0
    while not seen:
        now, look = next_look(visibility)
        # The last stable offset stays where the other transaction began.
        answer = (
            LastStableOffsetResult(0, 30)
            if look.kind is VisibilityCheckKind.LAST_STABLE_OFFSET
            else OpenTransactionsResult(0, frozenset({ANOTHERS}))
        )
        seen = visibility.answered(look, answer, now=now, chance=0.5)
    assert now < 0.1


def test_a_leader_is_asked_for_open_transactions_and_the_stable_offset_in_turn_and_ever_more_seldom() -> None:
    visibility = expecting()
    kinds: list[VisibilityCheckKind] = []
    now = 0.0
    while now < 10.0:
        now, look = next_look(visibility)
        kinds.append(look.kind)
        answer = (
            LastStableOffsetResult(0, 30)
            if look.kind is VisibilityCheckKind.LAST_STABLE_OFFSET
            else OpenTransactionsResult(0, frozenset({OURS}))
        )
        assert not visibility.answered(look, answer, now=now, chance=0.5)
    first = kinds.index(VisibilityCheckKind.OPEN_TRANSACTIONS)
    assert (
        kinds[first:]
        == [VisibilityCheckKind.OPEN_TRANSACTIONS, VisibilityCheckKind.LAST_STABLE_OFFSET] * ((len(kinds) - first) // 2)
        + kinds[first:][: len(kinds[first:]) % 2]
    )
    assert len(kinds) < 45


def test_who_may_not_ask_for_open_transactions_asks_once() -> None:
    visibility = expecting()
    asked = 0
    now = 0.0
    while now < 5.0:
        now, look = next_look(visibility)
        asked += look.kind is VisibilityCheckKind.OPEN_TRANSACTIONS
        answer = (
            LastStableOffsetResult(0, 30)
            if look.kind is VisibilityCheckKind.LAST_STABLE_OFFSET
            else OpenTransactionsResult(29)
        )
        assert not visibility.answered(look, answer, now=now, chance=0.5)
    assert asked == 1
