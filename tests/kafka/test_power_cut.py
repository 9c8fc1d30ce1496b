"""Power cuts while records flow into real Kafka: how the last batches were cut is lost each time, and found out again."""

from collections import Counter

from tests.harness.kafka_cluster import Cluster
from tests.harness.power_cut import cut_power
from tests.harness.readers import read_topic
from tests.harness.resender import Resender
from tests.harness.stack import Stack

from .conftest import count_from

ROWS = 8
PARTITIONS = 3


def values_of(seq: int) -> list[bytes]:
    return [b"%d:%d" % (seq, row) for row in range(ROWS)]


def test_power_cuts_lose_double_and_reorder_nothing(kafka_one: Cluster, topic_name: str) -> None:
    topic = kafka_one.create_topic(topic_name, PARTITIONS)
    cuts = count_from("PENSTOCK_KILLS", 4)
    frames = 150 * (cuts + 1)
    with Stack(kafka_one.bootstrap, shards=2, kafka={"linger.ms": 0, "batch.size": 1_024}) as stack:
        client = Resender(stack.socket_path, "app", topic)
        for seq in range(frames):
            client.add(seq, values_of(seq), [b"%d" % row for row in range(ROWS)])
        left = [100 + 150 * n for n in range(cuts)]

        def step(answered: int) -> None:
            while left and left[0] <= answered:
                left.pop(0)
                cut_power(stack)
            stack.revive()

        client.run(seconds=60 + 30 * cuts, step=step)
        client.close()
        assert not left
        stats = stack.ask("stats")
        assert stats["alarms"] == []
        assert stats["records"]["possible_duplicates"] == 0
        assert stack.log_path.read_text().count('"power_cut": true') == cuts
        assert '"log_end_search_started"' in stack.log_path.read_text()
        found = list(read_topic(kafka_one, topic))
        counted = Counter(record.value for record in found)
        assert counted == Counter(value for seq in range(frames) for value in values_of(seq))
        for partition in range(PARTITIONS):
            ordered = sorted((r for r in found if r.partition == partition), key=lambda record: record.offset)
            places = [tuple(map(int, (record.value or b"").split(b":"))) for record in ordered]
            assert places == sorted(places)
