"""Where the broker keeps its logs and its list of topics."""

import json
from pathlib import Path

import pytest
from penstock.broker.catalogue import FolderCatalogue, MemoryCatalogue
from penstock.broker.log.partition_log import stored_bytes
from penstock.broker.log.ports import TopicStore
from penstock.broker.log.topics import BrokerTopic
from penstock.broker.storage import FolderInUseError, FolderLogStore, whole_batches

from tests.harness.batches import Rec, batch

TOPIC = BrokerTopic("t", 0, 2)
LOG = [stored_bytes(batch((Rec(b"one"),)), 0, None), stored_bytes(batch((Rec(), Rec())), 1, None)]
LOG.append(stored_bytes(batch((Rec(b"last" * 20),)), 3, None))


def test_a_log_torn_anywhere_keeps_its_whole_batches_and_nothing_else() -> None:
    content = b"".join(LOG)
    ends = [sum(map(len, LOG[:count])) for count in range(len(LOG) + 1)]
    for size in range(len(content) + 1):
        whole = sum(end <= size for end in ends) - 1
        assert whole_batches(content[:size]) == (LOG[:whole], ends[whole])


def test_a_flipped_byte_ends_the_log_before_its_batch() -> None:
    content = bytearray(b"".join(LOG))
    content[len(LOG[0]) + 70] ^= 1
    assert whole_batches(bytes(content)) == (LOG[:1], len(LOG[0]))


def test_a_batch_that_does_not_follow_ends_the_log() -> None:
    assert whole_batches(LOG[0] + LOG[2]) == (LOG[:1], len(LOG[0]))
    assert whole_batches(LOG[0] + LOG[0]) == (LOG[:1], len(LOG[0]))


def test_zeros_behind_the_log_are_cut_off() -> None:
    assert whole_batches(LOG[0] + bytes(500)) == (LOG[:1], len(LOG[0]))


def test_what_was_appended_comes_back_and_a_torn_tail_is_cut_off_the_file(tmp_path: Path) -> None:
    logs = FolderLogStore(tmp_path)
    for data in LOG:
        logs.append(TOPIC, 1, data)
    logs.close()
    path = tmp_path / TOPIC.id.hex / "1.log"
    _ = path.write_bytes(path.read_bytes()[:-1])
    again = FolderLogStore(tmp_path)
    assert again.load(TOPIC, 1) == LOG[:2]
    assert again.load(TOPIC, 0) == []
    again.append(TOPIC, 1, LOG[2])
    assert again.load(TOPIC, 1) == LOG
    again.close()


def test_a_folder_belongs_to_one_broker_at_a_time(tmp_path: Path) -> None:
    logs = FolderLogStore(tmp_path)
    with pytest.raises(FolderInUseError, match="in use"):
        _ = FolderLogStore(tmp_path)
    logs.close()
    FolderLogStore(tmp_path).close()


def test_every_start_gets_another_number(tmp_path: Path) -> None:
    numbers = []
    for _ in range(3):
        logs = FolderLogStore(tmp_path)
        numbers.append(logs.next_start())
        logs.close()
    assert numbers == [0, 1, 2]


def test_more_partitions_than_open_files_are_written(tmp_path: Path) -> None:
    logs = FolderLogStore(tmp_path)
    wide = BrokerTopic("wide", 0, 600)
    for data in LOG:
        for index in range(600):
            logs.append(wide, index, data)
    assert all(logs.load(wide, index) == LOG for index in range(600))
    logs.discard(wide)
    assert logs.load(wide, 0) == []
    logs.close()


@pytest.fixture(params=["memory", "folder"])
def catalogue(request: pytest.FixtureRequest, tmp_path: Path) -> TopicStore:
    return MemoryCatalogue() if request.param == "memory" else FolderCatalogue(tmp_path / "new" / "folder")


def test_a_topic_is_made_once_changed_and_deleted(catalogue: TopicStore) -> None:
    made = catalogue.create("t.x", 3, (("max.message.bytes", "100"),))
    assert made == BrokerTopic("t.x", 0, 3, (("max.message.bytes", "100"),))
    assert catalogue.create("t.x", 3, ()) is None
    assert list(catalogue.all()) == [made]
    assert catalogue.alter(made, ())
    assert list(catalogue.all()) == [BrokerTopic("t.x", 0, 3)]
    assert catalogue.delete(made)
    assert not catalogue.delete(made)
    assert not catalogue.alter(made, ())
    assert list(catalogue.all()) == []


def test_a_topic_made_again_has_another_id(catalogue: TopicStore) -> None:
    ids = set()
    for _ in range(12):
        made = catalogue.create("t", 1, ())
        assert made is not None
        ids.add(made.id)
        assert catalogue.delete(made)
    assert len(ids) == 12


def test_a_topic_whose_name_begins_another_is_another(catalogue: TopicStore) -> None:
    names = ["t", "t.", "t.t", "t.d", "T", "a" * 249]
    assert all(catalogue.create(name, 1, ()) for name in names)
    assert {topic.name for topic in catalogue.all()} == set(names)


def test_nodes_that_share_a_folder_see_each_others_topics(tmp_path: Path) -> None:
    one, other = FolderCatalogue(tmp_path), FolderCatalogue(tmp_path)
    assert list(other.all()) == []
    for number in range(50):
        assert one.create(f"t{number}", 1, ()) is not None
        assert other.changed()
        assert len(other.all()) == number + 1
        assert other.create(f"t{number}", 1, ()) is None


def test_a_settled_folder_is_not_read_again(tmp_path: Path) -> None:
    import os
    import time

    catalogue = FolderCatalogue(tmp_path)
    assert catalogue.create("t", 1, ()) is not None
    long_ago = time.time_ns() - 10_000_000_000
    os.utime(tmp_path, ns=(long_ago, long_ago))
    _ = catalogue.all()
    assert not catalogue.changed()
    assert catalogue.create("u", 1, ()) is not None
    assert catalogue.changed()


def test_a_catalogue_file_can_be_read_by_a_person(tmp_path: Path) -> None:
    assert FolderCatalogue(tmp_path).create("t", 2, (("cleanup.policy", "compact"),)) is not None
    content = json.loads((tmp_path / "t@0.t").read_text())
    assert content == {"partitions": 2, "settings": {"cleanup.policy": "compact"}}
