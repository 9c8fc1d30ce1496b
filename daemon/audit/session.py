"""The router's own session: publishes audit records, as ordinary frames, through the spool into the audit topic.

At most one round waits for Kafka at a time (AUD-6). Audit records are totals, so during an outage another round would
add nothing that a later one does not have, and would only fill the spool. Client frames never wait for audit records.
"""

import math
import socket
from collections.abc import Callable
from enum import Enum, auto
from typing import Final, NamedTuple, cast

import msgpack

from ...config.model import AuditSettings
from ...producer.kernel.frames import murmur2
from ...runtime import logs
from ...wire.audit_records import MINUTE_MS, AuditRecord
from ...wire.frames import Level, Type
from ...wire.record_ids import incarnation_text
from ..ledger.audit_counts import AuditCounts
from ..metadata.topics import TopicMetadata
from ..sessions.intake import FrameIntake
from ..sessions.routing import Route
from ..spool.frame_store import SpoolFrameStore
from .publication import AuditPublication, Draft

LOOK_AGAIN_S: Final = 10.0
"""How often a missing topic is looked up again."""
_MINUTES_MAX: Final = 64
_FRAME_BYTES: Final = 32 << 10
"""Approximate frame size. A router round publishes one frame, so clients do not wait for a long audit round."""
_RECORD_OVERHEAD_BYTES: Final = 64
_FRAME_OVERHEAD_BYTES: Final = 4 << 10
"""Maximum spool bytes of a frame beyond its message."""
_REFUSAL_BYTES: Final = 1 << 10
"""Maximum spool bytes of an entry with refusals."""


class AuditState(Enum):
    """State of the publication."""

    WAITING = "waiting"
    """The topic is still unknown."""
    MISSING = "missing"
    """Brokers do not know the topic, or do not authorize us to describe it."""
    PUBLISHING = "publishing"
    """Audit records are published."""
    CLOSED = "closed"
    """Everything was delivered, and the last heartbeat states it."""


class _Closing(Enum):
    """Progress of the closing round."""

    NOT_YET = auto()
    WAITING_FOR_BROKER = auto()
    """Waiting until a broker is reachable."""
    PUBLISHING = auto()
    GIVEN_UP = auto()


class AuditPorts(NamedTuple):
    """The parts of the router that the session uses."""

    intake: FrameIntake
    store: SpoolFrameStore
    topics: TopicMetadata


