"""A session's messages become slices and entries, answers or refusals."""

import crc32c
import pytest
from penstock.daemon.ledger.entries import FrameEntry, PartitionEntry
from penstock.daemon.ledger.slices import NoSpaceError, SpoolFullError
from penstock.daemon.sessions.session import HoldReason, RouterSessionState
from penstock.wire import slices
from penstock.wire.frames import Ack, Code, Done, Level, Refused, Run, Welcome

from .intake_world import World, facts, send


def world(**options: object) -> World:
    made = World(**options)  # type: ignore[arg-type]
    made.topics.known["t"] = facts()
    return made


def refusal(w: World, session: object) -> Refused:
    (told,) = w.told(session)  # type: ignore[arg-type]
    assert isinstance(told, Refused)
    return told


def test_a_session_opens_with_hello_and_is_told_the_limits() -> None:
    w = world()
    session = w.connect("app")
    assert session.state is RouterSessionState.OPEN
    assert w.told(session) == [Welcome(1, -1, {"frame_bytes_max": 1 << 20}, "penstock")]


def test_nothing_but_hello_may_come_first() -> None:
    w = world()
    session = w.connect(greet=False)
    assert not w.offer(session, send(1))
    assert session.state is RouterSessionState.CLOSED
    told = refusal(w, session)
    assert (told.seq, told.code, told.text) == (None, Code.PROTOCOL, "HELLO comes first")


def test_hello_comes_only_once() -> None:
    w = world()
    session = w.connect("app")
    w.told(session)
    assert not w.offer(session, [1, 1, "app", {}])
    assert refusal(w, session).text == "HELLO comes once"


def test_the_first_frame_of_a_topic_numbers_all_of_its_partitions_once() -> None:
    w = world()
    session = w.connect("app")
    assert w.offer(session, send(1))
    assert w.offer(session, send(2))
    numbered = [entry for entry in w.store.entries if isinstance(entry, PartitionEntry)]
    assert [(entry.topic, entry.index) for entry in numbered] == [("t", 0), ("t", 1), ("t", 2)]


def test_records_are_numbered_in_each_partition_and_slices_are_sealed() -> None:
    w = world()
    session = w.connect("app")
    assert w.offer(session, send(1, partitions=[2, 0, 2], n=3))
    assert w.offer(session, send(2, partitions=2, n=2))
    first, second = (entry for entry in w.store.entries if isinstance(entry, FrameEntry))
    places = [
        (w.ledger.by_number[part.partition].index, part.first, part.count) for part in first.slices + second.slices
    ]
    assert places == [(0, 0, 1), (2, 0, 2), (2, 2, 2)]
    sizes = [[len(payload) for payload in group] for group in w.store.payloads]
    assert [(part.offset, part.length) for part in first.slices] == [(0, sizes[0][0]), (sizes[0][0], sizes[0][1])]
    assert [(part.offset, part.length) for part in second.slices] == [(0, sizes[1][0])]
    assert (first.previous, second.previous) == (-1, 1)
    for payload, (index, ordinal, count) in zip([p for group in w.store.payloads for p in group], places, strict=True):
        header = slices.read_header(payload)
        assert (header.first, header.count) == (ordinal, count)
        assert header.crc == crc32c.crc32c(payload[slices.CRC_FROM :], crc32c.crc32c(slices.crc_prefix("t", index)))


def test_where_records_went_is_kept_only_when_a_delivered_frame_has_several_slices() -> None:
    w = world()
    session = w.connect("app")
    assert w.offer(session, send(1, partitions=[1, 0]))
    assert w.offer(session, send(2, partitions=1))
    assert w.offer(session, send(3, level=1, partitions=[1, 0]))
    kept = [entry.partitions for entry in w.store.entries if isinstance(entry, FrameEntry)]
    assert kept == [b"\x01\0\0\0\0\0\0\0", None, None]


def test_an_accepted_frame_is_answered_by_the_write_and_a_spooled_one_by_the_sync() -> None:
    w = world()
    session = w.connect("app")
    w.told(session)
    assert w.offer(session, send(1, level=0))
    assert w.offer(session, send(2, level=1))
    assert w.told(session) == []
    w.write()
    assert w.told(session) == [Ack(1, Level.ACCEPTED)]
    w.sync()
    assert w.told(session) == [Ack(2, Level.SPOOLED)]
    assert w.counts.acks == [1, 1, 0]


