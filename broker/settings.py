"""Settings of a broker process, fixed at its start."""

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
    """A topic that the broker creates before it is ready."""

    name: str
    partitions: int
    settings: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class BrokerSettings:
    """Settings of one broker process."""

    node_id: int
    host: str
    port: int
    """0: any free port, reported in the `ready` line; only for a cluster of one node."""

    nodes: tuple[PeerNode, ...] = ()
    """All nodes of the cluster, including this one; empty: only this one."""

    log_dir: Path | None = None
    """Folder of the logs; None: in memory."""

    catalogue_dir: Path | None = None
    """Folder of the topic list, the same for all nodes; None: in `log_dir`, or in memory."""

    topics: tuple[TopicSpec, ...] = ()
    limits: BrokerNodeLimits = field(default_factory=BrokerNodeLimits)
    cluster: int = 0
    """Number of nodes with replicas in this process, from `node_id`, at consecutive ports; 0: one node, no replicas."""

    timing: ClusterTiming = field(default_factory=ClusterTiming)
    """Timing of a cluster with replicas."""

    request_bytes_max: int = REQUEST_BYTES_MAX
    control: bool = False
    """Accept fault commands as JSON lines on standard input, and exit when it closes."""

    ready_fd: int | None = None
    """Descriptor for the `ready` line; None: standard output."""


def parse_address(text: str) -> tuple[str, int]:
    """Read `host:port`.

    Raises:
        ValueError: the text has another form.
    """
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise ValueError(f"{text!r} is not host:port")
    return host.removeprefix("[").removesuffix("]"), int(port)


def parse_nodes(text: str) -> tuple[PeerNode, ...]:
    """Read `0@host:port,1@host:port`.

    Raises:
        ValueError: the text has another form.
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
        ValueError: the text has another form.
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
    """Check that the settings fit together.

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
