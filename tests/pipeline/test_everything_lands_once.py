"""The main proof: records through the daemon into Kafka and on into tables, while drivers, broker, router and shards are killed.

Every record is in exactly one row, by a judge that reads both ends itself; then rows are taken away and records doubled
behind everyone's back, and the audit names each of them. PENSTOCK_PIPELINE_RECORDS says how many records (`make soak`: 2,000,000).
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from random import Random
from typing import Final, NamedTuple

import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from tests.harness import bronze
from tests.harness.audit_world import AUDIT_CONFIG, raw_at, write_raw
from tests.harness.bronze import Place, Topic
from tests.harness.checker import judge
from tests.harness.counts import count_from
from tests.harness.daemon import Daemon
from tests.harness.kafka_cluster import OwnCluster, unique_topic
from tests.harness.ledger import Ledger, Level
from tests.harness.load import Load, spread
from tests.harness.load_client import Job
from tests.harness.records import RecordId, Shape
from tests.harness.spark_driver import Driver, Pipeline
from tests.harness.wall_clock import WallClock

from .jobs import (
    COMPLETE,
    DUPLICATED,
    HOUR_S,
    LOST,
    Name,
    Verdict,
    land_once,
    last_verdict,
    run_audit,
    run_seal,
    seals,
)

RECORDS: Final = count_from("PENSTOCK_PIPELINE_RECORDS", 200_000)
RATE: Final = 5_000
"""Records a second at least, so that the load outlives the kills."""
TURNS: Final = 3
DONE_S: Final = 800.0
JSON_SCHEMA: Final = "id string, n long, fill string"
LOST_ROWS: Final = 7
AGAIN: Final = 11


class Flow(NamedTuple):
    """One topic of the run and who writes to it."""

    word: str
    partitions: int
    shapes: tuple[Shape, ...]
    """One client each."""
    columns: int
    """Records a call."""
    settings: Mapping[str, str]


FLOWS: Final = (
    Flow("Orders.v1", 6, (Shape(key_count=500), Shape(value_bytes=150, headers=True, null_every=50)), 200, {"format": "raw"}),
    Flow("clicks", 4, (Shape(),), 500, {"format": "raw"}),
    Flow("events", 2, (Shape(json=True, broken_every=97, key_count=50),), 200, {"format": "json", "schema": JSON_SCHEMA}),
)  # fmt: skip


class World(NamedTuple):
    """What the test works with."""

    spark: SparkSession
    broker: OwnCluster
    daemon: Daemon
    clock: WallClock
    pipeline: Pipeline
    topics: dict[str, Flow]
    records: int
    folder: Path

    def jobs(self, turn: int) -> list[Job]:
        """The clients of one turn: four, keyed and keyless, with and without headers, tombstones among them."""
        clients = [(topic, flow, shape) for topic, flow in self.topics.items() for shape in flow.shapes]
        rate = max(RATE, self.records // 80)
        shares = spread(spread(self.records, TURNS)[turn], len(clients))
        return [
            Job(
                through="penstock",
                address=str(self.daemon.socket_path),
                client=f"app-{turn}-{number}",
                topic=topic,
                ledger=str(self.folder / f"app-{turn}-{number}.ledger"),
                records=share,
                frame_records=flow.columns,
                level=int(Level.DELIVERED),
                rate=rate / len(clients),
                finish_s=DONE_S,
                shape=shape,
            )
            for number, ((topic, flow, shape), share) in enumerate(zip(clients, shares, strict=True))
        ]


@pytest.fixture
def world(spark: SparkSession, broker: OwnCluster, tmp_path: Path) -> Iterator[World]:
    """A daemon whose clock is two hours behind, so that the hours of its records are over when they are to be sealed."""
    topics = {broker.create_topic(unique_topic([flow.word]), flow.partitions): flow for flow in FLOWS}
    audit = broker.create_topic(unique_topic(["audit"]), 2, config=AUDIT_CONFIG)
    clock = WallClock(tmp_path, ahead_s=-3 * HOUR_S)
    sections = {
        "land": {"trigger": "0s", "maxOffsetsPerTrigger": max(5_000, RECORDS // 30), "minOffsetsPerTrigger": 1},
        "audit": {"topic": audit},
        "seal": {"grace": 0},
    }
    daemon = Daemon(
        broker.bootstrap,
        kafka={"compression.type": "lz4"},
        sections={"audit": {"topic": audit, "interval_s": 1}},
        environment=clock.environment,
    )
    settings = {topic: flow.settings for topic, flow in topics.items()}
    with daemon, Pipeline(broker.bootstrap, settings, sections=sections) as pipeline:
        yield World(spark, broker, daemon, clock, pipeline, topics, RECORDS, tmp_path)


@pytest.mark.timeout(900 + RECORDS // 500)
def test_every_record_is_in_one_row_whatever_is_killed_and_the_audit_names_each_that_was_planted(world: World) -> None:
    ledgers = land_under_kills(world)
    check_rows(world, ledgers)

    found = run_audit(world.spark, world.pipeline)
    assert (found.exit_code, found.statuses, found.classes, found.doubled) == (COMPLETE, {"complete"}, {}, {})
    assert found.total("accepted") == found.total("distinct") == world.records

    random = Random(world.records)
    doubled = double(world, random)
    found = audit_as_command(world)
    assert (found.exit_code, found.classes, found.doubled) == (DUPLICATED, {}, dict.fromkeys(doubled, 2))

    lost = take_away(world, random, doubled)
    found = audit_as_command(world)
    assert (found.exit_code, found.doubled) == (LOST, dict.fromkeys(doubled, 2))
    assert found.classes == dict.fromkeys(lost, "lost")

    check_seals(world, lost, doubled)


def land_under_kills(world: World) -> dict[str, list[Ledger]]:
    """Three turns of load. In each `land` is killed within a batch, and once the router, a shard and the broker. What the clients
    wrote down, by topic."""
    world.daemon.start()
    ledgers: dict[str, list[Ledger]] = {topic: [] for topic in world.topics}
    land = world.pipeline.start("land")
    for turn in range(TURNS):
        jobs = world.jobs(turn)
        with Load(jobs, world.folder) as load:
            load.wait_answered(world.records // TURNS // 4, seconds=DONE_S)
            # First what needs the load to go on: a driver takes a while to start.
            if turn == 0:
                _ = world.daemon.kill("router")
            elif turn == 1:
                _ = world.daemon.kill("shard-0")
            else:
                bounce_broker(world, land)
            assert load.finished < len(jobs), "the load outlives what it should be disturbed by"
            land = kill_in_a_batch(world, land)
            load.wait_done(seconds=DONE_S)
            for job, ledger in zip(jobs, load.ledgers(), strict=True):
                ledgers[job.topic].append(ledger)
        if turn == 0:
            world.clock.step(HOUR_S)
    assert world.daemon.stop() == 0
    for topic in world.topics:
        ends = {number: end for number, (_, end) in world.broker.offsets(topic).items()}
        world.pipeline.wait_read(land, topic, ends, seconds=DONE_S)
    assert land.stop() == 0
    return ledgers


def kill_in_a_batch(world: World, land: Driver) -> Driver:
    """`kill -9` of the driver and all its processes when a batch is begun and not finished; the next driver."""
    first = next(iter(world.topics))
    land.wait_batch(first, world.pipeline.last_batch(first) + 1)
    land.wait_batch(first, world.pipeline.last_batch(first) + 1, begun=True)
    assert land.kill() > 1, "the JVM is a process of its own"
    return world.pipeline.start("land")


def bounce_broker(world: World, land: Driver) -> None:
    """`kill -9` of the broker under the running `land`, and its restart."""
    first = next(iter(world.topics))
    land.wait_batch(first, world.pipeline.last_batch(first) + 1)
    [node] = world.broker.nodes
    world.broker.nodes[node].kill()
    world.broker.restart(node)


def check_rows(world: World, ledgers: dict[str, list[Ledger]]) -> None:
    """What clients were told, what Kafka holds and what the tables hold are the same."""
    ids = []
    for topic, flow in world.topics.items():
        own = ledgers[topic]
        read = Topic(world.broker, topic, seconds=DONE_S)
        judge(own, read.records()).assert_clean()
        found = bronze.compare(read.seen(), bronze.landed(world.pipeline.tables, topic))
        print(f"\n{flow.word}: {found.summary()}")
        found.assert_exact()
        assert found.records == sum(ledger.sent for ledger in own)
        if flow.settings["format"] == "raw":
            # The rows are the records, byte for byte.
            judge(own, bronze.found_in(world.pipeline.tables, topic)).assert_clean()
            assert found.quarantined == 0
        else:
            broken = sum(job_breaks(ledger) for ledger in own)
            assert found.quarantined == broken > 0
        assert None not in read.ids
        assert bronze.twice(read.ids) == {}
        assert bronze.unnumbered(read.ids) == {}, "each number that was given out is in Kafka"
        ids += read.ids
    assert len(ids) == world.records


def job_breaks(ledger: Ledger) -> int:
    """How many of a client's records are no JSON."""
    return sum(
        ledger.shape.breaks(RecordId(ledger.client, number, row))
        for number, frame in ledger.frames.items()
        for row in range(frame.count)
    )


