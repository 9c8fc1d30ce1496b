"""Records of one producer: in open columns, in frames not written yet, and in frames in flight.

Every record is in exactly one of these places until its frame is answered. Records of a topic keep their order,
whatever their level: a record with another level seals the topic's open column. A frame gets its sequence when it is
first written. After a lost connection all unanswered frames are written again, in order, under the same sequences.

A frame refused because the daemon is draining was not stored, and neither were the frames after it in the session. They
are kept, and go to the next daemon under new sequences.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from ...api.errors import ClosedError, OutcomeUnknownError, PenstockError, RefusedError, RefusedRange
from ...api.futures import Answer, Condition, FrameOutcome
from ...api.metadata import OffsetRun
from ...wire import frames
from ...wire.frames import Code, Level, Type
from .columns import FRAME_OVERHEAD_BYTES, Columns, check_topic, new_packer, pack_head

NO_SEQUENCE: Final = -1
REQUEST_SEQUENCE_START: Final = 1 << 62
"""First sequence of FLUSH and PARTITIONS. Sharing the frames' sequences would leave gaps that no frame ever fills, and
the daemon remembers each gap."""
LEVEL_NAMES: Final = {Level.ACCEPTED: "accepted", Level.SPOOLED: "spooled", Level.DELIVERED: "delivered"}


class WindowLimits(NamedTuple):
    """`linger_s`: how long a column waits after its first record; `batch_bytes`: size at which it is sealed at once;
    `buffer_bytes_max`: limit for all records held."""

    linger_s: float
    batch_bytes: int
    buffer_bytes_max: int


class Frame:
    """Records sent in one SEND."""

    __slots__ = ("charge", "columns", "level", "number", "opened_at", "outcome", "payload", "seq")

    def __init__(self, outcome: FrameOutcome, level: int, *, opened_at: float) -> None:
        self.outcome = outcome
        self.level = level
        self.opened_at = opened_at
        self.columns: Columns | None = None
        self.payload: bytes | None = None
        self.charge = 0
        """Bytes that the frame adds to `Window.held_bytes`."""
        self.number = -1
        """Position among all sealed frames, assigned when sealed."""
        self.seq = NO_SEQUENCE
        """Assigned at the first write and kept after a lost connection, unless the daemon was draining."""


class PartitionsRequest(NamedTuple):
    """Request for a topic's partitions; `answer` is called with them or with the error."""

    topic: str
    answer: Callable[[Sequence[frames.PartitionInfo] | None, PenstockError | None], None]


class SettledFrame(NamedTuple):
    """A frame and its outcome. Complete its waiters first, then pass it to `Window.finish`."""

    frame: Frame
    answer: Answer | None
    error: PenstockError | None


class ClientIdInUseError(Exception):
    """The daemon has sequences of this client id that this producer never used, so another program uses the same id."""


