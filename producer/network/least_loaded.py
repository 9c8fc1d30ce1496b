"""Chooses the least loaded node for a request that any broker can answer, by the readiness of its connection."""

from collections.abc import Sequence
from typing import Final, Generic, NamedTuple, TypeVar

KeyT = TypeVar("KeyT")

NEVER: Final = float("-inf")


class ConnectionReadiness(NamedTuple):
    """The state of a node's connection. A node that was never tried is `ConnectionReadiness(may_connect=True)`."""

    usable: bool = False
    """A request may be sent now: ready, not throttled, and below the limit of requests in flight."""
    connected: bool = False
    """Ready and not throttled; the limit of requests in flight may be reached."""
    connecting: bool = False
    may_connect: bool = False
    """Not connected, and not in backoff."""
    in_flight: int = 0
    last_attempt: float = NEVER
    """When a connection attempt last started or ended (CLOCK_MONOTONIC seconds)."""


class NodeChoice(NamedTuple, Generic[KeyT]):
    """The chosen node. `node` None: every node is throttled, full or in backoff. `connected`: some connection is ready,
    so waiting will help."""

    node: KeyT | None
    connected: bool


def least_loaded(nodes: Sequence[tuple[KeyT, ConnectionReadiness]], chance: float) -> NodeChoice[KeyT]:
    """Choose a node. `chance` in [0, 1) selects where the search starts, so that equal nodes share the load.

    Order of preference: the usable node with the fewest requests in flight, then a connecting node, then the node that
    may connect and has the oldest `last_attempt`.
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
