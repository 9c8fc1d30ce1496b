"""What is told, when, and when for the last time."""

from penstock.daemon.audit.publication import SETTLED_AFTER_S, AuditPublication, Draft
from penstock.daemon.ledger.entries import RefusedEntry
from penstock.wire.audit_records import CLOSED, RUNNING, AuditHeartbeat, AuditIntake, AuditOutcome

from tests.core.test_books import MINUTE, World


class Teller:
    """A world and what is told of it."""

    def __init__(self) -> None:
        self.world = World()
        self.number = self.world.partition()
        self.statements = AuditPublication(self.world.books, host="web1", starts=3, interval_s=10.0)

    def round(self, now: float = 100.0, *, minutes_max: int = 100) -> list[Draft]:
        """A whole round, every draft of it spooled."""
        self.statements.begin(now)
        drafts: list[Draft] = []
        while self.statements.in_round:
            draft = self.statements.draft(sent_ms=5, minutes_max=minutes_max, bytes_max=1 << 20)
            self.statements.spooled(draft)
            drafts.append(draft)
        return drafts


def told(drafts: list[Draft]) -> list[AuditIntake | AuditOutcome | AuditHeartbeat]:
    return [record for draft in drafts for record in draft.records]


def test_a_round_tells_what_changed_and_ends_with_a_heartbeat() -> None:
    teller = Teller()
    teller.world.frame(teller.number, 5, 90_000)
    teller.world.ack(teller.number, 2, seat=1)
    intake, outcome, heartbeat = told(teller.round())
    assert isinstance(intake, AuditIntake)
    assert isinstance(outcome, AuditOutcome)
    assert isinstance(heartbeat, AuditHeartbeat)
    assert (intake.accepted, intake.ranges) == (5, ((0, 0, 5, 2, 100),))
    assert (outcome.shard, outcome.delivered) == (1, 2)
    assert (heartbeat.closed_before, heartbeat.settled_before, heartbeat.state) == (MINUTE, MINUTE, RUNNING)
    assert [record.version >> 32 for record in (intake, outcome, heartbeat)] == [3, 3, 3]
    assert intake.version < outcome.version < heartbeat.version
    assert intake.incarnation == "000000000007"
    assert [type(record) for record in told(teller.round())] == [AuditHeartbeat]


def test_a_minute_that_is_pending_holds_back_what_is_told_to_be_settled() -> None:
    teller = Teller()
    teller.world.frame(teller.number, 5, 0)
    teller.world.books.advance_to(10 * MINUTE, 0)
    heartbeat = told(teller.round())[-1]
    assert isinstance(heartbeat, AuditHeartbeat)
    assert (heartbeat.closed_before, heartbeat.settled_before) == (10 * MINUTE, 0)
    teller.world.ack(teller.number, 5)
    heartbeat = told(teller.round())[-1]
    assert isinstance(heartbeat, AuditHeartbeat)
    assert (heartbeat.closed_before, heartbeat.settled_before) == (10 * MINUTE, 10 * MINUTE)
    assert not teller.world.books.minutes


def test_a_settled_minute_is_forgotten_only_once_it_is_spooled() -> None:
    teller = Teller()
    teller.world.frame(teller.number, 5, 0)
    teller.world.ack(teller.number, 5)
    teller.world.books.advance_to(MINUTE, 0)
    teller.statements.begin(0.0)
    draft = teller.statements.draft(sent_ms=5, minutes_max=9, bytes_max=1 << 20)
    assert len(teller.world.books.minutes) == 1
    teller.statements.not_spooled(draft)
    assert not teller.statements.in_round
    assert len(teller.world.books.minutes) == 1
    again = told(teller.round())
    assert isinstance(again[0], AuditIntake)
    assert again[0].settled
    assert not teller.world.books.minutes


def test_refusals_go_into_the_log_before_they_are_told_and_once() -> None:
    teller = Teller()
    teller.world.books.count_refused("clicks", "busy", 3)
    [draft] = teller.round()
    assert draft.refusals == [RefusedEntry("clicks", 0, 0, [("busy", 3)])]
    assert isinstance(draft.records[0], AuditIntake)
    assert draft.records[0].refused == {"busy": 3}
    assert told(teller.round())[0].kind == "heartbeat"
    teller.world.books.count_refused("clicks", "busy", 1)
    [draft] = teller.round()
    assert draft.refusals == [RefusedEntry("clicks", 0, 0, [("busy", 4)])]


def test_a_long_round_is_told_in_pieces_that_count_what_is_there_by_then() -> None:
    teller = Teller()
    for minute in range(5):
        teller.world.frame(teller.number, 2, minute * MINUTE)
    teller.statements.begin(0.0)
    first = teller.statements.draft(sent_ms=5, minutes_max=2, bytes_max=1 << 20)
    teller.statements.spooled(first)
    assert (len(first.records), first.is_last) == (2, False)
    teller.world.ack(teller.number, 10)
    rest = [teller.statements.draft(sent_ms=5, minutes_max=2, bytes_max=1 << 20)]
    assert all(record.settled for record in rest[0].records if isinstance(record, AuditIntake))


def test_rounds_come_at_their_interval_and_sooner_when_something_settles() -> None:
    teller = Teller()
    assert teller.statements.due_at() == 0.0
    teller.round(100.0)
    assert teller.statements.due_at() == 110.0
    teller.world.frame(teller.number, 1, 0)
    teller.world.ack(teller.number, 1)
    assert teller.statements.due_at() == 110.0
    teller.world.books.advance_to(MINUTE, 0)
    assert teller.statements.due_at() == 100.0 + SETTLED_AFTER_S


def test_the_books_are_closed_only_where_nothing_is_pending() -> None:
    teller = Teller()
    teller.world.frame(teller.number, 5, 0)
    assert not teller.statements.begin_closing(0.0)
    teller.world.ack(teller.number, 5)
    assert teller.statements.begin_closing(0.0)
    draft = teller.statements.draft(sent_ms=5, minutes_max=9, bytes_max=1 << 20)
    heartbeat = draft.records[-1]
    assert isinstance(heartbeat, AuditHeartbeat)
    assert (heartbeat.state, heartbeat.settled_before) == (CLOSED, heartbeat.closed_before)