class Window:
    """See the module docstring. `durable`: the session has a client id, so WELCOME gives the last sequence used."""

    def __init__(self, limits: WindowLimits, gate: Condition, *, durable: bool) -> None:
        self.limits: Final = limits
        self.frame_bytes_max = frames.FRAME_BYTES_MAX
        self.held_bytes = 0
        """Grows in `add` and `put`, shrinks in `finish`."""
        self._condition: Final = gate
        self._durable: Final = durable
        self._packer: Final = new_packer()
        self._open: dict[str, Frame] = {}
        """Frames whose columns still accept records, by topic."""
        self._unsent: deque[Frame] = deque()
        """Sealed frames to write, oldest first."""
        self._sent: dict[int, Frame] = {}
        """Frames in flight, by sequence."""
        self._pending: dict[int, Frame] = {}
        """All sealed frames, by number, until `finish`."""
        self._drained: list[Frame] = []
        """Frames refused by a draining daemon; `connection_lost` queues them again."""
        self._unsent_requests: deque[PartitionsRequest] = deque()
        self._sent_requests: dict[int, PartitionsRequest] = {}
        self._online = False
        self._welcomed = False
        self._next_seq = 0
        self._next_request_sequence = REQUEST_SEQUENCE_START
        self._next_number = 0
        self._flush_through = -1
        """Number of the last frame that a flush covers."""
        self._flush_sent = -1
        """The `_flush_through` of the last FLUSH on this connection; -1: none."""

    # --- taking records ----------------------------------------------------------------------------------------------

    def has_room(self, size: int) -> bool:
        """Whether `size` more bytes may be held."""
        return self.held_bytes + size <= self.limits.buffer_bytes_max

    def add(
        self,
        topic: str,
        level: int,
        partition: int | None,
        key: bytes | None,
        value: bytes | None,
        headers: list[object] | None,
        timestamp_ms: int | None,
        size: int,
        now: float,
    ) -> tuple[FrameOutcome, int, bool]:
        """Add a record of `size` bytes; `headers` is flat. Returns the frame's outcome, the record's index in the
        frame, and whether to wake the thread, because a frame is ready to write or a first column was opened.

        Raises:
            ValueError: the topic name is invalid in Kafka.
        """
        stir = False
        frame = self._open.get(topic)
        if frame is None or frame.level != level or frame.charge + size > self.limits.batch_bytes:
            stir = frame is not None or not self._open
            if frame is not None:
                self._seal(topic)
            frame = self._new_frame(topic, level, now)
        columns = frame.columns
        assert columns is not None
        if partition is None and headers is None and timestamp_ms is None:
            columns.append(key, value)
        else:
            columns.append_full(key, value, partition, headers, timestamp_ms)
        outcome = frame.outcome
        index = outcome.count
        outcome.count = index + 1
        frame.charge += size
        self.held_bytes += size
        if frame.charge >= self.limits.batch_bytes:
            self._seal(topic)
            stir = True
        return outcome, index, stir

    def _new_frame(self, topic: str, level: int, now: float) -> Frame:
        check_topic(topic)
        frame = self._open[topic] = Frame(FrameOutcome(topic, self._condition), level, opened_at=now)
        frame.columns = Columns()
        frame.charge = FRAME_OVERHEAD_BYTES
        self.held_bytes += FRAME_OVERHEAD_BYTES
        return frame

    def put(self, topic: str, level: int, parts: Sequence[tuple[int, bytes]], *, now: float) -> list[FrameOutcome]:
        """Add frames already packed, given as (record count, bytes)."""
        check_topic(topic)
        if topic in self._open:
            self._seal(topic)
        outcomes: list[FrameOutcome] = []
        for count, rest in parts:
            outcome = FrameOutcome(topic, self._condition)
            outcome.count = count
            frame = Frame(outcome, level, opened_at=now)
            frame.payload = rest
            frame.charge = len(rest)
            self.held_bytes += frame.charge
            self._enqueue(frame)
            outcomes.append(outcome)
        return outcomes

    def request_partitions(self, ask: PartitionsRequest) -> None:
        """Queue a request for a topic's partitions."""
        self._unsent_requests.append(ask)

    def flush(self) -> int:
        """Stop everything held now from lingering, here and in the daemon. Returns the mark for `flushed`."""
        self.seal_all()
        if self._pending:
            self._flush_through = self._next_number - 1
        return self._next_number - 1

    def flushed(self, mark: int) -> bool:
        """Whether everything held at that `flush` has succeeded or failed."""
        return not self._pending or next(iter(self._pending)) > mark

    @property
    def idle(self) -> bool:
        """Whether nothing is held."""
        return not self._pending and not self._open

    @property
    def has_open(self) -> bool:
        """Whether a column is still open for more records."""
        return bool(self._open)

    def outcomes(self) -> list[FrameOutcome]:
        """The outcomes of all frames held."""
        return [frame.outcome for frame in (*self._pending.values(), *self._open.values())]

    def seal_all(self) -> None:
        for topic in list(self._open):
            self._seal(topic)

    def seal_due(self, *, now: float) -> None:
        """Seal the columns that have lingered long enough."""
        for topic, frame in list(self._open.items()):
            if now >= frame.opened_at + self.limits.linger_s:
                self._seal(topic)

    def next_deadline(self) -> float | None:
        """When `seal_due` next has a column to seal; None if no column is open."""
        opened = min((frame.opened_at for frame in self._open.values()), default=None)
        return None if opened is None else opened + self.limits.linger_s

    def _seal(self, topic: str) -> None:
        self._enqueue(self._open.pop(topic))

    def _enqueue(self, frame: Frame) -> None:
        frame.number = self._next_number
        self._next_number += 1
        self._pending[frame.number] = frame
        self._unsent.append(frame)

    # --- the connection ----------------------------------------------------------------------------------------------

    def unanswered_from(self) -> int | None:
        """The lowest sequence that may be sent again; None before the first session. Call while disconnected."""
        if not self._welcomed:
            return None
        if self._unsent and self._unsent[0].seq != NO_SEQUENCE:
            return self._unsent[0].seq
        return self._next_seq

    def welcome(self, greeting: frames.Welcome) -> None:
        """Start a session: all unanswered frames will be written, oldest first.

        Raises:
            ClientIdInUseError: another program uses the same client id.
        """
        if self._durable:
            if self._welcomed and greeting.high >= self._next_seq:
                raise ClientIdInUseError(
                    f"the daemon has sequence {greeting.high} of this client id, this producer used {self._next_seq - 1}"
                )
            self._next_seq = max(self._next_seq, greeting.high + 1)
        self.frame_bytes_max = greeting.limits.get("frame_bytes_max", frames.FRAME_BYTES_MAX)
        self._welcomed = True
        self._online = True

    def connection_lost(self) -> None:
        """Queue everything unanswered again, because the connection and its pending answers are lost."""
        self._online = False
        again = sorted([*self._sent.values(), *self._drained], key=lambda frame: frame.number)
        if self._drained:
            first = min(frame.number for frame in self._drained)
            # The daemon did not accept the later frames either; their old sequences would be too old.
            for frame in (*again, *self._unsent):
                if frame.number >= first:
                    frame.seq = NO_SEQUENCE
        self._unsent.extendleft(reversed(again))
        self._sent = {}
        self._drained = []
        self._unsent_requests.extendleft(self._sent_requests.values())
        self._sent_requests = {}
        self._flush_sent = -1

    @property
    def draining(self) -> bool:
        """Whether the daemon accepts no more frames on this connection and has answered all it accepted."""
        return bool(self._drained) and not self._sent

    @property
    def has_writes(self) -> bool:
        """Whether `take_writes` would return anything."""
        if not self._online or self._drained:
            return False
        return bool(self._unsent or self._unsent_requests) or self._flush_due()

    def take_writes(self, bytes_wanted: int) -> list[bytes]:
        """Return what to write next, in order, until `bytes_wanted` is reached."""
        taken: list[bytes] = []
        if not self._online or self._drained:
            return taken
        while self._unsent_requests:
            ask = self._unsent_requests.popleft()
            seq = self._request_sequence()
            self._sent_requests[seq] = ask
            taken.append(frames.pack((Type.PARTITIONS, seq, ask.topic)))
        size = 0
        while self._unsent and size < bytes_wanted:
            frame = self._unsent.popleft()
            rest = self._packed(frame)
            if frame.seq == NO_SEQUENCE:
                frame.seq = self._sequence()
            self._sent[frame.seq] = frame
            taken += (pack_head(rest, frame.seq, frame.level), rest)
            size += len(rest)
        if self._flush_due():
            taken.append(frames.pack((Type.FLUSH, self._request_sequence())))
            self._flush_sent = self._flush_through
        return taken

    def _packed(self, frame: Frame) -> bytes:
        if frame.payload is None:
            assert frame.columns is not None
            frame.payload = frame.columns.pack(self._packer, frame.outcome.topic)
            frame.columns = None
        return frame.payload

    def _sequence(self) -> int:
        seq = self._next_seq
        self._next_seq += 1
        return seq

    def _request_sequence(self) -> int:
        seq = self._next_request_sequence
        self._next_request_sequence += 1
        return seq

    def _flush_due(self) -> bool:
        """Whether to send a FLUSH on this connection: every frame it covers is written and not all are answered."""
        through = self._flush_through
        if through <= self._flush_sent or (self._unsent and self._unsent[0].number <= through):
            return False
        return not self.flushed(through)

    # --- answers -----------------------------------------------------------------------------------------------------

    def settle(self, message: frames.Acks | frames.Refused | frames.Done) -> Iterator[SettledFrame]:
        """Yield the frames that an answer settles. Answers to unknown sequences are ignored."""
        match message:
            case frames.Acks(acks):
                for ack in acks:
                    frame = self._sent.pop(ack.seq, None)
                    if frame is not None:
                        yield SettledFrame(frame, *_answer_of(ack))
            case frames.Refused(seq, code, text, retry_ms):
                if seq is not None:
                    yield from self._refused(seq, code, text, retry_ms)
            case frames.Done(seq, result):
                ask = self._sent_requests.pop(seq, None)
                if ask is not None:
                    ask.answer(result, None)

    def _refused(self, seq: int, code: str, text: str, retry_ms: int | None) -> Iterator[SettledFrame]:
        ask = self._sent_requests.pop(seq, None)
        if ask is not None:
            ask.answer(None, RefusedError(code, text, retry_ms=retry_ms))
        frame = self._sent.pop(seq, None)
        if frame is None:
            return
        if code == Code.DRAINING:
            self._drained.append(frame)
        else:
            yield SettledFrame(frame, None, RefusedError(code, text, retry_ms=retry_ms))

    def finish(self, settled: Sequence[SettledFrame]) -> None:
        """Release frames whose waiters have been completed."""
        for one in settled:
            del self._pending[one.frame.number]
            self.held_bytes -= one.frame.charge

    def abandon(self, text: str, cause: PenstockError | None = None) -> list[SettledFrame]:
        """Fail everything. A frame never written was not accepted; the outcome of a written one is unknown."""
        self.seal_all()
        settled: list[SettledFrame] = []
        for frame in self._pending.values():
            written = frame.seq != NO_SEQUENCE
            error = OutcomeUnknownError(text) if written else (cause or ClosedError(text))
            settled.append(SettledFrame(frame, None, error))
        self._unsent.clear()
        self._sent = {}
        self._drained = []
        for ask in (*self._unsent_requests, *self._sent_requests.values()):
            ask.answer(None, cause or ClosedError(text))
        self._unsent_requests.clear()
        self._sent_requests = {}
        return settled


def _answer_of(ack: frames.Ack) -> tuple[Answer | None, PenstockError | None]:
    level = None if ack.level is None else LEVEL_NAMES[Level(ack.level)]
    runs = [OffsetRun(*run) for run in ack.runs or ()]
    refused = [RefusedRange(*one) for one in ack.refused or ()]
    return Answer(level, runs, ack.partitions, refused, bool(ack.flags & frames.FLAG_SINGLE_REPLICA)), None
