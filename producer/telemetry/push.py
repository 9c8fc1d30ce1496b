"""Tells brokers the metrics that they ask for (KIP-714), on a connection of its own: nothing here holds a record up.

When what is sent is decided in `producer/telemetry/subscription.py`. Where the brokers ask for nothing, no connection is made.
"""

import importlib.util
import threading
import uuid
from collections.abc import Callable
from typing import Final

from ...config.direct import DirectSettings
from ...runtime import logs
from ...runtime.clock import wall_ms
from ...runtime.loop import Loop
from ..metadata.client import Metadata
from ..metadata.refresh import BrokerTarget
from ..network.connection import KafkaConnection
from ..network.resolver import Resolver
from ..network.socket_options import ConnectionOptions
from ..network.traffic import TrafficWatch
from ..protocol.framing import StreamError
from ..protocol.responses import ResponseOrBytes
from ..records.compression import ATTRIBUTES, Levels, make_compressor
from .push_messages import (
    PUSH_KEY,
    SUBSCRIPTIONS_KEY,
    VERSION,
    frame_push,
    frame_subscriptions,
    read_push,
    read_subscriptions,
)
from .sensors import MetricValue
from .subscription import (
    ClientTelemetryState,
    GetTelemetrySubscriptions,
    PushTelemetry,
    ReportedTotals,
    TelemetryExchange,
    metric_selector,
)

LAST_PUSH_S: Final = 5.0
"""What a close gives the last push at most, of its own time."""
_ANSWER_BYTES_MAX: Final = 1 << 18
"""Thousands of names of metrics; more would only hold up the thread that sends records."""
_MODULE: Final = "opentelemetry.proto"
_NS: Final = 1_000_000

TelemetryRequest = GetTelemetrySubscriptions | PushTelemetry


def is_otlp_installed() -> bool:
    """Whether what is pushed can be encoded. Nothing is imported yet: most brokers never ask."""
    return importlib.util.find_spec("opentelemetry") is not None and importlib.util.find_spec(_MODULE) is not None


class ClientInstanceId:
    """The id that the brokers gave this producer, for who waits for it."""

    def __init__(self) -> None:
        self._decided: Final = threading.Event()
        self._id: uuid.UUID | None = None

    def set(self, found: uuid.UUID | None) -> None:
        """It is known; None: it will not be."""
        self._id = self._id or found
        self._decided.set()

    def wait(self, timeout_s: float | None) -> uuid.UUID | None:
        """The id; None: not in that time, or never."""
        _ = self._decided.wait(timeout_s)
        return self._id


