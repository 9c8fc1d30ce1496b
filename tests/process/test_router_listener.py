"""Client sockets: limits, time, half-closed and silent ends, all over real sockets."""

import os
import socket
from pathlib import Path

import pytest
from penstock.daemon.sessions.listening_socket import ListenError, inherited_socket
from penstock.daemon.sessions.session import RouterSessionState
from penstock.wire import frames
from penstock.wire.frames import Ack, Acks, Code, Done, Refused

from tests.core.intake_world import facts, send

from .listener_world import LIMITS, Served, open_descriptors

pytestmark = pytest.mark.process


def acked(message: object) -> list[int]:
    assert isinstance(message, Acks)
    return [ack.seq for ack in message.acks]


def test_a_session_greets_sends_and_is_answered() -> None:
    with Served() as served:
        caller = served.connect()
        assert caller.greet("app").high == -1
        caller.send(send(1, level=1), send(2, level=0))
        assert sorted(acked(caller.hear())) == [1, 2]


def test_messages_that_come_a_byte_at_a_time_are_put_together() -> None:
    with Served() as served:
        caller = served.connect()
        for byte in frames.hello("app") + frames.pack(send(1, level=0)):
            caller.send(bytes([byte]))
            served.round()
        assert isinstance(caller.hear(), frames.Welcome)
        assert acked(caller.hear()) == [1]


