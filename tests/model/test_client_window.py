"""The client's window against a daemon in memory: connections that break anywhere, answers that get lost, stops and refusals.

The model daemon takes a sequence once, as a session with a client id has it. Whatever happens, every record ends once, what
the daemon took it took once and in order, and the window's count of bytes is that of what it holds.
"""

import struct
import threading
from typing import Any

import msgpack
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from penstock.client.core.columns import new_packer, pack_many
from penstock.client.core.window import SettledFrame, Window, WindowLimits
from penstock.wire import frames
from penstock.wire.frames import Ack, Code, Run, Type

from tests.harness.counts import model_examples

LIMITS = {"frame_bytes_max": 1 << 20}
TOPICS = ["a", "b"]


class ModelDaemon:
    """What it took, by topic, in order; `high` and pending answers of one client id."""

    def __init__(self) -> None:
        self.high = -1
        self.taken: dict[str, list[bytes]] = {topic: [] for topic in TOPICS}
        self.known: dict[int, int] = {}
        self.told: set[int] = set()
        self.connected = False
        self.draining = False
        self.owed: list[tuple[int, int]] = []

    def connect(self) -> None:
        self.connected = True
        self.draining = False
        self.owed = []

    def receive(self, message: list[Any]) -> frames.Refused | None:
        kind, seq, *rest = message
        if kind != Type.SEND:
            assert kind == Type.FLUSH
            return None
        level, topic, _, _, values, _, _ = rest
        assert seq not in self.told, "a frame whose refusal was told takes a new sequence"
        if seq <= self.high:
            assert seq in self.known, "a sequence below the highest that was never used before"
            self.owed.append((seq, level))
            return None
        if self.draining:
            return frames.Refused(seq, Code.DRAINING, "about to stop", None)
        self.high = seq
        self.known[seq] = len(values)
        self.taken[topic] += values
        self.owed.append((seq, level))
        return None


class WindowMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        gate = threading.Condition(threading.Lock())
        self.window = Window(WindowLimits(0.01, 700, 1 << 20), gate, durable=True)
        self.daemon = ModelDaemon()
        self.packer = new_packer()
        self.now = 0.0
        self.count = 0
        self.sent: dict[str, list[bytes]] = {topic: [] for topic in TOPICS}
        self.outcomes: list[tuple[Any, str, list[bytes]]] = []
        self.ended = 0

    def _value(self) -> bytes:
        self.count += 1
        return b"%d" % self.count

    @rule(topic=st.sampled_from(TOPICS), level=st.integers(0, 2))
    def send(self, topic: str, level: int) -> None:
        value = self._value()
        outcome, index, _ = self.window.add(topic, level, None, None, value, None, None, 50, self.now)
        self.sent[topic].append(value)
        if index == 0:
            self.outcomes.append((outcome, topic, []))
        next(values for one, _, values in self.outcomes if one is outcome).append(value)

    @rule(topic=st.sampled_from(TOPICS), sizes=st.lists(st.integers(1, 3), min_size=1, max_size=3))
    def send_many(self, topic: str, sizes: list[int]) -> None:
        parts = []
        groups = [[self._value() for _ in range(size)] for size in sizes]
        for values in groups:
            columns = [None, None, values, None, None]
            parts += pack_many(self.packer, topic, columns, len(values), bytes_max=1 << 20, bytes_wanted=1 << 18)
            self.sent[topic] += values
        for outcome, values in zip(self.window.put(topic, 2, parts, now=self.now), groups, strict=True):
            self.outcomes.append((outcome, topic, values))

    @rule(seconds=st.sampled_from([0.001, 0.02]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.window.seal_due(now=self.now)
        due = self.window.next_deadline()
        assert due is None or due > self.now

    @precondition(lambda self: not self.daemon.connected)
    @rule()
    def connect(self) -> None:
        first = self.window.unanswered_from()
        assert first is None or all(seq >= first for seq in self._unanswered())
        self.daemon.connect()
        self.window.welcome(frames.Welcome(1, self.daemon.high, LIMITS, "model"))

    def _unanswered(self) -> list[int]:
        return [frame.seq for frame in self.window._pending.values() if frame.seq >= 0]

    @precondition(lambda self: self.daemon.connected)
    @rule(wanted=st.integers(1, 300), arrive=st.integers(0, 10), answers_arrive=st.booleans())
    def write(self, wanted: int, arrive: int, answers_arrive: bool) -> None:
        """The first `arrive` messages reach the daemon; when not all do, the connection broke on the way."""
        has_writes = self.window.has_writes
        pieces = self.window.take_writes(wanted)
        assert has_writes == bool(pieces)
        stream = b"".join(pieces)
        messages = []
        at = 0
        while at < len(stream):
            (size,) = struct.unpack_from(">I", stream, at)
            messages.append(msgpack.unpackb(stream[at + 4 : at + 4 + size]))
            at += 4 + size
        for message in messages[:arrive]:
            answer = self.daemon.receive(message)
            if answer is not None and answers_arrive:
                assert answer.seq is not None
                self.daemon.told.add(answer.seq)
                self._tell(list(self.window.settle(answer)))
        if arrive < len(messages):
            self.lose()

    @precondition(lambda self: self.daemon.connected)
    @rule()
    def lose(self) -> None:
        self.daemon.connected = False
        self.window.connection_lost()

    @precondition(lambda self: self.daemon.connected)
    @rule()
    def begin_to_stop(self) -> None:
        self.daemon.draining = True

    @precondition(lambda self: self.daemon.owed)
    @rule(data=st.data())
    def answer(self, data: st.DataObject) -> None:
        place = data.draw(st.integers(0, len(self.daemon.owed) - 1))
        seq, level = self.daemon.owed.pop(place)
        count = self.daemon.known[seq]
        self._tell(list(self.window.settle(frames.Acks([Ack(seq, level, [Run(0, 7, count, -1)])]))))

    @precondition(lambda self: self.daemon.connected)
    @rule(seq=st.integers(-5, 50))
    def answer_to_nothing(self, seq: int) -> None:
        if seq not in self.daemon.known and seq not in self._unanswered():
            assert list(self.window.settle(frames.Refused(seq, Code.BUSY, "", None))) == []

    @rule()
    def flush(self) -> None:
        mark = self.window.flush()
        assert self.window.flushed(mark) == self.window.idle

    def _tell(self, settled: list[SettledFrame]) -> None:
        for one in settled:
            _ = one.frame.outcome.settle(one.answer, one.error)
            self.ended += one.frame.outcome.count
            assert one.error is None, "nothing but a stopping daemon refuses here, and that is not told"
        self.window.finish(settled)

    @invariant()
    def what_the_daemon_took_is_a_prefix_of_what_was_sent(self) -> None:
        for topic in TOPICS:
            taken = self.daemon.taken[topic]
            assert taken == self.sent[topic][: len(taken)]

    @invariant()
    def bytes_and_records_add_up(self) -> None:
        held = [*self.window._pending.values(), *self.window._open.values()]
        assert self.window.held_bytes == sum(frame.charge for frame in held)
        assert self.ended + sum(frame.outcome.count for frame in held) == self.count
        assert self.window.idle == (not held)

    def teardown(self) -> None:
        """With a daemon that stays, everything ends well."""
        for _ in range(3):
            if self.daemon.connected:
                self.lose()
            self.connect()
            self.window.seal_all()
            while self.window.has_writes:
                self.write(10_000, 10_000, answers_arrive=True)
            while self.daemon.owed:
                seq, level = self.daemon.owed.pop()
                self._tell(list(self.window.settle(frames.Acks([Ack(seq, level)]))))
        assert self.window.idle
        assert self.daemon.taken == self.sent
        assert all(outcome.done for outcome, _, _ in self.outcomes)


TestWindow = WindowMachine.TestCase
TestWindow.settings = settings(max_examples=model_examples(150), stateful_step_count=40, deadline=None)