def audit_as_command(world: World) -> Verdict:
    """`penstock-pipeline audit`: its exit status, and what it wrote; the report is there."""
    world.pipeline.report.unlink(missing_ok=True)
    ended = world.pipeline.run("audit")
    assert world.pipeline.report.stat().st_size > 10_000, ended.log
    assert str(world.pipeline.report) in ended.output
    print(ended.output)
    return last_verdict(world.pipeline, ended.status)


def some_places(world: World, random: Random, topic: str, count: int) -> list[Place]:
    """Rows of bronze, different ones, from all hours by turns."""
    landed = bronze.landed(world.pipeline.tables, topic)
    good = landed.filter(pc.invert(landed["quarantined"]))
    by_hour = [good.filter(pc.equal(good["hour"], hour))["place"] for hour in pc.unique(good["hour"])]
    assert len(by_hour) > 1
    places: list[Place] = []
    while len(places) < count:
        column = by_hour[len(places) % len(by_hour)]
        place = Place.unpack(column[random.randrange(len(column))].as_py())
        if place not in places:
            places.append(place)
    return places


def ids_at(world: World, topic: str, places: list[Place]) -> set[Name]:
    [*records] = raw_at(world.broker, topic, places)
    return {(topic, bronze.id_text(dict(record.headers)["penstock"] or b"")) for record in records}


