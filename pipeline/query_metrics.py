"""The metrics of running queries: declared once, stored for Prometheus, sent to StatsD."""

import contextlib
import socket
from collections.abc import Callable, Mapping
from typing import Final
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, Counter, Gauge, disable_created_metrics, start_http_server

from ..config.bootstrap import parse_bootstrap
from ..runtime import logs
from ..runtime.metrics import DaemonMetric
from .land.lag_group import LagCommitOutcome, LagGroup
from .query_progress import QueryEvent, QueryIdle, QueryProgressed, QueryStarted, QueryTerminated

METRICS: Final[tuple[DaemonMetric, ...]] = (
    DaemonMetric("penstock_pipeline_query_up", "gauge", ("query",), "1 while the query runs."),
    DaemonMetric("penstock_pipeline_batch_id", "gauge", ("query",), "Number of the last batch."),
    DaemonMetric("penstock_pipeline_batches", "counter", ("query",), "Batches that have run."),
    DaemonMetric("penstock_pipeline_input_rows", "counter", ("query",), "Records read from Kafka."),
    DaemonMetric(
        "penstock_pipeline_input_rows_per_second",
        "gauge",
        ("query",),
        "Rate at which records arrived, in the last batch.",
    ),
    DaemonMetric(
        "penstock_pipeline_processed_rows_per_second",
        "gauge",
        ("query",),
        "Rate at which records were processed, in the last batch.",
    ),
    DaemonMetric(
        "penstock_pipeline_step_seconds",
        "gauge",
        ("query", "step"),
        "Time of each step of the last batch, by Spark's name (`durationMs`); `triggerExecution` is the whole batch.",
    ),
    DaemonMetric(
        "penstock_pipeline_offsets_behind_latest",
        "gauge",
        ("query", "of"),
        "Offsets between the read position and the end of a partition: `min`, `avg` and `max` over the partitions.",
    ),
    DaemonMetric(
        "penstock_pipeline_observed",
        "counter",
        ("query", "what"),
        "Rows that the job counted while it wrote: all rows, bad rows, rows without a record id.",
    ),
    DaemonMetric("penstock_pipeline_idle_seconds", "gauge", ("query",), "Time since the last batch that had records."),
    DaemonMetric(
        "penstock_pipeline_query_failures", "counter", ("query", "error"), "Queries that ended with an exception."
    ),
    DaemonMetric(
        "penstock_pipeline_lag_commits",
        "counter",
        ("outcome",),
        "Commits to the lag group: `committed`, `refused` (does the group have a member?), `unreachable`.",
    ),
    DaemonMetric(
        "penstock_pipeline_events_dropped", "counter", (), "Events dropped because the listener's queue was full."
    ),
)
"""The metrics at `land`'s `/metrics`."""

_DECLARED: Final = {metric.name: metric for metric in METRICS}


class QueryMetrics:
    """The metric values. One thread writes them; any thread may read them through the registry."""

    def __init__(self) -> None:
        # Leave out the creation times of counters.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry: Final = CollectorRegistry()
        self._instruments: Final[Mapping[str, Counter | Gauge]] = {
            metric.name: (Counter if metric.kind == "counter" else Gauge)(
                metric.name, metric.text, metric.labels, registry=self.registry
            )
            for metric in METRICS
        }

    def add(self, name: str, amount: float, **labels: str) -> None:
        assert _DECLARED[name].kind == "counter"
        kept = self._instruments[name]
        (kept.labels(**labels) if labels else kept).inc(amount)

    def put(self, name: str, value: float, **labels: str) -> None:
        kept = self._instruments[name]
        assert isinstance(kept, Gauge)
        (kept.labels(**labels) if labels else kept).set(value)


