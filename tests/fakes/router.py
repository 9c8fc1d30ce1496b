"""A router that a test plays by hand: the hop's numbers are kept, everything else is what the test says."""

import os
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import TypeVar

import zmq
from penstock.config import handover
from penstock.config.model import Settings
from penstock.wire.message_codec import Envelope, decode, encode
from penstock.wire.messages import (
    BatchesDone,
    Credit,
    DoneBatch,
    Ping,
    Revoked,
    RouterMessage,
    ShardHello,
    ShardLoad,
    ShardMessage,
    ShardWelcome,
)

T = TypeVar("T")
WAIT_S = 20.0
ROUTER_START = 7


class FakeRouter:
    """One ROUTER socket for one shard at a time."""

    def __init__(self, settings: Settings) -> None:
        settings.bus_path.parent.mkdir(parents=True, exist_ok=True)
        self.settings = settings
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.socket = self.context.socket(zmq.ROUTER)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.bind(f"ipc://{settings.bus_path}")
        self.acknowledges = True
        self._new_pair()

    def _new_pair(self) -> None:
        self.peer = b""
        self.shard_start = 0
        self.heard = -1
        self.acked = -1
        self.said = 0
        self.messages: list[ShardMessage] = []
        self.done: list[DoneBatch] = []
        self.credit: dict[int, int] = {}
        self.loads: list[ShardLoad] = []

    def close(self) -> None:
        self.socket.close()
        self.context.term()

    # --- the hop -----------------------------------------------------------------------------------------------------

    def say(self, message: RouterMessage, *, seq: int | None = None, router_start: int = ROUTER_START) -> None:
        number = self.said if seq is None else seq
        if self.acknowledges:
            self.acked = self.heard
        ack = self.acked
        self.socket.send_multipart([self.peer, encode(Envelope(router_start, self.shard_start, number, ack), message)])
        self.said += 1

    def hear(self, deadline: float) -> ShardMessage:
        """The next message; its numbers are checked."""
        assert self.socket.poll(max(0, int((deadline - monotonic()) * 1000))), (
            f"heard nothing; last: {self.messages[-5:]}"
        )
        peer, frame = self.socket.recv_multipart()
        envelope, message = decode(frame)
        if peer != self.peer:
            self._new_pair()
            self.peer = peer
            self.shard_start = envelope.shard_start
        assert envelope.seq == self.heard + 1, (envelope, self.heard)
        assert envelope.ack < self.said
        self.heard = envelope.seq
        assert not isinstance(message, RouterMessage) or isinstance(message, Ping)
        self._note(message)
        return message

    def _note(self, message: ShardMessage) -> None:
        match message:
            case BatchesDone():
                self.done += message.items
            case Credit():
                assert message.total_bytes > self.credit.get(message.node, 0)
                self.credit[message.node] = message.total_bytes
            case ShardLoad():
                self.loads.append(message)
            case Ping():
                if self.acknowledges and self.shard_start:
                    self.say(Ping())
            case _:
                self.messages.append(message)

    def until(self, look: Callable[[], T | None], *, seconds: float = WAIT_S) -> T:
        """Listen until `look` has an answer that is neither None nor False."""
        deadline = monotonic() + seconds
        while True:
            found = look()
            if found is not None and found is not False:
                return found
            _ = self.hear(deadline)

    def first(self, kind: type[T], *, seconds: float = WAIT_S) -> T:
        """The first message of a kind not yet taken."""

        def look() -> T | None:
            for place, message in enumerate(self.messages):
                if isinstance(message, kind):
                    del self.messages[place]
                    return message
            return None

        return self.until(look, seconds=seconds)

    # --- what a router does --------------------------------------------------------------------------------------------

    def greet(self, *, digest: str | None = None, pid: int | None = None, expiration_ms: int = 86_400_000) -> None:
        """Answer the first HELLO."""
        first = self.first(ShardHello)
        assert first.journal == ""
        told = handover.digest(self.settings) if digest is None else digest
        self.say(ShardWelcome(os.getpid() if pid is None else pid, first.shard_id, told, "spool", expiration_ms))

    def welcome(self) -> ShardHello:
        """Greet the shard; its second HELLO."""
        self.greet()
        return self.first(ShardHello)

    def acked_to(self, partition: int) -> int:
        """The ordinal below which everything is acknowledged."""
        return max((item.first + item.count for item in self.done if item.partition == partition), default=0)

    def revoked(self, partition: int) -> Revoked:
        """The next REVOKED of a partition."""
        found = self.first(Revoked)
        assert found.partition == partition
        return found


def settings_for(root: Path, **kafka: object) -> Settings:
    """Settings whose folders lie under `root`."""
    return Settings.model_validate(
        {
            "data_dir": str(root / "data"),
            "runtime_dir": str(root / "run"),
            "kafka": {
                "bootstrap.servers": "127.0.0.1:1",
                **{name.replace("_", "."): value for name, value in kafka.items()},
            },
        }
    )
