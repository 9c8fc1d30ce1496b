"""A router that is short of descriptors keeps what it has and takes no more."""

import socket
import struct

import msgpack
import pytest

from tests.harness.embedded import EmbeddedCluster
from tests.harness.processes import wait_until
from tests.harness.raw_session import RawSession
from tests.harness.stack import Stack

pytestmark = pytest.mark.process

LIMIT = 110


def test_idle_connections_use_up_no_descriptor_that_the_router_needs() -> None:
    with EmbeddedCluster(1) as cluster:
        cluster.create_topic("t", partitions=1)
        prefix = ("prlimit", f"--nofile={LIMIT}:{LIMIT}")
        with Stack(cluster.bootstrap, shards=1, router_prefix=prefix) as stack, stack.session() as old:
            assert old.acked(old.send("t", [b"before"])).level == 2
            idle = [socket.socket(socket.AF_UNIX) for _ in range(2 * LIMIT)]
            for sock in idle:
                sock.connect(str(stack.socket_path))
            refused = wait_until(
                lambda: stack.ask("stats")["sessions"]["refused"].get("descriptors"), seconds=5, what="a refusal"
            )
            assert refused > 0
            # A shard that dies now is welcomed again: that takes descriptors of the reserve.
            stack.kill_shard(0)
            stack.wait_ready()
            assert old.acked(old.send("t", [b"during"])).level == 2
            for sock in idle:
                sock.close()

            def fresh() -> bool:
                try:
                    with RawSession(stack.socket_path, seconds=2) as session:
                        return session.acked(session.send("t", [b"after"])).level == 2
                except AssertionError:
                    return False

            wait_until(fresh, seconds=5, what="a new session")
            assert old.acked(old.send("t", [b"old"])).level == 2


def test_a_refused_connection_is_told_why() -> None:
    with Stack("127.0.0.1:1", shards=1, router_prefix=("prlimit", f"--nofile={LIMIT}:{LIMIT}")) as stack:
        idle = [socket.socket(socket.AF_UNIX) for _ in range(2 * LIMIT)]
        for sock in idle:
            sock.settimeout(0.01)
            sock.connect(str(stack.socket_path))
        heard = set()
        for sock in idle:
            try:
                data = sock.recv(4096)
            except TimeoutError:
                continue
            if data:
                (size,) = struct.unpack_from(">I", data)
                heard.add(tuple(msgpack.unpackb(data[4 : 4 + size])[1:3]))
        for sock in idle:
            sock.close()
        assert (None, "limit") in heard
