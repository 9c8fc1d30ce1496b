"""Whom to ask something that any broker can answer: the node that has the least to do, by how its connection stands."""

from collections.abc import Sequence
from typing import Final, Generic, NamedTuple, TypeVar

KeyT = TypeVar("KeyT")

NEVER: Final = float("-inf")


class ConnectionReadiness(NamedTuple):
    """How the connection to a node stands. A node that nobody has tried yet is `Standing(may_connect=True)`."""

    usable: bool = False
    """A request may be sent now: ready, not throttled, room for one more in flight."""
    connected: bool = False
    """Ready and not throttled; there may be no room."""
    connecting: bool = False
    may_connect: bool = False
    """Not connected, and no backoff forbids to begin."""
    in_flight: int = 0
    last_attempt: float = NEVER
    """When a connection was last begun, or ended (CLOCK_MONOTONIC seconds)."""


class NodeChoice(NamedTuple, Generic[KeyT]):
    """`node` None: every node is throttled, full or backing off. `connected`: somewhere a connection is ready, so that
    waiting will help."""

    node: KeyT | None
    connected: bool


def least_loaded(nodes: Sequence[tuple[KeyT, ConnectionReadiness]], chance: float) -> NodeChoice[KeyT]:
    """The node to ask. `chance` in [0, 1) says where to begin to look, so that equals share the load.

    Best is one that is usable and idle, then the usable one with the fewest requests in flight, then one that is being
    connected, then, of those that may be, the one that was left alone longest.
    """
    assert nodes, "there is always a node or a bootstrap address to ask"
    assert 0.0 <= chance < 1.0, "chance lies in [0, 1)"
    start = int(chance * len(nodes))
    turned = [*nodes[start:], *nodes[:start]]
    connected = any(standing.connected for _, standing in turned)
    usable = [entry for entry in turned if entry[1].usable]
    if usable:
        return NodeChoice(min(usable, key=lambda entry: entry[1].in_flight)[0], connected)
    connecting = [key for key, standing in turned if standing.connecting]
    if connecting:
        return NodeChoice(connecting[0], connected)
    allowed = [entry for entry in turned if entry[1].may_connect]
    if allowed:
        return NodeChoice(min(allowed, key=lambda entry: entry[1].last_attempt)[0], connected)
    return NodeChoice(None, connected)