class AuditSession:
    """Owner of the rounds. `now` is CLOCK_MONOTONIC seconds, `wall_ms` ms since 1970."""

    def __init__(self, settings: AuditSettings, books: AuditCounts, rooms: AuditPorts, *, starts: int) -> None:
        """`starts`: number of router starts on this spool, this one included."""
        self._settings = settings
        self._stop_wait_s = settings.stop_wait_ms / 1_000
        self._audit_counts = books
        self._intake, self._store, self._topics = rooms
        self._publication = AuditPublication(
            books, host=socket.gethostname(), starts=starts, interval_s=settings.interval_s
        )
        self._topic_retry_at = 0.0
        self._closing = _Closing.NOT_YET
        self._closing_until = math.inf
        self._dropped_logged = 0
        self._eras_logged = books.era
        self._log = logs.get()
        self.state = AuditState.WAITING
        self.last_error: str | None = None
        """Why the topic cannot be written to, as text."""
        self.rounds = 0
        self.records_too_large = 0
        self.rounds_spool_full = 0
        self.last_published_at: float | None = None
        """When the last round ended."""

    @property
    def audit_counts(self) -> AuditCounts:
        return self._audit_counts

    def unsettled_s(self) -> int:
        """Seconds of accept time from the oldest minute with pending records to the current one; 0: none pending."""
        books = self._audit_counts
        pending = [key.minute for key, minute in books.minutes.items() if minute not in books.settled]
        return max(books.minute - min(pending, default=books.minute), 0) * MINUTE_MS // 1_000

    def tick(self, now: float, wall_ms: int) -> None:
        """Publish the next frame when one is due. Call it regularly, before the log is written."""
        self._set_clock(now, wall_ms)
        if self._closing is not _Closing.NOT_YET:
            return
        if self._publication.in_round:
            self._publish_frame(now, wall_ms)
        elif now >= self._publication.due_at():
            route = self._route(now)
            if route is not None and not self._pending(route):
                self._publication.begin(now)
                self._publish_frame(now, wall_ms)

    def next_deadline(self, now: float) -> float | None:
        """When `tick` or `publish_closing` has work that no event announces."""
        telling = self._closing in (_Closing.NOT_YET, _Closing.PUBLISHING)
        if telling and (
            self._publication.in_round or (self._closing is _Closing.PUBLISHING and self.last_published_at == now)
        ):
            # Closing records are drafted after the round's write.
            return now
        due = self._closing_until
        if self._closing is _Closing.NOT_YET:
            due = max(self._publication.due_at(), self._topic_retry_at)
        # After that time the missing topic or broker announces itself as an event.
        return due if due > now else None

    def publish_closing(self, now: float, wall_ms: int, reachable_since: Callable[[float], bool | None]) -> bool:
        """During shutdown, publish the closing records once all client records are delivered. Returns True while that
        is worth waiting for. `reachable_since`: whether brokers have responded since a given time; None: unknown."""
        if self._closing is _Closing.NOT_YET:
            self._set_clock(now, wall_ms)
            self._closing = _Closing.WAITING_FOR_BROKER
            self._closing_until = now + self._stop_wait_s
        if self._closing is _Closing.WAITING_FOR_BROKER and now < self._closing_until:
            self._begin_closing(now, reachable_since(self._closing_until - self._stop_wait_s))
        if self._closing is _Closing.GIVEN_UP or now >= self._closing_until:
            return False
        if self._closing is _Closing.WAITING_FOR_BROKER:
            return True
        if self._publication.in_round:
            self._publish_frame(now, wall_ms)
            return self._closing is _Closing.PUBLISHING
        if self.state is not AuditState.CLOSED:
            route = self._route(now)
            if route is None or self._pending(route):
                # Only the current audit topic is checked: records in a former audit topic may wait forever.
                return route is not None
            self.state = AuditState.CLOSED
            self._log.info("audit_closed", incarnation=incarnation_text(self._audit_counts.incarnation))
        return False

    def _begin_closing(self, now: float, reachable: bool | None) -> None:
        """Start the closing round or give up. Without a connection, wait for the next attempt: brokers may return."""
        route = self._route(now)
        if route is None or reachable is False:
            self._closing = _Closing.GIVEN_UP
        elif reachable:
            began = self._publication.begin_closing(now)
            self._closing = _Closing.PUBLISHING if began else _Closing.GIVEN_UP

    # --- rounds ------------------------------------------------------------------------------------------------------

    def _publish_frame(self, now: float, wall_ms: int) -> None:
        """Publish one frame of the current round."""
        route = self._route(now)
        draft = self._publication.draft(sent_ms=wall_ms, minutes_max=_MINUTES_MAX, bytes_max=_FRAME_BYTES)
        if route is None or not self._spool_draft(draft, route):
            self.rounds_spool_full += route is not None
            if self._closing is _Closing.PUBLISHING:
                self._closing = _Closing.GIVEN_UP
            self._publication.not_spooled(draft)
            return
        self._publication.spooled(draft)
        if draft.is_last:
            self.rounds += 1
            self.last_published_at = now

    def _spool_draft(self, draft: Draft, route: Route) -> bool:
        """Append a draft: first refusals, which no other entry records, then its records. False: the spool is full."""
        pairs = [pair for record in draft.records if (pair := self._encoded(record, route)) is not None]
        if not pairs:
            return True
        keys, values = [key for key, _ in pairs], [value for _, value in pairs]
        # The sequence number is not used.
        fields = [Type.SEND, 0, Level.ACCEPTED, route.topic, self._partition(route), keys, values, None, None]
        message = cast("bytes", msgpack.packb(fields))
        if not self._store.has_room(len(message) + _FRAME_OVERHEAD_BYTES + _REFUSAL_BYTES * len(draft.refusals)):
            # Control entries are accepted even in a full spool, and refusals may keep arriving while it is full.
            return False
        for entry in draft.refusals:
            _ = self._store.append(entry)
        return self._intake.append_own(route, bytearray(message), flush=draft.is_last)

    def _encoded(self, record: AuditRecord, route: Route) -> tuple[bytes, bytes] | None:
        """Return the encoded record, or None (not published) if it exceeds the topic's maximum record size."""
        key, value = record.key(), record.encode()
        nbytes = len(key) + len(value) + _RECORD_OVERHEAD_BYTES
        if nbytes <= route.record_bytes_max:
            return key, value
        self.records_too_large += 1
        self._log.warning("audit_record_too_large", key=key.decode(), bytes=nbytes, bytes_max=route.record_bytes_max)
        return None

    # --- the topic ---------------------------------------------------------------------------------------------------

    def _route(self, now: float) -> Route | None:
        """The route of the audit topic; None while it is unknown."""
        if self.state is AuditState.MISSING and now < self._topic_retry_at:
            return None
        topic = self._settings.topic
        route = self._intake.own_route(topic)
        if route is not None:
            if self.state is not AuditState.PUBLISHING:
                self._log.info("audit_publishing", topic=topic, partitions=route.partition_count)
            self.state, self.last_error = AuditState.PUBLISHING, None
            return route
        trouble = self._topics.error(topic) or self._topics.invalid(topic) or self._topics.forbidden(topic)
        if trouble is not None:
            if self.state is not AuditState.MISSING:
                self._log.warning("audit_topic_missing", topic=topic, reason=trouble)
            self.state, self.last_error = AuditState.MISSING, trouble
            # Do not request it with every metadata refresh.
            self._topics.forget(topic)
            self._topic_retry_at = now + LOOK_AGAIN_S
        return None

    def _partition(self, route: Route) -> int:
        """The partition of this incarnation: all its records go to one partition, in order."""
        return murmur2(incarnation_text(self._audit_counts.incarnation).encode()) % route.partition_count

    def _pending(self, route: Route) -> int:
        return route.states[self._partition(route)].pending

    def _set_clock(self, now: float, wall_ms: int) -> None:
        self._intake.set_clock(now, wall_ms)
        accepting = self._intake.accept_clock
        self._audit_counts.advance_to(accepting.read(wall_ms), accepting.steps_back)
        if self._audit_counts.era > self._eras_logged:
            self._log.warning("clock_set_back", era=self._audit_counts.era)
        self._eras_logged = self._audit_counts.era
        if self._audit_counts.dropped_minutes > self._dropped_logged:
            if not self._dropped_logged:
                self._log.warning("audit_minutes_dropped", minutes=self._audit_counts.dropped_minutes)
            self._dropped_logged = self._audit_counts.dropped_minutes
