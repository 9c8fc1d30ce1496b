"""What the audit says when Kafka or `land` does not have what the daemon delivered: rows of its failure table.

One world for all of them, a topic each: they share the daemon, the death of the broker, and the two audits.
"""

from collections.abc import Iterator
from typing import NamedTuple

import pytest
from confluent_kafka import TopicPartition
from penstock.config.pipeline import load_pipeline
from penstock.pipeline.land.batches import LandError
from penstock.pipeline.land.lag_group import LagGroup
from pyspark.sql import SparkSession

from tests.harness.audit_world import cut_logs
from tests.harness.kafka_cluster import OwnCluster

from .jobs import HOUR_S, LATE, LOST, Verdict
from .rig import PARTITIONS, Rig

FRAMES = 15
FRAME = 40
KEEP = 200
RETENTION = 70


class World(NamedTuple):
    """What happened to five topics."""

    rig: Rig
    first: dict[str, set[str]]
    """Ids of the first turn, by topic."""
    gone: dict[str, set[str]]
    """Ids that Kafka has no more."""
    before: Verdict
    """Nothing had landed yet."""
    after: Verdict
    """Then logs were cut, deleted and written on, and what was left was landed."""


@pytest.fixture(scope="module")
def world(spark: SparkSession, broker: OwnCluster) -> Iterator[World]:
    """`behind` is landed and goes on, and another pipeline has read all of it in the same lag group; `cut` and `rewritten` lose the
    end of a log before they are landed, and the second one is written on; `landed` loses it afterwards; of `deleted` retention takes
    the beginning."""
    with Rig(spark, broker, ["behind", "cut", "rewritten", "landed", "deleted"]) as rig, rig.daemon() as daemon:
        daemon.start()
        for _ in range(FRAMES):
            for word in rig.topics:
                rig.send(daemon, word, FRAME)
        assert daemon.stop() == 0
        there = {word: rig.ids_by_place(word) for word in rig.topics}
        # An hour from now: time alone makes no loss.
        before = rig.audit(ahead_s=HOUR_S)
        rig.land("behind", "landed")

        cut = {word: (rig.topics[word], 1) for word in ("cut", "rewritten", "landed")}
        ends = cut_logs(broker, cut.values(), keep=KEEP)
        for done in broker.admin.delete_records([TopicPartition(rig.topics["deleted"], 0, RETENTION)]).values():
            assert done.result(60).low_watermark == RETENTION
        gone = {
            word: {
                each for (partition, offset), each in there[word].items() if partition == 1 and offset >= ends[place]
            }
            for word, place in cut.items()
        }
        gone["deleted"] = {
            each for (part, offset), each in there["deleted"].items() if part == 0 and offset < RETENTION
        }
        # Over the offsets of what is gone, by another host: the one whose records they were halts there, and says so.
        with rig.daemon() as other:
            other.start()
            rig.send(other, "rewritten", FRAME * FRAMES)
            rig.send(other, "behind", FRAME)
            assert other.stop() == 0
        rig.land("cut", "rewritten", "deleted")
        behind = {rig.topics["behind"]: dict.fromkeys(range(PARTITIONS), FRAMES * FRAME + FRAME)}
        group = LagGroup.of(load_pipeline(rig.pipeline.config_path))
        assert group.commit(behind) == ("committed", "")
        group.close()
        first = {word: set(found.values()) for word, found in there.items()}
        yield World(rig, first, gone, before, rig.audit())


@pytest.mark.timeout(1500)
def test_what_land_has_not_read_yet_is_late_and_no_alarm(world: World) -> None:
    assert world.before.exit_code == LATE
    for word, ids in world.first.items():
        found = world.rig.told(world.before, word)
        assert (found.statuses, found.of_class("late"), set(found.classes)) == ({"late"}, ids, ids)
    found = world.rig.told(world.after, "behind")
    new = set(world.rig.kafka_ids("behind")) - world.first["behind"]
    assert (found.statuses, found.of_class("late"), set(found.classes)) == ({"complete", "late"}, new, new)
    assert len(new) == FRAME


@pytest.mark.parametrize("word", ["cut", "rewritten"])
def test_acknowledged_records_that_an_unclean_election_took_are_lost_by_name(world: World, word: str) -> None:
    found = world.rig.told(world.after, word)
    gone = world.gone[word]
    assert len(gone) >= FRAME
    world.rig.judge(word).assert_exact()
    assert (found.of_class("lost"), set(found.classes)) == (gone, gone)
    assert "lost" in found.statuses <= {"lost", "complete"}
    assert world.after.exit_code == LOST


def test_what_had_landed_before_the_log_was_cut_is_not_lost_and_land_stops_there(world: World) -> None:
    found = world.rig.told(world.after, "landed")
    assert world.gone["landed"]
    assert (found.statuses, found.classes) == ({"complete"}, {})
    with pytest.raises(LandError, match=r"(?i)data"):
        world.rig.land("landed")


def test_records_that_retention_took_before_land_came_are_lost_by_name(world: World) -> None:
    found = world.rig.told(world.after, "deleted")
    gone = world.gone["deleted"]
    assert len(gone) == RETENTION
    world.rig.judge("deleted").assert_exact()
    assert (found.of_class("lost"), set(found.classes)) == (gone, gone)
    assert "lost" in found.statuses <= {"lost", "complete"}