class PrometheusSink:
    """Updates the metrics, and serves them at `/metrics` if `listen` is given."""

    def __init__(self, book: QueryMetrics, *, now: Callable[[], float], listen: str = "") -> None:
        self._metrics = book
        self._now = now
        self._last_records_at: dict[str, float] = {}
        self._dropped = 0
        self._server: WSGIServer | None = None
        if listen:
            [(host, port)] = parse_bootstrap(listen)
            self._server, _ = start_http_server(port, addr=host, registry=book.registry)

    @property
    def port(self) -> int:
        """Port of `/metrics`; 0: there is none."""
        return 0 if self._server is None else self._server.server_port

    def on_event(self, event: QueryEvent) -> None:
        match event:
            case QueryStarted(query):
                self._last_records_at[query] = self._now()
                self._metrics.put("penstock_pipeline_query_up", 1, query=query)
            case QueryProgressed():
                self._progressed(event)
            case QueryIdle(query):
                self._idle(query)
            case QueryTerminated(query, error):
                self._metrics.put("penstock_pipeline_query_up", 0, query=query)
                if error:
                    self._metrics.add("penstock_pipeline_query_failures", 1, query=query, error=error)

    def _progressed(self, event: QueryProgressed) -> None:
        book, query = self._metrics, event.query
        book.put("penstock_pipeline_batch_id", event.batch, query=query)
        book.put("penstock_pipeline_input_rows_per_second", event.input_rows_per_second, query=query)
        book.put("penstock_pipeline_processed_rows_per_second", event.processed_rows_per_second, query=query)
        for of, value in event.offsets_behind.items():
            book.put("penstock_pipeline_offsets_behind_latest", value, query=query, of=of)
        if event.executed:
            book.add("penstock_pipeline_batches", 1, query=query)
            book.add("penstock_pipeline_input_rows", event.input_rows, query=query)
            for step, milliseconds in event.durations_ms.items():
                book.put("penstock_pipeline_step_seconds", milliseconds / 1_000, query=query, step=step)
            for what, value in event.observed.items():
                book.add("penstock_pipeline_observed", value, query=query, what=what)
        if event.input_rows:
            self._last_records_at[query] = self._now()
        self._idle(query)

    def _idle(self, query: str) -> None:
        since = self._last_records_at.setdefault(query, self._now())
        self._metrics.put("penstock_pipeline_idle_seconds", self._now() - since, query=query)

    def on_dropped(self, events: int) -> None:
        if events > self._dropped:
            self._metrics.add("penstock_pipeline_events_dropped", events - self._dropped)
            self._dropped = events

    def close(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()


class StatsdSink:
    """Sends the same metrics to a StatsD server, one datagram per event, without acknowledgement. Labels become parts
    of the name, as Graphite's StatsD expects."""

    def __init__(self, address: str) -> None:
        [self._to] = parse_bootstrap(address)
        family, kind, _, _, place = socket.getaddrinfo(*self._to, type=socket.SOCK_DGRAM)[0]
        self._socket = socket.socket(family, kind)
        self._socket.setblocking(False)
        self._socket.connect(place)
        self._dropped = 0

    def on_event(self, event: QueryEvent) -> None:
        match event:
            case QueryProgressed() if event.executed:
                lines = [f"batch:{event.batch}|g", "batches:1|c", f"input_rows:{event.input_rows}|c"]
                lines += [f"input_rows_per_second:{event.input_rows_per_second:.3f}|g"]
                lines += [f"processed_rows_per_second:{event.processed_rows_per_second:.3f}|g"]
                lines += [f"step.{step}:{milliseconds}|ms" for step, milliseconds in event.durations_ms.items()]
                lines += [f"offsets_behind_latest.{of}:{value:.0f}|g" for of, value in event.offsets_behind.items()]
                lines += [f"observed.{_statsd_name(what)}:{value}|c" for what, value in event.observed.items()]
                self._send(event.query, lines)
            case QueryStarted(query):
                self._send(query, ["query_up:1|g"])
            case QueryTerminated(query, error):
                self._send(query, ["query_up:0|g", *([f"query_failures.{_statsd_name(error)}:1|c"] if error else [])])
            case _:
                pass

    def _send(self, query: str, lines: list[str]) -> None:
        text = "\n".join(f"penstock.pipeline.{_statsd_name(query)}.{line}" for line in lines)
        # No server, or a full buffer: metrics are not worth waiting for.
        with contextlib.suppress(OSError):
            _ = self._socket.send(text.encode())

    def on_dropped(self, events: int) -> None:
        if events > self._dropped:
            self._send("listener", [f"events_dropped:{events - self._dropped}|c"])
            self._dropped = events

    def close(self) -> None:
        self._socket.close()


def _statsd_name(text: str) -> str:
    """One part of a StatsD name, in which dots, colons, bars and blanks have a meaning."""
    return "".join(letter if letter.isalnum() or letter in "_-" else "_" for letter in text)


class LagGroupSink:
    """Commits the offsets of queries to the lag group."""

    def __init__(self, group: LagGroup, book: QueryMetrics) -> None:
        self._group = group
        self._metrics = book
        self._last: LagCommitOutcome = "committed"

    def on_event(self, event: QueryEvent) -> None:
        if not isinstance(event, QueryProgressed) or not event.executed or not event.next_offsets:
            return
        outcome, reason = self._group.commit(event.next_offsets)
        self._metrics.add("penstock_pipeline_lag_commits", 1, outcome=outcome)
        if outcome != self._last:
            # Log only changes, not every batch.
            log = logs.get()
            if outcome == "committed":
                _ = log.info("lag_commit_recovered", group=self._group.group)
            else:
                _ = log.warning("lag_commit_failed", group=self._group.group, outcome=outcome, reason=reason)
        self._last = outcome

    def on_dropped(self, events: int) -> None:
        """Nothing to do: the next batch's offsets are complete."""

    def close(self) -> None:
        self._group.close()