def test_a_delivered_frame_is_answered_when_its_last_slice_ended() -> None:
    w = world()
    session = w.connect("app", detail="records")
    w.told(session)
    assert w.offer(session, send(5, partitions=[1, 0, 1], n=3))
    w.write()
    w.sync()
    low, high = w.delivery.pushed
    assert not w.deliver(high, 70)
    assert w.told(session) == []
    assert w.deliver(low, 9)
    assert w.told(session) == [Ack(5, Level.DELIVERED, [Run(0, 9, 1, -1), Run(1, 70, 2, -1)], [1, 0, 1])]
    assert (w.counts.accepted, w.counts.delivered) == (3, 3)


def test_a_resend_of_a_pending_frame_is_not_taken_twice_and_answered_on_the_new_connection() -> None:
    w = world()
    first = w.connect("app")
    assert w.offer(first, send(1))
    second = w.connect("app")
    assert first.state is RouterSessionState.CLOSED
    welcome = w.told(second)[0]
    assert isinstance(welcome, Welcome)
    assert welcome.high == 1
    assert w.offer(second, send(1))
    assert len(w.delivery.pushed) == 1
    assert w.deliver(w.delivery.pushed[0])
    assert [ack.seq for ack in w.told(second) if isinstance(ack, Ack)] == [1]
    assert (w.counts.accepted, w.counts.resent) == (2, 2)


def test_a_resend_of_a_delivered_frame_is_answered_with_its_level_and_no_slices() -> None:
    w = world()
    session = w.connect("app")
    assert w.offer(session, send(1))
    w.deliver(w.delivery.pushed[0])
    w.told(session)
    assert w.offer(session, send(1))
    assert w.told(session) == [Ack(1, Level.DELIVERED)]


def test_a_resend_of_a_refused_sequence_is_refused_before_and_never_delivered() -> None:
    w = world()
    session = w.connect("app")
    assert w.offer(session, send(1, partitions=7))
    assert w.offer(session, send(2))
    w.told(session)
    assert w.offer(session, send(1))
    told = refusal(w, session)
    assert (told.seq, told.code) == (1, Code.REFUSED_BEFORE)


def test_a_sequence_of_an_anonymous_session_may_be_used_again_only_after_its_answer() -> None:
    w = world()
    session = w.connect()
    assert w.offer(session, send(1))
    w.deliver(w.delivery.pushed[0])
    assert w.offer(session, send(1))
    assert not w.offer(session, send(1))
    assert session.end_code is Code.PROTOCOL


def test_another_users_client_id_is_refused_and_its_owner_goes_on() -> None:
    w = world()
    owner = w.connect("app")
    thief = w.connect(greet=False, uid=2000)
    assert not w.offer(thief, [1, 1, "app", {}])
    assert thief.end_code is Code.CLIENT_ID_IN_USE_BY_ANOTHER_USER
    assert w.offer(owner, send(1))


def test_a_frame_of_an_unknown_topic_is_held_until_metadata_comes() -> None:
    w = World()
    session = w.connect("app")
    w.told(session)
    assert not w.offer(session, send(1))
    assert session.hold is not None
    assert session.hold.reason is HoldReason.TOPIC
    assert w.topics.wanted == ["t"]
    assert w.intake.resumable_sessions(w.now, topics_changed=False, room=True) == []
    w.topics.known["t"] = facts()
    assert w.intake.resumable_sessions(w.now, topics_changed=True, room=True) == [session]
    assert w.offer(session, send(1))
    assert session.hold is None
    assert not w.intake.held


def test_a_frame_of_an_unknown_topic_is_refused_after_max_block() -> None:
    w = World(max_block_s=60.0)
    session = w.connect("app")
    w.told(session)
    assert not w.offer(session, send(1))
    assert w.intake.next_deadline() == w.now + 60.0
    w.pass_time(59.9)
    assert not w.offer(session, send(1))
    w.pass_time(0.1)
    assert w.intake.resumable_sessions(w.now, topics_changed=False, room=True) == [session]
    assert w.offer(session, send(1))
    assert refusal(w, session).code == Code.NO_METADATA
    assert w.counts.refused[Code.NO_METADATA] == 2


def test_a_topic_that_a_live_broker_does_not_know_is_refused_at_once() -> None:
    w = World()
    w.topics.errors["t"] = "topic t does not exist"
    session = w.connect("app")
    w.told(session)
    assert w.offer(session, send(1))
    told = refusal(w, session)
    assert (told.seq, told.code, told.text) == (1, Code.UNKNOWN_TOPIC, "topic t does not exist")


