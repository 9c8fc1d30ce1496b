"""Processes messages: HELLO opens a session; a SEND becomes slices with ordinals and one frame entry, or a refusal.

A frame is accepted whole or not at all. It is held while no decision is possible (unknown topic, full spool, no
credit): `message` returns False, the session is not read past it, and the same bytes are offered again.
"""

from collections.abc import Callable
from typing import Final, assert_never

from ...producer.kernel import frames as kernel
from ...producer.kernel.frames import ScatteredFrame, SendHead
from ...wire import frames, record_ids
from ...wire.errors import FrameError
from ...wire.frames import Ack, Code, Level, Type
from ..ledger.client_sequences import ClientStates, SequenceCheck, SequenceState
from ..ledger.counters import RouterCounters
from ..ledger.entries import OWN_SEQ
from ..ledger.partition_state import Ledger
from ..ledger.slices import NoSpaceError, SpoolFullError
from .acks import SessionResponses
from .ports import ClockReading, Delivery, FrameIdentity, FrameStore, IntakeLimits, Topics, frame_records
from .routing import Route, Routing
from .session import HeldMessage, HoldReason, RouterSession, RouterSessionState
from .staging import FrameStaging

DAEMON: Final = "penstock"
_OWN: Final = FrameIdentity(None, -1, OWN_SEQ, -1, Level.ACCEPTED)
_RESERVED_HEADERS: Final = (record_ids.HEADER.encode(),)
"""Reserved on every topic, whatever its settings: only the daemon may assign a record id (RID-4)."""


