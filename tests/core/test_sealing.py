"""Which hours may be sealed."""

from typing import Any, Final

import pytest
from penstock.pipeline.hours import HOUR_MS, start_ms
from penstock.pipeline.report.data import COUNTS, HourRow, Status
from penstock.pipeline.seal.decisions import (
    Decision,
    HourAudit,
    HourSeal,
    HourState,
    ReopenHour,
    SealHeartbeat,
    SealHour,
    SealStatus,
    decide,
    newest_seals,
)

HOUR: Final = "2026-11-22-03"
END: Final = start_ms(HOUR) + HOUR_MS
GRACE: Final = 24 * HOUR_MS
DAEMON: Final = "0123456789ab"
PAST: Final = SealHeartbeat(DAEMON, closed=False, closed_before=END)


def row(status: Status = Status.COMPLETE, incarnation: str = DAEMON, **more: Any) -> HourRow:
    counts = dict.fromkeys(COUNTS, 0) | {"accepted": 10, "expected": 10, "landed": 10, "distinct": 10}
    return HourRow("orders", HOUR, incarnation, "host", status, **(counts | more))


def hour(*rows: HourRow, count: int = 10, seal: HourSeal | None = None, audited: bool = True) -> HourState:
    return HourState("orders", HOUR, count, HourAudit("run", rows) if audited else None, seal)


def decided(
    *hours: HourState, beats: list[SealHeartbeat] | None = None, now: int = END, hours_max: int = 100
) -> Decision:
    heartbeats = [PAST] if beats is None else beats
    return decide(hours, heartbeats, now_ms=now, grace_ms=GRACE, hours_max=hours_max)


def only_reason(decision: Decision) -> str:
    assert decision.seal == []
    [wait] = decision.wait
    return wait.reason


def only_seal(decision: Decision) -> SealHour:
    assert decision.wait == []
    [seal] = decision.seal
    return seal


def test_an_hour_that_is_over_and_complete_is_sealed() -> None:
    seal = only_seal(decided(hour(row())))
    assert (seal.status, seal.generation, seal.audited.run) == (SealStatus.SEALED, 1, "run")


def test_an_hour_that_is_not_over_is_never_sealed() -> None:
    assert only_reason(decided(hour(row()), now=END - 1)) == "it is not over"


def test_an_hour_that_no_audit_has_looked_at_waits() -> None:
    assert only_reason(decided(hour(audited=False), now=END + GRACE)) == "no audit has looked at it"


@pytest.mark.parametrize("now", [END, END + GRACE])
def test_rows_that_came_after_the_audit_ask_for_another_audit_even_when_the_grace_is_over(now: int) -> None:
    assert "audit again" in only_reason(decided(hour(row(), count=11), now=now))


def test_a_daemon_that_has_not_passed_the_hour_holds_it_until_the_grace_is_over() -> None:
    behind = [PAST, SealHeartbeat("ffffffffffff", closed=False, closed_before=END - 1)]
    assert "ffffffffffff" in only_reason(decided(hour(row()), beats=behind, now=END + GRACE - 1))
    assert only_seal(decided(hour(row()), beats=behind, now=END + GRACE)).status is SealStatus.WITH_GAPS


def test_a_daemon_that_has_closed_holds_nothing() -> None:
    closed = [SealHeartbeat(DAEMON, closed=True, closed_before=END - 1)]
    assert only_seal(decided(hour(row()), beats=closed)).status is SealStatus.SEALED


@pytest.mark.parametrize(
    "held",
    [
        row(settled=False),
        row(Status.LATE, late=1, distinct=9, landed=9),
        row(Status.LATE, pending=1, distinct=9, landed=9),
        row(Status.LOST, lost=1, distinct=9, landed=9),
        row(Status.UNKNOWN),
    ],
    ids=["unsettled", "late", "pending", "lost", "unknown"],
)
def test_what_is_not_whole_waits_for_the_grace_and_is_sealed_with_gaps(held: HourRow) -> None:
    assert "sealed with gaps in 24.0 h" in only_reason(decided(hour(held, count=held.landed)))
    assert only_seal(decided(hour(held, count=held.landed), now=END + GRACE)).status is SealStatus.WITH_GAPS


def test_duplicates_are_no_reason_to_wait() -> None:
    doubled = row(Status.DUPLICATED, landed=21, distinct=10, duplicated=11)
    assert only_seal(decided(hour(doubled, count=21))).status is SealStatus.SEALED


def test_doubts_about_the_books_are_not_hidden_by_duplicates() -> None:
    doubled = row(Status.DUPLICATED, landed=21, distinct=10, duplicated=11, doubts=("ranges overlap",))
    assert "doubts about the books of 0123456789ab" in only_reason(decided(hour(doubled, count=21)))
    assert only_seal(decided(hour(doubled, count=21), now=END + GRACE)).status is SealStatus.WITH_GAPS


def test_foreign_rows_are_counted_and_hold_nothing() -> None:
    foreign = row(incarnation="", settled=False, accepted=0, landed=0, distinct=0, foreign=5)
    assert only_seal(decided(hour(row(), foreign, count=15))).status is SealStatus.SEALED


def test_records_that_can_only_be_counted_hold_nothing() -> None:
    assert only_seal(decided(hour(row(Status.COUNTED)))).status is SealStatus.SEALED


@pytest.mark.parametrize("count", [11, 9])
def test_a_sealed_hour_whose_rows_changed_is_reopened_as_the_next_generation(count: int) -> None:
    decision = decided(hour(row(), count=count, seal=HourSeal(1, SealStatus.SEALED, 10)))
    assert decision.reopen == [ReopenHour("orders", HOUR, 2)]
    assert decision.seal == []


def test_a_sealed_hour_that_is_as_it_was_is_left_alone() -> None:
    assert decided(hour(row(), seal=HourSeal(3, SealStatus.WITH_GAPS, 10))) == Decision()


def test_a_reopened_hour_is_sealed_again_when_the_audit_agrees() -> None:
    seal = only_seal(decided(hour(row(), seal=HourSeal(2, SealStatus.REOPENED, 9))))
    assert (seal.generation, seal.status) == (2, SealStatus.SEALED)


def test_a_run_seals_the_oldest_hours_first_and_not_more_than_it_may() -> None:
    first = HourState("orders", "2026-11-22-01", 10, HourAudit("run", (row(),)))
    decision = decided(hour(row()), first, hours_max=1)
    assert [seal.hour for seal in decision.seal] == ["2026-11-22-01"]
    assert [wait.hour for wait in decision.wait] == [HOUR]


def test_a_partition_whose_name_is_no_hour_waits() -> None:
    assert only_reason(decided(HourState("orders", "", 3))) == "its name is not an hour"


def test_the_newest_generation_of_an_hour_counts_and_knows_how_many_rows_there_were() -> None:
    books = {"topic": "orders", "hour": HOUR, "landed": 21, "foreign": 4, "duplicates_removed": 11}
    rows = [books | {"generation": 2, "status": "sealed"}, books | {"generation": 1, "status": "sealed-with-gaps"}]
    assert newest_seals(rows) == {("orders", HOUR): HourSeal(2, SealStatus.SEALED, 14)}
