"""What `/stats` says of a broker that several shards divide."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
from penstock.daemon.router import stats
from penstock.wire.messages import Node, NodeLoad, ShardLoad


def load(state: str, error: str = "") -> ShardLoad:
    return ShardLoad([NodeLoad(1, state, 0, 0, 900, 0, error, 0)], [], {})


@pytest.mark.parametrize("ready", [0, 1, 2])
def test_a_broker_is_shown_by_a_shard_that_is_connected_if_one_is(ready: int) -> None:
    loads = {seat: load("ready" if seat == ready else "disconnected") for seat in range(3)}
    node = Node(1, "kafka-1", 9092, "", 0)
    router = SimpleNamespace(
        leases=SimpleNamespace(loads=loads), metadata=SimpleNamespace(cluster=SimpleNamespace(nodes={node.node: node}))
    )

    (shown,) = stats._nodes(cast("Any", router))

    assert (shown["shard"], shown["state"]) == (ready, "ready")


def test_a_broker_nobody_is_connected_to_is_shown_with_the_last_error() -> None:
    loads = {0: load("waiting", "refused")}
    node = Node(1, "kafka-1", 9092, "", 0)
    router = SimpleNamespace(
        leases=SimpleNamespace(loads=loads), metadata=SimpleNamespace(cluster=SimpleNamespace(nodes={node.node: node}))
    )

    (shown,) = stats._nodes(cast("Any", router))

    assert (shown["state"], shown["last_error"]) == ("waiting", "refused")
