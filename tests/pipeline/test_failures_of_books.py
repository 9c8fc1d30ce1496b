"""What the audit says when its own topic is in disorder: shuffled, doubled, late, compacted, and with records missing.

A daemon's records and books are multiplied: each disorder has a copy of both under an incarnation of its own, with nothing else
changed, so that one audit judges all of them.
"""

import json
import time
from collections.abc import Iterator
from random import Random
from typing import Any, NamedTuple

import pytest
from pyspark.sql import SparkSession

from tests.harness.audit_world import AUDIT_CONFIG, Raw, compacted, raw_records, set_topic, shuffled, write_raw
from tests.harness.bronze import ID_HEADER
from tests.harness.kafka_cluster import OwnCluster, unique_topic
from tests.harness.processes import wait_until
from tests.harness.wall_clock import WallClock

from .jobs import HOUR_S, UNKNOWN, Verdict
from .rig import INTERVAL_S, Rig

MINUTES = 3
EACH = 60
WORD = "books"


class World(NamedTuple):
    """Copies of one daemon's records and books, and the verdict."""

    rig: Rig
    books: list[Raw]
    """As the daemon told them."""
    copies: dict[str, list[Raw]]
    """The books of each copy, as they were told, by its incarnation."""
    names: dict[str, str]
    """What was done to a copy, to its incarnation."""
    verdict: Verdict


