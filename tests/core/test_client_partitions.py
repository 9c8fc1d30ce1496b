"""An application's own partitioner: its answers, and what is known of partitions."""

from collections.abc import Sequence

import pytest
from penstock.api.metadata import PartitionMetadata
from penstock.api.partitioning import chosen
from penstock.client.core.partitions import PartitionCache

TWO = (PartitionMetadata(0, 1, [1], [1]), PartitionMetadata(1, 2, [2], [2]))


def answering(answer: object) -> int | None:
    def partitioner(
        topic: str, key: bytes | None, value: bytes | None, partitions: Sequence[PartitionMetadata]
    ) -> int | None:
        assert (topic, key, value, partitions) == ("t", b"k", b"v", TWO)
        return answer  # type: ignore[return-value]

    return chosen(partitioner, "t", b"k", b"v", TWO)


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
