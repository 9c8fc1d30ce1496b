"""Pushes metrics to the brokers that subscribe to them (KIP-714), on a separate connection that delays no record.

`producer/telemetry/subscription.py` decides when to send what. Without a subscription there is no connection.
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
"""Most of the close timeout that the last push may use."""
_ANSWER_BYTES_MAX: Final = 1 << 18
"""Enough for thousands of metric names; a larger answer would only delay the thread that sends records."""
_MODULE: Final = "opentelemetry.proto"
_NS: Final = 1_000_000

TelemetryRequest = GetTelemetrySubscriptions | PushTelemetry


def is_otlp_installed() -> bool:
    """Whether metrics can be encoded. Imports nothing yet, because most brokers never subscribe."""
    return importlib.util.find_spec("opentelemetry") is not None and importlib.util.find_spec(_MODULE) is not None


class ClientInstanceId:
    """The client instance id that the brokers assigned to this producer. Callers can wait for it."""

    def __init__(self) -> None:
        self._decided: Final = threading.Event()
        self._id: uuid.UUID | None = None

    def set(self, found: uuid.UUID | None) -> None:
        """Set the id and wake the waiters. None: there will be no id."""
        self._id = self._id or found
        self._decided.set()

    def wait(self, timeout_s: float | None) -> uuid.UUID | None:
        """Wait for the id. Returns None on timeout, or if there will be no id."""
        _ = self._decided.wait(timeout_s)
        return self._id


class TelemetryPusher:
    """One producer's telemetry. It runs on the sender thread, which calls `tick` in every round."""

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
        """Totals that the next delta push counts from."""
        self._reported_before: ReportedTotals | None = None
        """Restored to `_reported` if the broker refuses the push."""
        self._finish_at: float | None = None
        """Deadline of the last push; None until `finish`."""
        self._offered: bool | None = None
        """Whether the broker last used for metadata supports telemetry; None before the first such broker."""
        if not settings.enable_metrics_push:
            self._stop()

    # --- rounds ------------------------------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Connect and send what is due."""
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
        """When to call `tick` next."""
        connection = self._connection
        due = self._exchange.next_deadline()
        if connection is None:
            # An overdue request waits for a known broker; learning of one wakes the loop anyway.
            due = due if due is not None and (due > now or self._target() is not None) else None
        elif not connection.can_send(now):
            due = connection.next_deadline()
        else:
            due = min((at for at in (due, connection.next_deadline()) if at is not None), default=None)
        return due if self._finish_at is None else min(self._finish_at, self._finish_at if due is None else due)

    def finish(self, deadline: float, now: float) -> bool:
        """Push a last time, once all records are complete. Returns True when that push has ended or its time is up."""
        if self._finish_at is None:
            self._finish_at = min(deadline, now + LAST_PUSH_S)
            self._exchange.terminate()
            self.tick(now)
        if now >= self._finish_at:
            self._stop()
        return self._exchange.state is ClientTelemetryState.TERMINATED

    @property
    def in_flight(self) -> int:
        """Number of unanswered requests. Any thread may read it."""
        connection = self._connection
        return 0 if connection is None else connection.in_flight

    def close(self) -> None:
        """Close the connection and wake the threads that wait for an id."""
        self._close_connection()
        self._resolver.close()
        self._instance.set(None)

    # --- the connection ----------------------------------------------------------------------------------------------

    def connection_ready(self, connection: KafkaConnection[TelemetryRequest]) -> None:
        """Do nothing: the next round sends."""

    def connection_lost(
        self,
        connection: KafkaConnection[TelemetryRequest],
        tags: list[TelemetryRequest],
        reason: str,  # noqa: ARG002
    ) -> None:
        """Drop the connection; the next attempt may use another node. Losing an idle connection is not a failure."""
        if connection is self._connection:
            self._close_connection()
            if tags or connection.incarnation == 0:
                self._exchange.failed(self._clock(), self._rng())

    def connection_answered(
        self, connection: KafkaConnection[TelemetryRequest], tag: TelemetryRequest, answer: ResponseOrBytes
    ) -> None:
        """Handle an answer. Both kinds of requests are sent as raw bytes, and their answers are raw bytes."""
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
                        # The broker took nothing: the next push includes these increments.
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
        """The broker to connect to: the one used for metadata, or else any."""
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
        """Stop pushing, and log the reason."""
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
            # Load protobuf only if brokers subscribe.
            from .otlp import ExportTime, encode  # noqa: PLC0415
        except Exception as error:  # noqa: BLE001  (third-party code: protobuf raises errors of its own)
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
