"""Records of the audit topic: what is written is read back, what is not one of them is refused, and no other error is raised."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock.wire.audit_records import (
    CLOSED,
    HOLE_REASONS,
    RUNNING,
    AuditHeartbeat,
    AuditHole,
    AuditIntake,
    AuditOutcome,
    AuditRange,
    AuditRecord,
    decode,
)
from penstock.wire.errors import FrameError

INCARNATION = "00c0ffee0001"
COUNTS = st.integers(0, 1 << 62)
TOPICS = st.text("abz.-_09", min_size=1, max_size=20)
COMMON = {
    "incarnation": st.integers(1, (1 << 48) - 1).map(lambda number: f"{number:012x}"),
    "host": st.text(max_size=20),
    "version": COUNTS,
    "sent_at": COUNTS,
    "era": st.integers(0, 3),
}


@st.composite
def ranges(draw: st.DrawFn) -> AuditRange:
    first = draw(COUNTS)
    end = first + draw(st.integers(1, 1 << 40))
    return AuditRange(
        draw(st.integers(0, 9)), first, end, draw(st.integers(first, end)), draw(st.integers(-1, 1 << 60))
    )


@st.composite
def holes(draw: st.DrawFn) -> AuditHole:
    first = draw(COUNTS)
    return AuditHole(
        draw(st.integers(0, 9)), first, first + draw(st.integers(1, 99)), draw(st.sampled_from(HOLE_REASONS))
    )


RECORDS: st.SearchStrategy[AuditRecord] = st.one_of(
    st.builds(
        AuditIntake,
        **COMMON,
        topic=TOPICS,
        minute=COUNTS,
        ids=st.booleans(),
        accepted=COUNTS,
        bytes=COUNTS,
        refused=st.dictionaries(st.text(max_size=9), COUNTS, max_size=3),
        ranges=st.lists(ranges(), max_size=3).map(tuple),
        holes=st.lists(holes(), max_size=3).map(tuple),
    ),
    st.builds(
        AuditOutcome,
        **COMMON,
        shard=st.integers(0, 63),
        topic=TOPICS,
        minute=COUNTS,
        delivered=COUNTS,
        bytes=COUNTS,
        batches=COUNTS,
        resent=COUNTS,
    ),
    st.builds(
        AuditHeartbeat,
        **COMMON,
        closed_before=COUNTS,
        settled_before=COUNTS,
        state=st.sampled_from([RUNNING, CLOSED]),
        interval_s=st.floats(0, 1e6),
    ),
)
INTAKE = AuditIntake(
    INCARNATION, "web1", 7, 1, "clicks", 29_000_000, 0, ids=True, accepted=5, bytes=500, refused={"too_large": 2},
    ranges=(AuditRange(0, 10, 14, 12, 99), AuditRange(3, 0, 1, 1, 1)), holes=(AuditHole(0, 11, 12, "parked"),),
)  # fmt: skip


@given(RECORDS)
def test_what_is_written_is_read_back(record: AuditRecord) -> None:
    assert decode(record.key(), record.encode()) == record


def test_keys_and_values_are_those_that_readers_elsewhere_rely_on() -> None:
    assert INTAKE.key() == b"00c0ffee0001|-1|clicks|29000000"
    assert json.loads(INTAKE.encode()) == {
        "v": 1,
        "kind": "intake",
        "incarnation": INCARNATION,
        "host": "web1",
        "shard": -1,
        "version": 7,
        "sent_at": 1,
        "era": 0,
        "topic": "clicks",
        "minute": 29_000_000,
        "ids": True,
        "accepted": 5,
        "bytes": 500,
        "refused": {"too_large": 2},
        "ranges": [[0, 10, 14, 12, 99], [3, 0, 1, 1, 1]],
        "holes": [[0, 11, 12, "parked"]],
    }
    outcome = AuditOutcome(INCARNATION, "web1", 8, 1, 2, "clicks", 29_000_000, 1, 4, 400, 1, 0)
    assert outcome.key() == b"00c0ffee0001|2|clicks|29000000|1"
    heartbeat = AuditHeartbeat(INCARNATION, "web1", 9, 1, 4, 60_000, 0, CLOSED, 10.0)
    assert heartbeat.key() == b"00c0ffee0001|-1||"


def test_a_record_is_settled_when_all_of_its_ranges_are() -> None:
    assert not INTAKE.settled
    assert AuditIntake(INCARNATION, "h", 1, 1, "t", 1, 0, True, 0, 0, {}, (AuditRange(0, 1, 2, 2, -1),), ()).settled


def test_a_newer_version_is_named() -> None:
    value = json.dumps({**json.loads(INTAKE.encode()), "v": 2}).encode()
    with pytest.raises(FrameError, match="version 2; this program knows version 1"):
        decode(INTAKE.key(), value)


def test_fields_that_are_not_known_are_left_to_those_who_know_them() -> None:
    value = json.dumps({**json.loads(INTAKE.encode()), "more": [1]}).encode()
    assert decode(INTAKE.key(), value) == INTAKE


@pytest.mark.parametrize(
    "change",
    [
        {"v": 0},
        {"v": True},
        {"kind": "other"},
        {"kind": None},
        {"incarnation": "C0FFEE"},
        {"incarnation": "00C0FFEE0001"},
        {"shard": 0},
        {"topic": 5},
        {"minute": -1},
        {"minute": 1.5},
        {"minute": 29_000_001},
        {"ids": 1},
        {"accepted": None},
        {"refused": []},
        {"refused": {"x": -1}},
        {"ranges": {}},
        {"ranges": [[0, 10, 14, 12]]},
        {"ranges": [[0, 10, 14, 15, 0]]},
        {"ranges": [[0, 10, 10, 10, 0]]},
        {"ranges": [[0, 10, True, 10, 0]]},
        {"ranges": [7]},
        {"holes": [[0, 1, 2, 3]]},
        {"holes": [[0, 2, 2, "parked"]]},
        {"holes": ["parked"]},
        {"holes": [[]]},
    ],
)
def test_what_no_daemon_writes_is_refused(change: dict[str, object]) -> None:
    value = json.dumps({**json.loads(INTAKE.encode()), **change}).encode()
    with pytest.raises(FrameError):
        decode(INTAKE.key(), value)


@given(
    st.one_of(
        st.none(),
        st.binary(max_size=40),
        st.recursive(
            st.none() | st.integers() | st.text(max_size=5),
            lambda inner: (
                st.lists(inner, max_size=3)
                | st.dictionaries(st.sampled_from(["v", "kind", "ranges", "holes", "shard"]), inner)
            ),
            max_leaves=9,
        ).map(lambda found: json.dumps(found).encode()),
    )
)
def test_nothing_but_the_one_error_comes_of_other_bytes(value: bytes | None) -> None:
    with pytest.raises(FrameError):
        decode(b"", value)


@pytest.mark.parametrize(
    "change", [{"state": "asleep"}, {"interval_s": "10"}, {"interval_s": float("inf")}, {"era": -1}, {"shard": 0}]
)
def test_a_heartbeat_says_nothing_else(change: dict[str, object]) -> None:
    heartbeat = AuditHeartbeat(INCARNATION, "web1", 9, 1, 0, 60_000, 0, RUNNING, 10.0)
    with pytest.raises(FrameError):
        decode(heartbeat.key(), json.dumps({**json.loads(heartbeat.encode()), **change}).encode())
