"""After a power cut, as real processes find it: another boot id, no orderly stop, and batches in Kafka that nobody remembers."""

from collections import Counter
from collections.abc import Iterator

import pytest

from tests.harness.embedded import EmbeddedCluster
from tests.harness.power_cut import cut_power
from tests.harness.processes import wait_until
from tests.harness.readers import read_topic
from tests.harness.stack import Stack

pytestmark = pytest.mark.process
PRODUCE = 0
WAIT_S = 60.0


@pytest.fixture
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(1) as found:
        yield found


def test_what_was_in_kafka_and_what_was_not_is_found_out_and_each_record_is_there_once(
    cluster: EmbeddedCluster,
) -> None:
    cluster.create_topic("dark", partitions=3)
    frames = 40
    with Stack(cluster.bootstrap, shards=2) as stack:
        with stack.session("app", detail="none") as session:
            for seq in range(6):
                assert session.acked(session.send("dark", [b"%d" % seq] * 3, partitions=[0, 1, 2], seq=seq)).level == 2
            # From here on Kafka writes what it gets, and no answer arrives.
            cluster.nodes[0].command(op="cut_answer", api=PRODUCE, keep=0, times=10_000)
            for seq in range(6, frames):
                session.send("dark", [b"%d" % seq] * 3, level=1, partitions=[0, 1, 2], seq=seq)
            for seq in range(6, frames):
                assert session.answer(seq).level == 1
            assert stack.ask("stats")["records"]["pending"] > 0
        cut_power(stack)
        cluster.nodes[0].command(op="clear")

        stack.wait_ready()
        stats: dict[str, dict[str, object]] = {}

        def delivered() -> bool:
            stats.update(stack.ask("stats"))
            return stats["records"]["pending"] == 0

        _ = wait_until(delivered, seconds=WAIT_S, what="everything to be delivered")
        assert '"power_cut": true' in stack.log_path.read_text()
        assert stats["leases"]["counters"]["log_end_searches"] >= 1  # type: ignore[index]
        assert stats["records"]["possible_duplicates"] == 0
        assert not stats["alarms"]
        found = list(read_topic(cluster, "dark"))
        assert Counter((record.partition, record.value) for record in found) == Counter(
            (partition, b"%d" % seq) for partition in range(3) for seq in range(frames)
        )
        for partition in range(3):
            ordered = sorted((r for r in found if r.partition == partition), key=lambda record: record.offset)
            assert [record.value for record in ordered] == [b"%d" % seq for seq in range(frames)]
