"""A producer's telemetry over a network whose every step the test takes, beside its real metadata client."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

from penstock.config.direct import direct_settings
from penstock.producer.network.socket_options import control_options
from penstock.producer.telemetry.metrics import ProducerMetrics
from penstock.producer.telemetry.push import ClientInstanceId, TelemetryPusher

from .fake_net import FakeNet, FakeSocket
from .metadata_net import MetadataNet
from .scripted_broker import RANGES, Asked

OFFERED = {**RANGES, 3: (0, 13), 71: (0, 0), 72: (0, 0)}
INSTANCE = b"0123456789abcdef"


def subscription(
    *prefixes: str,
    interval_ms: int = 1000,
    codecs: bytes = b"",
    code: int = 0,
    bytes_max: int = 1 << 20,
    delta: bool = True,
) -> bytes:
    """The body of an answer to GetTelemetrySubscriptions."""
    named = b"".join(bytes([len(prefix) + 1]) + prefix.encode() for prefix in prefixes)
    head = b"\0" + bytes(4) + code.to_bytes(2, "big") + INSTANCE + b"\0\0\0\7" + bytes([len(codecs) + 1]) + codecs
    limits = interval_ms.to_bytes(4, "big") + bytes_max.to_bytes(4, "big") + bytes([delta])
    return head + limits + bytes([len(prefixes) + 1]) + named + b"\0"


def pushed(code: int = 0, *, throttle_ms: int = 0) -> bytes:
    """The body of an answer to PushTelemetry."""
    return b"\0" + throttle_ms.to_bytes(4, "big") + code.to_bytes(2, "big") + b"\0"


class TelemetryNet:
    """`round` is a round of the loop. Metadata is asked of broker 1, over the first socket."""

    def __init__(self, net: FakeNet, *, offered: bool = True, installed: bool = True, **given: object) -> None:
        self.net = net
        self.instance = ClientInstanceId()
        settings = direct_settings({"bootstrap.servers": "boot:9092", "client.id": "me", **given})
        self.beside = MetadataNet(net)
        self.meters = ProducerMetrics(settings, None, now=net.now)
        self.pusher = TelemetryPusher(
            cast("Any", net.loop),
            settings,
            self.beside.metadata,
            self.meters.sensors.metric_values,
            self.instance,
            options=control_options(settings)._replace(system=net.system),
            watch=self.meters,
            rng=lambda: 0.0,
            resolver=cast("Any", net.names),
            can_encode=lambda: installed,
        )
        self.beside.metadata.want("a")
        self.beside.round()
        self.net.last.accept()
        _ = self.net.last.greet(OFFERED if offered else {**RANGES, 3: (0, 13)})
        self.beside.round()

    def round(self, seconds: float = 0.0) -> None:
        self.net.now += seconds
        self.pusher.tick(self.net.now)

    def greet(self) -> FakeSocket:
        """The broker that is tried accepts and greets."""
        self.net.last.accept()
        _ = self.net.last.greet(OFFERED)
        self.round()
        return self.net.last

    def answer(self, body: bytes) -> Asked:
        """The next request is answered so."""
        asked = self.net.last.read()
        self.net.last.answer(asked, body)
        self.round()
        return asked


@contextmanager
def telemetry_net(**options: Any) -> Iterator[TelemetryNet]:
    world = TelemetryNet(FakeNet(), **options)
    try:
        yield world
    finally:
        world.pusher.close()
        world.beside.metadata.close()
