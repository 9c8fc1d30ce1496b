"""The real metadata client over a network whose every step the test takes. Broker n listens at 10.0.0.n, the bootstrap
addresses are names."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

from kafka.protocol.admin.configs import DescribeConfigsResponse
from kafka.protocol.metadata import MetadataResponse
from penstock.config.direct import direct_settings
from penstock.producer.metadata.client import Metadata

from .fake_net import FakeNet, FakeSocket
from .scripted_broker import RANGES, Asked

_ROUNDS_MAX = 10_000


def told(*nodes: int, throttle_ms: int = 0, code: int = 0) -> bytes:
    """The body of a Metadata answer of version 13 that names these brokers."""
    rows = [
        MetadataResponse.MetadataResponseBroker(node_id=node, host=f"10.0.0.{node}", port=9092, rack=None)
        for node in nodes
    ]
    response = MetadataResponse(
        throttle_time_ms=throttle_ms, brokers=rows, cluster_id="c", controller_id=1, topics=[], error_code=code,
        version=13,
    )  # fmt: skip
    return b"\0" + bytes(response.encode())


class MetadataNet:
    """`round` is a round of the loop."""

    def __init__(self, net: FakeNet, *, bootstrap: str = "boot", **settings: object) -> None:
        self.net = net
        net.names.known = {f"10.0.0.{node}": [f"10.0.0.{node}"] for node in range(1, 9)}
        net.names.known["boot"] = ["10.9.9.9"]
        self.lost: list[tuple[str, bool]] = []
        """Why connections ended, and whether nobody was left who might believe who we are."""
        self.metadata = Metadata(
            cast("Any", net.loop),
            direct_settings({"bootstrap.servers": f"{bootstrap}:9092", **settings}),
            on_change=lambda _change: None,
            on_lost=lambda reason, refused: self.lost.append((reason, refused)),
            rng=lambda: 0.0,
            resolver=cast("Any", net.names),
            topic_settings=False,
            system=net.system,
        )

    def round(self, seconds: float = 0.0) -> None:
        self.net.now += seconds
        self.metadata.tick(self.net.now)

    def wait(self) -> None:
        """Move the clock to when it wants to be called, and call it."""
        deadline = self.metadata.next_deadline()
        assert deadline is not None
        self.net.now = max(self.net.now, deadline)
        self.metadata.tick(self.net.now)

    def greet(self, metadata: tuple[int, int] = (0, 13), *, more: Mapping[int, tuple[int, int]] = {}) -> FakeSocket:
        """The broker that is tried accepts and greets; it has been asked what was due. `more`: versions of other APIs."""
        self.net.last.accept()
        _ = self.net.last.greet({**RANGES, 3: metadata, **more})
        self.round()
        return self.net.last

    def answer(self, *nodes: int, throttle_ms: int = 0, code: int = 0) -> None:
        """The next question about topics is answered so; of its settings the broker tells nothing."""
        while (asked := self._asked()).api_key != 3:
            assert asked.api_key == 32
            untold = DescribeConfigsResponse(throttle_time_ms=0, results=[], version=asked.version)
            self.net.last.answer(asked, b"\0" + bytes(untold.encode()))
        self.net.last.answer(asked, told(*nodes, throttle_ms=throttle_ms, code=code))
        self.round()

    def _asked(self) -> Asked:
        while not self.net.last.unread():
            self.wait()
        return self.net.last.read()

    def refuse_until(self, address: str) -> list[str]:
        """Every broker refuses until one at this address is tried. Returns who was tried before."""
        before = len(self.net.connects)
        for _ in range(_ROUNDS_MAX):
            if self.net.connects[-1] == address and not self.net.last.closed:
                return self.net.connects[before:-1]
            if self.net.last.closed:
                self.wait()
            else:
                self.net.last.refuse()
        raise AssertionError(f"{address} was never tried, only {set(self.net.connects[before:])}")


@contextmanager
def metadata_net(**settings: object) -> Iterator[MetadataNet]:
    made = MetadataNet(FakeNet(), **cast("Any", settings))
    try:
        made.round()
        yield made
    finally:
        made.metadata.close()
