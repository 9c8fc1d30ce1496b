"""Dead letters: whole, private, found again by name and by client sequence."""

import stat
from dataclasses import replace
from pathlib import Path

import pytest
from penstock.daemon.deadletters.files import DeadLetterError, DeadLetterStore, list_dead_letters, read_dead_letter
from penstock.daemon.leases.backlog import DeadLetterRange
from penstock.daemon.leases.refused_batches import DeadLetterPart, DeadLetterRequest
from penstock.daemon.ledger.entries import Lsn
from penstock.daemon.ledger.slices import PendingFrame, PendingSlice
from penstock.wire.frames import RefusedRecords

from tests.fakes.segments import Row, slice_bytes

pytestmark = pytest.mark.process

SPOOL = "00000000000000aa"


class Store:
    """Slices by where they lie."""

    def __init__(self) -> None:
        self.slices: dict[tuple[int, int, int], bytes] = {}

    def put(self, topic: str, index: int, first: int, rows: list[Row], frame: PendingFrame) -> PendingSlice:
        data = slice_bytes(topic, index, first, rows)
        place = (1, 100 * len(self.slices), len(data))
        self.slices[place] = data
        return PendingSlice(4, first, len(rows), *place, 1, 0, Lsn(1), frame)

    def read(self, segment: int, offset: int, length: int) -> bytes:
        return self.slices[segment, offset, length]


def frame(seq: int, *, client_id: str | None = "app", partitions: list[int] | None = None) -> PendingFrame:
    packed = None if partitions is None else b"".join(index.to_bytes(4, "little") for index in partitions)
    return PendingFrame(client_id, 7, seq, 2, len(partitions or [1]), 10, Lsn(1), 0, packed, 1)


def request(*parts: DeadLetterPart) -> DeadLetterRequest:
    pieces = [DeadLetterRange(part.slice.first + part.index, part.count, part.text) for part in parts]
    return DeadLetterRequest(
        4,
        "topic",
        2,
        10,
        "MESSAGE_TOO_LARGE",
        "larger than it may be",
        may_be_written=False,
        ranges=pieces,
        parts=list(parts),
    )


def test_a_parked_record_is_kept_with_everything_a_person_needs(tmp_path: Path) -> None:
    store, letters = Store(), DeadLetterStore(tmp_path / "letters", SPOOL)
    rows = [Row(b"first"), Row(None, key=b"\xff\x00", timestamp=5), Row(b"", key=b"")]
    part = store.put("topic", 2, 30, rows, frame(9, partitions=[2, 0, 2, 2]))
    name = letters.park(request(DeadLetterPart(part, 1, 2, "MESSAGE_TOO_LARGE: so large")), store.read)
    letter, records = read_dead_letter(tmp_path / "letters", name)
    assert (letter.topic, letter.partition, letter.code, letter.error) == ("topic", 2, 10, "MESSAGE_TOO_LARGE")
    assert (letter.message, letter.records, letter.unsure) == ("larger than it may be", 2, False)
    assert letter.ordinals == [(31, 2, "MESSAGE_TOO_LARGE: so large")]
    assert [(record.ordinal, record.index) for record in records] == [(31, 2), (32, 3)]
    assert [(record.client_id, record.seq) for record in records] == [("app", 9)] * 2
    assert [(record.key, record.value) for record in records] == [(b"\xff\x00", None), (b"", b"")]
    assert records[0].timestamp_ms == 5
    assert list_dead_letters(tmp_path / "letters") == [letter]


def test_nobody_else_may_read_them(tmp_path: Path) -> None:
    store, letters = Store(), DeadLetterStore(tmp_path / "letters", SPOOL)
    name = letters.park(
        request(DeadLetterPart(store.put("topic", 2, 0, [Row(b"x")], frame(1)), 0, 1, "no")), store.read
    )
    assert stat.S_IMODE((tmp_path / "letters").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "letters" / f"{name}.jsonl").stat().st_mode) == 0o600


def test_a_resend_is_told_of_parked_records_also_after_a_restart(tmp_path: Path) -> None:
    store, letters = Store(), DeadLetterStore(tmp_path / "letters", SPOOL)
    many = frame(9, partitions=[2, 0, 2, 2])
    part = store.put("topic", 2, 30, [Row(b"a"), Row(b"b"), Row(b"c")], many)
    letters.park(request(DeadLetterPart(part, 0, 2, "bad")), store.read)
    expected = (RefusedRecords(0, 1, "parked", "bad"), RefusedRecords(2, 1, "parked", "bad"))
    assert letters.lookup("app", 9) == expected
    restarted = DeadLetterStore(tmp_path / "letters", SPOOL)
    assert restarted.lookup("app", 9) == expected
    assert restarted.lookup("app", 8) == ()
    pending = frame(9)
    restarted.restore([pending, frame(9, client_id=None)])
    assert tuple(pending.refused) == expected


def test_letters_of_another_spool_answer_nobody(tmp_path: Path) -> None:
    store, letters = Store(), DeadLetterStore(tmp_path / "letters", SPOOL)
    letters.park(request(DeadLetterPart(store.put("topic", 2, 0, [Row(b"x")], frame(1)), 0, 1, "no")), store.read)
    assert DeadLetterStore(tmp_path / "letters", "00000000000000bb").lookup("app", 1) == ()


def test_a_group_parked_again_after_a_crash_replaces_itself(tmp_path: Path) -> None:
    store, letters = Store(), DeadLetterStore(tmp_path / "letters", SPOOL)
    again = request(DeadLetterPart(store.put("topic", 2, 0, [Row(b"x")], frame(1)), 0, 1, "no"))
    assert letters.park(again, store.read) == letters.park(replace(again, message="once more"), store.read)
    (letter,) = list_dead_letters(tmp_path / "letters")
    assert letter.message == "once more"
    assert letters.lookup("app", 1) == (RefusedRecords(0, 1, "parked", "no"),)


def test_a_record_that_cannot_be_read_is_listed_with_the_reason(tmp_path: Path) -> None:
    store, letters = Store(), DeadLetterStore(tmp_path / "letters", SPOOL)
    part = store.put("other topic", 2, 0, [Row(b"x")], frame(1))
    name = letters.park(request(DeadLetterPart(part, 0, 1, "no")), store.read)
    _, (record,) = read_dead_letter(tmp_path / "letters", name)
    assert (record.value, record.unreadable) == (None, "the slice's checksum is wrong")
    assert letters.lookup("app", 1) != ()


def test_a_folder_that_takes_nothing_parks_nothing(tmp_path: Path) -> None:
    store, letters = Store(), DeadLetterStore(tmp_path / "letters", SPOOL)
    (tmp_path / "letters").rmdir()
    with pytest.raises(OSError, match="No such file"):
        letters.park(request(DeadLetterPart(store.put("topic", 2, 0, [Row(b"x")], frame(1)), 0, 1, "no")), store.read)
    assert letters.lookup("app", 1) == ()


@pytest.mark.parametrize("name", ["../identity", "", "nonsense", f"{SPOOL}-1-2"])
def test_a_name_that_is_none_is_an_error(tmp_path: Path, name: str) -> None:
    with pytest.raises(DeadLetterError):
        read_dead_letter(tmp_path, name)


def test_files_that_are_no_letters_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / "junk.jsonl").write_bytes(b"\xff\n")
    (tmp_path / f"{SPOOL}-0-0.jsonl").write_text('{"version": 1}\n')
    assert list_dead_letters(tmp_path) == []
    with pytest.raises(DeadLetterError, match="cannot be read"):
        read_dead_letter(tmp_path, f"{SPOOL}-0-0")
