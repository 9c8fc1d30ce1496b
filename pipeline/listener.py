"""Receives Spark's events about queries, and passes them to sinks: metrics, and the lag group.

Spark waits for each callback, so a callback only puts the event on a bounded queue. One thread handles the events. A
full queue drops its oldest event.
"""

import contextlib
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final, Protocol

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from ..runtime import logs
from .query_progress import QueryEvent, QueryIdle, QueryStarted, QueryTerminated, parse_progress


class QueryEventSink(Protocol):
    """Receives query events. Only the listener's thread calls it, and it may block that thread."""

    def on_event(self, event: QueryEvent) -> None:
        """Handle one event."""
        ...

    def on_dropped(self, events: int) -> None:
        """Report the total number of events dropped from the queue."""
        ...

    def close(self) -> None:
        """Release resources; no more events follow."""
        ...


class EventQueue:
    """Passes events from Spark's callbacks to the thread. It holds at most `limit` events; when full, the oldest is
    dropped."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._events: deque[QueryEvent] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._working = False
        self.dropped = 0

    def put(self, event: QueryEvent) -> None:
        """Add an event. Never waits for the thread's work."""
        with self._changed:
            if len(self._events) == self._limit:
                _ = self._events.popleft()
                self.dropped += 1
            self._events.append(event)
            self._changed.notify_all()

    def events(self) -> Iterator[QueryEvent]:
        """Yield events one by one, until the queue is closed and empty."""
        while True:
            with self._changed:
                self._working = False
                self._changed.notify_all()
                while not self._events and not self._closed:
                    _ = self._changed.wait()
                if not self._events:
                    return
                event = self._events.popleft()
                self._working = True
            yield event

    def close(self, *, seconds: float) -> None:
        """Close the queue: wait at most this long for it to drain, then drop the remaining events."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            _ = self._changed.wait_for(lambda: not self._events and not self._working, timeout=seconds)
            self.dropped += len(self._events)
            self._events.clear()


class PipelineQueryListener(StreamingQueryListener):
    def __init__(self, followers: Sequence[QueryEventSink], *, queue_max: int) -> None:
        super().__init__()
        self._sinks: Final = tuple(followers)
        self._queue: Final = EventQueue(queue_max)
        self._names: dict[str, str] = {}
        self._running: set[str] = set()
        self._ended = threading.Condition()
        self._thread = threading.Thread(target=self._dispatch_events, name="listener", daemon=True)
        self._thread.start()

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's name
        """A query started. Spark blocks in `start` until this returns."""
        run = str(event.runId)
        with self._ended:
            self._running.add(run)
        self._names[str(event.id)] = event.name or str(event.id)
        self._queue.put(QueryStarted(self._names[str(event.id)]))

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        self._queue.put(parse_progress(event.progress.json))

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        self._queue.put(QueryIdle(self._names.get(str(event.id), str(event.id))))

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """A query ended, with or without an error."""
        error = event.errorClassOnException or (_class_of(event.exception) if event.exception else "")
        self._queue.put(QueryTerminated(self._names.get(str(event.id), str(event.id)), error))
        with self._ended:
            self._running.discard(str(event.runId))
            self._ended.notify_all()

    def close(self, *, seconds: float) -> None:
        """Wait at most this many seconds each until the end of every started query was reported and until all events
        are handled; then end the thread and the sinks."""
        with self._ended:
            _ = self._ended.wait_for(lambda: not self._running, timeout=seconds)
        self._queue.close(seconds=seconds)
        # A sink that blocks keeps its thread, which ends with the process.
        self._thread.join(timeout=seconds)

    def _dispatch_events(self) -> None:
        for event in self._queue.events():
            for follower in self._sinks:
                follower.on_dropped(self._queue.dropped)
                try:
                    follower.on_event(event)
                except Exception as error:  # noqa: BLE001 - one failing sink must not end the thread for all
                    _ = logs.get().warning("query_event_sink_failed", sink=type(follower).__name__, error=str(error))
        for follower in self._sinks:
            with contextlib.suppress(OSError):
                follower.close()


def _class_of(text: str) -> str:
    """Return the class: the first word of an exception's text."""
    return text.split(":", 1)[0].split(maxsplit=1)[0].rsplit(".", 1)[-1] if text.strip() else "unknown"
