"""A real cluster whose node 1 stands in a network namespace of its own and can be cut off from the others, but not from clients.

It needs root, and a network namespace of its own to lay cables in: `unshare --net .venv/bin/python -m
tests.kafka.record_exchanges deposed`.
"""

import atexit
import base64
import subprocess
import tempfile
import uuid
from pathlib import Path
from typing import Final

from tests.harness.kafka_cluster import Cluster, OwnCluster
from tests.harness.kafka_node import JavaOptions, KafkaNode, NodeAddress

SPACE: Final = f"penstock-{uuid.uuid4().hex[:8]}"
CABLES: Final = {"clients": "10.77.1", "brokers": "10.77.2", "quorum": "10.77.3"}
"""Each is a pair of interfaces; the address ends with 2 on the side of node 1, and with 1 on the other."""
CLIENTS, BROKERS, QUORUM = 9100, 9200, 9300
CONTROLLER_NODE: Final = 3


def _ip(*words: str) -> None:
    _ = subprocess.run(["ip", *words], check=True, timeout=10)


class ApartNode(KafkaNode):
    """Node 1: its process runs inside of the namespace."""

    def go_apart(self) -> None:
        """Start inside of the namespace from now on."""
        self._java_command = ["ip", "netns", "exec", SPACE, *self._java_command]


class SplitCluster(OwnCluster):
    """Three brokers, of which node 3 is the only controller."""

    def __init__(self, version: str) -> None:
        """Lay the cables, start the nodes and wait until they serve."""
        interfaces = self._interfaces()
        if interfaces != {"lo"}:
            raise RuntimeError("run this in a network namespace of its own: unshare --net")
        self.folder = Path(tempfile.mkdtemp(prefix=f"kafka-{version}-"))
        _ = atexit.register(self.close)
        _ip("link", "set", "lo", "up")
        _ip("netns", "add", SPACE)
        _ip("-n", SPACE, "link", "set", "lo", "up")
        for name, net in CABLES.items():
            _ip("link", "add", name, "type", "veth", "peer", "name", f"{name}1", "netns", SPACE)
            _ip("addr", "add", f"{net}.1/24", "dev", name)
            _ip("-n", SPACE, "addr", "add", f"{net}.2/24", "dev", f"{name}1")
            _ip("link", "set", name, "up")
            _ip("-n", SPACE, "link", "set", f"{name}1", "up")
        self.nodes: dict[int, KafkaNode] = {number: self._node(version, number) for number in (1, 2, 3)}
        cluster_id = base64.b64encode(uuid.uuid4().bytes, b"__").decode().rstrip("=")
        for node in self.nodes.values():
            node.format(cluster_id)
            if isinstance(node, ApartNode):
                node.go_apart()
            node.start()
        bootstrap = ",".join(f"{self.host(number)}:{CLIENTS + number}" for number in (2, 3))
        Cluster.__init__(self, bootstrap, version=version, replicas=3)
        self.wait_ready(nodes=3)

    @staticmethod
    def _interfaces() -> set[str]:
        found = subprocess.run(["ip", "-br", "link"], check=True, timeout=10, capture_output=True, text=True).stdout
        return {line.split()[0].split("@")[0] for line in found.splitlines()}

    def host(self, number: int) -> str:
        """Where clients find a node."""
        return f"{CABLES['clients']}.{2 if number == 1 else 1}"

    def _node(self, version: str, number: int) -> KafkaNode:
        side = 2 if number == 1 else 1
        controller = f"{CABLES['quorum']}.1:{QUORUM + CONTROLLER_NODE}"
        listeners = {
            "PLAINTEXT": f"{CABLES['clients']}.{side}:{CLIENTS + number}",
            "INTERNAL": f"{CABLES['brokers']}.{side}:{BROKERS + number}",
        }
        told = ",".join(f"{name}://{at}" for name, at in listeners.items())
        leads = number == CONTROLLER_NODE
        settings = {
            "process.roles": "broker,controller" if leads else "broker",
            "controller.quorum.voters": f"{CONTROLLER_NODE}@{controller}",
            "listeners": f"{told},CONTROLLER://{controller}" if leads else told,
            "advertised.listeners": told,
            "inter.broker.listener.name": "INTERNAL",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,INTERNAL:PLAINTEXT",
        }
        kind = ApartNode if number == 1 else KafkaNode
        address = NodeAddress(number, CLIENTS + number, QUORUM + number)
        folder = self.folder / f"node-{number}"
        return kind(version, address, folder, quorum="", replicas=3, java=JavaOptions(), settings=settings)

    def cut(self, ways: str) -> None:
        """Cut node 1 off from the `controller`, the `followers` or `everybody`; clients reach it."""
        for name in {"controller": ["quorum"], "followers": ["brokers"], "everybody": ["quorum", "brokers"]}[ways]:
            _ip("link", "set", name, "down")

    def heal(self) -> None:
        """Mend all ways."""
        for name in CABLES:
            _ip("link", "set", name, "up")

    def close(self) -> None:
        """Kill every node, and take the cables away."""
        super().close()
        _ = subprocess.run(["ip", "netns", "del", SPACE], check=False, timeout=10, stderr=subprocess.DEVNULL)
        for name in CABLES:
            _ = subprocess.run(["ip", "link", "del", name], check=False, timeout=10, stderr=subprocess.DEVNULL)