def test_a_message_of_the_largest_size_is_taken_and_one_byte_more_ends_the_session() -> None:
    with Served() as served:
        caller = served.connect()
        caller.greet()
        body = LIMITS.frame_bytes_max
        values = [b"x" * 1_000] * 100
        spare = body - len(frames.pack(send(1, level=0, values=values))) + 4
        values += [b"y" * 9_000] * (spare // 9_003)
        rest = body - len(frames.pack(send(1, level=0, values=values))) + 4
        values.append(b"z" * (rest - 5))
        message = frames.pack(send(1, level=0, values=values))
        while len(message) - 4 < body:
            values[-1] += b"z"
            message = frames.pack(send(1, level=0, values=values))
        assert len(message) == body + 4
        caller.send(message)
        assert acked(caller.hear()) == [1]
        caller.send(send(2, level=0))
        assert acked(caller.hear()) == [2]
        caller.send(frames.LENGTH.pack(body + 1))
        told = caller.hear()
        assert isinstance(told, Refused)
        assert (told.seq, told.code) == (None, Code.PROTOCOL)
        assert caller.hear() is None


def test_the_welcome_comes_before_answers_and_a_flush_is_answered_behind_them() -> None:
    with Served() as served:
        caller = served.connect()
        caller.send(frames.hello("app") + frames.pack(send(1, level=0)) + frames.pack([3, 2]))
        assert isinstance(caller.hear(), frames.Welcome)
        assert acked(caller.hear()) == [1]
        assert caller.hear() == Done(2, None)


def test_what_came_before_a_wrong_length_is_still_taken() -> None:
    with Served() as served:
        caller = served.connect()
        caller.send(frames.hello("app") + frames.pack(send(1, level=0)) + b"\0\0\0\0")
        heard = [caller.hear(), caller.hear()]
        assert isinstance(heard[0], frames.Welcome)
        assert isinstance(heard[1], Refused)
        assert served.world.sessions.by_id["app"].high == 1


def test_a_half_closed_session_is_answered_before_it_is_closed() -> None:
    with Served() as served:
        caller = served.connect()
        caller.greet()
        caller.send(send(1))
        caller.sock.shutdown(socket.SHUT_WR)
        served.until(lambda: served.sessions[0:1] != [] and served.sessions[0].state is RouterSessionState.LEAVING)
        served.world.deliver(served.world.delivery.pushed[0])
        assert acked(caller.hear()) == [1]
        assert caller.hear() is None
        assert not served.sessions


def test_bye_is_answered_by_closing_when_nothing_is_open() -> None:
    with Served() as served:
        caller = served.connect()
        caller.greet()
        caller.send(send(1, level=0), [3, 2], [6])
        assert acked(caller.hear()) == [1]
        assert caller.hear() == Done(2, None)
        assert caller.hear() is None


def test_a_client_that_vanishes_leaves_nothing_behind() -> None:
    with Served() as served:
        before = open_descriptors()
        for _ in range(20):
            caller = served.connect()
            caller.greet()
            caller.send(send(1))
            caller.sock.close()
        served.until(lambda: not served.sessions)
        assert open_descriptors() <= before
        assert len(served.world.delivery.pushed) == 20


def test_frames_of_a_client_that_has_gone_are_taken_when_their_topic_becomes_known() -> None:
    with Served() as served:
        caller = served.connect()
        caller.greet()
        caller.send(send(1, topic="late"), send(2, topic="late"))
        served.until(lambda: bool(served.world.intake.held))
        caller.sock.close()
        served.until(lambda: True)
        served.world.topics.known["late"] = served.world.topics.known["t"]._replace(topic="late")
        served.listener.resume(served.world.intake.resumable_sessions(served.world.now, topics_changed=True, room=True))
        served.until(lambda: len(served.world.delivery.pushed) == 2)
        served.until(lambda: not served.sessions)


def test_a_held_session_goes_on_in_order_when_it_is_resumed() -> None:
    with Served() as served:
        caller = served.connect()
        caller.greet()
        caller.send(send(1, topic="late", level=0), send(2, level=0), send(3, level=0))
        served.until(lambda: bool(served.world.intake.held))
        served.round()
        served.world.topics.known["late"] = served.world.topics.known["t"]._replace(topic="late")
        served.listener.resume(served.world.intake.resumable_sessions(served.world.now, topics_changed=True, room=True))
        assert acked(caller.hear()) == [1, 2, 3]


def test_a_connection_that_says_nothing_is_ended_after_its_time() -> None:
    with Served() as served:
        caller = served.connect()
        served.until(lambda: len(served.sessions) == 1)
        served.skew = 150.0
        served.round()
        assert served.sessions
        served.skew = 220.0
        told = caller.hear()
        assert isinstance(told, Refused)
        assert told.code == Code.TOO_SLOW
        assert caller.hear() is None


def test_a_message_must_be_whole_in_time_but_the_clock_stands_while_the_session_is_held() -> None:
    with Served() as served:
        caller = served.connect()
        caller.greet()
        whole = frames.pack(send(2, level=0))
        caller.send(send(1, topic="late", level=0), whole[:10])
        served.until(lambda: bool(served.world.intake.held))
        served.skew = 3_000.0
        served.round()
        assert served.sessions[0].state is RouterSessionState.OPEN
        served.world.topics.known["late"] = served.world.topics.known["t"]._replace(topic="late")
        served.listener.resume(served.world.intake.resumable_sessions(served.world.now, topics_changed=True, room=True))
        assert acked(caller.hear()) == [1]
        served.skew = 3_400.0
        served.round()
        assert served.sessions[0].state is RouterSessionState.OPEN
        served.skew = 3_600.0
        told = caller.hear()
        assert isinstance(told, Refused)
        assert told.code == Code.TOO_SLOW


def test_a_client_that_never_reads_is_cut_off_and_its_neighbour_goes_on() -> None:
    with Served() as served:
        deaf, neighbour = served.connect(), served.connect()
        deaf.greet()
        neighbour.greet()
        deaf.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        seq = 0
        while (
            served.sessions
            and len(served.sessions) == 2
            and not any(client.paused_for_output for client in served.listener._clients.values())
        ):
            deaf.send(b"".join(frames.pack([4, seq + i, "t"]) for i in range(2_000)))
            seq += 2_000
            served.round()
            assert seq < 2_000_000
        served.skew = 400.0
        served.round()
        assert len(served.sessions) == 2
        served.skew = 600.0
        served.until(lambda: len(served.sessions) == 1)
        neighbour.send(send(1, level=0))
        assert acked(neighbour.hear()) == [1]
        assert served.world.counts.sessions_ended[Code.ANSWERS_UNREAD] == 1


def test_a_client_that_reads_late_gets_every_answer() -> None:
    with Served() as served:
        caller = served.connect()
        caller.greet()
        count = 20_000
        for at in range(0, count, 1_000):
            caller.send(b"".join(frames.pack([3, at + i]) for i in range(1_000)))
            served.round()
        heard = [caller.hear() for _ in range(count)]
        assert heard == [Done(seq, None) for seq in range(count)]


def test_short_questions_with_long_answers_pile_up_no_more_than_the_limit() -> None:
    with Served() as served:
        served.world.topics.known["wide"] = facts("wide", partitions=5_000)
        caller = served.connect()
        caller.greet()
        count = 200
        caller.sock.sendall(b"".join(frames.pack([4, seq, "wide"]) for seq in range(count)))
        most = 0
        for seq in range(count):
            served.round()
            most = max(most, sum(client.unsent_bytes for client in served.listener._clients.values()))
            told = caller.hear()
            assert isinstance(told, Done)
            assert told.seq == seq
        assert 0 < most < 3 * LIMITS.unread_answers_bytes_max


def test_more_sessions_than_allowed_are_refused_with_a_reason() -> None:
    with Served(LIMITS._replace(sessions_per_uid_max=2)) as served:
        kept = [served.connect() for _ in range(2)]
        for caller in kept:
            caller.greet()
        third = served.connect()
        told = third.hear()
        assert isinstance(told, Refused)
        assert told.code == Code.LIMIT
        assert third.hear() is None
        kept[0].sock.close()
        served.until(lambda: len(served.sessions) == 1)
        served.connect().greet()


def test_no_session_is_taken_into_the_reserve_of_descriptors() -> None:
    with Served(descriptors=open_descriptors() + 64 + 20) as served:
        callers = [served.connect() for _ in range(12)]
        served.until(lambda: served.world.counts.sessions_refused["descriptors"] > 0)
        assert served.sessions
        for caller in callers:
            caller.sock.close()
        served.until(lambda: not served.sessions)
        served.skew = 1.0
        served.connect().greet()


def test_an_ack_too_long_for_a_message_is_sent_without_its_details() -> None:
    from penstock.daemon.sessions.listener import encode_acks

    long = Ack(1, 2, [frames.Run(0, 5, 400_000, -1)], [0] * 400_000)
    short = Ack(2, 0)
    data = encode_acks([long, short], 100_000)
    (size,) = frames.LENGTH.unpack_from(data)
    first = frames.decode_daemon(data[4 : 4 + size])
    second = frames.decode_daemon(data[8 + size :])
    assert first == Acks([long._replace(partitions=None)])
    assert second == Acks([short])


def test_descriptor_three_must_be_the_socket_of_the_settings(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        with pytest.raises(ListenError, match="not a listening"):
            inherited_socket(path, listening.fileno())
        listening.listen()
        inherited_socket(path, listening.fileno()).close()
        with pytest.raises(ListenError, match="the settings say"):
            inherited_socket(tmp_path / "other", listening.fileno())
    reading, writing = os.pipe()
    with pytest.raises(ListenError, match="not a socket"):
        inherited_socket(path, reading)
    os.close(reading)
    os.close(writing)
    with pytest.raises(ListenError, match="not open"):
        inherited_socket(path, reading)