class TelemetryPusher:
    """One producer's telemetry. Lives on the sender thread, which calls `tick` in every round."""

    def __init__(
        self,
        loop: Loop,
        settings: DirectSettings,
        metadata: Metadata,
        figures: Callable[[float], list[MetricValue]],
        instance: ClientInstanceId,
        *,
        options: ConnectionOptions,
        watch: TrafficWatch,
        rng: Callable[[], float],
        resolver: Resolver | None = None,
        can_encode: Callable[[], bool] = is_otlp_installed,
    ) -> None:
        self._loop: Final = loop
        self._resolver: Final = Resolver(loop) if resolver is None else resolver
        self._settings: Final = settings
        self._metadata: Final = metadata
        self._figures: Final = figures
        self._instance: Final = instance
        limits = options.limits._replace(answer_bytes_max=_ANSWER_BYTES_MAX)
        self._options: Final = options._replace(limits=limits)
        self._watch: Final = watch
        self._rng: Final = rng
        self._clock: Final = options.system.now
        self._can_encode: Final = can_encode
        self._log: Final = logs.get()
        self._exchange: Final = TelemetryExchange(now=self._clock())
        self._connection: KafkaConnection[TelemetryRequest] | None = None
        self._reported: ReportedTotals | None = None
        self._reported_before: ReportedTotals | None = None
        self._finish_at: float | None = None
        self._offered: bool | None = None
        """What the last broker that was asked for metadata takes; None: none was yet."""
        if not settings.enable_metrics_push:
            self._stop()

    # --- rounds ------------------------------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Connect and send, as far as it is due."""
        if self._exchange.state is ClientTelemetryState.TERMINATED:
            self._close_connection()
            return
        if self._connection is None and self._exchange.is_due(now):
            self._connect(now)
        connection = self._connection
        if connection is None:
            return
        connection.tick(now)
        if connection is self._connection and connection.can_send(now):
            self._send(connection, now)

    def next_deadline(self, now: float) -> float | None:
        """When `tick` wants to be called."""
        connection = self._connection
        due = self._exchange.next_deadline()
        if connection is None:
            # What is due already waits for brokers to be known, which is an event of its own.
            due = due if due is not None and (due > now or self._target() is not None) else None
        elif not connection.can_send(now):
            due = connection.next_deadline()
        else:
            due = min((at for at in (due, connection.next_deadline()) if at is not None), default=None)
        return due if self._finish_at is None else min(self._finish_at, self._finish_at if due is None else due)

    def finish(self, deadline: float, now: float) -> bool:
        """All records are at their end: push a last time. True: that is over, or its time is."""
        if self._finish_at is None:
            self._finish_at = min(deadline, now + LAST_PUSH_S)
            self._exchange.terminate()
            self.tick(now)
        if now >= self._finish_at:
            self._stop()
        return self._exchange.state is ClientTelemetryState.TERMINATED

    @property
    def in_flight(self) -> int:
        """Requests without an answer; any thread may ask."""
        connection = self._connection
        return 0 if connection is None else connection.in_flight

    def close(self) -> None:
        """Close the connection; nobody waits for an id any more."""
        self._close_connection()
        self._resolver.close()
        self._instance.set(None)

    # --- the connection ----------------------------------------------------------------------------------------------

    def connection_ready(self, connection: KafkaConnection[TelemetryRequest]) -> None:
        """The next round sends."""

    def connection_lost(
        self,
        connection: KafkaConnection[TelemetryRequest],
        tags: list[TelemetryRequest],
        reason: str,  # noqa: ARG002
    ) -> None:
        """Another node may do as well. A connection that was only unused is no failure."""
        if connection is self._connection:
            self._close_connection()
            if tags or connection.incarnation == 0:
                self._exchange.failed(self._clock(), self._rng())

    def connection_answered(
        self, connection: KafkaConnection[TelemetryRequest], tag: TelemetryRequest, answer: ResponseOrBytes
    ) -> None:
        """Both kinds of requests are sent as bytes and answered so."""
        assert isinstance(answer, bytes), "telemetry is sent as bytes"
        now = self._clock()
        try:
            match tag:
                case GetTelemetrySubscriptions():
                    self._subscribed(connection, answer, now)
                case PushTelemetry():
                    throttle_ms, code = read_push(answer)
                    connection.throttle(PUSH_KEY, VERSION, throttle_ms, now)
                    if code:
                        # Nothing of it was taken: its increments are told with the next.
                        self._reported = self._reported_before
                    self._exchange.pushed(code, tag, now)
        except StreamError as error:
            connection.disconnect(str(error))
            self._exchange.failed(now, self._rng())
        if self._exchange.termination_reason:
            self._disable(self._exchange.termination_reason)

    def _subscribed(self, connection: KafkaConnection[TelemetryRequest], answer: bytes, now: float) -> None:
        throttle_ms, code, told = read_subscriptions(answer)
        connection.throttle(SUBSCRIPTIONS_KEY, VERSION, throttle_ms, now)
        before = self._exchange.subscription
        self._exchange.subscribed(code, told, now, self._rng())
        subscription = self._exchange.subscription
        if subscription is None or subscription is before:
            return
        found = uuid.UUID(bytes=subscription.client_instance_id)
        self._instance.set(found)
        if before is None or before.delta_temporality != subscription.delta_temporality:
            self._reported = self._reported_before = None
        if before is None or before.subscription_id != subscription.subscription_id:
            self._log.info(
                "telemetry_subscribed",
                client_instance_id=str(found),
                interval_ms=subscription.push_interval_ms,
                metrics=",".join(subscription.requested_metrics),
            )

    def _target(self) -> BrokerTarget | None:
        """A broker to ask: the one that is asked for metadata, else any."""
        current = self._metadata.connected_to
        if current is not None:
            return current
        nodes = list(self._metadata.cluster.nodes.values())
        if not nodes:
            return None
        node = nodes[int(self._rng() * len(nodes))]
        return BrokerTarget(node.node, node.host, node.port)

    def _connect(self, now: float) -> None:
        told = self._metadata.offers(SUBSCRIPTIONS_KEY)
        self._offered = self._offered if told is None else told
        if self._offered is False:
            self._exchange.unsupported(now)
            return
        target = self._target()
        if target is None:
            return
        if not self._can_encode():
            self._disable("penstock[telemetry] is not installed")
            return
        self._connection = KafkaConnection(
            self._loop,
            self._resolver,
            target.host,
            target.port,
            options=self._options,
            owner=self,
            rng=self._rng,
            traffic=self._watch.traffic(target.node, now=now),
        )
        self._connection.connect()

    def _close_connection(self) -> None:
        if self._connection is not None:
            _ = self._connection.close()
            self._connection = None

    def _disable(self, reason: str) -> None:
        """Nothing is pushed any more."""
        self._log.warning("telemetry_disabled", reason=reason)
        self._exchange.termination_reason = ""
        self._stop()

    def _stop(self) -> None:
        self._exchange.stop()
        self._instance.set(None)

    # --- requests ----------------------------------------------------------------------------------------------------

    def _send(self, connection: KafkaConnection[TelemetryRequest], now: float) -> None:
        if not self._exchange.is_due(now):
            return
        if connection.version_of(SUBSCRIPTIONS_KEY, VERSION, VERSION) is None:
            self._close_connection()
            self._exchange.unsupported(now)
            return
        ask = self._exchange.next_request(now)
        match ask:
            case GetTelemetrySubscriptions():
                correlation_id = connection.next_correlation_id()
                framed = frame_subscriptions(correlation_id, self._settings.client_id, ask.client_instance_id)
                connection.send_raw([framed], len(framed), correlation_id, ask, now=now)
            case PushTelemetry():
                self._push(connection, ask, now)
            case None:
                pass

    def _push(self, connection: KafkaConnection[TelemetryRequest], push: PushTelemetry, now: float) -> None:
        try:
            # Protobuf is loaded where brokers ask for metrics, nowhere else.
            from .otlp import ExportTime, encode  # noqa: PLC0415
        except Exception as error:  # noqa: BLE001  (others' code: protobuf raises errors of its own where versions do not fit)
            self._disable(f"penstock[telemetry] is installed and cannot be loaded: {error}")
            return
        subscription = push.subscription
        since = (self._reported or ReportedTotals({}, 0)) if subscription.delta_temporality else None
        encoded = encode(
            self._figures(now),
            metric_selector(subscription.requested_metrics),
            self._attributes(),
            ExportTime(now, wall_ms() * _NS),
            since,
        )
        data = encoded.data
        compress = make_compressor(push.codec, Levels()).compress
        if compress is not None:
            data = compress(memoryview(data))
        if subscription.bytes_max > 0 and len(data) > subscription.bytes_max:
            self._log.warning("telemetry_push_too_large", nbytes=len(data), nbytes_max=subscription.bytes_max)
            self._exchange.push_skipped(now)
            return
        self._reported_before, self._reported = self._reported, encoded.reported
        correlation_id = connection.next_correlation_id()
        framed = frame_push(
            correlation_id,
            self._settings.client_id,
            subscription,
            terminating=push.terminating,
            codec=ATTRIBUTES[push.codec],
            metrics=data,
        )
        connection.send_raw([framed], len(framed), correlation_id, push, now=now)

    def _attributes(self) -> dict[str, str]:
        given = {"client_rack": self._settings.client_rack, "transactional_id": self._settings.transactional_id or ""}
        return {key: value for key, value in given.items() if value}
