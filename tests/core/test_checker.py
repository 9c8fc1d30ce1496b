"""The checker sees each fault it is there for: one is planted in every test, into a run that is clean without it."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.harness.checker import Figures, judge
from tests.harness.ledger import Frame, Kind, Ledger, LedgerWriter, Level, Outcome, read_ledger
from tests.harness.records import Found, RecordId, Shape, record_of

SHAPE = Shape(value_bytes=100, key_count=50, headers=True, timestamps=True, null_every=7)
PARTITIONS = 3
FRAMES = 20
FRAME_RECORDS = 10


def clean_run(shape: Shape = SHAPE) -> tuple[Ledger, list[Found]]:
    """Twenty frames of ten records, dealt to three partitions, all acknowledged at `delivered`."""
    ledger = Ledger("app-1", shape)
    logs: list[list[Found]] = [[] for _ in range(PARTITIONS)]
    for number in range(FRAMES):
        frame = Frame(FRAME_RECORDS, sent_at=number * 1.0)
        for index in range(FRAME_RECORDS):
            sent = record_of(RecordId("app-1", number, index), shape)
            partition = (number + index) % PARTITIONS
            offset = len(logs[partition])
            time_ms = sent.timestamp_ms if sent.timestamp_ms is not None else 1
            logs[partition].append(Found(partition, offset, sent.key, sent.value, sent.headers, time_ms))
            frame.outcomes.append(Outcome(Kind.OK, index, 1, number + 0.5, Level.DELIVERED, partition, offset))
        ledger.frames[number] = frame
    return ledger, [record for log in logs for record in log]


def test_a_clean_run_has_nothing_wrong_and_all_its_records_are_counted() -> None:
    ledger, found = clean_run()
    figures = judge([ledger], found)
    assert figures.wrong() == []
    assert (figures.sent, figures.found, figures.unknown, figures.failed) == (200, 200, 0, 0)
    assert figures.acknowledged == {Level.ACCEPTED: 0, Level.SPOOLED: 0, Level.DELIVERED: 200}
    assert "lost 0, doubled 0, out of order 0" in figures.summary()


@pytest.mark.parametrize("level", list(Level))
def test_a_missing_record_is_lost_at_its_level_and_at_each_below(level: Level) -> None:
    ledger, found = clean_run()
    frame = ledger.frames[4]
    frame.outcomes[3] = replace(frame.outcomes[3], level=level)
    gone = (frame.outcomes[3].partition, frame.outcomes[3].offset)
    figures = judge([ledger], [record for record in found if (record.partition, record.offset) != gone])
    assert figures.lost == {each: int(each <= level) for each in Level}
    assert figures.wrong()[0].startswith("lost[")


def test_a_missing_record_without_an_answer_is_not_lost_but_unknown() -> None:
    ledger, found = clean_run()
    outcome = ledger.frames[4].outcomes.pop(3)
    figures = judge([ledger], [r for r in found if (r.partition, r.offset) != (outcome.partition, outcome.offset)])
    assert (figures.wrong(), figures.unknown) == ([], 1)


def test_a_record_that_is_there_twice_is_a_dup_and_not_a_reorder() -> None:
    ledger, found = clean_run()
    last = max(record.offset for record in found if record.partition == 0)
    figures = judge([ledger], [*found, found[0]._replace(offset=last + 1)])
    assert (figures.dup, figures.reorder, figures.offset_mismatch) == (1, 0, 0)


def test_the_ack_may_name_either_place_of_a_double_but_no_third() -> None:
    ledger, found = clean_run()
    last = max(record.offset for record in found if record.partition == 0)
    double = [*found, found[0]._replace(offset=last + 1)]
    ledger.frames[0].outcomes[0] = replace(ledger.frames[0].outcomes[0], offset=last + 1)
    assert judge([ledger], double).offset_mismatch == 0
    ledger.frames[0].outcomes[0] = replace(ledger.frames[0].outcomes[0], offset=last + 2)
    assert judge([ledger], double).offset_mismatch == 1


def test_two_records_of_a_session_in_the_wrong_order_are_a_reorder() -> None:
    ledger, found = clean_run()
    a, b = found[10], found[11]
    assert a.partition == b.partition
    found[10], found[11] = b._replace(offset=a.offset), a._replace(offset=b.offset)
    figures = judge([ledger], found)
    assert (figures.reorder, figures.dup, figures.offset_mismatch) == (1, 0, 2)


def test_the_order_of_two_sessions_among_each_other_is_free() -> None:
    ledger, found = clean_run()
    other = Ledger("app-2", SHAPE, {0: Frame(1, 0.0, [Outcome(Kind.OK, 0, 1, 0.1, Level.DELIVERED)])})
    sent = record_of(RecordId("app-2", 0, 0), SHAPE)
    assert sent.timestamp_ms is not None
    last = max(record.offset for record in found if record.partition == 0)
    found.append(Found(0, last + 1, sent.key, sent.value, sent.headers, sent.timestamp_ms))
    assert judge([ledger, other], found).wrong() == []


def never_sent_client(found: list[Found]) -> Found:
    """A record of a client without a ledger."""
    sent = record_of(RecordId("stranger", 0, 0), SHAPE)
    return Found(0, 1_000, sent.key, sent.value, sent.headers, sent.timestamp_ms or 0)


def never_sent_frame(found: list[Found]) -> Found:
    """A record of a call that was not made."""
    sent = record_of(RecordId("app-1", FRAMES, 0), SHAPE)
    return Found(0, 1_000, sent.key, sent.value, sent.headers, sent.timestamp_ms or 0)


def never_sent_index(found: list[Found]) -> Found:
    """A record past the end of its call."""
    sent = record_of(RecordId("app-1", 0, FRAME_RECORDS), SHAPE)
    return Found(0, 1_000, sent.key, sent.value, sent.headers, sent.timestamp_ms or 0)


@pytest.mark.parametrize("invented", [never_sent_client, never_sent_frame, never_sent_index])
def test_a_record_nobody_sent_is_a_phantom(invented: Callable[[list[Found]], Found]) -> None:
    ledger, found = clean_run()
    figures = judge([ledger], [*found, invented(found)])
    assert (figures.phantom, figures.corrupt, figures.dup) == (1, 0, 0)


def test_ids_that_a_daemon_gave_are_one_for_each_record_and_name_its_partition() -> None:
    ledger, found = clean_run()
    found = [record._replace(numbered=(7, record.partition, record.offset)) for record in found]
    assert judge([ledger], found).wrong() == []
    again = found[3]._replace(offset=1_000)
    assert judge([ledger], [*found, again]).misnumbered == 0
    faults = [
        [*found[:4], found[4]._replace(numbered=found[3].numbered), *found[5:]],
        [*found[:4], found[4]._replace(numbered=(7, found[4].partition + 1, 9_999)), *found[5:]],
        [*found, again._replace(numbered=(8, again.partition, 3))],
    ]
    for fault in faults:
        figures = judge([ledger], fault)
        assert figures.misnumbered == 1
        assert "misnumbered = 1" in figures.wrong()


def damaged_value(record: Found) -> Found:
    """One byte of the payload differs."""
    value = record.value or b""
    return record._replace(value=value[:-1] + bytes([value[-1] ^ 1]))


def truncated_value(record: Found) -> Found:
    """The payload lacks its end."""
    return record._replace(value=(record.value or b"")[:-1])


def other_key(record: Found) -> Found:
    """The key of another record."""
    return record._replace(key=(record.key or b"") + b"0")


def no_key(record: Found) -> Found:
    """The key is gone."""
    return record._replace(key=None)


def lost_header(record: Found) -> Found:
    """One header less."""
    return record._replace(headers=record.headers[:-1])


def other_time(record: Found) -> Found:
    """Not the timestamp that was sent."""
    return record._replace(timestamp_ms=record.timestamp_ms + 1)


def emptied_null(record: Found) -> Found:
    """A null value that became an empty one, or the other way round; its id stays readable in neither."""
    return record._replace(value=b"")


@pytest.mark.parametrize(
    "damage", [damaged_value, truncated_value, other_key, no_key, lost_header, other_time, emptied_null]
)
def test_a_record_that_is_not_what_its_id_says_is_corrupt(damage: Callable[[Found], Found]) -> None:
    ledger, found = clean_run()
    at = next(number for number, record in enumerate(found) if record.value is not None)
    found[at] = damage(found[at])
    figures = judge([ledger], found)
    assert figures.corrupt == 1


def test_a_null_value_is_told_by_its_header_and_an_empty_one_in_its_place_is_corrupt() -> None:
    ledger, found = clean_run()
    at = next(number for number, record in enumerate(found) if record.value is None)
    assert judge([ledger], found).wrong() == []
    found[at] = found[at]._replace(value=b"")
    assert judge([ledger], found).corrupt == 1


def test_a_key_column_that_slipped_by_one_record_is_corrupt_nearly_everywhere() -> None:
    ledger, found = clean_run()
    slipped = [record._replace(key=before.key) for before, record in zip([found[-1], *found[:-1]], found, strict=True)]
    assert judge([ledger], slipped).corrupt > len(found) * 0.9


def test_a_refused_record_that_is_in_the_topic_is_a_zombie() -> None:
    ledger, found = clean_run()
    outcomes = ledger.frames[2].outcomes
    outcomes[1] = Outcome(Kind.FAIL, 1, 1, 3.0, code="no_space")
    figures = judge([ledger], found)
    assert (figures.zombie_nack, figures.failed) == (1, 1)


def test_a_refused_record_that_is_not_in_the_topic_is_well() -> None:
    ledger, found = clean_run()
    outcome = ledger.frames[2].outcomes[1]
    ledger.frames[2].outcomes[1] = Outcome(Kind.FAIL, 1, 1, 3.0, code="no_space")
    rest = [record for record in found if (record.partition, record.offset) != (outcome.partition, outcome.offset)]
    figures = judge([ledger], rest)
    assert (figures.wrong(), figures.failed) == ([], 1)


def test_an_ack_with_the_wrong_offset_is_an_offset_mismatch() -> None:
    ledger, found = clean_run()
    outcomes = ledger.frames[5].outcomes
    outcomes[0] = replace(outcomes[0], offset=outcomes[0].offset + 1)
    assert judge([ledger], found).offset_mismatch == 1


def test_an_ack_with_the_wrong_partition_is_an_offset_mismatch() -> None:
    ledger, found = clean_run()
    outcomes = ledger.frames[5].outcomes
    outcomes[0] = replace(outcomes[0], partition=(outcomes[0].partition + 1) % PARTITIONS)
    assert judge([ledger], found).offset_mismatch == 1


def test_an_ack_without_an_offset_is_no_mismatch() -> None:
    ledger, found = clean_run()
    outcomes = ledger.frames[5].outcomes
    outcomes[0] = replace(outcomes[0], partition=-1, offset=-1)
    assert judge([ledger], found).wrong() == []


def test_a_record_answered_twice_is_seen() -> None:
    ledger, found = clean_run()
    ledger.frames[5].outcomes.append(ledger.frames[5].outcomes[0])
    assert judge([ledger], found).answered_twice == 1


def test_the_longest_wait_is_from_the_call_to_its_ack() -> None:
    ledger, found = clean_run()
    outcomes = ledger.frames[3].outcomes
    outcomes[2] = replace(outcomes[2], at=3.0 + 7.25)
    assert judge([ledger], found).longest_wait_s == pytest.approx(7.25)


def test_a_silence_counts_as_a_gap_only_while_something_is_outstanding() -> None:
    shape = Shape()

    def ok(at: float) -> Outcome:
        return Outcome(Kind.OK, 0, 1, at, Level.SPOOLED)

    ledger = Ledger("app-1", shape, {0: Frame(1, 0.0, [ok(1.0)]), 1: Frame(1, 50.0, [ok(53.5)])})
    found: list[Found] = []
    for frame in (0, 1):
        sent = record_of(RecordId("app-1", frame, 0), shape)
        found.append(Found(0, frame, sent.key, sent.value, sent.headers, 1))
    figures = judge([ledger], found)
    assert figures.wrong() == []
    assert figures.max_ack_gap_s == pytest.approx(3.5)


def test_what_a_ledger_says_survives_the_file_and_a_torn_last_line_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "app-1.ledger"
    with LedgerWriter(path, "app-1", SHAPE) as writer:
        writer.sent(0, 3)
        writer.ok(0, 0, 1, Level.DELIVERED, partition=2, offset=40)
        writer.fail(0, 1, 1, "parked")
        writer.unknown(0, 2, 1, "expired_may_be_written")
    with path.open("a") as file:
        _ = file.write("ok 0 2 1 2 2")
    ledger = read_ledger(path)
    assert (ledger.client, ledger.shape, ledger.sent) == ("app-1", SHAPE, 3)
    ends = [
        (each.kind, each.first, each.level, each.partition, each.offset, each.code) for _, each in ledger.outcomes()
    ]
    assert ends == [
        (Kind.OK, 0, Level.DELIVERED, 2, 40, ""),
        (Kind.FAIL, 1, Level.ACCEPTED, -1, -1, "parked"),
        (Kind.UNKNOWN, 2, Level.ACCEPTED, -1, -1, "expired_may_be_written"),
    ]


def test_the_places_of_a_frame_are_written_as_runs_and_read_back_one_by_one(tmp_path: Path) -> None:
    path = tmp_path / "app-1.ledger"
    places = [(0, 5), (0, 6), (1, 7), (0, 7), (0, 9), (2, -1), (2, -1)]
    with LedgerWriter(path, "app-1", SHAPE) as writer:
        writer.sent(0, len(places))
        writer.ok_places(0, Level.DELIVERED, len(places), places)
        writer.sent(1, 4)
        writer.ok_places(1, Level.SPOOLED, 4, None)
    ledger = read_ledger(path)
    read = {
        outcome.first + step: (outcome.partition, outcome.offset + step if outcome.offset >= 0 else -1)
        for frame, outcome in ledger.outcomes()
        for step in range(outcome.count)
        if frame == 0
    }
    assert [read[row] for row in range(len(places))] == places
    assert [(each.first, each.count, each.offset) for each in ledger.frames[1].outcomes] == [(0, 4, -1)]
    assert len(ledger.frames[0].outcomes) == 6


def test_a_line_that_is_none_of_a_ledgers_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "app-1.ledger"
    with LedgerWriter(path, "app-1", SHAPE) as writer:
        writer.sent(0, 3)
    with path.open("a") as file:
        _ = file.write("perhaps 0 2\n")
    with pytest.raises(ValueError, match="perhaps"):
        _ = read_ledger(path)


def test_figures_that_are_zero_are_not_called_wrong() -> None:
    assert Figures().wrong() == []
