"""A record from a local socket through router and shards into the embedded broker, and back by a reader that is not ours."""

import pytest

from tests.harness.embedded import EmbeddedCluster
from tests.harness.readers import read_topic
from tests.harness.stack import Stack

pytestmark = pytest.mark.process


def test_a_record_comes_through_all_processes_and_is_read_back() -> None:
    with EmbeddedCluster(1) as cluster:
        cluster.create_topic("orders", partitions=3)
        with Stack(cluster.bootstrap, shards=1) as stack, stack.session("app") as session:
            acked = session.acked(session.send("orders", [b"one", b"two"], keys=[b"k", b"k"]))
            assert acked.level == 2
            places = acked.places()
            found = {(record.partition, record.offset): record.value for record in read_topic(cluster, "orders")}
            assert [found[place] for place in places] == [b"one", b"two"]
