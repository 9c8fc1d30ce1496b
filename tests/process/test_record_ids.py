"""Ids of records over lives of routers and shards: kept by restarts, new where a spool is no longer the one it was."""

import json
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from penstock.config import handover
from penstock.config.model import Settings
from penstock.daemon.ledger.entries import FrameEntry, SliceEntry
from penstock.daemon.router.startup import StartedRouter, start
from penstock.daemon.spool import identity_file
from penstock.daemon.spool.report import show
from penstock.wire.record_ids import IdRow

from tests.harness.embedded import EmbeddedCluster
from tests.harness.readers import read_topic
from tests.harness.resender import Resender
from tests.harness.stack import Stack

pytestmark = pytest.mark.process


def settings_at(folder: Path) -> Settings:
    return Settings.model_validate(
        {
            "data_dir": folder / "data",
            "runtime_dir": folder / "run",
            "shards": 1,
            "kafka": {"bootstrap.servers": "127.0.0.1:1"},
        }
    )


def take(router: StartedRouter, count: int) -> None:
    """A frame of one partition, as intake takes it."""
    ledger = router.recovered.ledger
    if not ledger.by_number:
        entry = ledger.new_partition_entry("topic", b"", 0)
        _ = router.spool.append(entry)
        ledger.apply(entry)
    first = ledger.by_number[0].next_ordinal
    payload = bytearray(10)
    frame = FrameEntry(None, 7, 0, -1, 1, 900, count, None, [SliceEntry(0, first, count, 1, 0, 10)], ledger.incarnation)
    _ = router.spool.append_frame(frame, [payload], created_ms=0)
    ledger.apply(frame)
    router.spool.write()


def kill(router: StartedRouter) -> None:
    """What is staged is lost, what is written stays."""
    router.spool.close(clean=False)
    router.identity.close()


def life(settings: Settings, count: int = 3) -> tuple[int, list[IdRow]]:
    """A start that takes a few records and is killed: its incarnation, and the rows of the partition."""
    router = start(settings)
    take(router, count)
    ledger = router.recovered.ledger
    kill(router)
    assert router.identity.incarnation == ledger.incarnation
    return ledger.incarnation, ledger.by_number[0].id_rows


def test_a_restart_keeps_the_incarnation_though_no_broker_ever_gave_an_id(tmp_path: Path) -> None:
    settings = settings_at(tmp_path)
    first, rows = life(settings)
    assert 0 < first < 1 << 48
    assert rows == [IdRow(0, first)]
    for _ in range(3):
        assert life(settings) == (first, rows)
    assert f"incarnation {first:012x}\n" in show(settings.spool_dir).text()


def test_a_copied_spool_numbers_on_under_another_incarnation_and_the_original_under_its_own(tmp_path: Path) -> None:
    original, copied = settings_at(tmp_path / "a"), settings_at(tmp_path / "b")
    first, _ = life(original)
    shutil.copytree(original.data_dir, copied.data_dir)
    other, rows = life(copied)
    assert other != first
    assert rows == [IdRow(0, first), IdRow(3, other)]
    assert life(copied) == (other, rows)
    assert life(original) == (first, [IdRow(0, first)])


def test_a_spool_that_was_emptied_begins_another(tmp_path: Path) -> None:
    settings = settings_at(tmp_path)
    first, _ = life(settings)
    shutil.rmtree(settings.spool_dir)
    other, rows = life(settings)
    assert other != first
    assert rows == [IdRow(0, other)]


def test_a_lost_identity_file_begins_another_for_the_records_that_follow(tmp_path: Path) -> None:
    settings = settings_at(tmp_path)
    first, _ = life(settings)
    (settings.spool_dir / identity_file.NAME).unlink()
    other, rows = life(settings)
    assert rows == [IdRow(0, first), IdRow(3, other)]
    assert other != first


def test_a_spool_whose_entries_are_damaged_begins_another(tmp_path: Path) -> None:
    settings = settings_at(tmp_path)
    first, _ = life(settings)
    (segment,) = settings.spool_dir.glob("*.seg")
    data = bytearray(segment.read_bytes())
    # The last frame's payload; what lies before it stands.
    at = data.rindex(b"topic")
    data[at + 1] ^= 0xFF
    segment.write_bytes(data)
    router = start(settings)
    assert router.recovered.report.corrupt_entries == 1
    assert router.identity.incarnation == router.recovered.ledger.incarnation
    assert router.identity.incarnation != first
    kill(router)


def test_a_spool_older_than_record_ids_gets_an_incarnation_at_its_first_start(tmp_path: Path) -> None:
    settings = settings_at(tmp_path)
    first, _ = life(settings)
    path = settings.spool_dir / identity_file.NAME
    half = path.stat().st_size // 2
    data = path.read_bytes()
    slots: list[bytes] = []
    for slot in (data[:half], data[half:]):
        serial, _, fields = json.loads(slot)
        del fields["incarnation"]
        canonical = json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()
        slots.append(json.dumps([serial, identity_file.crc32c(canonical), fields]).encode().ljust(half - 1) + b"\n")
    path.write_bytes(b"".join(slots))
    other, rows = life(settings)
    assert other not in {0, first}
    assert rows == [IdRow(0, first), IdRow(3, other)]
    assert life(settings) == (other, rows)


