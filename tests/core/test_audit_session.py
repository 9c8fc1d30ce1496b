"""Rounds of the router's own session, over a spool that may have no room."""

from typing import cast

import pytest
from penstock.config.model import AuditSettings
from penstock.daemon.audit.session import AuditPorts, AuditSession, AuditState
from penstock.daemon.ledger.audit_counts import AuditCounts
from penstock.daemon.ledger.entries import (
    AckedEntry,
    FrameEntry,
    IncarnationEntry,
    PartitionEntry,
    RefusedEntry,
    SliceEntry,
)
from penstock.daemon.ledger.partition_state import Ledger
from penstock.daemon.ledger.slices import NoSpaceError, SpoolFullError
from penstock.daemon.metadata.topics import TopicMetadata
from penstock.daemon.router.startup import new_audit_counts
from penstock.daemon.spool.frame_store import SpoolFrameStore
from penstock.daemon.spool.tail import SpoolLimits
from penstock.wire.messages import Anchor

from tests.core.intake_world import World, facts, send

TOPIC = "told"


class Telling:
    """A router that keeps books and tells them in a topic of its own."""

    def __init__(self) -> None:
        self.books = AuditCounts(TOPIC, weight_max=1_000)
        self.world = world = World(reject=True, books=self.books)
        world.ledger.apply(IncarnationEntry(7))
        world.topics.known = {"t": facts(), TOPIC: facts(TOPIC)}
        rooms = AuditPorts(world.intake, cast("SpoolFrameStore", world.store), cast("TopicMetadata", world.topics))
        self.session = AuditSession(AuditSettings(topic=TOPIC), self.books, rooms, starts=1)
        self.client = world.connect()
        self._seq = 0

    def offer(self) -> None:
        assert self.world.offer(self.client, send(self._seq))
        self._seq += 1

    def rounds(self, count: int) -> None:
        """So many intervals, a frame in each."""
        for _ in range(count):
            self.world.pass_time(10.0)
            self.offer()
            self.session.tick(self.world.now, self.world.intake.clock.wall_ms)

    def end(self) -> None:
        """Everything is delivered: of clients, and what was told."""
        for number, state in self.world.ledger.by_number.items():
            if state.pending:
                self.world.ledger.apply(AckedEntry(number, state.next_ordinal, Anchor(1, 1, 1, 1), -1))

    def waits(self, *, reachable: bool | None = True) -> bool:
        """Whether a stop waits for what is told of it."""
        return self.session.publish_closing(self.world.now, self.world.intake.clock.wall_ms, lambda _since: reachable)

    def deliver(self) -> None:
        """What was told so far is in Kafka."""
        for state in self.world.ledger.by_number.values():
            if state.topic == TOPIC and state.pending:
                self.world.ledger.apply(AckedEntry(state.number, state.next_ordinal, Anchor(1, 1, 1, 1), -1))


@pytest.mark.parametrize("refusal", [NoSpaceError("full"), SpoolFullError("full")])
def test_while_there_is_no_room_nothing_is_written_of_what_is_refused(refusal: NoSpaceError | SpoolFullError) -> None:
    telling = Telling()
    telling.rounds(1)
    telling.deliver()
    before = len(telling.world.store.entries)
    telling.world.store.refusal = refusal
    telling.rounds(50)
    assert len(telling.world.store.entries) == before
    telling.world.store.refusal = None
    telling.world.intake.spool_full = False
    telling.rounds(1)
    told = [entry for entry in telling.world.store.entries if isinstance(entry, RefusedEntry)]
    assert sum(count for entry in told for _, count in entry.refused) == 100


def test_a_stop_waits_for_what_it_tells_and_not_for_what_waits_elsewhere() -> None:
    telling = Telling()
    telling.rounds(1)
    telling.offer()
    # Told to a topic that had this part before, and is gone.
    telling.world.counts.own_recovered = 5
    telling.end()
    assert telling.waits()
    assert telling.waits()
    telling.deliver()
    assert not telling.waits()
    assert telling.session.state is AuditState.CLOSED


def test_a_stop_looks_once_more_for_brokers_that_were_away() -> None:
    telling = Telling()
    telling.rounds(1)
    telling.end()
    began = telling.world.now
    asked_of: list[float] = []

    def looking(since: float) -> None:
        asked_of.append(since)

    assert telling.session.publish_closing(telling.world.now, telling.world.intake.clock.wall_ms, looking)
    telling.world.pass_time(2.0)
    assert telling.session.publish_closing(telling.world.now, telling.world.intake.clock.wall_ms, looking)
    assert asked_of == [began, began], "what failed before the stop says nothing"
    # It found them.
    assert telling.waits()
    telling.deliver()
    assert not telling.waits()
    assert telling.session.state is AuditState.CLOSED


@pytest.mark.parametrize("reachable", [False, None])
def test_a_stop_does_not_wait_for_brokers_that_stay_away(reachable: bool | None) -> None:
    telling = Telling()
    telling.rounds(1)
    telling.end()
    if reachable is None:
        assert telling.waits(reachable=None)
        telling.world.pass_time(AuditSettings().stop_wait_ms / 1_000)
    assert not telling.waits(reachable=reachable)
    assert not telling.waits(), "given up is given up"
    assert telling.session.state is AuditState.PUBLISHING


def test_books_that_wait_for_days_leave_small_segments_to_the_records() -> None:
    limits = SpoolLimits(segment_bytes=4 << 20)
    books = new_audit_counts(AuditSettings(topic=TOPIC), limits)
    assert books is not None
    ledger = Ledger(books)
    ledger.apply(IncarnationEntry(7))
    ledger.apply(PartitionEntry(0, "t", b"", 0))
    for minute in range(30_000):
        piece = SliceEntry(0, ledger.by_number[0].next_ordinal, 1_000_000, 1, 0, 1_000_000)
        ledger.apply(FrameEntry(None, 7, 0, -1, 2, minute * 60_000, 1_000_000, None, [piece], 7, 0))
    assert books.dropped_minutes > 0
    assert sum(len(packed) for packed in books.snapshot()) < limits.segment_bytes_effective // 4
