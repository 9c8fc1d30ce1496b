"""An application's own partitioner: its answers, and what is known of partitions."""

from collections.abc import Sequence

import pytest
from penstock.api.metadata import PartitionMetadata
from penstock.api.partitioning import choose_partition
from penstock.client.partitions import OnPartitions, PartitionCache, PartitionSelector

TWO = (PartitionMetadata(0, 1, [1], [1]), PartitionMetadata(1, 2, [2], [2]))


def answering(answer: object) -> int | None:
    def partitioner(
        topic: str, key: bytes | None, value: bytes | None, partitions: Sequence[PartitionMetadata]
    ) -> int | None:
        assert (topic, key, value, partitions) == ("t", b"k", b"v", TWO)
        return answer  # type: ignore[return-value]

    return choose_partition(partitioner, "t", b"k", b"v", TWO)


def test_a_partitioner_may_choose_any_partition_or_none() -> None:
    assert [answering(0), answering(1), answering(None)] == [0, 1, None]


@pytest.mark.parametrize("number", [-1, 2])
def test_a_partition_that_the_topic_has_not_is_refused(number: int) -> None:
    with pytest.raises(ValueError, match=f"chose partition {number} of topic t, which has 0 to 1"):
        _ = answering(number)


@pytest.mark.parametrize("answer", ["1", 1.0, True])
def test_an_answer_that_is_no_number_is_refused(answer: object) -> None:
    with pytest.raises(TypeError, match="neither a partition's number nor None"):
        _ = answering(answer)


def test_what_is_known_is_used_however_old_and_asked_for_once_in_a_while() -> None:
    cache = PartitionCache(max_age_s=30.0, topics_max=10)
    assert cache.get("t") is None
    assert not cache.is_due("t", 100.0)
    cache.learn("t", TWO[:1], 100.0)
    assert not cache.is_due("t", 129.9)
    assert cache.is_due("t", 130.0)
    # The answer is under way, or never comes.
    assert not cache.is_due("t", 159.9)
    assert cache.get("t") == TWO[:1]
    assert cache.is_due("t", 160.0)
    cache.learn("t", TWO, 170.0)
    assert cache.get("t") == TWO
    assert not cache.is_due("t", 199.9)


def test_the_topic_learnt_first_is_forgotten_when_there_are_too_many() -> None:
    cache = PartitionCache(max_age_s=30.0, topics_max=2)
    for topic in ("a", "b", "b", "c"):
        cache.learn(topic, TWO, 0.0)
    assert [cache.get(topic) for topic in ("a", "b", "c")] == [None, TWO, TWO]


class Telling:
    """A daemon whose answers come when the test says so."""

    def __init__(self) -> None:
        self.waited: list[str] = []
        self.asked: list[tuple[str, OnPartitions]] = []

    def partitions_for(self, topic: str, timeout: float | None = None) -> list[PartitionMetadata]:
        self.waited.append(topic)
        return [TWO[0]]

    def ask_partitions(self, topic: str, learn: OnPartitions) -> None:
        self.asked.append((topic, learn))


def the_last(
    _topic: str, _key: bytes | None, _value: bytes | None, partitions: Sequence[PartitionMetadata]
) -> int | None:
    return len(partitions) - 1


def test_partitions_are_waited_for_once_and_a_topic_that_grows_is_noticed_without_waiting() -> None:
    source, choice = Telling(), PartitionSelector(the_last, max_age_s=0.0)
    assert choice.select(source, "t", None, b"v") == 0
    assert (source.waited, source.asked) == (["t"], [])
    assert choice.select(source, "t", None, b"v") == 0
    ((topic, learn),) = source.asked
    assert topic == "t"
    learn(TWO)
    assert choice.select(source, "t", None, b"v") == 1
    assert source.waited == ["t"]


def test_of_columns_only_those_without_a_partition_are_asked_about_and_keys_are_bytes() -> None:
    seen: list[tuple[bytes | None, bytes | None]] = []

    def partitioner(
        _topic: str, key: bytes | None, value: bytes | None, _partitions: Sequence[PartitionMetadata]
    ) -> int | None:
        seen.append((key, value))
        return None if key is None else 0

    source, choice = Telling(), PartitionSelector(partitioner)
    columns = ([None, 7, None], [bytearray(b"k"), b"k", None], [b"a", b"b", memoryview(b"c")], None, None)
    assert choice.select_many(source, "t", columns, 3) == [0, 7, None]
    assert seen == [(b"k", b"a"), (None, b"c")]
    assert choice.select_many(source, "t", (5, None, [b"a"], None, None), 1) == 5
    with pytest.raises(TypeError, match="bytes or None, not str"):
        _ = choice.select_many(source, "t", (None, None, ["text"], None, None), 1)