@pytest.fixture(scope="module")
def world(spark: SparkSession, broker: OwnCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with Rig(spark, broker, [WORD]) as rig:
        # In the middle of an hour that is over, so that no hour ends meanwhile.
        now = time.time()
        fill(rig, WallClock(tmp_path_factory.mktemp("clock"), ahead_s=-HOUR_S / 2 - now % HOUR_S))
        books = raw_records(broker, rig.audit_topic)
        records = raw_records(broker, rig.topics[WORD])
        disorders = spoiled(books, Random(1))
        names = {name: f"{number:012x}" for number, name in enumerate(disorders, start=1)}
        copies = {names[name]: [of_copy(each, names[name]) for each in told] for name, told in disorders.items()}
        for incarnation, told in copies.items():
            _ = write_raw(broker, rig.topics[WORD], [record_of_copy(each, incarnation) for each in records])
            _ = write_raw(broker, rig.audit_topic, told)
        rig.land()
        yield World(rig, books, copies, names, rig.audit())


def fill(rig: Rig, clock: WallClock) -> None:
    """Records of three minutes in two partitions, delivered by two starts of a daemon, with books told in between."""
    with rig.daemon(environment=clock.environment) as daemon:
        for start in range(2):
            daemon.start()
            for _ in range(start, MINUTES, 2):
                rig.send(daemon, WORD, EACH)
                clock.step(60)
                told = len(raw_records(rig.broker, rig.audit_topic))
                _ = wait_until(
                    lambda told=told: len(raw_records(rig.broker, rig.audit_topic)) > told + 1,
                    seconds=100 * INTERVAL_S,
                    what="the books are told between the minutes",
                )
            if not start:
                daemon.kill_everything()
        assert daemon.stop() == 0


def spoiled(books: list[Raw], random: Random) -> dict[str, list[Raw]]:
    """The books in every disorder."""
    found = {
        "untouched": books,
        "shuffled": shuffled(books, random),
        "doubled": [*books, *shuffled(books, random)],
        # What is old must not replace what is new.
        "late": [*books, *books[: len(books) // 2]],
        "compacted": compacted(books),
        "nothing": [],
    }
    keys = sorted({each.key for each in books}, key=bytes)
    for number, key in enumerate(keys):
        found[f"without-{number}"] = [each for each in books if each.key != key]
        if said(next(each for each in books if each.key == key))["kind"] == "intake":
            newest = max((each for each in books if each.key == key), key=lambda each: said(each)["version"])
            found[f"older-{number}"] = [each for each in books if each != newest]
    return found


def said(record: Raw) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(record.value or b"")
    return found


def of_copy(record: Raw, incarnation: str) -> Raw:
    """An audit record as the copy's daemon would have told it."""
    own = said(record)["incarnation"].encode()
    assert record.key is not None
    assert record.value is not None
    new = incarnation.encode()
    return record._replace(key=record.key.replace(own, new), value=record.value.replace(own, new))


def record_of_copy(record: Raw, incarnation: str) -> Raw:
    """A record as the copy's daemon would have sent it."""
    [(_, header)] = [each for each in record.headers if each[0] == ID_HEADER]
    assert header is not None
    return record._replace(headers=((ID_HEADER, header[:1] + bytes.fromhex(incarnation) + header[7:]),))


def statuses(world: World, name: str) -> set[str]:
    """Of one copy."""
    return {row["status"] for row in world.verdict.rows if row["incarnation"] == world.names[name]}


@pytest.mark.timeout(900)
def test_a_daemon_that_was_killed_and_started_again_has_books_that_balance(world: World) -> None:
    world.rig.judge(WORD).assert_exact()
    own = [row for row in world.verdict.rows if row["incarnation"] not in world.copies]
    assert [(row["status"], row["doubts"]) for row in own] == [("complete", [])]
    assert [(row["accepted"], row["distinct"]) for row in own] == [(MINUTES * EACH, MINUTES * EACH)]
    assert len({each.key for each in world.books}) == 2 * MINUTES + 1


@pytest.mark.parametrize("name", ["untouched", "shuffled", "doubled", "late", "compacted"])
def test_books_told_in_another_order_twice_late_or_compacted_say_the_same(world: World, name: str) -> None:
    assert statuses(world, name) == {"complete"}


def test_without_all_records_of_any_key_nothing_is_called_complete(world: World) -> None:
    without = [name for name in world.names if name.startswith("without-")]
    assert len(without) == 2 * MINUTES + 1
    for name in [*without, "nothing"]:
        assert statuses(world, name) == {"unknown"}, name
    assert world.verdict.exit_code == UNKNOWN


def test_without_the_newest_record_of_a_key_an_hour_is_complete_only_where_an_older_one_proves_as_much(
    world: World,
) -> None:
    older = [name for name in world.names if name.startswith("older-")]
    assert len(older) == MINUTES
    verdicts: set[bool] = set()
    for name in older:
        left = {proof(each) for each in world.copies[world.names[name]] if said(each)["kind"] == "intake"}
        all_of_it = {proof(of_copy(each, world.names[name])) for each in newest_intakes(world.books)}
        proved = all_of_it <= left
        assert (statuses(world, name) == {"complete"}) == proved, name
        verdicts.add(proved)
    assert False in verdicts


def newest_intakes(books: list[Raw]) -> list[Raw]:
    return [each for each in compacted(books) if said(each)["kind"] == "intake"]


def proof(record: Raw) -> str:
    """What a verdict rests on of an intake."""
    intake = said(record)
    return json.dumps([intake["minute"], intake["accepted"], intake["holes"], [part[:4] for part in intake["ranges"]]])


def test_a_topic_that_the_broker_has_compacted_says_the_same(world: World, broker: OwnCluster) -> None:
    rig = world.rig
    # As daemons tell them: in order. Of a key the broker keeps the last record, whatever it says.
    names = ("untouched", "compacted")
    told = [*world.books, *(each for name in names for each in world.copies[world.names[name]])]
    topic = broker.create_topic(unique_topic(["compacted"]), 2, config=AUDIT_CONFIG)
    _ = write_raw(broker, topic, told)
    left = {(each.partition, each.key) for each in told}
    assert len(left) < len(told)
    quick = {"segment_ms": "100", "min_cleanable_dirty_ratio": "0.001", "max_compaction_lag_ms": "100"}
    set_topic(broker, topic, **quick)
    newest_ms = max(each.timestamp_ms for each in told)

    def cleaned() -> bool:
        # The newest segment is never cleaned, and rolls with a record that is younger by its timestamp.
        nonlocal newest_ms
        newest_ms += 1_000
        _ = write_raw(broker, topic, [Raw(partition, b"roll", None, (), newest_ms) for partition in (0, 1)])
        there = [each for each in raw_records(broker, topic) if each.key != b"roll"]
        return len(there) == len(left)

    _ = wait_until(cleaned, seconds=90, what="the broker has compacted the topic", every=0.5)
    again = rig.audit(topic=topic)
    for name in names:
        rows = {row["status"] for row in again.rows if row["incarnation"] == world.names[name]}
        assert rows == {"complete"}, name
