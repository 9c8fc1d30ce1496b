"""What the audit says when a daemon's disk or clock is not what it was: rows of its failure table.

One world for all of them, a topic and a daemon each: they share the landing and the two audits.
"""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from pyspark.sql import SparkSession

from tests.harness.audit_world import raw_records, refusing
from tests.harness.kafka_cluster import OwnCluster
from tests.harness.processes import wait_until
from tests.harness.wall_clock import WallClock

from .jobs import HOUR_S, LOST, Verdict
from .rig import Rig

DELIVERED = 200
WAITING = 40
MORE = 60
STEPS = (1_800, -1_800, 3 * HOUR_S, -600, -5 * HOUR_S, 300)
"""Seconds that the clock is set forward and back: by less than an hour, and by much more."""


class World(NamedTuple):
    """What happened to four topics."""

    rig: Rig
    restored: set[str]
    """Ids that Kafka has twice."""
    before: Verdict
    refused: str
    """What `retire` said without `--force`."""
    after: Verdict
    """When the vanished daemons had been retired."""


@pytest.fixture(scope="module")
def world(spark: SparkSession, broker: OwnCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("spools")
    with Rig(spark, broker, ["restored", "destroyed", "moved", "clock"]) as rig:
        twice = restore_a_spool(rig, folder)
        destroyed = destroy_a_disk(rig)
        # At once: it is refused only while the last heartbeat is younger than `audit.heartbeat_stale`.
        refused = rig.pipeline.run("retire", destroyed)
        assert refused.status == 1
        moved = move_a_spool(rig, folder)
        step_a_clock(rig, folder)
        rig.land()
        before = rig.audit(ahead_s=HOUR_S)
        for incarnation in (destroyed, moved):
            assert rig.pipeline.run("retire", incarnation, "--force").status == 0
        yield World(rig, twice, before, refused.log, rig.audit(ahead_s=HOUR_S))


def restore_a_spool(rig: Rig, folder: Path) -> set[str]:
    """The backup was taken while records waited; the spool went on, delivered them and took more; then the backup came back.

    Returns the ids that are in Kafka twice.
    """
    with rig.daemon() as daemon:
        daemon.start()
        rig.send(daemon, "restored", DELIVERED)
        with refusing(rig.broker, rig.topics["restored"]):
            rig.send(daemon, "restored", WAITING, level="spooled")
            daemon.kill_everything()
            backup = shutil.copytree(daemon.folder / "data", folder / "backup")
        daemon.start()
        rig.send(daemon, "restored", MORE)
        assert daemon.stop() == 0
        before = rig.kafka_ids("restored")
        assert len(before) == len(set(before)) == DELIVERED + WAITING + MORE
        # As a backup is put back: files in a directory made anew.
        shutil.rmtree(daemon.folder / "data")
        _ = shutil.copytree(backup, daemon.folder / "data")
        daemon.start()
        rig.send(daemon, "restored", 10)
        assert daemon.stop() == 0
    ids = rig.kafka_ids("restored")
    assert len({each.split("-")[0] for each in ids}) == 2, "the restored spool numbers new records under a new name"
    return {each for each in before if ids.count(each) > 1}


def destroy_a_disk(rig: Rig) -> str:
    """Records wait when the daemon and all it has vanish; returns its incarnation."""
    with rig.daemon() as daemon:
        daemon.start()
        rig.send(daemon, "destroyed", DELIVERED)
        with refusing(rig.broker, rig.topics["destroyed"]):
            rig.send(daemon, "destroyed", WAITING, level="spooled")
            incarnation = wait_told(rig, "destroyed", DELIVERED + WAITING)
            daemon.kill_everything()
            shutil.rmtree(daemon.folder / "data")
    return incarnation


def move_a_spool(rig: Rig, folder: Path) -> str:
    """Records wait when the machine dies; its disk is put into another one, which delivers them. Returns the incarnation."""
    with rig.daemon() as old, rig.daemon() as new:
        old.start()
        rig.send(old, "moved", DELIVERED)
        with refusing(rig.broker, rig.topics["moved"]):
            rig.send(old, "moved", WAITING, level="spooled")
            incarnation = wait_told(rig, "moved", DELIVERED + WAITING)
            old.kill_everything()
        _ = shutil.copytree(old.folder / "data", new.folder / "data")
        new.start()
        rig.send(new, "moved", MORE)
        assert new.stop() == 0
    assert len(set(rig.kafka_ids("moved"))) == DELIVERED + WAITING + MORE
    return incarnation


def step_a_clock(rig: Rig, folder: Path) -> None:
    """Records before and after every step, and a router that is killed in between."""
    # Behind: brokers refuse what is more than an hour ahead of them.
    clock = WallClock(folder, ahead_s=-8 * HOUR_S)
    with rig.daemon(environment=clock.environment) as daemon:
        daemon.start()
        rig.send(daemon, "clock", MORE)
        for number, step in enumerate(STEPS):
            clock.step(step)
            rig.send(daemon, "clock", MORE)
            if number == 2:
                _ = daemon.kill("router")
                rig.send(daemon, "clock", MORE)
        assert daemon.stop() == 0


def wait_told(rig: Rig, word: str, wanted: int) -> str:
    """Wait until the books in Kafka say that so many records of a topic were taken; who says so."""

    def look() -> str | None:
        newest: dict[bytes | None, tuple[int, int]] = {}
        incarnation = ""
        for record in raw_records(rig.broker, rig.audit_topic):
            said = json.loads(record.value or b"{}")
            if said["kind"] == "intake" and said["topic"] == rig.topics[word]:
                newest[record.key] = max(newest.get(record.key, (-1, 0)), (said["version"], said["accepted"]))
                incarnation = str(said["incarnation"])
        return incarnation if sum(accepted for _, accepted in newest.values()) == wanted else None

    return wait_until(look, seconds=60, what=f"the books have {wanted} records of {word}", every=0.3)


@pytest.mark.timeout(900)
def test_records_of_a_restored_spool_are_named_as_duplicates_and_sealing_removes_them(world: World) -> None:
    rig = world.rig
    assert len(world.restored) == WAITING
    rig.judge("restored").assert_exact()
    for verdict in (world.before, world.after):
        found = rig.told(verdict, "restored")
        assert found.doubled == dict.fromkeys(world.restored, 2)
        assert (found.classes, found.sums["duplicated"]) == ({}, WAITING)
        assert "duplicated" in found.statuses <= {"duplicated", "complete"}
    rows = [row for row in rig.seal(ahead_s=HOUR_S) if row["topic"] == rig.topics["restored"]]
    assert sum(row["duplicates_removed"] for row in rows) == WAITING
    assert {row["status"] for row in rows} == {"sealed"}
    assert sorted(rig.landed_ids("restored")) == sorted(set(rig.kafka_ids("restored")))


def test_records_on_a_disk_that_is_destroyed_are_pending_until_the_daemon_is_retired_and_lost_then(
    world: World,
) -> None:
    found = world.rig.told(world.before, "destroyed")
    assert len(found.of_class("pending")) == len(found.classes) == WAITING
    assert found.statuses <= {"late", "unknown"}
    assert "alive" in world.refused, "a daemon that spoke a moment ago is not retired by accident"
    after = world.rig.told(world.after, "destroyed")
    assert after.of_class("lost") == set(after.classes) == set(found.classes)
    assert "lost" in after.statuses <= {"lost", "complete"}
    assert world.after.exit_code == LOST


def test_records_that_another_machine_delivered_are_not_lost_when_the_daemon_that_took_them_is_retired(
    world: World,
) -> None:
    world.rig.judge("moved").assert_exact()
    found = world.rig.told(world.after, "moved")
    assert (found.statuses, found.classes, found.doubled) == ({"complete"}, {}, {})


def test_the_books_balance_however_the_wall_clock_steps(world: World) -> None:
    """Records sit in odd hours, and nothing is missing."""
    rig = world.rig
    rig.judge("clock").assert_exact()
    total = MORE * (len(STEPS) + 2)
    found = rig.told(world.before, "clock")
    assert (found.statuses, found.doubts) == ({"complete"}, [])
    assert (found.sums["accepted"], found.sums["distinct"]) == (total, total)
    assert len({row["hour"] for row in found.rows}) > 2
    assert len(set(rig.landed_ids("clock"))) == total