def test_a_full_spool_holds_the_session_or_refuses_as_the_policy_says() -> None:
    for reject in (False, True):
        w = world(reject=reject)
        session = w.connect("app")
        w.told(session)
        w.store.refusal = SpoolFullError()
        assert w.offer(session, send(1)) is reject
        if reject:
            assert refusal(w, session).code == Code.BUSY
        else:
            w.store.refusal = None
            assert w.intake.resumable_sessions(w.now, topics_changed=False, room=False) == []
            assert w.intake.resumable_sessions(w.now, topics_changed=False, room=True) == [session]
            w.intake.spool_full = False
            assert w.offer(session, send(1))


def test_a_full_spool_is_not_asked_again_for_every_session_that_waits() -> None:
    w = world()
    first, second = w.connect("a"), w.connect("b")
    w.store.refusal = SpoolFullError()
    assert not w.offer(first, send(1))
    w.store.refusal = None
    assert not w.offer(second, send(1))
    assert w.intake.resumable_sessions(w.now, topics_changed=False, room=True) == [first, second]
    w.intake.spool_full = False
    assert w.offer(first, send(1))
    assert w.offer(second, send(1))


def test_a_full_disk_refuses_the_frame_and_numbers_nothing() -> None:
    w = world()
    session = w.connect("app")
    w.told(session)
    w.store.refusal = NoSpaceError()
    assert w.offer(session, send(1))
    assert refusal(w, session).code == Code.NO_SPACE
    w.store.refusal = None
    assert w.offer(session, send(2))
    assert w.delivery.pushed[0].first == 0


def test_a_session_at_its_limit_is_not_read_until_three_quarters() -> None:
    w = world(bytes_max=200)
    session = w.connect()
    seq = 0
    while w.offer(session, send(seq, n=1)):
        seq += 1
    assert session.hold is not None
    assert session.hold.reason is HoldReason.CREDIT
    before = session.credit.nbytes
    assert before >= 200
    for pending in w.delivery.pushed:
        assert w.intake.resumable_sessions(w.now, topics_changed=False, room=True) == []
        w.deliver(pending)
        if session.credit.nbytes <= 150:
            break
    assert w.intake.resumable_sessions(w.now, topics_changed=False, room=True) == [session]
    assert w.answers.sessions_to_resume == [session]


def test_flush_is_answered_when_everything_sent_before_it_has_ended() -> None:
    w = world()
    session = w.connect("app")
    assert w.offer(session, send(1))
    assert w.offer(session, send(2, level=0))
    assert w.offer(session, [3, 3])
    assert w.offer(session, send(4))
    w.told(session)
    first, second, third = w.delivery.pushed
    assert w.delivery.flushed == [[(second.partition, second.end - 1)]]
    w.deliver(third)
    w.write()
    assert Done(3, None) not in w.told(session)
    w.deliver(first)
    assert Done(3, None) in w.told(session)


def test_flush_of_an_idle_session_is_answered_at_once() -> None:
    w = world()
    session = w.connect()
    w.told(session)
    assert w.offer(session, [3, 9])
    assert w.told(session) == [Done(9, None)]


def test_transactions_are_refused_and_the_session_goes_on() -> None:
    w = world()
    session = w.connect()
    w.told(session)
    assert w.offer(session, [5, 1, "begin", []])
    assert refusal(w, session).code == Code.NOT_SUPPORTED
    assert w.offer(session, send(2))


def test_partitions_are_told_from_metadata_and_waited_for() -> None:
    w = World()
    session = w.connect()
    w.told(session)
    assert not w.offer(session, [4, 1, "t"])
    w.topics.known["t"] = facts(partitions=2)
    assert w.offer(session, [4, 1, "t"])
    (told,) = w.told(session)
    assert isinstance(told, Done)
    assert told.result is not None
    assert [row.partition for row in told.result] == [0, 1]
    assert not w.intake.held


def test_frames_are_refused_while_draining_and_held_ones_too() -> None:
    w = World()
    session = w.connect()
    w.told(session)
    assert not w.offer(session, send(1))
    w.intake.draining = True
    assert w.intake.resumable_sessions(w.now, topics_changed=False, room=False) == [session]
    assert w.offer(session, send(1))
    assert refusal(w, session).code == Code.DRAINING


def test_bye_leaves_what_is_open_to_be_answered() -> None:
    w = world()
    session = w.connect()
    assert w.offer(session, send(1))
    w.told(session)
    assert not w.offer(session, [6])
    assert session.state is RouterSessionState.LEAVING
    assert not session.all_answered
    w.deliver(w.delivery.pushed[0])
    assert [ack.seq for ack in w.told(session) if isinstance(ack, Ack)] == [1]
    assert session.all_answered


