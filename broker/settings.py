"""What a broker process is told when it starts."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from .cluster.node import NODES_MAX, BrokerNodeLimits, PeerNode
from .log.internal_topics import NAMES
from .log.topics import PARTITIONS_MAX, SettingError, check_settings, name_is_legal
from .replication.replicated_cluster import ClusterTiming

REQUEST_BYTES_MAX: Final = 104_857_600
"""Kafka's default for `socket.request.max.bytes`."""
CLUSTER_MAX: Final = 16


class SettingsError(ValueError):
    """Settings that cannot work; `problems` lists all of them."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """A topic that shall exist when the broker is ready."""

    name: str
    partitions: int
    settings: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class BrokerSettings:
    """One broker process."""

    node_id: int
    host: str
    port: int
    """0: any free one, told in the line that says `ready`; for a cluster of one node."""

    nodes: tuple[PeerNode, ...] = ()
    """All nodes of the cluster, this one among them; empty: this one alone."""

    log_dir: Path | None = None
    """Where the log is kept; None: in memory."""

    catalogue_dir: Path | None = None
    """Where the list of topics is kept, the same for all nodes; None: in `log_dir`, or in memory."""

    topics: tuple[TopicSpec, ...] = ()
    limits: BrokerNodeLimits = field(default_factory=BrokerNodeLimits)
    cluster: int = 0
    """Nodes with replicas in this one process, from `node_id` on, at neighbouring ports; 0: this is one node with single copies."""

    timing: ClusterTiming = field(default_factory=ClusterTiming)
    """Of a cluster."""

    request_bytes_max: int = REQUEST_BYTES_MAX
    control: bool = False
    """Take commands for faults as lines of JSON on standard input, and end when it closes."""

    ready_fd: int | None = None
    """Descriptor that gets the line `ready`; None: standard output."""


def parse_address(text: str) -> tuple[str, int]:
    """Read `host:port`.

    Raises:
        ValueError: it is something else.
    """
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise ValueError(f"{text!r} is not host:port")
    return host.removeprefix("[").removesuffix("]"), int(port)


def parse_nodes(text: str) -> tuple[PeerNode, ...]:
    """Read `0@host:port,1@host:port`.

    Raises:
        ValueError: it is something else.
    """
    peers: list[PeerNode] = []
    for item in text.split(","):
        node, at, address = item.strip().partition("@")
        if not at or not node.isdecimal():
            raise ValueError(f"{item!r} is not id@host:port")
        peers.append(PeerNode(int(node), *parse_address(address)))
    return tuple(peers)


def parse_topic(text: str) -> TopicSpec:
    """Read `name:partitions[:setting=value…]`.

    Raises:
        ValueError: it is something else.
    """
    name, *rest = text.split(":")
    if not name_is_legal(name) or not rest or not rest[0].isdecimal() or not 1 <= int(rest[0]) <= PARTITIONS_MAX:
        raise ValueError(f"{text!r} is not name:partitions[:setting=value…]")
    pairs = [item.partition("=") for item in rest[1:]]
    try:
        settings = check_settings({key: value for key, _, value in pairs})
    except SettingError as bad:
        raise ValueError(f"{text!r}: {bad}") from bad
    return TopicSpec(name, int(rest[0]), settings)


def check(settings: BrokerSettings) -> None:
    """See whether the settings fit together.

    Raises:
        SettingsError: they do not.
    """
    problems: list[str] = []
    ids = [peer.node_id for peer in settings.nodes]
    if not 0 <= settings.node_id < NODES_MAX:
        problems.append(f"a node id is 0 to {NODES_MAX - 1}")
    if ids and settings.node_id not in ids:
        problems.append(f"node {settings.node_id} is not among the nodes")
    if len(set(ids)) != len(ids):
        problems.append("two nodes have the same id")
    if len(ids) > 1 and settings.catalogue_dir is None:
        problems.append("several nodes need one catalogue folder, in which they find each other's topics")
    if settings.cluster and (ids or settings.log_dir or settings.catalogue_dir):
        problems.append("a cluster in one process has no other nodes and keeps its logs in memory")
    if not 0 <= settings.cluster <= CLUSTER_MAX:
        problems.append(f"a cluster in one process has at most {CLUSTER_MAX} nodes")
    problems += [f"{spec.name} is the broker's own topic" for spec in settings.topics if spec.name in NAMES]
    if len({spec.name for spec in settings.topics}) != len(settings.topics):
        problems.append("a topic is named twice")
    if problems:
        raise SettingsError(problems)