def double(world: World, random: Random) -> set[Name]:
    """Eleven records written again by another client, header and all, and landed; their ids."""
    again: set[Name] = set()
    for topic, count in zip(world.topics, spread(AGAIN, len(world.topics)), strict=True):
        places = some_places(world, random, topic, count)
        _ = write_raw(world.broker, topic, raw_at(world.broker, topic, places))
        again |= ids_at(world, topic, places)
    assert len(again) == AGAIN
    land_once(world.spark, world.pipeline)
    return again


def take_away(world: World, random: Random, doubled: set[Name]) -> set[Name]:
    """Seven rows deleted from the tables by another engine, none of them doubled; their ids."""
    gone: set[Name] = set()
    for topic, count in zip(world.topics, spread(LOST_ROWS, len(world.topics)), strict=True):
        # Some more than needed: none may be of an id that is there twice.
        places = [
            place
            for place in some_places(world, random, topic, count + AGAIN)
            if not ids_at(world, topic, [place]) & doubled
        ]
        for place in places[:count]:
            table = DeltaTable(str(world.pipeline.tables / bronze.name_of(topic)))
            deleted = table.delete(f'"partition" = {place.partition} and "offset" = {place.offset}')
            assert deleted["num_deleted_rows"] == 1
        gone |= ids_at(world, topic, places[:count])
    assert len(gone) == LOST_ROWS
    return gone


def check_seals(world: World, lost: set[Name], doubled: set[Name]) -> None:
    """`seal` removes the doubled, says how many are lost, and does neither again."""
    ended = world.pipeline.run("seal")
    assert ended.status == 0, ended.log
    sealed, kept = seals(world.pipeline), files(world)
    assert sum(row["lost"] for row in sealed) == LOST_ROWS
    assert sum(row["duplicates_removed"] for row in sealed) == AGAIN
    assert {row["topic"] for row in sealed} == set(world.topics)
    assert {row["generation"] for row in sealed} == {1}
    assert all(row["status"] == ("sealed-with-gaps" if row["lost"] else "sealed") for row in sealed)
    assert sum(row["landed"] for row in sealed) == world.records - LOST_ROWS + AGAIN
    ids: list[Name] = []
    for topic in world.topics:
        found = bronze.landed(world.pipeline.tables, topic)["id"].to_pylist()
        assert bronze.twice(found) == {}
        ids += [(topic, each) for each in found]
    assert len(ids) == world.records - LOST_ROWS
    assert not lost & set(ids)
    assert doubled <= set(ids)
    # Once more: nothing is left to do.
    assert run_audit(world.spark, world.pipeline).exit_code == COMPLETE
    assert run_seal(world.spark, world.pipeline) == sealed
    assert files(world) == kept


def files(world: World) -> set[str]:
    """The data files of all bronze tables as they are now."""
    return {file for topic in world.topics for file in bronze.files_of(world.pipeline.tables / bronze.name_of(topic))}
