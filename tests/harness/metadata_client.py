"""The router's metadata client on a loop of its own, driven until something holds."""

from collections.abc import Callable
from time import monotonic
from types import TracebackType
from typing import Final, Self

from penstock.config.model import KafkaSettings
from penstock.producer.metadata.client import Metadata
from penstock.producer.metadata.cluster import ClusterChange
from penstock.runtime.loop import Loop

_WAIT_S: Final = 20.0


class MetadataClient:
    """Keeps what it was told."""

    def __init__(self, bootstrap: str, **settings: object) -> None:
        self.loop = Loop()
        self.changes: list[ClusterChange] = []
        self.producer_ids: list[tuple[int, int]] = []
        kafka = KafkaSettings.model_validate({"bootstrap.servers": bootstrap, **settings})
        self.metadata = Metadata(
            self.loop,
            kafka,
            on_change=self.changes.append,
            rng=lambda: 0.5,
            on_producer_id=lambda producer_id, epoch: self.producer_ids.append((producer_id, epoch)),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.metadata.close()
        self.loop.close()

    def until(self, true: Callable[[], bool], *, seconds: float = _WAIT_S) -> int:
        """Go round until it holds; fail when it takes too long. Returns the rounds it took."""
        end = monotonic() + seconds
        rounds = 0
        while not true():
            assert monotonic() < end, f"waited in vain; problems: {dict(self.metadata.problems)}"
            self.metadata.tick(monotonic())
            deadline = self.metadata.next_deadline()
            _ = self.loop.run_once(end if deadline is None else min(end, deadline))
            rounds += 1
        return rounds