class FrameIntake:
    """Processes the messages of all sessions. `counts` is shared with `SessionResponses`."""

    def __init__(
        self,
        *,
        sessions: ClientStates,
        ledger: Ledger,
        routing: Routing,
        answers: SessionResponses,
        store: FrameStore,
        topics: Topics,
        delivery: Delivery,
        limits: IntakeLimits,
        checksum: Callable[[bytes | bytearray | memoryview, int], int],
        counts: RouterCounters,
    ) -> None:
        self._client_states = sessions
        self._audit_counts = ledger.audit_counts
        self._routing = routing
        self._responses = answers
        self._topics = topics
        self._delivery = delivery
        self.limits = limits  # a reload replaces them
        self._staging = FrameStaging(ledger, store, delivery, checksum)
        self.counts = counts
        self.clock = ClockReading(0, 0)
        self.accept_clock = self._staging.accept_clock
        self.draining = False
        self.spool_full = False
        """The spool refused a frame: later frames do not try it until the router clears this."""
        self.held: dict[RouterSession, HeldMessage] = {}
        self._by_client: dict[str, RouterSession] = {}

    # --- calls of the listener ---------------------------------------------------------------------------------------

    def message(self, session: RouterSession, buffer: bytearray, start: int, end: int, now: float) -> bool:
        """Apply one complete message. False: read no further, for now (see `session.hold`) or ever (see its state)."""
        try:
            kind = kernel.message_type(buffer, start, end)
            if kind == Type.SEND and session.state is RouterSessionState.OPEN:
                return self._send(session, buffer, start, end, now)
            if (kind == Type.HELLO) is not (session.state is RouterSessionState.GREETING):
                raise FrameError("HELLO comes once" if kind == Type.HELLO else "HELLO comes first")
            with memoryview(buffer) as view:
                message = frames.decode_client(view[start:end])
        except FrameError as error:
            if error.fatal or error.seq is None:
                self.end_session(session, Code(error.code), str(error))
                return False
            self._responses.refuse(session, error.seq, error.code, str(error))
            return True
        return self._apply(session, message, now)

    def set_clock(self, now: float, wall_ms: int) -> None:
        """Set both clocks, which frames accepted from now on record. Call it before every event."""
        self.clock = ClockReading(wall_ms, int(now * 1_000))

    def input_ended(self, session: RouterSession) -> None:
        """The input has ended. Open frames are still acked."""
        if session.state is RouterSessionState.OPEN:
            session.transition_to(RouterSessionState.LEAVING)
        elif session.state is RouterSessionState.GREETING:
            session.transition_to(RouterSessionState.CLOSED)

    def end_session(self, session: RouterSession, code: Code, text: str) -> None:
        """Close the session and send the client the reason."""
        if session.state is RouterSessionState.CLOSED:
            return
        session.end_code = code
        self._responses.connection_closed(session)
        self._detach(session)
        session.transition_to(RouterSessionState.CLOSED)
        self._responses.queue_message(session, frames.refused(None, code, text, None))

    def connection_closed(self, session: RouterSession) -> None:
        """The connection is closed."""
        self._responses.connection_closed(session)
        self._detach(session)
        if session.state is not RouterSessionState.CLOSED:
            session.transition_to(RouterSessionState.CLOSED)

    def resumable_sessions(self, now: float, *, topics_changed: bool, room: bool) -> list[RouterSession]:
        """Held sessions whose frames should be offered again."""
        wait_s = self.limits.max_block_s
        return [
            session
            for session, hold in self.held.items()
            if self.draining
            or (hold.reason is HoldReason.TOPIC and (topics_changed or now >= hold.since + wait_s))
            or (hold.reason is HoldReason.SPOOL and room)
            or (hold.reason is HoldReason.CREDIT and not session.credit.exhausted)
        ]

    def next_deadline(self) -> float | None:
        """When a held frame reaches `max_block_s` for its topic."""
        due = [hold.since for hold in self.held.values() if hold.reason is HoldReason.TOPIC]
        return min(due) + self.limits.max_block_s if due else None

    def own_route(self, topic: str) -> Route | None:
        """The route of a topic that the router itself writes to; None while the topic is unknown or missing."""
        self._topics.want(topic)
        route = self._route(topic)
        return None if route is None or route.missing_error is not None else route

    def append_own(self, route: Route, message: bytearray, *, flush: bool) -> bool:
        """Append a SEND of the router itself, whose records name their partition; it is never held or acked. `flush`:
        skip linger. False: the spool has no space; nothing was accepted. Asserts that a client could have sent it."""
        ends: dict[int, int] = {}
        try:
            head = kernel.read_head(message, 0, len(message))
            scattered = self._scatter(route, head, message, 0, len(message))
            frame = self._staging.stage(route, scattered, _OWN, len(message), ends, self.clock)
        except FrameError as error:
            raise AssertionError(f"a frame of the router's own is wrong: {error}") from error
        except (NoSpaceError, SpoolFullError):
            return False
        if flush:
            self._delivery.flush([(partition, end - 1) for partition, end in ends.items()])
        frame.answered = True
        self.counts.own_accepted += scattered.count
        return True

    # --- small messages ----------------------------------------------------------------------------------------------

    def _apply(self, session: RouterSession, message: frames.ClientMessage, now: float) -> bool:
        match message:
            case frames.Hello():
                return self._hello(session, message)
            case frames.Flush(seq):
                return self._flush(session, seq)
            case frames.Partitions():
                return self._partitions(session, message, now)
            case frames.Txn(seq):
                self._responses.refuse(session, seq, Code.NOT_SUPPORTED, "transactions are not supported yet")
                return True
            case frames.Bye():
                session.transition_to(RouterSessionState.LEAVING)
                return False
            case _:
                assert_never(message)

    def _hello(self, session: RouterSession, hello: frames.Hello) -> bool:
        session.detail = hello.detail
        high = -1
        if hello.client_id is not None:
            client = self._client_states.connect(
                hello.client_id, session.peer.uid, hello.unanswered_from, now_ms=self.clock.mono_ms
            )
            if isinstance(client, Code):
                another = client is Code.CLIENT_ID_IN_USE_BY_ANOTHER_USER
                text = "belongs to another user" if another else "is one more than the daemon remembers"
                self.end_session(session, client, f"client id {hello.client_id} {text}")
                return False
            before = self._by_client.get(hello.client_id)
            self._by_client[hello.client_id] = session
            if before is not None:
                self.end_session(before, Code.LIMIT, "another connection has opened a session with this client id")
            session.client = client
            high = client.high
        session.transition_to(RouterSessionState.OPEN)
        self._responses.queue_welcome(session, frames.welcome(high, self.limits.announced, DAEMON))
        return True

    def _flush(self, session: RouterSession, seq: int) -> bool:
        if session.unflushed:
            self._delivery.flush([(partition, end - 1) for partition, end in session.unflushed.items()])
            session.unflushed.clear()
        if not self._responses.flush(session, seq):
            self.end_session(session, Code.LIMIT, "too many FLUSH messages are open")
            return False
        return True

    def _partitions(self, session: RouterSession, asked: frames.Partitions, now: float) -> bool:
        found = self._topics.partitions(asked.topic)
        if found is not None:
            self._release(session)
            self._responses.queue_message(session, frames.done(asked.seq, found))
            return True
        refusal = self._topic_refusal(asked.topic)
        if refusal is not None:
            self._release(session)
            self._responses.refuse(session, asked.seq, *refusal)
            return True
        return self._await_topic(session, asked.seq, asked.topic, 0, now)

    # --- frames ------------------------------------------------------------------------------------------------------

    def _send(self, session: RouterSession, buffer: bytearray, start: int, end: int, now: float) -> bool:
        head = kernel.read_head(buffer, start, end)
        client = session.client
        if client is None:
            if head.seq in session.unanswered:
                raise FrameError(f"seq {head.seq} is in use")
        elif head.seq != client.high + 1:
            verdict = self._client_states.check(client, head.seq)
            if verdict.state is not SequenceState.NEW:
                return self._answer_resend(session, head, verdict, frame_records(buffer, head.position, end))
        if session.credit.exhausted:
            return self._hold(session, HoldReason.CREDIT, head.topic, now)
        if self.draining:
            return self._refuse(session, head, buffer, end, Code.DRAINING, "the daemon is about to stop")
        if self.spool_full:
            return self._spool_full_response(session, head, buffer, end, now)
        if head.topic == self.limits.own_topic:
            return self._refuse(session, head, buffer, end, Code.NOT_ALLOWED, f"topic {head.topic} is the daemon's own")
        route = self._route(head.topic)
        if route is None or route.missing_error is not None:
            refusal = (
                self._topic_refusal(head.topic) if route is None else (Code.UNKNOWN_TOPIC, route.missing_error or "")
            )
            if refusal is not None:
                return self._refuse(session, head, buffer, end, *refusal)
            return self._await_topic(session, head.seq, head.topic, frame_records(buffer, head.position, end), now)
        try:
            scattered = self._scatter(route, head, buffer, start, end)
        except FrameError as error:
            if error.fatal:
                raise
            return self._refuse(session, head, buffer, end, Code(error.code), str(error))
        try:
            self._accept_frame(session, route, head, scattered, end - start)
        except NoSpaceError:
            text = "the disk is full: nothing new is taken until records were delivered"
            return self._refuse(session, head, buffer, end, Code.NO_SPACE, text)
        except SpoolFullError:
            self.spool_full = True
            return self._spool_full_response(session, head, buffer, end, now)
        self._release(session)
        return True

    def _spool_full_response(
        self, session: RouterSession, head: SendHead, buffer: bytearray, end: int, now: float
    ) -> bool:
        """The spool is at its limit: hold the frame or refuse it, as `spool.when_full` configures."""
        if self.limits.refuse_when_full:
            return self._refuse(session, head, buffer, end, Code.BUSY, "the spool is full")
        return self._hold(session, HoldReason.SPOOL, head.topic, now)

    def _topic_refusal(self, topic: str) -> tuple[Code, str] | None:
        """The refusal for a topic that live brokers rejected, or None."""
        invalid = self._topics.invalid(topic)
        if invalid is not None:
            return Code.BAD_TOPIC, invalid
        error = self._topics.error(topic)
        return None if error is None else (Code.UNKNOWN_TOPIC, error)

    def _route(self, topic: str) -> Route | None:
        route = self._routing.find(topic)
        if route is None:
            facts = self._topics.facts(topic)
            return None if facts is None else self._routing.update_topic(facts)
        if route.idle:
            # The leaders of an idle topic are no longer refreshed; the frame need not wait for them.
            self._topics.want(topic)
            route.idle = False
        return route

    def _scatter(self, route: Route, head: SendHead, buffer: bytearray, start: int, end: int) -> ScatteredFrame:
        return kernel.scatter(
            buffer,
            start,
            end,
            head.position,
            partition_count=route.partition_count,
            sticky=route.sticky.partition,
            ignore_keys=self.limits.ignore_keys,
            now_ms=self.clock.wall_ms,
            header_count_max=self.limits.header_count_max,
            record_bytes_max=route.record_bytes_max,
            reserved_headers=_RESERVED_HEADERS,
            want_partitions=head.level == Level.DELIVERED,
        )

    def _accept_frame(
        self, session: RouterSession, route: Route, head: SendHead, scattered: ScatteredFrame, nbytes: int
    ) -> None:
        """Stage a client's frame, then update the client state, the counters and the responses."""
        client = session.client
        client_id, previous = (None, -1) if client is None else (client.client_id, client.high)
        sender = FrameIdentity(client_id, session.peer.uid, head.seq, previous, head.level)
        frame = self._staging.stage(route, scattered, sender, nbytes, session.unflushed, self.clock)
        if client is not None:
            self._client_states.accept(client, frame, sender.previous)
        self.counts.accepted += scattered.count
        self.counts.accepted_frames += 1
        self.counts.accepted_bytes += scattered.record_bytes
        self._responses.track(session, frame, now_ms=self.clock.mono_ms)
        if scattered.keyless:
            # For a mixed frame, estimate in proportion: bytes of keyed records do not count (BIP-6).
            route.count_keyless(scattered.record_bytes * scattered.keyless // scattered.count)

    def _answer_resend(self, session: RouterSession, head: SendHead, verdict: SequenceCheck, records: int) -> bool:
        """Answer a known sequence from recorded state; never accept it twice (SES-3)."""
        match verdict.state:
            case SequenceState.PENDING:
                assert verdict.frame is not None, "a pending sequence has a frame"
                self.counts.resent += verdict.frame.count
                if head.seq not in session.unanswered:
                    self._responses.track(session, verdict.frame, now_ms=self.clock.mono_ms)
            case SequenceState.DELIVERED:
                self.counts.resent += records
                self._responses.ack_completed(session, Ack(head.seq, head.level))
            case SequenceState.PARKED:
                self.counts.resent += records
                refused = sum(entry.count for entry in verdict.refused)
                level = None if refused >= records else head.level
                self._responses.ack_completed(session, Ack(head.seq, level, refused=verdict.refused))
            case SequenceState.REFUSED_BEFORE:
                text = "the frame was refused when it first came; send its records under a new sequence"
                self._responses.refuse(session, head.seq, Code.REFUSED_BEFORE, text, records=records)
            case SequenceState.GAP_LIMIT:
                self.end_session(
                    session, Code.LIMIT, "too many sequences were left out: greet again with unanswered_from"
                )
                return False
            case SequenceState.NEW:
                raise AssertionError("a new sequence is taken, not answered")
            case _:
                assert_never(verdict.state)
        self._release(session)
        return True

    # --- holding and refusing ----------------------------------------------------------------------------------------

    def _await_topic(self, session: RouterSession, seq: int, topic: str, records: int, now: float) -> bool:
        """Hold the message until brokers answer for the topic, for `max_block_s` at most."""
        self._topics.want(topic)
        hold = session.hold
        if hold is not None and hold.reason is HoldReason.TOPIC and now >= hold.since + self.limits.max_block_s:
            self._release(session)
            why = self._topics.problem(topic) or "no broker said anything of it"
            text = f"topic {topic} is not known after {self.limits.max_block_s:g} s: {why}"
            self._refuse_records(session, seq, topic, Code.NO_METADATA, text, records)
            return True
        return self._hold(session, HoldReason.TOPIC, topic, now)

    def _hold(self, session: RouterSession, why: HoldReason, topic: str, now: float) -> bool:
        if session.hold is None or session.hold.reason is not why:
            session.hold = self.held[session] = HeldMessage(why, now, topic)
        return False

    def _release(self, session: RouterSession) -> None:
        if session.hold is not None:
            session.hold = None
            del self.held[session]

    def _refuse(
        self, session: RouterSession, head: SendHead, buffer: bytearray, end: int, code: Code, text: str
    ) -> bool:
        self._release(session)
        records = frame_records(buffer, head.position, end)
        self._refuse_records(session, head.seq, head.topic, code, text, records)
        return True

    def _refuse_records(
        self, session: RouterSession, seq: int, topic: str, code: Code, text: str, records: int
    ) -> None:
        self._responses.refuse(session, seq, code, text, records=records)
        if self._audit_counts is not None and records:
            self._audit_counts.count_refused(topic, code.value, records)

    def _detach(self, session: RouterSession) -> None:
        """Unlink the session from its client id and release its held message."""
        self._release(session)
        client = session.client
        if client is not None and self._by_client.get(client.client_id) is session:
            del self._by_client[client.client_id]
            self._client_states.disconnect(client, now_ms=self.clock.mono_ms)
