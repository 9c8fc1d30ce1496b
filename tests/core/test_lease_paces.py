"""What the age of things allows (8.2)."""

import pytest
from penstock.producer.sender.inflight_limit import pace_of
from penstock.wire.messages import FIRST, NARROW, OPEN, Anchor

E = 1_000
NEVER = 1 << 62


@pytest.mark.parametrize(
    ("anchor", "log_start", "oldest_ms", "pace"),
    [
        (None, -1, NEVER, FIRST),
        (Anchor(10, 5_000, 5_000, 1), -1, NEVER, OPEN),
        (Anchor(10, 4_500, 4_500, 1), 10, 4_500, OPEN),
        (Anchor(10, 5_000, 4_499, 1), -1, NEVER, FIRST),
        (Anchor(10, 5_000, 5_000, 1), 11, NEVER, FIRST),
        (Anchor(10, 4_499, 5_000, 1), -1, NEVER, NARROW),
        (Anchor(10, 5_000, 5_000, 1), -1, 4_499, NARROW),
        (Anchor(10, -1, 5_000, 1), -1, NEVER, NARROW),
        (Anchor(-1, 5_000, 5_000, 1), 0, NEVER, FIRST),
    ],
)
def test_half_of_the_expiration_decides(anchor: Anchor | None, log_start: int, oldest_ms: int, pace: str) -> None:
    assert pace_of(anchor, log_start, oldest_ms, wall_ms=5_000, expiration_ms=E) == pace