# --- real processes --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(2) as found:
        yield found


def ids_of(cluster: EmbeddedCluster, topic: str) -> dict[tuple[int, int], tuple[int, int, int] | None]:
    """By partition and offset."""
    return {(found.partition, found.offset): found.numbered for found in read_topic(cluster, topic)}


def check_tiled(ids: Mapping[tuple[int, int], tuple[int, int, int] | None], count: int) -> None:
    """Each record has one id, of one incarnation, and in each partition they are 0, 1, 2, …, in the order of the log."""
    assert len(ids) == count
    assert None not in ids.values()
    assert len({found[0] for found in ids.values() if found is not None}) == 1
    at: Counter[int] = Counter()
    for (partition, _), found in sorted(ids.items()):
        assert found is not None
        assert found[1:] == (partition, at[partition])
        at[partition] += 1


def test_every_record_has_one_id_over_kills_of_router_and_shards(cluster: EmbeddedCluster) -> None:
    cluster.create_topic("numbered", partitions=3)
    frames, rows = 300, 4
    with Stack(cluster.bootstrap, shards=2, kafka={"linger.ms": 1}) as stack:
        client = Resender(stack.socket_path, "app", "numbered")
        for seq in range(frames):
            client.add(seq, [b"%d:%d" % (seq, row) for row in range(rows)], [b"%d" % (seq % 11)] * rows)
        kills = {40: lambda: stack.kill_shard(0), 110: stack.kill_router, 200: lambda: stack.kill_shard(1)}

        def step(answered: int) -> None:
            for at in [at for at in kills if at <= answered]:
                kills.pop(at)()
            stack.revive()

        client.run(seconds=60, step=step)
        client.close()
        assert not kills
        check_tiled(ids_of(cluster, "numbered"), frames * rows)


def test_what_was_taken_with_ids_is_sent_with_them_and_what_was_not_is_not_whatever_the_settings_say_by_then() -> None:
    with EmbeddedCluster(1, folders=True) as cluster:
        for topic in ("turned-off", "turned-on", "always"):
            cluster.create_topic(topic, 1)
        topics = {"turned-on": {"audit": False}}
        with Stack(cluster.bootstrap, shards=1, topics=topics) as stack:
            with stack.session("app") as session:
                for seq, topic in enumerate(("turned-off", "turned-on", "always")):
                    assert session.acked(session.send(topic, [b"0", b"1"], seq=seq)).level == 2
                cluster.nodes[0].kill()
                for seq, topic in enumerate(("turned-off", "turned-on", "always"), 3):
                    assert session.acked(session.send(topic, [b"2"], level=1, seq=seq)).level == 1
            stack.kill_router()
            stack.kill_shard(0)
            stack.settings = stack.settings.model_copy(
                update={"topics": {"turned-off": stack.settings.topics["turned-on"]}}
            )
            handover.write(stack.settings, stack.settings_path)
            cluster.nodes[0].start()
            stack.wait_ready()
            with stack.session("app") as session:
                for seq, topic in enumerate(("turned-off", "turned-on", "always"), 6):
                    assert session.acked(session.send(topic, [b"3"], seq=seq)).level == 2
        ordinals = {
            topic: [None if found is None else found[2] for _, found in sorted(ids_of(cluster, topic).items())]
            for topic in ("turned-off", "turned-on", "always")
        }
        assert ordinals == {
            "turned-off": [0, 1, 2, None],
            "turned-on": [None, None, None, 3],
            "always": [0, 1, 2, 3],
        }


@pytest.mark.parametrize("sections", [{"audit": {"enabled": False}}, {"topics": {"pl*": {"audit": False}}}])
def test_records_carry_no_id_where_it_is_turned_off(
    cluster: EmbeddedCluster, sections: dict[str, Mapping[str, object]]
) -> None:
    topic = f"plain-{len(str(sections))}"
    cluster.create_topic(topic, 1)
    with Stack(cluster.bootstrap, shards=1, **sections) as stack, stack.session() as session:
        assert session.acked(session.send(topic, [b"one", b"two"])).level == 2
        assert [found.headers for found in read_topic(cluster, topic)] == [(), ()]
        assert set(ids_of(cluster, topic).values()) == {None}


def test_the_largest_record_that_is_taken_is_delivered_with_its_id(cluster: EmbeddedCluster) -> None:
    cluster.create_topic("large", 1)
    limit = 20_000
    with Stack(cluster.bootstrap, shards=1, kafka={"max.request.size": limit}) as stack, stack.session() as session:
        for headers in (None, [["h", b""] * 63]):
            around = 5 + (0 if headers is None else 63 * 3 + 1)
            taken = bytes(limit - around - 35)
            answer = session.acked(session.send("large", [taken], headers=headers))
            assert answer.level == 2
            found = {(one.partition, one.offset): one for one in read_topic(cluster, "large")}
            (place,) = answer.places()
            assert found[place].value == taken
            assert found[place].numbered is not None