def test_a_frame_whose_session_is_gone_ends_all_the_same() -> None:
    w = world()
    session = w.connect("app")
    assert w.offer(session, send(1))
    w.intake.connection_closed(session)
    assert w.deliver(w.delivery.pushed[0])
    assert w.counts.delivered == 2
    assert w.sessions.by_id["app"].pending == {}


def test_parked_records_are_named_by_their_place_in_the_frame() -> None:
    w = world()
    session = w.connect()
    assert w.offer(session, send(1, partitions=[0, 1, 1, 0, 1], n=5))
    w.told(session)
    low, high = w.delivery.pushed
    w.deliver(low, 10)
    w.deliver(high, 20, parked=((0, 2, "RECORD_TOO_LARGE"),))
    (ack,) = w.told(session)
    assert isinstance(ack, Ack)
    assert ack.level == Level.DELIVERED
    assert ack.refused == [(1, 2, Code.PARKED, "RECORD_TOO_LARGE")]
    assert (w.counts.delivered, w.counts.parked) == (3, 2)


def test_a_frame_of_which_everything_was_parked_reached_no_level() -> None:
    w = world()
    session = w.connect()
    assert w.offer(session, send(1))
    w.told(session)
    w.deliver(w.delivery.pushed[0], parked=((0, 2, "INVALID_RECORD"),))
    (ack,) = w.told(session)
    assert isinstance(ack, Ack)
    assert ack.level is None


def test_one_brokers_word_is_marked_weak() -> None:
    w = world()
    session = w.connect()
    assert w.offer(session, send(1))
    w.told(session)
    w.deliver(w.delivery.pushed[0], weak=True)
    (ack,) = w.told(session)
    assert isinstance(ack, Ack)
    assert ack.flags == 1


@pytest.mark.parametrize(
    ("message", "code"),
    [
        (send(1, topic="../x"), Code.BAD_TOPIC),
        (send(1, partitions=3), Code.BAD_PARTITION),
        (send(1, values=["text"]), Code.BAD_FRAME),
        (send(1, values=[b"x" * 20_000]), Code.TOO_LARGE),
        (send(1, timestamps=-1), Code.BAD_TIMESTAMP),
        (send(1, keys=[b"one"], n=2), Code.BAD_FRAME),
        (send(1, level=3), Code.BAD_FRAME),
    ],
)
def test_a_frame_with_wrong_content_is_refused_whole_and_the_session_goes_on(message: list[object], code: Code) -> None:
    w = world()
    session = w.connect("app")
    w.told(session)
    assert w.offer(session, message)
    assert refusal(w, session).code == code
    assert not w.delivery.pushed
    assert w.offer(session, send(2))
    assert len(w.delivery.pushed) == 1


def test_what_was_received_is_refused_or_pending_or_at_its_end() -> None:
    w = world()
    session = w.connect("app")
    for seq in range(4):
        assert w.offer(session, send(seq, n=3, partitions=seq))
    w.deliver(w.delivery.pushed[0])
    w.deliver(w.delivery.pushed[1], parked=((0, 1, "INVALID_RECORD"),))
    in_flight = w.delivery.pushed[2].count
    assert w.counts.received == sum(w.counts.refused.values()) + w.counts.completed + in_flight == 12


@pytest.mark.row("H17")
def test_a_frame_for_a_name_that_no_topic_may_have_is_refused_at_once() -> None:
    w = world()
    w.topics.invalids["__cluster_metadata"] = "no topic may be named __cluster_metadata (INVALID_TOPIC_EXCEPTION)"
    session = w.connect("app")
    w.told(session)
    assert w.offer(session, send(1, topic="__cluster_metadata"))
    told = refusal(w, session)
    assert (told.seq, told.code, told.text) == (1, Code.BAD_TOPIC, w.topics.invalids["__cluster_metadata"])
    assert w.store.entries == []


def test_a_topic_that_brokers_are_not_asked_for_any_more_is_asked_for_again_with_its_next_frame() -> None:
    w = world()
    session = w.connect("app")
    assert w.offer(session, send(1))
    route = w.routing.find("t")
    assert route is not None
    route.idle = True
    assert w.topics.wanted == []
    assert w.offer(session, send(2))
    assert w.offer(session, send(3))
    assert w.topics.wanted == ["t"]
